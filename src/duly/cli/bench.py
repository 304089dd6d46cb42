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
from duly.cli.topics import Kind

app = typer.Typer(help="Measure Duly on this machine.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON line instead of a table.")]
Folder = Annotated[Path, typer.Option(help="Where the measured files are made, on the device to be measured.")]


@app.command()
def lifecycle(
    kind: Annotated[Kind, typer.Option(help="Kind of topic.")] = Kind.log,
    batch: Annotated[int, typer.Option(min=1, help="Messages a publish.")] = 1000,
    messages: Annotated[int, typer.Option(min=1, help="Messages in all.")] = 1_000_000,
    threads: Annotated[int, typer.Option(min=1, help="Threads that publish; on a queue they claim and ack too.")] = 1,
    claim_batch: Annotated[
        int | None, typer.Option(min=1, help="Messages a claim; else as many as a publish, on a log 1,000 or more.")
    ] = None,
    payload_bytes: Annotated[int, typer.Option(min=1, help="Bytes a payload.")] = 100,
    standing: Annotated[int, typer.Option(min=0, help="Messages that stand in the queue all the while.")] = 0,
    lanes: Annotated[int, typer.Option(min=0, help="Lanes of the queue that messages are spread over.")] = 0,
    folder: Folder = Path("."),
    as_json: Json = False,
) -> None:
    """Publish, claim and ack; beside it the floor: the same bytes written and synced by a bare loop.

    Example: duly bench lifecycle --kind queue --batch 1000 --messages 1000000 --json
    """
    from duly.bench import lifecycle as of_logs
    from duly.bench import queue_lifecycle as of_queues

    with _scratch(folder) as path, duly.connect(path) as client:
        if kind is Kind.queue:
            queue_load = of_queues.QueueLoad(
                messages=messages,
                batch=batch,
                claim_batch=claim_batch or batch,
                threads=threads,
                payload_bytes=payload_bytes,
                standing=standing,
                lanes=lanes,
            )
            _show("lifecycle", of_queues.measure(client, path.parent, queue_load), as_json)
            return
        load = of_logs.Load(messages, batch, threads, payload_bytes, claim_batch or max(batch, 1000))
        _show("lifecycle", of_logs.measure(client, path.parent, load), as_json)


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


@app.command()
def timeline(
    messages: Annotated[int, typer.Option(min=1)] = 20_000,
    span_s: Annotated[float, typer.Option(min=0.001, help="Seconds over which they fall due.")] = 10,
    folder: Folder = Path("."),
    as_json: Json = False,
) -> None:
    """How late messages of a queue are delivered, and that none is early.

    Example: duly bench timeline --messages 20000 --span-s 10 --json
    """
    from duly.bench.timeline import measure

    with _scratch(folder) as path, duly.connect(path) as client:
        _show("timeline", measure(client, messages=messages, span_s=span_s), as_json)


@app.command()
def backlog(
    small: Annotated[int, typer.Option(min=1, help="Messages of the small backlog.")] = 10_000,
    large: Annotated[int, typer.Option(min=1, help="Messages of the large one.")] = 10_000_000,
    folder: Folder = Path("."),
    as_json: Json = False,
) -> None:
    """What claim and ack cost with few and with many messages standing, and the memory that many take.

    Example: duly bench backlog --small 10000 --large 10000000 --json
    """
    from duly.bench.backlog import measure

    with _scratch(folder) as path:
        _show("backlog", measure(path.parent, small=small, large=large), as_json)


@app.command()
def midnight(
    messages: Annotated[int, typer.Option(min=1)] = 1_000_000,
    folder: Folder = Path("."),
    as_json: Json = False,
) -> None:
    """Claim and ack messages that fall due in one millisecond, beside as many that were due at once.

    Example: duly bench midnight --messages 1000000 --json
    """
    from duly.bench.midnight import measure

    with _scratch(folder) as path, duly.connect(path) as client:
        _show("midnight", measure(client, messages=messages), as_json)


@app.command()
def events(
    messages: Annotated[int, typer.Option(min=1, help="Messages of the log, and of the queue.")] = 800_000,
    batch: Annotated[int, typer.Option(min=1, help="Messages a publish and a claim.")] = 1000,
    singles: Annotated[int, typer.Option(min=1, help="Messages that go through one by one.")] = 4_000,
    payload_bytes: Annotated[int, typer.Option(min=1, help="Bytes a payload.")] = 100,
    folder: Folder = Path("."),
    as_json: Json = False,
) -> None:
    """What recording events takes of the throughput, beside the same without it: 0.06 is six hundredths.

    Example: duly bench events --json
    """
    from duly.bench.events import measure

    with _scratch(folder) as path, duly.connect(path) as client:
        figures = measure(client, messages=messages, batch=batch, singles=singles, payload_bytes=payload_bytes)
        _show("events", figures, as_json)


@app.command("all")
def every(folder: Folder = Path("."), as_json: Json = False) -> None:
    """Everything above, the large backlog with a million messages.

    Example: duly bench all
    """
    lifecycle(folder=folder, as_json=as_json)
    lifecycle(batch=1, threads=16, messages=50_000, folder=folder, as_json=as_json)
    latency(folder=folder, as_json=as_json)
    idle(folder=folder, as_json=as_json)
    topics(folder=folder, as_json=as_json)
    lifecycle(kind=Kind.queue, folder=folder, as_json=as_json)
    lifecycle(kind=Kind.queue, standing=1_000_000, folder=folder, as_json=as_json)
    lifecycle(kind=Kind.queue, batch=1, threads=100, messages=50_000, folder=folder, as_json=as_json)
    timeline(folder=folder, as_json=as_json)
    midnight(folder=folder, as_json=as_json)
    backlog(large=1_000_000, folder=folder, as_json=as_json)
    events(folder=folder, as_json=as_json)


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
