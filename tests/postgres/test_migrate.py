"""duly migrate: a store moves from its file to PostgreSQL, and nobody can tell."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

import duly
import duly.client.moving
import duly.engine.service
import duly.store.postgres.arrival
import duly.store.sqlite.departure
from duly.store.sql.moving import TABLES
from duly.store.sqlite.store import SCHEMA
from tests import postgres_schemas
from tests.conftest import scaled
from tests.postgres.furnished import GROUPS, QUEUES, TENANTS, Held, drained, furnish, seen, small_steps

ROOT = Path(__file__).parents[2]
EVERY_GROUP = {(topic, group) for topic, groups in GROUPS.items() for group in groups} | {
    (topic, "queue") for topic in QUEUES
}
SEED = int(os.environ.get("DULY_TEST_SEED") or random.SystemRandom().randrange(2**32))

pytestmark = pytest.mark.skipif(postgres_schemas.why_not() is not None, reason=str(postgres_schemas.why_not()))


@dataclass
class House:
    """A furnished store, and another like it that stays where it is."""

    path: str
    twin: str
    now_ms: int
    held: Held

    def clock(self) -> duly.ManualClock:
        """As it stood when the store moved."""
        return duly.ManualClock(self.now_ms)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, Held]:
    print(f"DULY_TEST_SEED={SEED}")
    folder = tmp_path_factory.mktemp("furnished")
    clock = duly.ManualClock()
    with pytest.MonkeyPatch.context() as patch:
        held = furnish(str(folder / "app.duly"), clock, patch, random.Random(SEED))
    return folder / "app.duly", clock.now_ms(), held


@pytest.fixture
def house(built: tuple[Path, int, Held], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    path, now_ms, held = built
    small_steps(monkeypatch)
    for name in ("app.duly", "twin.duly"):
        shutil.copy(path, tmp_path / name)
    # Whoever opens the store elsewhere needs the same.
    monkeypatch.setenv("DULY_MASTER", f"file:{path}.master")
    return House(str(tmp_path / "app.duly"), str(tmp_path / "twin.duly"), now_ms, held)


@pytest.fixture
def there(fresh_store_url: Callable[[], str]) -> Iterator[str]:
    """The address of a schema that is not made yet."""
    schemas = postgres_schemas.schemas()
    url = schemas.take_unmade()
    yield url
    with psycopg.connect(postgres_schemas.database(), autocommit=True) as connection:
        postgres_schemas.drop(connection, url.rpartition("=")[2])


def ask(url: str, sql: str) -> list[tuple[Any, ...]]:
    database, _, schema = url.rpartition("?schema=")
    with psycopg.connect(database, autocommit=True, options=f"-c search_path={schema}") as connection:
        cursor = connection.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []


def ask_file(path: str, sql: str) -> list[Any]:
    with closing(apsw.Connection(path)) as connection:
        return connection.execute(sql).fetchall()


def plain(path: str, *, messages: int = 1) -> None:
    with duly.connect(path) as q:
        q.create_topic("orders", kind="queue")
        q.publish("orders", [b"%d" % n for n in range(messages)])


# All of it


def test_a_furnished_store_has_rows_in_every_table(house: House) -> None:
    for table in TABLES:
        ((rows,),) = ask_file(house.path, f"SELECT count(*) FROM {table.origin}")
        assert rows, table.name


def test_no_table_and_no_column_of_either_store_is_forgotten(path: str, fresh_store_url: Callable[[], str]) -> None:
    plain(path)
    copied = {(table.table, column.name) for table in TABLES for column in table.columns}
    # The tenant is told by the partition or topic there; what it makes itself is not copied.
    of_file = {
        (table.removeprefix("duly_"), column)
        for (table,) in ask_file(path, "SELECT name FROM sqlite_schema WHERE name LIKE 'duly_%' AND type = 'table'")
        for (column,) in ask_file(path, f"SELECT name FROM pragma_table_info('{table}')")
    }
    # Brokers are somewhere else from now on.
    assert {place for place in of_file - copied if place[1] != "tenant" and place[0] != "member"} == {
        ("meta", "key"),
        ("meta", "value"),
        ("receipt", "id"),
    }
    found = ask(
        fresh_store_url(),
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = current_schema()",
    )
    of_postgres = {place for place in found if place[0] not in ("meta", "turn", "inbox", "refused", "member")}
    assert copied <= of_postgres
    assert of_postgres - copied == {("agenda", "id"), ("event", "xid")}


def test_whoever_asks_sees_the_same_store(house: House, there: str) -> None:
    moved = duly.migrate(house.path, there)
    assert moved.messages > 5000
    assert not moved.clocks_apart
    assert duly.migrate(house.path, there, verify=True).differing == ()
    assert moved.left_behind == ("bills", "orders")
    for tenant in TENANTS:
        with (
            duly.connect(house.twin, clock=house.clock(), tenant=tenant) as stayed,
            duly.connect(there, clock=house.clock(), tenant=tenant) as q,
        ):
            before, after = seen(stayed), seen(q)
            assert before.keys() == after.keys()
            for what in before:
                assert after[what] == before[what], what


@pytest.mark.parametrize("tenant", TENANTS)
def test_everything_is_delivered_once_in_the_same_order_and_tokens_stay_valid(
    house: House, there: str, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What messages took is not known to a store, but to who has them settled: here the two do that differently.
    monkeypatch.setattr(duly.engine.service, "NOISE_MS", 1e9)
    duly.migrate(house.path, there)
    with duly.connect(house.twin, clock=(clock := house.clock()), tenant=tenant) as stayed:
        for batch in stayed.held(consumer="w1"):
            stayed.ack(batch)
        before = drained(stayed, clock)
    with duly.connect(there, clock=(clock := house.clock()), tenant=tenant) as q:
        for (whose, _, _), batch in house.held.items():
            if whose == tenant:
                settled = q.ack([delivery for delivery in batch if not delivery.settled])
                assert settled.done
                assert not settled.lost
        for batch in q.held(consumer="w1"):
            q.ack(batch)
        after = drained(q, clock)
    assert after.keys() == EVERY_GROUP
    for group, came in after.items():
        assert came == before[group], group
        places = [(partition, offset) for partition, offset, _, _ in came]
        assert len(set(places)) == len(places) > 0, group


def test_it_goes_on_where_it_was_with_ids_that_nobody_had(house: House, there: str) -> None:
    ask_file(house.path, "UPDATE sqlite_sequence SET seq = 123456 WHERE name = 'duly_lease'")
    given = dict(ask_file(house.path, "SELECT name, seq FROM sqlite_sequence"))
    duly.migrate(house.path, there)
    with duly.connect(there, clock=house.clock()) as q:
        again = q.publish("orders", b"known by its id", publish_id="given")
        assert again.duplicate
        assert q.publish("emails", duly.Message(b"", id="default-23-59")).duplicates
        q.create_topic("another", kind="queue", dedupe=60)
        q.create_group("orders", "third")
        for batch in range(10):
            q.publish("emails", [duly.Message(b"", id=f"new {batch} {n}") for n in range(100)])
        assert q.claim("emails", max_messages=10)
        q.stage("staged", [b"x"] * 100, stage="new", number=0)
        q.commit_stages("staged", {"new": 100}, job="third")
    for table in ("topic", "part", "grp", "lease", "run", "id_run", "stage", "job"):
        ((newest,),) = ask(there, f"SELECT max(id) FROM {table}")
        assert newest > given[f"duly_{table}"] or table == "stage", table
    assert ask(there, "SELECT count(*) FROM stage WHERE name = 'new'") == [(0,)]


# What stays behind


def test_the_file_is_paused_and_says_where_the_store_went(house: House, there: str) -> None:
    duly.migrate(house.path, there)
    with duly.connect(house.path, clock=house.clock()) as q:
        assert q.describe_topic("emails").paused
        with pytest.raises(duly.Conflict, match=r"moved to postgresql://127\.0\.0\.1/.*schema=test_"):
            q.publish("emails", b"too late")
        with pytest.raises(duly.Conflict, match="connect there"):
            q.claim("emails")
        with pytest.raises(duly.Conflict, match="connect there"):
            q.stage("staged", b"too late", stage="s", number=0)
        q.resume_store()
        assert q.claim("emails", max_messages=1)


def test_no_password_is_left_in_the_file(path: str, there: str) -> None:
    plain(path)
    duly.migrate(path, there.replace("duly@", "duly:hunter2@"))
    assert b"hunter2" not in Path(path).read_bytes()
    assert "hunter2" not in str(ask(there, "SELECT * FROM meta"))


# Cut short


def victim(path: str, url: str, kill_at: int) -> int:
    """Moves a store in another process; how many statements it took, or 0 when it was killed."""
    command = [sys.executable, "-m", "tests.postgres.migrate_victim", path, url, str(kill_at)]
    done = subprocess.run(command, cwd=ROOT, timeout=120, capture_output=True, text=True)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return int(done.stdout) if done.returncode == 0 else 0


def contents(url: str) -> dict[str, list[Any]]:
    """Every row of every table of a schema, but for what names this very move."""
    found = {table.table: sorted(map(repr, ask(url, f'SELECT {table.names} FROM "{table.table}"'))) for table in TABLES}
    return found | {
        "turn": ask(url, "SELECT * FROM turn ORDER BY 1"),
        "meta": ask(url, "SELECT * FROM meta WHERE key NOT IN ('moved', 'definitions') ORDER BY 1"),
        "ids": ask(
            url, "SELECT sequencename, last_value FROM pg_sequences WHERE schemaname = current_schema() ORDER BY 1"
        ),
    }


@pytest.mark.timeout(scaled(300, 1800))
def test_killed_anywhere_and_run_again_it_ends_the_same(house: House, tmp_path: Path) -> None:
    print(f"DULY_TEST_SEED={SEED}")
    dice = random.Random(SEED)
    schemas = postgres_schemas.schemas()
    untouched = schemas.take_unmade()
    shutil.copy(house.twin, tmp_path / "whole.duly")
    calls = victim(str(tmp_path / "whole.duly"), untouched, 0)
    expected = contents(untouched)
    last = range(calls - 40, calls + 1)
    for number in range(scaled(6, 150)):
        url, path = schemas.take_unmade(), str(tmp_path / f"{number}.duly")
        shutil.copy(house.twin, path)
        kills = [dice.choice(last) if dice.random() < 0.4 else dice.randrange(1, calls) for _ in range(3)]
        print(number, kills)
        for kill_at in kills:
            done = victim(path, url, kill_at)
            state = ask_file(path, "SELECT key FROM duly_meta WHERE key IN ('moving', 'moved')")
            if done or state == [("moved",)]:
                break
            if state == [("moving",)]:
                with pytest.raises(duly.IncompatibleStore, match="duly migrate"):
                    duly.connect(path)
        moved = duly.migrate(path, url)
        assert moved.messages
        assert contents(url) == expected, kills
        assert ask_file(path, "SELECT key FROM duly_meta WHERE key IN ('moving', 'moved')") == [("moved",)]
        assert duly.migrate(path, url, verify=True).differing == ()


def half_moved(path: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A move that ends when some batches are there."""
    monkeypatch.setattr(duly.client.moving, "_BATCH_ROWS", 5)
    put = duly.store.postgres.arrival.Arrival.put

    def cut(self: Any, table: Any, *rest: Any) -> None:
        if table.table == "chunk":
            raise KeyboardInterrupt
        put(self, table, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(duly.store.postgres.arrival.Arrival, "put", cut)
        with pytest.raises(KeyboardInterrupt):
            duly.migrate(path, url)


def test_nobody_can_use_a_store_that_is_on_its_way(house: House, there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    half_moved(house.path, there, monkeypatch)
    for address in (house.path, there):
        with pytest.raises(duly.IncompatibleStore, match=r"on its way .*`duly migrate`"):
            duly.connect(address)
    duly.migrate(house.path, there)
    duly.connect(there).close()


def test_a_move_that_is_run_again_copies_the_rest_alone(
    house: House, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_moved(house.path, there, monkeypatch)
    told: list[tuple[int, int]] = []
    moved = duly.migrate(house.path, there, on_progress=lambda done, whole: told.append((done, whole)))
    assert moved.resumed
    assert 0 < moved.bytes < 0.8 * told[0][1] / 2
    assert told == sorted(told)
    assert told[0][0] > 0.1 * told[0][1]
    assert told[-1][0] == told[-1][1]


def test_a_move_can_be_given_up(house: House, there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    half_moved(house.path, there, monkeypatch)
    duly.migrate(house.path, there, give_up=True)
    with duly.connect(house.path, clock=house.clock()) as q, duly.connect(house.twin, clock=house.clock()) as twin:
        assert seen(q) == seen(twin)
        q.publish("orders", b"one more")
    assert ask(there, "SELECT key FROM meta WHERE key IN ('moving', 'moved')") == []
    assert ask(there, "SELECT count(*) FROM run_block") == [(0,)]
    duly.migrate(house.path, there)
    with duly.connect(there, clock=house.clock()) as q:
        (end,) = [part.next_offset for part in q.describe_topic("orders").partitions]
        assert q.read("orders", offset=end - 1)[0].payload == b"one more"


def test_what_has_arrived_cannot_be_given_up(path: str, there: str) -> None:
    plain(path)
    with pytest.raises(duly.Conflict, match="not on its way"):
        duly.migrate(path, there, give_up=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duly.store.sqlite.departure.Departure, "leave", raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            duly.migrate(path, there)
    with pytest.raises(duly.Conflict, match="has arrived"):
        duly.migrate(path, there, give_up=True)
    with duly.connect(there) as q:
        q.publish("orders", b"used at once")
    assert duly.migrate(path, there).resumed
    with duly.connect(path) as q, pytest.raises(duly.Conflict, match="moved to"):
        q.claim("orders")
    with duly.connect(there) as q:
        assert len(q.claim("orders")) == 2


def raise_interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_file_that_was_put_back_since_is_copied_anew(
    house: House, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_moved(house.path, there, monkeypatch)
    shutil.copy(house.twin, house.path)
    with duly.connect(house.path, clock=house.clock()) as q:
        q.publish("orders", b"one more")
    assert not duly.migrate(house.path, there).resumed
    assert duly.migrate(house.path, there, verify=True).differing == ()


def test_a_line_that_breaks_is_told_and_gone_on_from(
    path: str, postgres_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = postgres_server(fsync=False)
    plain(path, messages=20_000)
    monkeypatch.setattr(duly.client.moving, "_BATCH_ROWS", 5)
    put = duly.store.postgres.arrival.Arrival.put

    def killing(self: Any, table: Any, *rest: Any) -> None:
        if table.name == "block" and server.running:
            server.kill()
        put(self, table, *rest)

    monkeypatch.setattr(duly.store.postgres.arrival.Arrival, "put", killing)
    with pytest.raises(duly.Unavailable, match="run it again"):
        duly.migrate(path, server.dsn())
    monkeypatch.undo()
    with pytest.raises(duly.Unavailable):
        duly.migrate(path, server.dsn())
    server.start()
    assert duly.migrate(path, server.dsn()).resumed
    with duly.connect(server.dsn()) as q:
        assert q.describe_group("orders", "queue").lag == 20_000


# Compared


@pytest.mark.parametrize(
    "harm",
    [
        "UPDATE block SET data = set_byte(data, 90, get_byte(data, 90) # 1) WHERE base = 0",
        "DELETE FROM hole WHERE seq = (SELECT min(seq) FROM hole)",
        "UPDATE lease SET due_at_ms = due_at_ms + 1",
        "INSERT INTO consumer (tenant, grp, name, seen_at_ms) VALUES (1, 99, 'x', 1)",
        "UPDATE lane SET next_at_ms = next_at_ms + 0.5",
    ],
)
def test_what_arrives_otherwise_than_it_left_is_found_and_nothing_is_switched(
    house: House, there: str, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    analyze = duly.store.postgres.arrival.Arrival.analyze

    def harming(self: Any) -> None:
        assert self._connection.execute(harm.encode()).rowcount
        analyze(self)

    with monkeypatch.context() as patch:
        patch.setattr(duly.store.postgres.arrival.Arrival, "analyze", harming)
        with pytest.raises(duly.StoreError, match="not what left"):
            duly.migrate(house.path, there)
    with pytest.raises(duly.IncompatibleStore, match="on its way"):
        duly.connect(there)
    differing = duly.migrate(house.path, there, verify=True).differing
    assert len(differing) == 1
    assert differing[0] in harm
    duly.migrate(house.path, there, give_up=True)
    duly.connect(house.path).close()


def test_use_of_either_side_is_seen_by_verify(house: House, there: str) -> None:
    duly.migrate(house.path, there)
    with duly.connect(there, clock=house.clock()) as q:
        q.publish("orders", b"new")
    assert {"block", "event"} <= set(duly.migrate(house.path, there, verify=True).differing)


# Clocks, pauses


def test_clocks_that_differ_are_told_and_times_stay(path: str, there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with duly.connect(path) as q:
        q.create_topic("jobs", kind="queue")
        q.publish("jobs", duly.Message(b"", due=timedelta(hours=1)))
        (before,) = q.browse("jobs")
    monkeypatch.setattr(duly.store.sqlite.departure.Departure, "now_ms", lambda self: 1_000)
    moved = duly.migrate(path, there)
    assert moved.clocks_apart
    assert moved.clock_ahead_s > 1e9
    with duly.connect(there) as q:
        (after,) = q.browse("jobs")
    assert after == before


def test_a_store_that_was_paused_arrives_paused(path: str, there: str) -> None:
    plain(path)
    with duly.connect(path) as q:
        q.pause_store()
    duly.migrate(path, there)
    with duly.connect(there) as q:
        assert not q.claim("orders")
        q.resume_store()
        assert q.claim("orders")


# Refused


def test_a_schema_that_is_not_empty_is_left_alone(path: str, there: str) -> None:
    plain(path)
    with duly.connect(there) as q:
        q.create_topic("theirs", kind="log")
    with pytest.raises(duly.Conflict, match="not empty"):
        duly.migrate(path, there)
    with duly.connect(path) as q, duly.connect(there) as other:
        assert q.claim("orders")
        assert other.list_topics() == ["theirs"]


def test_a_schema_with_other_tables_is_left_alone(path: str, there: str) -> None:
    plain(path)
    schema = there.rpartition("=")[2]
    ask(there, f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.mine (id INTEGER)")
    with pytest.raises(duly.IncompatibleStore, match="not Duly's"):
        duly.migrate(path, there)
    duly.connect(path).close()


def test_an_empty_store_that_a_broker_serves_is_left_alone(path: str, there: str) -> None:
    plain(path)
    duly.connect(there).close()
    ask(there, "INSERT INTO member VALUES ('b', (extract(epoch FROM now()) * 1000)::BIGINT, '{}')")
    with pytest.raises(duly.Busy, match="A broker serves"):
        duly.migrate(path, there)
    ask(there, "UPDATE member SET seen_at_ms = seen_at_ms - 60000")
    duly.migrate(path, there)


def test_an_empty_store_that_is_there_is_filled(path: str, there: str) -> None:
    plain(path)
    duly.connect(there).close()
    duly.migrate(path, there)
    with duly.connect(there) as q:
        assert q.claim("orders")


def test_a_schema_that_another_store_is_on_its_way_into_is_left_alone(
    house: House, path: str, tmp_path: Path, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_moved(house.path, there, monkeypatch)
    other = str(tmp_path / "other.duly")
    plain(other)
    with pytest.raises(duly.Conflict, match="Another store is on its way"):
        duly.migrate(other, there)
    duly.connect(other).close()
    duly.migrate(house.path, there)


def test_a_store_that_is_on_its_way_elsewhere_goes_nowhere_else(
    house: House, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_moved(house.path, there, monkeypatch)
    elsewhere = postgres_schemas.schemas().take_unmade()
    with pytest.raises(duly.Conflict, match="on its way to"):
        duly.migrate(house.path, elsewhere)
    assert ask(elsewhere, f"SELECT to_regnamespace('{elsewhere.rpartition('=')[2]}')") == [(None,)]
    duly.migrate(house.path, there)
    with pytest.raises(duly.Conflict, match="has moved to"):
        duly.migrate(house.path, elsewhere)


def test_a_file_that_somebody_has_open_is_refused(path: str, there: str) -> None:
    plain(path)
    code = f"import duly; q = duly.connect({path!r}); print('open', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(duly.Busy, match="is open, here or in another process"):
            duly.migrate(path, there)
        other.communicate(b"\n")
    with duly.connect(path), pytest.raises(duly.Busy, match="is open"):
        duly.migrate(path, there)
    duly.migrate(path, there)


@pytest.mark.parametrize("again", [False, True])
def test_nobody_opens_or_writes_to_the_file_while_it_is_copied(
    path: str, there: str, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    plain(path)
    if again:
        with monkeypatch.context() as patch:
            patch.setattr(duly.store.postgres.arrival.Arrival, "put", raise_interrupt)
            with pytest.raises(KeyboardInterrupt):
                duly.migrate(path, there)
    refused: list[type[Exception]] = []

    def on_progress(done: int, whole: int) -> None:
        if not refused:
            for attempt in (lambda: duly.connect(path), lambda: ask_file(path, "CREATE TABLE t (id INTEGER)")):
                with pytest.raises((duly.Busy, apsw.BusyError)) as error:
                    attempt()
                refused.append(error.type)

    duly.migrate(path, there, on_progress=on_progress)
    assert refused == [duly.Busy, apsw.BusyError]


def test_other_files_are_refused(tmp_path: Path, there: str) -> None:
    other, text = str(tmp_path / "other.db"), str(tmp_path / "text.duly")
    ask_file(other, "CREATE TABLE t (id INTEGER)")
    Path(text).write_text("not a database, but longer than a page header " * 10)
    with pytest.raises(duly.IncompatibleStore, match="not a Duly store"):
        duly.migrate(other, there)
    with pytest.raises(duly.IncompatibleStore, match="not an SQLite file"):
        duly.migrate(text, there)
    with pytest.raises(duly.NotFound):
        duly.migrate(tmp_path / "missing.duly", there)
    assert not (tmp_path / "missing.duly").exists()


def test_newer_stores_are_refused_on_both_sides(path: str, there: str) -> None:
    plain(path)
    ask_file(path, "UPDATE duly_meta SET value = '99' WHERE key = 'schema'")
    with pytest.raises(duly.IncompatibleStore, match="schema 99"):
        duly.migrate(path, there)
    ask_file(path, f"UPDATE duly_meta SET value = '{SCHEMA}' WHERE key = 'schema'")
    duly.connect(there).close()
    ask(there, "UPDATE meta SET value = '99' WHERE key IN ('schema', 'works_from')")
    with pytest.raises(duly.IncompatibleStore, match="schema 99"):
        duly.migrate(path, there)
    duly.connect(path).close()


@pytest.mark.parametrize(
    ("source", "destination", "why"),
    [
        (":memory:", "postgresql://h/d", "in memory"),
        ("duly://broker", "postgresql://h/d", "no store for duly://"),
        ("app.duly", "duly://broker", "to PostgreSQL"),
        ("app.duly", "other.duly", "to PostgreSQL"),
        ("app.duly", "postgresql://h/d?schema=No-Name", "schema="),
    ],
)
def test_wrong_addresses_are_refused(
    source: str, destination: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plain("app.duly")
    with pytest.raises(duly.InvalidArgument, match=why):
        duly.migrate(source, destination)


def test_a_server_that_is_not_there_is_told(path: str) -> None:
    plain(path)
    with pytest.raises(duly.Unavailable, match="cannot be reached"):
        duly.migrate(path, "postgresql://127.0.0.1:1/d")
    duly.connect(path).close()
