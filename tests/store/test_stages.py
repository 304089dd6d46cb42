"""Stages: what many put down piece by piece is published together, all of it or nothing, once."""

from __future__ import annotations

import pytest

import duly
import duly.engine.stage as engine
from duly.limits import DAY_MS

from .conftest import Home
from .patience import eventually


@pytest.fixture(params=["log", "queue"])
def topic(q: duly.Client, request: pytest.FixtureRequest) -> str:
    q.create_topic("t", kind=request.param)
    return "t"


def texts(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def stored(q: duly.Client, topic: str) -> list[bytes]:
    """Every payload of a topic, by claiming it all."""
    group = None
    if q.describe_topic(topic).settings.kind == "log":
        q.create_group(topic, "all", start="earliest", exist_ok=True)
        group = "all"
    found: list[bytes] = []
    while batch := q.claim(topic, group=group, max_messages=10_000):
        found += batch.payloads
        q.ack(batch)
    return found


# Together, or not at all


def test_nobody_sees_a_stage_before_it_is_committed(q: duly.Client, topic: str) -> None:
    assert q.stage(topic, texts(0, 3), stage="a", number=0) == 3
    assert q.stage(topic, texts(3, 2000), stage="a", number=1) == 2003
    assert q.describe_topic(topic).messages == 0
    assert stored(q, topic) == []
    admitted = q.commit_stages(topic, {"a": 2003}, job="j")
    assert admitted == duly.Admitted(2003)
    assert stored(q, topic) == texts(0, 2003)


def test_stages_are_published_in_the_order_of_the_commit_and_others_are_not(q: duly.Client, topic: str) -> None:
    for name, first in (("a", 0), ("b", 100), ("c", 200)):
        q.stage(topic, texts(first, 100), stage=name, number=0)
    q.commit_stages(topic, {"c": 100, "a": 100}, job="j")
    assert stored(q, topic) == texts(200, 100) + texts(0, 100)


def test_more_than_one_slice_admits(q: duly.Client, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_LOG_BLOCKS_A_SLICE", 2)
    monkeypatch.setattr(engine, "_QUEUE_BLOCKS_A_SLICE", 2)
    for number in range(5):
        q.stage(topic, texts(number * 3000, 3000), stage=f"s{number}", number=0)
    assert q.commit_stages(topic, {f"s{number}": 3000 for number in range(5)}, job="j").messages == 15_000
    assert stored(q, topic) == texts(0, 15_000)


def test_a_last_slice_that_is_just_full_is_the_last(
    q: duly.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_LOG_BLOCKS_A_SLICE", 2)
    monkeypatch.setattr(engine, "_QUEUE_BLOCKS_A_SLICE", 2)
    for version in range(2):
        q.stage(topic, texts(version * 3000, 3000), stage=f"s{version}", number=0)
        q.stage(topic, texts(version * 3000, 1000), stage=f"t{version}", number=0)
        q.commit_stages(topic, {f"s{version}": 3000, f"t{version}": 1000}, job="j", version=version)
    assert len(stored(q, topic)) == 8000


def test_what_is_missing_from_a_stage_keeps_all_of_it_out(q: duly.Client, topic: str) -> None:
    q.stage(topic, texts(0, 5), stage="a", number=0)
    q.stage(topic, texts(5, 5), stage="b", number=0)
    for stages in ({"a": 5, "b": 6}, {"a": 5, "gone": 1}):
        with pytest.raises(duly.NotFound, match="Stage them again"):
            q.commit_stages(topic, stages, job="j")
    assert stored(q, topic) == []
    assert q.commit_stages(topic, {"a": 5, "b": 5}, job="j").messages == 10


def test_a_batch_of_nothing_is_refused(q: duly.Client, topic: str) -> None:
    with pytest.raises(duly.InvalidArgument, match="empty"):
        q.stage(topic, [], stage="a", number=0)
    with pytest.raises(duly.NotFound):
        q.commit_stages(topic, {"a": 0}, job="j")


def test_an_empty_job(q: duly.Client, topic: str) -> None:
    assert q.commit_stages(topic, {}, job="j") == duly.Admitted(0)
    assert q.commit_stages(topic, {}, job="j").duplicate


# Once


def test_a_call_that_comes_again_adds_nothing(q: duly.Client, topic: str) -> None:
    q.stage(topic, texts(0, 5), stage="a", number=0)
    assert q.stage(topic, texts(0, 5), stage="a", number=0) == 5
    assert q.stage(topic, texts(5, 5), stage="a", number=1) == 10
    with pytest.raises(duly.NotFound, match="call 7"):
        q.stage(topic, texts(0, 1), stage="a", number=7)
    q.commit_stages(topic, {"a": 10}, job="j")
    assert stored(q, topic) == texts(0, 10)


def test_a_version_is_published_once(q: duly.Client, topic: str) -> None:
    for version in (3, 4):
        q.stage(topic, texts(version, 1), stage=f"s{version}", number=0)
        assert not q.commit_stages(topic, {f"s{version}": 1}, job="j", version=version).duplicate
    for version in (3, 4):
        q.stage(topic, texts(version, 1), stage=f"again{version}", number=0)
        assert q.commit_stages(topic, {f"again{version}": 1}, job="j", version=version).duplicate
    q.stage(topic, texts(9, 1), stage="other", number=0)
    assert not q.commit_stages(topic, {"other": 1}, job="k", version=3).duplicate
    assert stored(q, topic) == texts(3, 1) + texts(4, 1) + texts(9, 1)


def test_a_stage_is_published_by_one_job_alone(q: duly.Client, topic: str) -> None:
    q.stage(topic, texts(0, 5), stage="a", number=0)
    q.commit_stages(topic, {"a": 5}, job="j")
    with pytest.raises(duly.NotFound):
        q.commit_stages(topic, {"a": 5}, job="k")
    assert stored(q, topic) == texts(0, 5)


def test_ids_that_a_queue_has_are_left_out_and_counted(q: duly.Client) -> None:
    q.create_topic("t", kind="queue")
    q.publish("t", duly.Message(b"old", id="5"))
    messages = [duly.Message(b"new", id=str(number)) for number in range(100)]
    q.stage("t", [*messages, duly.Message(b"twice", id="7")], stage="a", number=0)
    q.stage("t", [duly.Message(b"thrice", id="7"), duly.Message(b"new", id="100")], stage="a", number=1)
    admitted = q.commit_stages("t", {"a": 103}, job="j")
    assert (admitted.messages, admitted.duplicates) == (100, 3)
    assert sorted(stored(q, "t")) == [b"new"] * 100 + [b"old"]


# What is staged is a message like any other


def test_columns_are_kept(q: duly.Client, clock: duly.ManualClock) -> None:
    q.create_topic("t", kind="queue")
    later = duly.Message(b"later", id="x", key="k", headers={"a": "b"}, due=60, priority=3, lane="l")
    q.stage("t", [later, duly.Message(b"now", priority=9)], stage="a", number=0)
    q.commit_stages("t", {"a": 2}, job="j")
    assert stored(q, "t") == [b"now"]
    found = q.get("t", "x")
    assert found is not None
    assert (found.state, found.lane, found.priority, found.key, found.headers) == ("waiting", "l", 3, "k", {"a": "b"})
    clock.advance(60)
    assert stored(q, "t") == [b"later"]


def test_keys_go_to_their_partitions(q: duly.Client) -> None:
    q.create_topic("t", kind="log", partitions=8)
    keyed = [duly.Message(b"%d" % number, key=f"k{number % 50}") for number in range(500)]
    q.publish("t", keyed)
    q.stage("t", keyed, stage="a", number=0)
    q.commit_stages("t", {"a": 500}, job="j")
    for partition in range(8):
        found = [message.payload for message in q.read("t", partition=partition)]
        assert found[: len(found) // 2] == found[len(found) // 2 :]


def test_what_publish_would_refuse_is_refused_when_it_is_staged(q: duly.Client) -> None:
    q.create_topic("t", kind="log", payload_bytes_max=100)
    with pytest.raises(duly.LimitExceeded):
        q.stage("t", bytes(101), stage="a", number=0)
    with pytest.raises(duly.InvalidArgument, match="belongs to queues"):
        q.stage("t", duly.Message(b"x", priority=1), stage="a", number=0)
    with pytest.raises(duly.TopicNotFound):
        q.stage("unknown", b"x", stage="a", number=0)
    for name, number in (("", 0), ("a\n", 0), ("x" * 200, 0), ("a", -1), ("a", True)):
        with pytest.raises(duly.InvalidArgument):
            q.stage("t", b"x", stage=name, number=number)
    for version in (-1, True):
        with pytest.raises(duly.InvalidArgument):
            q.commit_stages("t", {"a": 1}, job="j", version=version)
    assert q.describe_topic("t").messages == 0


# Nothing is left behind


def test_stages_that_nobody_commits_are_swept(home: Home) -> None:
    q = home.connect()
    q.create_topic("t", kind="log")
    q.stage("t", [b"x" * 1000] * 5000, stage="a", number=0)
    q.stage("t", [b"x" * 1000] * 5000, stage="b", number=0)
    assert home.rows("duly_chunk") == 10
    q.drop_stages("t", ["a", "unknown"])
    eventually(lambda: home.rows("duly_chunk") == 5)
    home.clock.advance(DAY_MS / 1000 + 1)
    eventually(lambda: home.rows("duly_chunk") == home.rows("duly_staged") == home.rows("duly_stage") == 0)
    with pytest.raises(duly.NotFound):
        q.commit_stages("t", {"b": 5000}, job="j")


@pytest.mark.plain
def test_truncation_takes_the_chunks_along(home: Home) -> None:
    q = home.connect()
    q.create_topic("t", kind="log", retention=duly.Retention(age=60))
    q.stage("t", [b"x" * 1000] * 5000, stage="a", number=0)
    q.commit_stages("t", {"a": 5000}, job="j")
    assert home.rows("duly_chunk") == 5
    assert q.describe_topic("t").bytes > 5_000_000
    home.clock.advance(61)
    eventually(lambda: home.rows("duly_block") == 0 or q.describe_topic("t").messages == 0)
    eventually(lambda: home.rows("duly_chunk") == 0)


def test_an_emptied_queue_and_a_deleted_topic_leave_no_chunks(home: Home) -> None:
    q = home.connect()
    for kind in ("queue", "log"):
        q.create_topic(kind, kind=kind)
        for job in ("j", "k"):
            q.stage(kind, texts(0, 5000), stage=job, number=0)
        q.commit_stages(kind, {"j": 5000}, job="j")
    assert len(stored(q, "queue")) == 5000
    q.delete_topic("log", force=True)
    home.clock.advance(DAY_MS / 1000 + 1)
    eventually(lambda: home.rows("duly_chunk") == home.rows("duly_staged") == 0)


def test_a_job_is_remembered_for_a_month_and_one_that_was_deleted_with_its_topic_not_at_all(home: Home) -> None:
    q = home.connect()
    q.create_topic("t", kind="log")
    q.commit_stages("t", {}, job="j", version=5)
    home.clock.advance(29 * DAY_MS / 1000)
    assert q.commit_stages("t", {}, job="j", version=5).duplicate
    q.delete_topic("t", force=True)
    q.create_topic("t", kind="log")
    assert not q.commit_stages("t", {}, job="j", version=5).duplicate
    home.clock.advance(31 * DAY_MS / 1000)
    eventually(lambda: home.rows("duly_job") == 0)


# Whoever dies


@pytest.fixture
def halfway(home: Home, monkeypatch: pytest.MonkeyPatch) -> duly.Client:
    """A commit that was decided and of which one slice was admitted, when whoever asked for it died."""
    monkeypatch.setattr(engine, "_LOG_BLOCKS_A_SLICE", 2)
    q = home.connect()
    q.create_topic("t", kind="log")
    q.stage("t", texts(0, 10_000), stage="a", number=0)
    client = q._alive()
    command = engine.CommitStages("default", "t", "j", 1, (("a", 10_000),))
    admitted = client.do(command, deadline=None)
    assert 0 < admitted.left < 10_000
    return q


def test_what_was_decided_happens_by_itself(home: Home, halfway: duly.Client) -> None:
    home.clock.advance(1)
    eventually(lambda: halfway.describe_topic("t").messages == 10_000)
    assert stored(halfway, "t") == texts(0, 10_000)


def test_what_was_decided_happens_when_it_is_asked_again(halfway: duly.Client) -> None:
    assert halfway.commit_stages("t", {"a": 10_000}, job="j", version=1) == duly.Admitted(10_000)
    assert stored(halfway, "t") == texts(0, 10_000)


def test_what_was_decided_can_neither_be_dropped_nor_added_to_nor_overtaken(halfway: duly.Client) -> None:
    with pytest.raises(duly.InvalidArgument, match="committed"):
        halfway.stage("t", b"x", stage="a", number=1)
    with pytest.raises(duly.Busy):
        halfway.commit_stages("t", {}, job="j", version=2)
    halfway.drop_stages("t", ["a"])
    assert halfway.commit_stages("t", {"a": 10_000}, job="j", version=1).messages == 10_000
    assert stored(halfway, "t") == texts(0, 10_000)


def test_a_topic_that_is_deleted_halfway_takes_the_rest_along(home: Home, halfway: duly.Client) -> None:
    halfway.delete_topic("t", force=True)
    home.clock.advance(DAY_MS / 1000 + 1)
    eventually(lambda: home.rows("duly_chunk") == home.rows("duly_stage") == home.rows("duly_job") == 0)


# Damage


@pytest.mark.embedded
def test_a_damaged_chunk_is_reported_and_not_served(home: Home) -> None:
    q = home.connect()
    q.create_topic("t", kind="log")
    q.stage("t", texts(0, 3000), stage="a", number=0)
    q.commit_stages("t", {"a": 3000}, job="j")
    q.close()
    home.damage("duly_chunk", 2)
    again = home.connect()
    assert [message.payload for message in again.read("t", max_messages=1024)] == texts(0, 1024)
    with pytest.raises(duly.CorruptBlock, match="lie apart"):
        again.read("t", offset=1024)
    assert any(found.level == "alert" and "lie apart" in found.what for found in again.examine())
