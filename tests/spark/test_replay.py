"""duly pipeline replay: from the lake to a topic or to one group, in order, once."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

import duly
from duly.spark.jobs import replay as job
from duly.spark.jobs.replay import MARK, Outcome, Replayer, order_of
from duly.spark.lake import Lake
from duly.spark.selection import Selection
from tests.conftest import scaled
from tests.surface.brokers import serving
from tests.surface.test_cli import run

from .killed import kill_when, rows, same_payloads
from .lakes import archive, lake_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 600
ALL = Selection("default", "orders")


class Stocked:
    """A store with a log of three partitions, published in three moments, and a lake that has all of it."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.store = folder / "app.duly"
        self.lake = Lake(str(folder / "lake"))
        self.q = duly.connect(self.store)
        self.q.create_topic("orders", kind="log", archive=True, partitions=3)
        for first in range(0, COUNT, 200):
            self.q.publish("orders", [message(number) for number in range(first, first + 200)])
            time.sleep(0.003)
        archive(spark, self.lake, self.store)
        self.table = [row for row in lake_table(self.lake).to_pylist() if row["topic"] == "orders"]

    def replayer(self, selection: Selection = ALL, *, to: str = "", group: str | None = None, **more: Any) -> Replayer:
        form = {name: more.pop(name) for name in ("payload", "headers") if name in more}
        order = order_of(self.q, selection, topic=to or "orders", group=group, **form)
        return Replayer(self.spark, self.lake, str(self.store), order, **more)

    def replay(self, selection: Selection = ALL, **more: Any) -> Outcome:
        return self.replayer(selection, **more).run(progress=lambda _: None)


def message(number: int) -> duly.Message:
    given_id = f"o{number}" if number % 2 else None
    headers = {"n": str(number), MARK: "an older life"} if number % 3 else None
    return duly.Message(b"%d" % number, id=given_id, key=f"k{number % 7}", headers=headers)


@pytest.fixture(scope="module")
def stocked(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stocked]:
    found = Stocked(spark, tmp_path_factory.mktemp("stocked"))
    yield found
    found.q.close()


def messages(q: duly.Client, topic: str) -> list[duly.StoredMessage]:
    return q.read(topic, max_messages=100_000)


def drain(q: duly.Client, group: str, topic: str = "orders") -> list[tuple[int, int, bytes]]:
    found: list[tuple[int, int, bytes]] = []
    while batch := q.claim(topic, group=group, max_messages=10_000):
        found += [(delivery.partition, delivery.offset, delivery.payload) for delivery in batch]
        q.ack(batch)
    return found


def eventually(holds: Callable[[], bool], within_s: float = 30.0) -> None:
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)


# To a topic


def test_messages_come_in_the_order_of_publishing_and_say_where_they_come_from(stocked: Stocked) -> None:
    q = stocked.q
    q.create_topic("again", kind="log")
    done = stocked.replay(to="again")
    assert (done.messages, done.left) == (COUNT, 0)
    origin = q.describe_topic("orders").incarnation
    ordered = sorted(stocked.table, key=lambda row: (row["published_at"], row["partition_id"], row["offset"]))
    found = messages(q, "again")
    assert [one.payload for one in found] == [row["payload"] for row in ordered]
    for one, row in zip(found, ordered, strict=True):
        number = int(row["payload"])
        mark = f"{origin}/default/orders/{row['partition']}/{row['offset']}"
        assert one.headers == ({"n": str(number), MARK: mark} if number % 3 else {MARK: mark})
        assert (one.key, one.id == f"o{number}") == (f"k{number % 7}", bool(number % 2))


def test_what_is_meant_is_what_is_sent(stocked: Stocked) -> None:
    moments = sorted({int(row["published_at"].timestamp() * 1000) for row in stocked.table})
    expected: list[tuple[Selection, Callable[[dict[str, Any]], bool]]] = [
        (replace(ALL, since_ms=moments[1]), lambda row: row["published_at"].timestamp() * 1000 >= moments[1] - 0.5),
        (replace(ALL, until_ms=moments[1]), lambda row: row["published_at"].timestamp() * 1000 < moments[1] - 0.5),
        (
            replace(ALL, partition=1, first_offset=10, end_offset=20),
            lambda row: row["partition"] == 1 and 10 <= row["offset"] < 20,
        ),
        (replace(ALL, key="k3"), lambda row: row["key"] == "k3"),
        (
            replace(ALL, where="headers['n'] LIKE '%7'"),
            lambda row: dict(row["headers"] or {}).get("n", "").endswith("7"),
        ),
        (replace(ALL, topic="$events", lane="none"), lambda row: False),
        (replace(ALL, tenant="nobody"), lambda row: False),
    ]
    version = stocked.lake.newest()
    for selection, holds in expected:
        found = {bytes(row[0]) for row in selection.rows(stocked.spark, version).select("payload").collect()}
        assert found == {row["payload"] for row in stocked.table if holds(row)}, selection


