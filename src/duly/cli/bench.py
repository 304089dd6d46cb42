"""duly bench: figures measured here and now; the last line is JSON with --json."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import duly

app = typer.Typer(help="Measure Duly on this machine.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON line instead of a table.")]
Folder = Annotated[Path, typer.Option(help="Where the measured files are made, on the device to be measured.")]


@app.command()
def lifecycle(
    kind: Annotated[str, typer.Option(help="Kind of topic: log.")] = "log",
    batch: Annotated[int, typer.Option(min=1, help="Messages a publish.")] = 1000,
    messages: Annotated[int, typer.Option(min=1, help="Messages in all.")] = 1_000_000,
    threads: Annotated[int, typer.Option(min=1, help="Threads that publish.")] = 1,
    payload_bytes: Annotated[int, typer.Option(min=1, help="Bytes a payload.")] = 100,
    folder: Folder = Path("."),
    as_json: Json = False,
) -> None:
    """Publish, claim and ack; beside it the floor: the same bytes written and synced by a bare loop.

    Example: duly bench lifecycle --kind log --batch 1000 --messages 1000000 --json
    """
    from duly.bench.lifecycle import Load, measure

    if kind != "log":
        raise typer.BadParameter("Only logs carry messages yet: --kind log.")
    with _scratch(folder) as path, duly.connect(path) as client:
        load = Load(messages=messages, batch=batch, threads=threads, payload_bytes=payload_bytes)
        _show("lifecycle", measure(client, path.parent, load), as_json)


@app.command()
def latency(
    messages: Annotated[int, typer.Option(min=1)] = 2000,
    per_s: Annotated[float, typer.Option(min=1, help="Messages a second.")] = 200,
    folder: Folder = Path("."),
    as_json: Json = False,
) -> None:
    """From publish in one process to claim in another.

    Example: duly bench latency --json
    """
    from duly.bench.latency import measure

    with _scratch(folder) as path:
        _show("latency", measure(path, messages=messages, per_s=per_s), as_json)


@app.command()
def topics(
    topics: Annotated[int, typer.Option(min=1)] = 100_000,
    publishes: Annotated[int, typer.Option(min=10)] = 2_000,
    batch: Annotated[int, typer.Option(min=1, help="Messages a publish.")] = 100,
    threads: Annotated[int, typer.Option(min=1, help="Threads that publish.")] = 1,
    folder: Folder = Path("."),
    as_json: Json = False,
) -> None:
    """What a publish costs with many topics, beside one topic; and the memory.

    Example: duly bench topics --topics 100000 --json
    """
    from duly.bench.topics import measure

    with _scratch(folder) as path, duly.connect(path) as client:
        _show(
            "topics",
            measure(client, topics=topics, publishes=publishes, batch=batch, threads=threads),
            as_json,
        )


@app.command()
def idle(
    topics: Annotated[int, typer.Option(min=1)] = 1000,
    claims: Annotated[int, typer.Option(min=1)] = 100,
    seconds: Annotated[float, typer.Option(min=1)] = 20,
    folder: Folder = Path("."),
    as_json: Json = False,
) -> None:
    """The processor time of waiting.

    Example: duly bench idle --seconds 5 --json
    """
    from duly.bench.idle import measure

    with _scratch(folder) as path, duly.connect(path) as client:
        _show("idle", measure(client, topics=topics, claims=claims, seconds=seconds), as_json)


@app.command("all")
def every(folder: Folder = Path("."), as_json: Json = False) -> None:
    """Everything above with its defaults.

    Example: duly bench all
    """
    lifecycle(folder=folder, as_json=as_json)
    lifecycle(batch=1, threads=16, messages=50_000, folder=folder, as_json=as_json)
    latency(folder=folder, as_json=as_json)
    idle(folder=folder, as_json=as_json)
    topics(folder=folder, as_json=as_json)


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="duly-bench-", dir=folder) as made:
        yield Path(made) / "bench.duly"


def _show(name: str, figures: dict[str, float], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"bench": name, **figures}), flush=True)
        return
    table = Table(title=f"duly bench {name}", show_header=False)
    for label, value in figures.items():
        table.add_row(label, f"{value:,}")
    Console().print(table)
