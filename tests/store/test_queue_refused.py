"""What a queue refuses: one of Duly's errors, and nothing changed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import duly
from duly.clock import from_ms
from duly.limits import LIMITS

NAIVE = datetime(2030, 1, 1, tzinfo=UTC).replace(tzinfo=None)
DECADE_S = LIMITS.due_ms_ahead_max / 1000


@pytest.fixture
def jobs(q: duly.Client) -> str:
    q.create_topic("jobs", kind="queue")
    return "jobs"


@pytest.mark.parametrize(
    "fields",
    [
        {"priority": -1},
        {"priority": 65_536},
        {"priority": 2**64},
        {"priority": True},
        {"priority": 1.0},
        {"priority": "1"},
        {"due": -1},
        {"due": True},
        {"due": "tomorrow"},
        {"due": float("nan")},
        {"due": float("inf")},
        {"due": DECADE_S + 1},
        {"due": timedelta(days=4000)},
        {"due": timedelta.max},
        {"due": NAIVE},
        {"due": datetime(9999, 1, 1, tzinfo=UTC)},
        {"due": from_ms(1_700_000_000_000) + timedelta(days=3654)},
        {"lane": ""},
        {"lane": 1},
        {"lane": b"lane"},
        {"lane": "x" * 257},
        {"lane": "\ud800"},
        {"partition": 0},
        {"ttl": 0},
        {"ttl": -1},
        {"ttl": 5, "expires_at": datetime(2030, 1, 1, tzinfo=UTC)},
        {"expires_at": NAIVE},
        {"id": ""},
        {"id": "@1-1"},
        {"payload": "text"},
    ],
    ids=repr,
)
def test_a_bad_message_is_refused_with_its_whole_batch(q: duly.Client, jobs: str, fields: dict[str, Any]) -> None:
    bad = duly.Message(**{"payload": b"bad", **fields})
    with pytest.raises(duly.InvalidArgument) as caught:
        q.publish(jobs, [b"fine", bad, b"fine"])
    assert caught.value.facts.get("index", 1) == 1
    assert q.describe_topic(jobs).messages == 0
    assert not len(q.claim(jobs))


@pytest.mark.parametrize(
    "columns",
    [
        {"priority": pa.array([-1])},
        {"priority": pa.array([65_536])},
        {"priority": pa.array([True])},
        {"priority": pa.array([1.5])},
        {"priority": pa.array(["1"])},
        {"due_at": pa.array([-5])},
        {"due_at": pa.array([2**62])},
        {"due_at": pa.array([1_700_000_000_000 + 3654 * 86_400_000])},
        {"due_at": pa.array([5], pa.timestamp("ms"))},
        {"due_at": pa.array(["tomorrow"])},
        {"lane": pa.array([""])},
        {"lane": pa.array(["x" * 257])},
        {"lane": pa.array([1])},
        {"partition": pa.array([0])},
        {"due": pa.array([5])},
        {"offset": pa.array([5])},
        {"published_at": pa.array([5])},
    ],
    ids=lambda columns: "-".join(f"{name}:{column.type}" for name, column in columns.items()),
)
def test_a_bad_table_is_refused_whole(q: duly.Client, jobs: str, columns: dict[str, Any]) -> None:
    fine = {"payload": pa.array([b"x"], pa.binary())}
    with pytest.raises(duly.InvalidArgument):
        q.publish(jobs, pa.table(fine | columns))
    assert q.describe_topic(jobs).messages == 0


@pytest.mark.parametrize(
    "fields", [{"priority": 0}, {"priority": 5}, {"lane": "a"}, {"due": 5}, {"due": datetime(2030, 1, 1, tzinfo=UTC)}]
)
def test_what_belongs_to_queues_is_refused_on_a_log(q: duly.Client, fields: dict[str, Any]) -> None:
    q.create_topic("log", kind="log")
    with pytest.raises(duly.InvalidArgument):
        q.publish("log", [b"fine", duly.Message(b"x", **fields)])
    assert q.describe_topic("log").messages == 0


@pytest.mark.parametrize("column", ["priority", "lane", "due_at"])
def test_queue_columns_are_refused_on_a_log(q: duly.Client, column: str) -> None:
    q.create_topic("log", kind="log")
    values = {"priority": pa.array([1]), "lane": pa.array(["a"]), "due_at": pa.array([1_800_000_000_000])}
    with pytest.raises(duly.InvalidArgument):
        q.publish("log", pa.table({"payload": pa.array([b"x"], pa.binary()), column: values[column]}))
    assert q.describe_topic("log").messages == 0


REFUSED: dict[str, Callable[[duly.Client], Any]] = {
    "claim for a group": lambda q: q.claim("jobs", group="g"),
    "create a group": lambda q: q.create_group("jobs", "g"),
    "update a group": lambda q: q.update_group("jobs", "g", lease=5),
    "delete a group": lambda q: q.delete_group("jobs", "g"),
    "describe a group": lambda q: q.describe_group("jobs", "g"),
    "pause a group": lambda q: q.pause("jobs", group="g"),
    "purge a group": lambda q: q.purge("jobs", group="g"),
    "purge a group's dead": lambda q: q.purge("jobs", group="g", dead=True),
    "dead of a group": lambda q: list(q.dead("jobs", group="g")),
    "redrive a group": lambda q: q.redrive("jobs", group="g"),
    "read": lambda q: q.read("jobs"),
    "seek": lambda q: q.seek("jobs", "g", offset=0),
    "unknown topic": lambda q: q.claim("nowhere"),
    "too many": lambda q: q.claim("jobs", max_messages=100_001),
    "none": lambda q: q.claim("jobs", max_messages=0),
    "a short lease": lambda q: q.claim("jobs", lease=0.05),
    "no bytes": lambda q: q.claim("jobs", max_bytes=0),
    "a negative delay": lambda q: q.nack(q.claim("jobs"), delay=-1),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_queue_does_not_do_is_one_of_our_errors_and_changes_nothing(
    q: duly.Client, jobs: str, what: str
) -> None:
    with pytest.raises(duly.Error):
        REFUSED[what](q)
    q.publish(jobs, b"x")
    assert not q.describe_topic(jobs).paused
    assert [(d.payload, d.attempt) for d in q.claim(jobs)] == [(b"x", 1)]


def test_a_claim_of_a_log_without_a_group_is_refused(q: duly.Client) -> None:
    q.create_topic("log", kind="log")
    with pytest.raises(duly.InvalidArgument):
        q.claim("log")


@pytest.mark.parametrize(
    "settings",
    [
        {"lanes": duly.Lanes(weights={"a": 1}), "kind": "log"},
        {"dedupe": 5, "kind": "log"},
        {"lanes": 5},
        {"retention": 5},
        {"partitions": 0},
        {"lease": 0},
    ],
)
def test_settings_that_do_not_fit_are_refused(q: duly.Client, settings: dict[str, Any]) -> None:
    with pytest.raises(duly.InvalidArgument):
        q.create_topic("t", **{"kind": "queue", **settings})
    assert q.list_topics() == []


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf"), True, "1", 2_000_000])
def test_a_weight_is_a_number_more_than_nought(weight: Any) -> None:
    with pytest.raises(duly.InvalidArgument):
        duly.Lanes(weights={"a": weight})


# What is just within the limits


def test_the_outermost_values_are_taken_and_given_back(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    lane = "ü" * 256
    far = clock.now_ms() + LIMITS.due_ms_ahead_max
    q.publish(jobs, [duly.Message(b"a", priority=65_535, lane=lane), duly.Message(b"b", priority=0, lane="0")])
    q.publish(jobs, [duly.Message(b"far", due=DECADE_S), duly.Message(b"far", due=from_ms(far))])
    q.publish(
        jobs, [duly.Message(b"ancient", due=from_ms(0)), duly.Message(b"older", due=datetime.min.replace(tzinfo=UTC))]
    )
    batch = q.claim(jobs)
    assert [(d.payload, d.priority, d.lane) for d in batch if d.lane] == [(b"b", 0, "0"), (b"a", 65_535, lane)]
    assert {d.payload for d in batch} == {b"a", b"b", b"ancient", b"older"}
    batch.ack()
    clock.advance(DECADE_S)
    assert q.claim(jobs).payloads == [b"far", b"far"]


def test_a_table_with_every_column_and_with_gaps(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    now = clock.now_ms()
    q.publish(
        jobs,
        pa.table(
            {
                "payload": pa.array([b"0", b"1", b"2"], pa.binary()),
                "id": pa.array(["a", None, "c"]),
                "key": pa.array([None, "k", None]),
                "headers": pa.array([[("h", "v")], None, []], pa.map_(pa.string(), pa.string())),
                "expires_at": pa.array([None, now + 60_000, None], pa.int64()),
                "lane": pa.array(["l", None, "m"]).dictionary_encode(),
                "priority": pa.array([3, None, 1], pa.uint16()),
                "due_at": pa.array([None, now + 1000, now - 5], pa.int64()).cast(pa.timestamp("ms", "UTC")),
            }
        ),
    )
    clock.advance(1)
    found = {d.payload: (d.key, dict(d.headers), d.lane, d.priority, d.due) for d in q.claim(jobs)}
    assert found == {
        b"0": (None, {"h": "v"}, "l", 3, found[b"0"][4]),
        b"1": ("k", {}, None, 0, from_ms(now + 1000)),
        b"2": (None, {}, "m", 1, from_ms(now - 5)),
    }


def test_a_publish_id_stores_a_batch_once(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    messages = [duly.Message(b"x", due=5, priority=2, lane="l"), duly.Message(b"y")]
    q.publish(jobs, messages, publish_id="p")
    assert q.publish(jobs, messages, publish_id="p").duplicate
    clock.advance(5)
    assert sorted(q.claim(jobs).payloads) == [b"x", b"y"]
    assert q.publish(jobs, messages, publish_id="p").duplicate
    assert not len(q.claim(jobs))


def test_tenants_do_not_see_each_others_queues(q: duly.Client, jobs: str, home: Any) -> None:
    other = home.connect(tenant="other")
    with pytest.raises(duly.TopicNotFound):
        other.claim(jobs)
    other.create_topic(jobs, kind="queue")
    other.publish(jobs, b"theirs")
    q.publish(jobs, b"ours")
    assert (q.claim(jobs).payloads, other.claim(jobs).payloads) == ([b"ours"], [b"theirs"])