def test_expressions_and_a_queue(stocked: Stocked) -> None:
    stocked.q.create_topic("loud", kind="queue")
    stocked.q.publish("loud", duly.Message(b"first", id="o13"))
    done = stocked.replay(
        replace(ALL, key="k6"),
        to="loud",
        payload="concat('n', cast(payload AS string))",
        headers="map('was', headers['n'])",
        name="loud",
    )
    numbers = [number for number in range(COUNT) if number % 7 == 6]
    assert (done.messages, done.pending) == (len(numbers) - 1, 1)
    found = {one.payload: one.headers for one in stocked.q.browse("loud", limit=1000)}
    assert set(found) == {b"first", *(b"n%d" % number for number in numbers if number != 13)}
    assert found[b"n20"].keys() == {"was", MARK}
    assert found[b"n20"]["was"] == "20"


def test_a_finished_replay_does_nothing_and_begins_anew_when_asked(stocked: Stocked) -> None:
    q, few = stocked.q, replace(ALL, key="k1")
    q.create_topic("once", kind="log")
    count = sum(row["key"] == "k1" for row in stocked.table)
    first = stocked.replayer(few, to="once")
    assert [one.messages for one in first.count()] == [count]
    assert messages(q, "once") == []
    assert first.run(progress=lambda _: None).messages == count
    again = stocked.replay(few, to="once")
    assert (again.messages, again.before, again.left) == (0, count, 0)
    anew = stocked.replay(few, to="once", again=True)
    assert (anew.name, anew.messages) == (f"{first.name}-2", count)
    assert len(messages(q, "once")) == 2 * count
    with pytest.raises(duly.InvalidArgument, match="planned for something else"):
        stocked.replay(ALL, to="once", name=first.name)
    with pytest.raises(duly.NotFound, match="no such messages"):
        stocked.replay(replace(ALL, key="nobody's"), to="once")
    assert len(messages(q, "once")) == 2 * count


def test_a_rate_holds_and_what_was_stopped_goes_on(stocked: Stocked, monkeypatch: pytest.MonkeyPatch) -> None:
    from threading import Event

    q = stocked.q
    q.create_topic("slowly", kind="log")
    monkeypatch.setattr(job, "_SLICE_S", 0.5)
    stop = Event()
    moments: list[tuple[float, int]] = []

    def stop_after_two(state: Any) -> None:
        moments.append((time.monotonic(), len(messages(q, "slowly"))))
        if len(moments) == 2:
            stop.set()

    began = time.monotonic()
    done = stocked.replayer(to="slowly", rate_per_s=300).run(progress=stop_after_two, stop=stop)
    assert (done.messages, done.left) == (300, 300)
    assert all(count <= 300 * (at - began) + 150 for at, count in moments)
    rest = stocked.replay(to="slowly")
    assert (rest.before, rest.messages, rest.left) == (300, 300, 0)
    assert Counter(one.payload for one in messages(q, "slowly")) == Counter(b"%d" % n for n in range(COUNT))


# To a group


