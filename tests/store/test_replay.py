"""Replay: messages of a log go back to one group, under their own offsets, once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

import duly
from duly.limits import LIMITS

from .conftest import Home
from .patience import eventually

MINUTE = 60.0


def fill(q: duly.Client, count: int, topic: str = "orders") -> list[duly.StoredMessage]:
    q.publish(
        topic,
        [duly.Message(b"%d" % n, id=f"o{n}" if n % 2 else None, key="k", headers={"n": f"{n}"}) for n in range(count)],
    )
    return q.read(topic, max_messages=count)


def drain(q: duly.Client, group: str = "billing", topic: str = "orders") -> list[int]:
    """Claims and acks all that is due; the offsets in the order of delivery."""
    found: list[int] = []
    while batch := q.claim(topic, group=group, max_messages=1000):
        found += [delivery.offset for delivery in batch]
        q.ack(batch)
    return found


def replay(
    q: duly.Client, messages: Sequence[int | duly.StoredMessage], version: int = 0, **more: object
) -> duly.Replayed:
    known = q.describe_topic("orders")
    given = {"of": (known.incarnation, known.partitions[0].id), "job": "r", "group": "billing", **more}
    return q.replay("orders", messages, version=version, **given)  # type: ignore[arg-type]


def truncate(q: duly.Client, clock: duly.ManualClock) -> None:
    """Everything in the log is dropped."""
    q.update_topic("orders", retention=duly.Retention(age=MINUTE))
    clock.advance(2 * MINUTE)
    q.publish("orders", b"the last to go")
    drain(q)
    clock.advance(2 * MINUTE)
    eventually(lambda: q.describe_topic("orders").messages == 0)


# What goes back, and to whom


def test_messages_go_back_to_one_group_alone(q: duly.Client, orders: str) -> None:
    q.create_group(orders, "audit")
    fill(q, 10)
    assert drain(q) == drain(q, "audit") == list(range(10))
    assert replay(q, [7, 2, 3]) == duly.Replayed(3)
    assert drain(q, "audit") == []
    batch = q.claim(orders, group="billing", max_messages=10)
    assert [(d.offset, d.payload, d.id, d.key, d.attempt) for d in batch] == [
        (2, b"2", batch[0].id, "k", 1),
        (3, b"3", "o3", "k", 1),
        (7, b"7", "o7", "k", 1),
    ]
    q.ack(batch)
    assert drain(q) == []


def test_what_the_group_has_in_its_backlog_is_left_alone(q: duly.Client, orders: str) -> None:
    fill(q, 8)
    batch = q.claim(orders, group="billing", max_messages=5)
    q.bury(batch[:1], reason="no")
    q.nack(batch[1:2], delay=5)
    q.ack(batch[2:4])
    # 0 is dead, 1 waits, 2 and 3 are done, 4 is leased, 5 to 7 were never claimed.
    assert replay(q, range(8)) == duly.Replayed(2, pending=6)
    assert q.describe_group(orders, "billing").dead == 1
    assert sorted(drain(q)) == [2, 3, 5, 6, 7]
    q.ack(batch[4:5])


def test_a_message_that_was_replayed_fails_and_is_buried_like_any_other(
    q: duly.Client, orders: str, clock: duly.ManualClock
) -> None:
    fill(q, 2)
    drain(q)
    replay(q, [1])
    for _ in range(3):
        q.nack(q.claim(orders, group="billing"), reason="still no")
        clock.advance(10)
    assert not q.claim(orders, group="billing")
    (letter,) = q.dead(orders, group="billing")
    assert (letter.message.offset, letter.attempts) == (1, 3)


def test_more_than_a_row_of_offsets_with_gaps(q: duly.Client, orders: str) -> None:
    fill(q, 5000)
    drain(q)
    wanted = [offset for offset in range(5000) if offset % 3]
    assert replay(q, wanted).messages == len(wanted)
    assert drain(q) == wanted


# What the log has lost


def test_what_was_truncated_goes_back_as_a_copy(q: duly.Client, orders: str, clock: duly.ManualClock) -> None:
    copies = fill(q, 6)
    drain(q)
    truncate(q, clock)
    with pytest.raises(duly.OffsetTruncated, match="Send a copy"):
        replay(q, [*copies[:3], 4])
    assert drain(q) == []
    assert replay(q, copies) == duly.Replayed(6)
    batch = q.claim(orders, group="billing", max_messages=10)
    assert [(d.offset, d.id, d.payload, d.key, d.headers) for d in batch] == [
        (m.offset, m.id, m.payload, m.key, m.headers) for m in copies
    ]
    assert [d.published_at for d in batch] == [m.published_at for m in copies]
    q.ack(batch)


def test_a_copy_of_what_the_log_has_is_not_needed(q: duly.Client, orders: str) -> None:
    copies = fill(q, 3)
    drain(q)
    assert replay(q, [replace(copies[1], payload=b"forged")]).messages == 1
    assert q.claim(orders, group="billing").payloads == [b"1"]


def test_a_copy_for_one_group_does_not_change_what_another_refers_to(
    q: duly.Client, orders: str, clock: duly.ManualClock
) -> None:
    copies = fill(q, 2)
    q.bury(q.claim(orders, group="billing", max_messages=2), reason="no")
    truncate(q, clock)
    q.create_group(orders, "audit", start="latest")
    replay(q, [replace(copies[0], payload=b"forged")], group="audit")
    assert q.claim(orders, group="audit").payloads == [b"0"]


def test_an_expired_copy_is_not_delivered(q: duly.Client, orders: str, clock: duly.ManualClock) -> None:
    (copy,) = fill(q, 1)
    drain(q)
    truncate(q, clock)
    replay(q, [replace(copy, expires_at_ms=copy.published_at_ms + 1)])
    assert drain(q) == []
    assert "ttl_expired" in {event.kind for event in q.events(topic=orders)}


def test_copies_go_when_they_are_settled_and_pin_nothing(
    home: Home, q: duly.Client, orders: str, clock: duly.ManualClock
) -> None:
    copies = fill(q, 3000)
    drain(q)
    truncate(q, clock)
    replay(q, copies)
    assert home.rows("duly_kept") == 3000
    # The group comes to the new ones only, and the log is truncated all the same.
    q.publish(orders, [b"new"] * 4000)
    while 3001 + 4000 not in (held := q.describe_group(orders, "billing")).cursors.values():
        batch = q.claim(orders, group="billing", max_messages=1000)
        q.ack([delivery for delivery in batch if delivery.offset > 3000])
        q.nack([delivery for delivery in batch if delivery.offset < 3000], delay=3600)
    assert held.retrying == 3000
    clock.advance(5 * MINUTE)
    eventually(lambda: q.describe_topic(orders).messages == 0)
    assert home.rows("duly_kept") == 3000
    clock.advance(3600)
    drain(q)
    clock.advance(5 * MINUTE)
    eventually(lambda: home.rows("duly_kept") == 0)


# Once


def test_a_version_is_done_once(q: duly.Client, orders: str) -> None:
    fill(q, 4)
    drain(q)
    assert replay(q, [0, 1], version=5) == duly.Replayed(2)
    drain(q)
    assert replay(q, [0, 1], version=5) == duly.Replayed(2, duplicate=True)
    assert replay(q, [2], version=4) == duly.Replayed(0, duplicate=True)
    assert drain(q) == []
    assert replay(q, [2], version=6) == duly.Replayed(1)
    assert replay(q, [3], job="other") == duly.Replayed(1)
    assert drain(q) == [2, 3]


def test_a_job_has_its_versions_whether_it_publishes_or_replays(q: duly.Client, orders: str) -> None:
    fill(q, 2)
    drain(q)
    assert replay(q, [0], version=1).messages == 1
    q.stage(orders, b"x", stage="s", number=0)
    assert q.commit_stages(orders, {"s": 1}, job="r", version=1).duplicate
    assert drain(q) == [0]


def test_what_was_refused_can_be_done_later(q: duly.Client, orders: str) -> None:
    fill(q, 2)
    drain(q)
    with pytest.raises(duly.InvalidArgument, match="ends at offset 2"):
        replay(q, [0, 2])
    assert replay(q, [0]) == duly.Replayed(1)
    assert drain(q) == [0]


# Refused


def test_offsets_of_another_log_are_refused(q: duly.Client, orders: str) -> None:
    fill(q, 3)
    drain(q)
    known = q.describe_topic(orders)
    of = (known.incarnation, known.partitions[0].id)
    with pytest.raises(duly.StaleVersion, match="restored"):
        replay(q, [0], of=("another", of[1]))
    q.delete_topic(orders, force=True)
    q.create_topic(orders, kind="log")
    q.create_group(orders, "billing")
    fill(q, 3)
    drain(q)
    with pytest.raises(duly.StaleVersion, match="another topic 'orders'"):
        replay(q, [0], of=of)
    assert drain(q) == []


@pytest.mark.sqlite
def test_a_restored_store_refuses_what_was_archived_before(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("restored")
    with duly.connect(folder / "app.duly") as q:
        q.create_topic("orders", kind="log")
        q.create_group("orders", "billing")
        fill(q, 3)
        q.backup(folder / "backups")
        known = q.describe_topic("orders")
    duly.restore(folder / "backups", folder / "restored.duly")
    with duly.connect(folder / "restored.duly") as q:
        q.resume_store()
        drain(q)
        with pytest.raises(duly.StaleVersion, match="restored"):
            replay(q, [0], of=(known.incarnation, known.partitions[0].id))
        assert replay(q, [0]).messages == 1


def test_a_group_that_does_not_keep_up_is_sent_no_more(q: duly.Client, orders: str) -> None:
    most, some = LIMITS.replay_waiting_max, LIMITS.replay_messages_max
    for first in range(0, most + 10, some):
        q.publish(orders, [b"x"] * min(some, most + 10 - first))
    drain(q)
    for version in range(most // some):
        replay(q, range(version * some, (version + 1) * some), version=version)
    with pytest.raises(duly.Busy, match="worked some off"):
        replay(q, range(most, most + 10), version=100)
    q.ack(q.claim(orders, group="billing", max_messages=100))
    assert replay(q, range(most, most + 10), version=100).messages == 10


def test_what_is_wrong_is_said(q: duly.Client, orders: str) -> None:
    copies = fill(q, 2)
    q.create_topic("jobs", kind="queue")
    with pytest.raises(duly.GroupNotFound):
        replay(q, [0], group="nobody")
    with pytest.raises(duly.InvalidArgument, match="'jobs' is a queue"):
        q.replay("jobs", [0], group="queue", of=("x", 1), job="r")
    with pytest.raises(duly.LimitExceeded, match="at a time"):
        replay(q, range(LIMITS.replay_messages_max + 1))
    with pytest.raises(duly.InvalidArgument, match="payload"):
        replay(q, [replace(copies[0], payload="text")])
    with pytest.raises(duly.InvalidArgument, match="offset"):
        replay(q, [-1])
    with pytest.raises(duly.InvalidArgument, match="partitions 0 to 0"):
        replay(q, [0], partition=3)


def test_it_is_told(q: duly.Client, orders: str) -> None:
    fill(q, 5)
    drain(q)
    replay(q, [1, 2, 3])
    (told,) = [event for event in q.events(topic=orders) if event.kind == "replayed"]
    assert (told.group, told.offset, told.count, told.facts["job"]) == ("billing", 1, 3, "r")
