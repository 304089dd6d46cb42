"""duly bench: figures measured here and now; the last line is JSON with --json."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

import duly
from duly.cli.session import Session, one_place
from duly.cli.topics import Kind
from duly.tenant import DEFAULT_TENANT

if TYPE_CHECKING:
    from duly.bench.lifecycle import Load
    from duly.bench.queue_lifecycle import QueueLoad

app = typer.Typer(help="Measure Duly on this machine.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON line instead of a table.")]
Url = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        show_default=False,
        help="Through this broker, duly://host:port, beside the same in this process; in a topic of its own.",
    ),
]
OwnBroker = Annotated[bool, typer.Option("--broker", help="The same through a broker started for it here.")]
OwnPostgres = Annotated[
    bool, typer.Option("--postgres", help="On a PostgreSQL that is started for it here; where brokers matter, two.")
]
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
    url: Url = None,
    broker: OwnBroker = False,
    encrypted: Annotated[
        bool, typer.Option("--encrypted", help="For an encrypted tenant, beside the same for a plain one.")
    ] = False,
    tls: Annotated[bool, typer.Option("--tls", help="With --broker: with TLS and keys, beside one without.")] = False,
    folder: Folder = Path("."),
    as_json: Json = False,
) -> None:
    """Publish, claim and ack; beside it the floor: the same bytes written and synced by a bare loop.

    Through a broker it is the same in this process that is beside it, in turns; with --tls a broker without TLS and
    keys; for an encrypted tenant, the same for a plain one.

    Example: duly bench lifecycle --kind queue --batch 1000 --messages 1000000 --json
    """
    from duly.bench import lifecycle as of_logs
    from duly.bench import queue_lifecycle as of_queues

    load: of_logs.Load | of_queues.QueueLoad
    if kind is Kind.queue:
        load = of_queues.QueueLoad(messages, batch, claim_batch or batch, threads, payload_bytes, standing, lanes)
    else:
        load = of_logs.Load(messages, batch, threads, payload_bytes, claim_batch or max(batch, 1000))
    if encrypted:
        if broker or url is not None:
            raise typer.BadParameter("--encrypted measures in this process: leave --broker and --url away.")
        _show("lifecycle", _lifecycle_encrypted(folder, load), as_json)
        return
    if tls:
        if not broker or url is not None:
            raise typer.BadParameter("Give --broker: two are started for it, one with TLS and one without.")
        with _scratch(folder) as path:
            _show("lifecycle", _lifecycle_tls(path, load), as_json)
        return
    with _scratch(folder) as path, duly.connect(path) as client, _broker(url, broker, path) as address:
        if address is None:
            _show("lifecycle", _lifecycle_here(client, path.parent, load), as_json)
            return
        with duly.connect(address) as through:
            _show("lifecycle", _lifecycle_through(through, client, load), as_json)


def _lifecycle_encrypted(folder: Path, load: Load | QueueLoad) -> dict[str, float]:
    from duly.bench import lifecycle as of_logs
    from duly.bench import queue_lifecycle as of_queues
    from duly.client.connect import open_home
    from duly.engine.tenant_settings import Encrypt, encrypt_tenants

    with _scratch(folder) as path:
        with closing(open_home(path)) as home:
            home.store.write(encrypt_tenants, Encrypt("encrypted"), tenant="encrypted", cost=0, deadline=None)
        with duly.connect(path, tenant="encrypted") as encrypted, duly.connect(path, tenant="plain") as plain:
            if isinstance(load, of_queues.QueueLoad):
                return of_queues.measure_encrypted(encrypted, plain, load)
            return of_logs.measure_encrypted(encrypted, plain, load)


def _lifecycle_here(client: duly.Client, folder: Path, load: Load | QueueLoad) -> dict[str, float]:
    from duly.bench import lifecycle as of_logs
    from duly.bench import queue_lifecycle as of_queues

    if isinstance(load, of_queues.QueueLoad):
        return of_queues.measure(client, folder, load)
    return of_logs.measure(client, folder, load)


def _lifecycle_tls(path: Path, load: Load | QueueLoad) -> dict[str, float]:
    """Through a broker with TLS and keys and one without either, in turns."""
    from duly.bench.brokers import own_broker, own_guarded_broker

    with (
        own_broker(path.parent / "plain.duly") as url,
        own_guarded_broker(path.parent / "guarded.duly") as guarded,
        duly.connect(url) as plain,
    ):
        figures = _lifecycle_through(guarded, plain, load)
    return {name.replace("embedded", "plain"): value for name, value in figures.items()}


def _lifecycle_through(broker: duly.Client, here: duly.Client, load: Load | QueueLoad) -> dict[str, float]:
    from duly.bench import lifecycle as of_logs
    from duly.bench import queue_lifecycle as of_queues

    if isinstance(load, of_queues.QueueLoad):
        return of_queues.measure_broker(broker, here, load)
    return of_logs.measure_broker(broker, here, load)


@app.command()
def latency(
    messages: Annotated[int, typer.Option(min=1)] = 2000,
    per_s: Annotated[float, typer.Option(min=1, help="Messages a second.")] = 200,
    url: Url = None,
    broker: OwnBroker = False,
    folder: Folder = Path("."),
    as_json: Json = False,
) -> None:
    """From publish in one process to claim in another.

    Example: duly bench latency --json
    """
    from duly.bench.latency import measure, measure_broker

    with _scratch(folder) as path, _broker(url, broker, path) as address:
        if address is None:
            figures = measure(path, messages=messages, per_s=per_s)
        else:
            figures = measure_broker(address, path, messages=messages, per_s=per_s)
    _show("latency", figures, as_json)


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
    url: Url = None,
    broker: OwnBroker = False,
    folder: Folder = Path("."),
    as_json: Json = False,
) -> None:
    """How late messages of a queue are delivered, and that none is early.

    Example: duly bench timeline --messages 20000 --span-s 10 --json
    """
    from duly.bench.timeline import measure, measure_broker

    with _scratch(folder) as path, duly.connect(path) as client, _broker(url, broker, path) as address:
        if address is None:
            _show("timeline", measure(client, messages=messages, span_s=span_s), as_json)
            return
        with duly.connect(address) as through:
            _show("timeline", measure_broker(through, client, messages=messages, span_s=span_s), as_json)


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
def lanes(
    lanes: Annotated[int, typer.Option(min=2, help="Lanes of the queue that has many.")] = 100_000,
    messages: Annotated[int, typer.Option(min=1, help="Messages that stand in one of them.")] = 1_000_000,
    turns: Annotated[int, typer.Option(min=1, help="Claims in either queue, quiet and busy.")] = 1_000,
    batch: Annotated[int, typer.Option(min=1, help="Messages a publish and a claim.")] = 100,
    folder: Folder = Path("."),
    as_json: Json = False,
) -> None:
    """Claims of a queue with very many lanes, beside one with a single lane and as many messages.

    Example: duly bench lanes --lanes 100000 --messages 1000000 --json
    """
    from duly.bench.lanes import measure

    with _scratch(folder) as path:
        _show("lanes", measure(path.parent, lanes=lanes, messages=messages, turns=turns, batch=batch), as_json)


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


@app.command()
def spark(
    messages: Annotated[int, typer.Option(min=2)] = 1_000_000,
    payload_bytes: Annotated[int, typer.Option(min=1, help="Bytes a payload.")] = 100,
    url: Url = None,
    folder: Folder = Path("."),
    as_json: Json = False,
) -> None:
    """Spark reading and writing a topic beside Parquet files of the same rows; an archive; a schedule.

    Example: duly bench spark --messages 1000000 --json
    """
    from duly.bench.spark import measure

    with _scratch(folder) as path, _broker(url, url is None, path) as address:
        assert address is not None
        scratch = Path(path).parent
        _show("spark", measure(address, scratch, messages=messages, payload_bytes=payload_bytes), as_json)


@app.command()
def producer(
    messages: Annotated[int, typer.Option(min=1)] = 500_000,
    payload_bytes: Annotated[int, typer.Option(min=1, help="Bytes a payload.")] = 100,
    url: Url = None,
    broker: OwnBroker = False,
    folder: Folder = Path("."),
    as_json: Json = False,
) -> None:
    """Single publishes that a producer gathers into batches; through a broker beside the same in this process.

    Example: duly bench producer --messages 100000 --json
    """
    from duly.bench.producer import measure

    with _scratch(folder) as path, duly.connect(path) as client, _broker(url, broker, path) as address:
        figures = measure(client, messages=messages, payload_bytes=payload_bytes)
        if address is not None:
            with duly.connect(address) as through:
                here = {f"embedded_{name}": value for name, value in figures.items()}
                figures = {**measure(through, messages=messages, payload_bytes=payload_bytes), **here}
        _show("producer", figures, as_json)


@app.command()
def postgres(
    dsn: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            show_default=False,
            help="A PostgreSQL that runs, postgresql://…, in schemas of its own; else one started for it here.",
        ),
    ] = None,
    only: Annotated[
        str, typer.Option(metavar="PARTS", help="Parts to measure, with commas.")
    ] = "log,queue,consumers,latency,timeline,snapshot",
    messages: Annotated[int, typer.Option(min=1, help="Messages a turn; where fewer are enough, at most so many.")] = (
        200_000
    ),
    clients: Annotated[int, typer.Option(min=1, help="Threads on either side.")] = 8,
    pairs: Annotated[int, typer.Option(min=1, help="Turns that either side has.")] = 3,
    standing: Annotated[int, typer.Option(min=0, help="Messages standing in both, where any do.")] = 1_000_000,
    hold: Annotated[float, typer.Option(min=0.1, help="Seconds that a snapshot is held.")] = 60,
    folder: Folder = Path("."),
    as_json: Json = False,
) -> None:
    """Duly on PostgreSQL beside a queue table with FOR UPDATE SKIP LOCKED, in turns; through two brokers; and while
    somebody holds a snapshot.

    Example: duly bench postgres --only log,queue --json
    """
    from duly.bench.own_postgres import own_postgres
    from duly.bench.postgres import PARTS, Plan, measure, own_place

    parts = [part.strip() for part in only.split(",")]
    for part in parts:
        if part not in PARTS:
            raise typer.BadParameter(f"There is no part {part!r}. There are {', '.join(PARTS)}.")
    if dsn is not None and not dsn.startswith(("postgresql://", "postgres://")):
        raise typer.BadParameter("--dsn is postgresql://user@host:port/database.")
    plan = Plan(messages=messages, clients=clients, pairs=pairs, standing=standing, hold_s=hold)
    figures: dict[str, float] = {}
    with own_postgres(folder) if dsn is None else nullcontext(dsn) as address, own_place(address) as place:
        for part, found in measure(place, plan, parts):
            figures |= found
            if not as_json:
                _show(f"postgres {part}", found, as_json)
    if as_json:
        _show("postgres", figures, as_json)


@app.command()
def throttle(
    rate: Annotated[float, typer.Option(min=1, help="Messages a second that are let through.")] = 200,
    seconds: Annotated[float, typer.Option(min=1, help="For so long each of three rates is consumed.")] = 15,
    window_s: Annotated[float, typer.Option(min=0.1, help="Every stretch of so many seconds is looked at.")] = 10,
    postgres: OwnPostgres = False,
    folder: Folder = Path("."),
    as_json: Json = False,
) -> None:
    """How exactly deliveries keep to a rate: a group's, lanes', and a group's with two processes that claim.

    `rate_error` is the largest deviation over any window, as a share: 0.02 is two hundredths.

    Example: duly bench throttle --json
    """
    from duly.bench.throttle import Pace, measure

    if seconds <= window_s:
        raise typer.BadParameter("--seconds must be more than --window-s: there would be no window to look at.")
    with _two_places(folder, postgres) as places:
        _show("throttle", measure(places, Pace(rate, seconds, window_s)), as_json)


@app.command()
def storm(
    messages: Annotated[int, typer.Option(min=1, help="Messages that wait for the destination.")] = 200_000,
    dead_s: Annotated[float, typer.Option(min=10, help="Simulated seconds for which it is dead.")] = 600,
    rate: Annotated[float, typer.Option(min=1, help="Messages a second that are configured for it.")] = 1000,
    disk: Annotated[bool, typer.Option("--disk", help="In a file; else in memory.")] = False,
    postgres: OwnPostgres = False,
    folder: Folder = Path("."),
    as_json: Json = False,
) -> None:
    """A destination that is dead for ten simulated minutes, and then is back: a lane of a queue, and a log's group.

    Example: duly bench storm --messages 20000 --dead-s 120 --json
    """
    from duly.bench.storm import Storm, measure

    with _place(folder, postgres) if disk or postgres else nullcontext(":memory:") as place:
        _show("storm", measure(place, Storm(messages, dead_s, rate)), as_json)


@app.command()
def fairness(
    only: Annotated[str, typer.Option(metavar="PARTS", help="Tenants as lanes, as topics, or both.")] = "lanes,topics",
    store: Annotated[
        str | None,
        typer.Option(metavar="PLACE", show_default=False, help="A path or postgresql://…, where it is measured."),
    ] = None,
    postgres: Annotated[
        bool, typer.Option("--postgres", help="On a PostgreSQL started for it here, through three brokers.")
    ] = False,
    brokers: Annotated[
        int | None, typer.Option(min=1, help="Brokers on it; else one, and three on PostgreSQL.")
    ] = None,
    quiet: Annotated[int, typer.Option(min=1, help="Tenants beside the one that floods.")] = 100,
    per_s: Annotated[float, typer.Option(min=0.1, help="Messages a second of each of the quiet.")] = 2,
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds on either side of a pair.")] = 2,
    pairs: Annotated[int, typer.Option(min=1, help="Turns that either side has.")] = 5,
    backlog: Annotated[int, typer.Option(min=1000, help="Messages standing, where many do.")] = 20_000,
    folder: Folder = Path("."),
    as_json: Json = False,
) -> None:
    """What one that sends a thousand times as much does to the others. Ends with 1 if more overtake than may.

    Example: duly bench fairness --json
    """
    from duly.bench.fairness import PARTS, Load, held, measure, places

    parts = [part.strip() for part in only.split(",")]
    for part in parts:
        if part not in PARTS:
            raise typer.BadParameter(f"There is no part {part!r}. There are {', '.join(PARTS)}.")
    if postgres and store is not None:
        raise typer.BadParameter("Give --store, or --postgres, to have one started.")
    load = Load(quiet, per_s, seconds, pairs, backlog)
    with _scratch(folder) as path, places(store, path, folder, postgres=postgres, brokers=brokers) as urls:
        figures = measure(urls, load, parts)
    if as_json:
        print(json.dumps({"bench": "fairness", **figures}), flush=True)
    else:
        for part, found in figures.items():
            _show(f"fairness {part}", found, as_json)
    if not held(figures):
        raise typer.Exit(1)


@app.command()
def push(
    endpoints: Annotated[int, typer.Option(min=2, help="Endpoints, each with a topic and a push.")] = 200,
    dead: Annotated[int, typer.Option(min=1, help="Of them those that are dead.")] = 20,
    per_s: Annotated[float, typer.Option(min=0.1, help="Messages a second to each that is not.")] = 2,
    seconds: Annotated[float, typer.Option(min=0.5, help="Seconds a turn.")] = 5,
    pairs: Annotated[int, typer.Option(min=1, help="Turns without the dead, and as many with them.")] = 3,
    backlog: Annotated[int, typer.Option(min=100, help="Messages that wait, for the deliveries a second.")] = 20_000,
    concurrency: Annotated[int, typer.Option(min=1, max=256, help="Requests at once of a push.")] = 8,
    folder: Folder = Path("."),
    as_json: Json = False,
) -> None:
    """Push to many endpoints, some of them dead: how long messages are on their way, and deliveries a second.

    Example: duly bench push --json
    """
    from duly.bench.push import Load, measure

    if dead >= endpoints:
        raise typer.BadParameter("Some of the endpoints have to be alive.")
    load = Load(endpoints, dead, per_s, seconds, pairs, backlog, concurrency)
    with _scratch(folder) as path:
        _show("push", measure(path.parent, load), as_json)


@app.command()
def forward(
    messages: Annotated[int, typer.Option(min=1, help="Messages each way.")] = 100_000,
    payload: Annotated[int, typer.Option(min=1, help="Bytes a message, about.")] = 100,
    postgres: Annotated[bool, typer.Option("--postgres", help="On a PostgreSQL of its own.")] = False,
    folder: Folder = Path("."),
    as_json: Json = False,
) -> None:
    """Push from a log into a log, and into a queue by an expression: messages a second.

    Example: duly bench forward --postgres --json
    """
    from duly.bench.forward import measure

    with _place(folder, postgres) as place, duly.connect(place) as client:
        _show("forward", measure(client, messages=messages, payload_bytes=payload), as_json)


@app.command("all")
def every(folder: Folder = Path("."), as_json: Json = False) -> None:
    """Everything above that needs no server beside it, the large backlog with a million messages.

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
    lifecycle(broker=True, folder=folder, as_json=as_json)
    lifecycle(kind=Kind.queue, broker=True, folder=folder, as_json=as_json)
    latency(broker=True, folder=folder, as_json=as_json)
    timeline(broker=True, folder=folder, as_json=as_json)
    producer(broker=True, folder=folder, as_json=as_json)