def test_a_group_gets_back_what_it_had_and_no_other_group_does(stocked: Stocked) -> None:
    q = stocked.q
    for group in ("billing", "audit"):
        q.create_group("orders", group, start="earliest")
        assert len(drain(q, group)) == COUNT
    wanted = replace(ALL, where="cast(cast(payload AS string) AS int) % 2 = 0")
    done = stocked.replay(wanted, group="billing")
    assert (done.messages, done.pending, done.left) == (COUNT // 2, 0, 0)
    assert drain(q, "audit") == []
    expected = Counter((r["partition"], r["offset"], r["payload"]) for r in stocked.table if int(r["payload"]) % 2 == 0)
    assert Counter(drain(q, "billing")) == expected
    assert stocked.replay(wanted, group="billing").messages == 0
    assert drain(q, "billing") == []
    with pytest.raises(duly.InvalidArgument, match="as it is"):
        stocked.replay(wanted, group="billing", payload="'x'")
    with pytest.raises(duly.InvalidArgument, match="of its own log"):
        stocked.replay(replace(wanted, topic="other"), group="billing")


def test_what_was_truncated_goes_back_and_a_slice_that_was_broken_off_goes_on(
    spark: SparkSession, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(str(tmp_path / "lake"))
    with duly.connect(path) as q:
        q.create_topic("orders", kind="log", archive=True, retention=duly.Retention(age=0.001), partitions=2)
        q.create_group("orders", "billing", start="earliest")
        q.publish("orders", [message(number) for number in range(500)])
        assert len(drain(q, "billing")) == 500
        archive(spark, lake, path)
        eventually(lambda: q.describe_topic("orders").messages == 0)
        q.publish("orders", [duly.Message(b"new%d" % n, key=f"k{n}") for n in range(40)])
        archive(spark, lake, path)
        order = order_of(q, ALL, topic="orders", group="billing")

        def run(replayer: Replayer) -> Outcome:
            return replayer.run(progress=lambda _: None)

        monkeypatch.setattr(job, "_ROWS_A_CALL", 100)
        calls: list[int] = []
        send = duly.Client.replay

        def dies(client: duly.Client, *args: Any, **more: Any) -> duly.Replayed:
            calls.append(more["version"])
            if len(calls) == 4:
                raise KeyboardInterrupt
            return send(client, *args, **more)

        monkeypatch.setattr(duly.Client, "replay", dies)
        with pytest.raises(KeyboardInterrupt):
            run(Replayer(spark, lake, path, order))
        assert q.describe_group("orders", "billing").retrying == 300
        done = run(Replayer(spark, lake, path, order))
        # The new ones were never claimed: they are in the group's backlog anyway.
        assert (done.messages, done.before, done.pending, done.left) == (200, 300, 40, 0)
        found = Counter(payload for *_, payload in drain(q, "billing"))
        assert found == Counter([b"%d" % n for n in range(500)] + [b"new%d" % n for n in range(40)])


def test_another_incarnation_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    with duly.connect(tmp_path / "app.duly") as q:
        q.create_topic("orders", kind="log", archive=True)
        q.create_group("orders", "billing", start="earliest")
        q.publish("orders", [b"both"] * 10)
        q.backup(tmp_path / "backups")
        q.publish("orders", [b"lost"] * 5)
        archive(spark, lake, tmp_path / "app.duly")
        before = q.describe_topic("orders").incarnation
    store = str(tmp_path / "restored.duly")
    duly.restore(tmp_path / "backups", store)
    with duly.connect(store) as q:
        q.resume_store()
        q.create_topic("again", kind="log")
        drain(q, "billing")
        to_group, to_topic = (
            order_of(q, ALL, topic=topic, group=group) for topic, group in (("orders", "billing"), ("again", None))
        )
        with pytest.raises(duly.StaleVersion, match="15 of these messages are of the store before it was restored"):
            Replayer(spark, lake, store, to_group).run(progress=lambda _: None)
        assert drain(q, "billing") == []
        archive(spark, lake, store)
        with pytest.raises(duly.InvalidArgument, match="would come twice"):
            Replayer(spark, lake, store, to_topic).run(progress=lambda _: None)
        chosen = order_of(q, replace(ALL, incarnation=before), topic="again")
        assert Replayer(spark, lake, store, chosen).run(progress=lambda _: None).messages == 15


# As people run it


def test_on_the_command_line(stocked: Stocked) -> None:
    stocked.q.create_topic("typed", kind="log")
    line = ("pipeline", "replay", "--store", str(stocked.store), "--lake", stocked.lake.files.root, "--topic", "orders")
    counted = json.loads(run(*line, "--to", "typed", "--key", "k2", "--dry-run", "--json").out)
    count = sum(row["key"] == "k2" for row in stocked.table)
    assert (counted["messages"], counted["state"]) == (count, "new")
    ran = run(*line, "--to", "typed", "--key", "k2")
    assert f"Replayed {count} messages to topic 'typed'" in ran.out
    assert "Replayed before" in run(*line, "--to", "typed", "--key", "k2").out
    assert "Give --to, a topic, or --group" in run(*line).err
    assert "no topic 'nowhere'" in run(*line, "--to", "nowhere").err
    assert "There is no lake" in run(*line[:4], "--lake", "no-lake", "--topic", "orders", "--to", "typed").err
    assert "cannot be resolved" in run(*line, "--to", "typed", "--where", "colour = 'red'").err
    assert len(messages(stocked.q, "typed")) == count


@pytest.mark.timeout(scaled(300, 1800))
def test_the_round_trip_brings_back_the_same_bytes(spark: SparkSession, tmp_path: Path) -> None:
    count = scaled(5_000, 2_000_000)
    store = tmp_path / "app.duly"
    duly.connect(store).close()
    lake = Lake(str(tmp_path / "lake"))
    with (
        serving(tmp_path, "--store", str(store), "--http-port", "0", "--flight-port", "0", "--json") as broker,
        duly.connect(broker.url) as q,
    ):
        q.create_topic("orders", kind="log", archive=True, retention=duly.Retention(age=0.001), partitions=2)
        q.create_topic("again", kind="log", partitions=2)
        for first in range(0, count, 50_000):
            some = range(first, min(count, first + 50_000))
            q.publish("orders", [b"%d/%d" % (number, number % 97) for number in some])
        archive(spark, lake, broker.url)
        eventually(lambda: q.describe_topic("orders").messages == 0, 120)
        args = ("replay", "--url", broker.url, "--lake", str(tmp_path / "lake"), "--topic", "orders", "--to", "again")
        # Slices of five seconds' worth, the first of which goes at once.
        rate = ("--rate", str(count // 25))

        def midway() -> bool:
            return rows(store, "duly_stage") > 0 and q.describe_topic("again").messages > 0

        assert kill_when(tmp_path, midway, *args, *rate)
        order = order_of(q, ALL, topic="again")
        done = Replayer(spark, lake, broker.url, order).run(progress=lambda _: None)
        assert (done.before > 0, done.left) == (True, 0)
        assert same_payloads(q, "again", (b"%d/%d" % (number, number % 97) for number in range(count)))