@contextmanager
def _broker(url: str | None, own: bool, path: Path) -> Iterator[str | None]:
    """The address of the broker that is to be measured; None if none is."""
    if url is not None and own:
        raise typer.BadParameter("Give --url, a broker that runs, or --broker, to have one started.")
    if not own:
        if one_place(None, url, "--store", "--url") is not None:
            Session(str(url), DEFAULT_TENANT, as_json=False).must_answer()
        yield url
        return
    from duly.bench.brokers import own_broker

    with own_broker(path.parent / "broker.duly") as started:
        yield started


@contextmanager
def _place(folder: Path, postgres: bool) -> Iterator[str]:
    """A fresh store: a file, or on a PostgreSQL of its own."""
    if not postgres:
        with _scratch(folder) as path:
            yield str(path)
        return
    from duly.bench.own_postgres import own_postgres
    from duly.bench.postgres import own_place

    with own_postgres(folder) as address, own_place(address) as place:
        yield place.store


@contextmanager
def _two_places(folder: Path, postgres: bool) -> Iterator[list[str]]:
    """Where two processes share a store: a file; or two brokers on a PostgreSQL."""
    from duly.bench.brokers import own_broker

    with _place(folder, postgres) as place:
        if not postgres:
            yield [place] * 2
            return
        with own_broker(place) as one, own_broker(place) as other:
            yield [one, other]


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
