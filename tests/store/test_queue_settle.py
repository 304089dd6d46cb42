"""Ending a claim on a queue: ack, nack, release, extend, bury, message by message; and what outlives a consumer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import duly
from duly.clock import from_ms

from .conftest import sharp
from .patience import eventually


@pytest.fixture
def jobs(q: duly.Client) -> str:
    """Leases of 30 s, retries after 10 s sharp, 3 attempts."""
    q.create_topic("jobs", kind="queue", lease=30, retry=sharp(10, max_attempts=3))
    return "jobs"


def numbered(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


def everything(q: duly.Client, topic: str) -> list[bytes]:
    """All that can be claimed now, batch by batch; left under lease."""
    found: list[bytes] = []
    while batch := q.claim(topic):
        found += batch.payloads
    return found


# Ack


def test_what_is_acked_never_comes_again(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, numbered(5))
    assert q.claim(jobs).ack().done == 5
    clock.advance(3600)
    assert not len(q.claim(jobs))


def test_what_is_held_is_not_given_to_another(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, numbered(5))
    assert q.claim(jobs, max_messages=3).payloads == [b"0", b"1", b"2"]
    assert q.claim(jobs, consumer="other").payloads == [b"3", b"4"]
    clock.advance(29.999)
    assert not len(q.claim(jobs))


def test_a_second_ack_is_lost_and_changes_nothing(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, b"x")
    (delivery,) = q.claim(jobs)
    delivery.ack()
    with pytest.raises(duly.LeaseLost):
        delivery.ack()


@pytest.mark.parametrize("verdict", ["ack", "nack", "release", "extend", "bury"])
def test_an_old_lease_is_refused_and_changes_nothing(
    q: duly.Client, jobs: str, clock: duly.ManualClock, verdict: str
) -> None:
    q.publish(jobs, [b"a", b"b"])
    old = q.claim(jobs)
    clock.advance(30)
    new = [q.claim(jobs), q.claim(jobs)]
    assert [batch.payloads for batch in new] == [[b"a"], [b"b"]]
    settled: duly.Settled = getattr(q, verdict)(list(old))
    assert (settled.done, len(settled.lost)) == (0, 2)
    with pytest.raises(duly.LeaseLost):
        getattr(old[0], verdict)()
    assert not len(q.claim(jobs))
    assert not list(q.dead(jobs))
    assert [batch.ack().done for batch in new] == [1, 1]
    clock.advance(3600)
    assert not len(q.claim(jobs))


def test_part_of_a_batch_is_settled_and_the_rest_stays_held(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, numbered(6))
    batch = q.claim(jobs)
    q.ack([batch[0], batch[3]])
    q.nack([batch[1]], delay=1)
    q.release([batch[5]])
    assert q.claim(jobs).payloads == [b"5"]
    clock.advance(1)
    assert q.claim(jobs).payloads == [b"1"]
    assert batch.ack().done == 2
    clock.advance(3600)
    back = everything(q, jobs)
    assert sorted(back) == [b"1", b"5"]


def test_a_batch_as_a_context_acks_what_is_left(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, [b"a", b"b"])
    with q.claim(jobs) as batch:
        batch[0].nack(delay=5)
    clock.advance(5)
    assert q.claim(jobs).payloads == [b"a"]


def test_a_batch_whose_block_raises_is_nacked(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, [b"a", b"b"])
    with pytest.raises(ZeroDivisionError), q.claim(jobs):
        raise ZeroDivisionError
    assert not len(q.claim(jobs))
    clock.advance(10)
    assert [(d.payload, d.attempt) for d in q.claim(jobs)] == [(b"a", 2), (b"b", 2)]


# Nack


def test_a_nacked_message_waits_as_the_policy_says(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, b"x")
    q.claim(jobs).nack(reason="not now")
    clock.advance(9.999)
    assert not len(q.claim(jobs))
    clock.advance(0.001)
    assert [d.attempt for d in q.claim(jobs)] == [2]


def test_a_chosen_delay_is_kept_to_the_millisecond(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, b"x")
    q.claim(jobs).nack(delay=0.25)
    clock.advance(0.249)
    assert not len(q.claim(jobs))
    clock.advance(0.001)
    assert [d.attempt for d in q.claim(jobs)] == [2]


def test_a_failing_message_holds_up_nobody(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, [b"bad", b"good"])
    (bad,) = q.claim(jobs, max_messages=1)
    bad.nack()
    assert q.claim(jobs).payloads == [b"good"]


def test_a_retry_keeps_priority_lane_due_and_headers(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    due = from_ms(clock.now_ms() + 1000)
    q.publish(jobs, duly.Message(b"x", id="i", key="k", headers={"h": "v"}, due=due, priority=4, lane="l"))
    clock.advance(1)
    for attempt in (1, 2, 3):
        (d,) = q.claim(jobs)
        assert (d.id, d.key, dict(d.headers), d.priority, d.lane, d.due, d.attempt) == (
            "i", "k", {"h": "v"}, 4, "l", due, attempt,
        )  # fmt: skip
        if attempt < 3:
            d.nack(delay=1)
            clock.advance(1)


def test_a_retry_comes_by_its_priority(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, [duly.Message(b"urgent", priority=1), duly.Message(b"a", priority=5)])
    q.claim(jobs, max_messages=1).nack(delay=1)
    clock.advance(1)
    q.publish(jobs, duly.Message(b"b", priority=5))
    assert everything(q, jobs) == [b"urgent", b"a", b"b"]


def test_a_retry_is_behind_what_was_due_before_it(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, [b"first", b"second"])
    q.claim(jobs, max_messages=1).nack(delay=5)
    clock.advance(4)
    q.publish(jobs, b"due at 4")
    clock.advance(2)
    q.publish(jobs, b"due at 6")
    assert everything(q, jobs) == [b"second", b"due at 4", b"first", b"due at 6"]


def test_after_the_last_attempt_a_nack_buries(
    q: duly.Client, jobs: str, clock: duly.ManualClock, events: list[duly.Event]
) -> None:
    q.publish(jobs, duly.Message(b"x", id="mine", headers={"h": "v"}))
    for attempt in (1, 2, 3):
        (d,) = q.claim(jobs)
        assert d.attempt == attempt
        d.nack(reason=f"no {attempt}")
        clock.advance(10)
    assert not len(q.claim(jobs))
    (letter,) = q.dead(jobs)
    assert (letter.id, letter.payload, letter.attempts, letter.reason) == ("mine", b"x", 3, "no 3")
    assert [(f.attempt, f.what, f.reason, f.consumer) for f in letter.history] == [
        (n, "nack", f"no {n}", "w1") for n in (1, 2, 3)
    ]
    assert eventually(lambda: [event for event in events if event.kind == "buried"])


def test_attempts_are_counted_for_each_message_of_a_batch(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, b"old")
    q.claim(jobs).nack(delay=0)
    q.publish(jobs, [b"new"] * 2)
    batch = q.claim(jobs)
    assert sorted((d.payload, d.attempt) for d in batch) == [(b"new", 1), (b"new", 1), (b"old", 2)]
    batch.nack()
    clock.advance(10)
    again = q.claim(jobs)
    assert sorted((d.payload, d.attempt) for d in again) == [(b"new", 2), (b"new", 2), (b"old", 3)]
    again.nack()
    clock.advance(10)
    assert [letter.payload for letter in q.dead(jobs)] == [b"old"]
    assert [(d.payload, d.attempt) for d in q.claim(jobs)] == [(b"new", 3), (b"new", 3)]


# Release and extend


def test_a_release_counts_no_attempt_and_is_due_at_once(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, [b"a", b"b"])
    for _ in range(10):
        batch = q.claim(jobs)
        assert [(d.payload, d.attempt) for d in batch] == [(b"a", 1), (b"b", 1)]
        assert batch.release().done == 2
    assert not list(q.dead(jobs))


def test_a_release_after_a_nack_keeps_the_attempts_there_were(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    q.publish(jobs, b"x")
    q.claim(jobs).nack(delay=0)
    for _ in range(5):
        (d,) = q.claim(jobs)
        assert d.attempt == 2
        d.release()


def test_an_extended_lease_lasts_from_now(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, numbered(3))
    batch = q.claim(jobs)
    clock.advance(20)
    assert batch.extend(60).done == 3
    clock.advance(59.999)
    assert not len(q.claim(jobs))
    assert batch.ack().done == 3


def test_part_of_a_batch_can_be_held_longer(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, numbered(4))
    batch = q.claim(jobs)
    assert q.extend([batch[1], batch[3]], 100).done == 2
    clock.advance(30)
    assert sorted(everything(q, jobs)) == [b"0", b"2"]
    assert q.ack([batch[1], batch[3]]).done == 2
    assert len(q.ack([batch[0], batch[2]]).lost) == 2


# Dead letters


def test_bury_redrive_and_the_attempts_begin_anew(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, [duly.Message(b"%d" % n, priority=n, lane="l", id=f"i{n}") for n in range(4)])
    q.bury(q.claim(jobs), reason="bad")
    assert [(letter.id, letter.reason) for letter in q.dead(jobs)] == [(f"i{n}", "bad") for n in range(4)]
    assert q.redrive(jobs, ids=["i3", "i1", "none"]) == 2
    assert [(d.id, d.attempt, d.priority, d.lane) for d in q.claim(jobs)] == [("i1", 1, 1, "l"), ("i3", 1, 3, "l")]
    assert [letter.id for letter in q.dead(jobs)] == ["i0", "i2"]
    assert q.redrive(jobs, limit=1) == 1
    assert q.redrive(jobs) == 1
    assert [d.id for d in q.claim(jobs)] == ["i0", "i2"]
    assert q.redrive(jobs) == 0


def test_a_redrive_at_a_rate_brings_them_one_after_another(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, numbered(5))
    q.bury(q.claim(jobs))
    assert q.redrive(jobs, rate=2) == 5
    came = [len(everything(q, jobs))]
    for _ in range(4):
        clock.advance(0.5)
        came.append(len(everything(q, jobs)))
    assert came == [1] * 5


def test_purged_dead_letters_are_gone(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, numbered(3))
    q.bury(q.claim(jobs))
    q.publish(jobs, b"alive")
    assert q.purge(jobs, dead=True) == 3
    assert not list(q.dead(jobs))
    assert q.redrive(jobs) == 0
    assert q.claim(jobs).payloads == [b"alive"]


def test_without_dead_letters_what_fails_is_dropped(q: duly.Client) -> None:
    q.create_topic("t", kind="queue", dead_letters=False, retry=sharp(0, max_attempts=1))
    q.publish("t", b"x")
    q.claim("t").nack()
    assert not list(q.dead("t"))
    assert not len(q.claim("t"))


# Consumers


def test_a_restarted_consumer_gets_its_leases_back_and_its_former_self_is_fenced_off(
    q: duly.Client, jobs: str, clock: duly.ManualClock, reopen: Callable[[], duly.Client]
) -> None:
    q.publish(jobs, [duly.Message(b"%d" % n, priority=n, lane="l") for n in range(4)])
    q.claim(jobs, max_messages=1).nack(delay=0)
    former = [q.claim(jobs, max_messages=1, consumer="c"), q.claim(jobs, max_messages=2, consumer="c")]
    q.claim(jobs, consumer="d")
    clock.advance(20)
    (batch,) = reopen().held(consumer="c")
    assert sorted((d.payload, d.attempt, d.priority, d.lane) for d in batch) == [
        (b"0", 2, 0, "l"), (b"1", 1, 1, "l"), (b"2", 1, 2, "l"),
    ]  # fmt: skip
    assert [old.ack().done for old in former] == [0, 0]
    clock.advance(29)
    assert batch.ack().done == 3


def test_what_a_hung_consumer_holds_is_freed_at_once(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, numbered(5))
    hung = [q.claim(jobs, max_messages=2, consumer="hung"), q.claim(jobs, max_messages=1, consumer="hung")]
    other = q.claim(jobs, max_messages=1, consumer="other")
    assert q.release(consumer="hung").done == 3
    assert sorted((d.payload, d.attempt) for d in q.claim(jobs)) == [(b"0", 1), (b"1", 1), (b"2", 1), (b"4", 1)]
    assert [batch.ack().done for batch in hung] == [0, 0]
    assert other.ack().done == 1


# Pause, resume, purge


def test_a_paused_queue_takes_in_but_gives_nothing(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, [b"a", b"b"])
    held = q.claim(jobs, max_messages=1)
    q.pause(jobs)
    assert q.describe_topic(jobs).paused
    q.publish(jobs, b"c")
    assert not len(q.claim(jobs))
    assert held.ack().done == 1
    q.resume(jobs)
    assert q.claim(jobs).payloads == [b"b", b"c"]


def test_a_purge_drops_everything_and_fences_off_the_leases(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, numbered(10))
    q.publish(jobs, [duly.Message(b"later", due=60)] * 5)
    q.bury(q.claim(jobs, max_messages=1))
    q.claim(jobs, max_messages=1).nack(delay=5)
    held = q.claim(jobs, max_messages=2)
    q.purge(jobs)
    assert not len(q.claim(jobs))
    assert held.ack().done == 0
    clock.advance(3600)
    assert not len(q.claim(jobs))
    q.publish(jobs, b"new")
    assert q.claim(jobs).payloads == [b"new"]


def test_a_purge_of_many_runs_leaves_nothing_behind(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    for n in range(10):
        q.publish(jobs, [duly.Message(b"x", priority=n, due=n % 2, lane=f"l{n}")] * 5000)
    q.purge(jobs)
    clock.advance(60)
    assert not len(q.claim(jobs))
    q.publish(jobs, duly.Message(b"new", lane="l1"))
    assert q.claim(jobs).payloads == [b"new"]


def test_a_deleted_queue_made_again_is_empty(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, [duly.Message(b"x", due=n % 3) for n in range(5000)])
    with pytest.raises(duly.TopicNotEmpty):
        q.delete_topic(jobs)
    q.delete_topic(jobs, force=True)
    with pytest.raises(duly.TopicNotFound):
        q.claim(jobs)
    q.create_topic(jobs, kind="queue")
    clock.advance(60)
    assert not len(q.claim(jobs))


# Expiry of messages


def test_a_ttl_counts_from_the_due_time(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, [duly.Message(b"a", due=100, ttl=10), duly.Message(b"b", due=100, ttl=11)])
    clock.advance(109.999)
    batch = q.claim(jobs, max_messages=1)
    assert batch.payloads == [b"a"]
    batch.release()
    clock.advance(0.001)
    assert q.claim(jobs).payloads == [b"b"]


def test_the_topics_ttl_counts_from_the_due_time_too(q: duly.Client, clock: duly.ManualClock) -> None:
    q.create_topic("t", kind="queue", ttl=10)
    q.publish("t", [duly.Message(b"soon"), duly.Message(b"later", due=100), duly.Message(b"own", ttl=1000)])
    clock.advance(10)
    batch = q.claim("t")
    assert batch.payloads == [b"own"]
    batch.ack()
    clock.advance(99.999)
    batch = q.claim("t")
    assert batch.payloads == [b"later"]
    batch.release()
    clock.advance(0.001)
    assert not len(q.claim("t"))


def test_an_expiry_is_absolute_whatever_the_due_time(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    at = from_ms(clock.now_ms() + 5000)
    q.publish(jobs, [duly.Message(b"never", due=10, expires_at=at), duly.Message(b"soon", due=1, expires_at=at)])
    clock.advance(4.999)
    assert q.claim(jobs).payloads == [b"soon"]
    clock.advance(10)
    assert not len(q.claim(jobs))


def test_what_expired_is_told_as_an_event(
    q: duly.Client, jobs: str, clock: duly.ManualClock, events: list[duly.Event]
) -> None:
    q.publish(jobs, [duly.Message(b"x", ttl=1)] * 3 + [duly.Message(b"y")])
    clock.advance(1)
    assert q.claim(jobs).payloads == [b"y"]
    told = eventually(lambda: [event for event in events if event.kind == "ttl_expired"])
    assert sum(event.count for event in told) == 3


def test_a_message_that_expires_under_a_lease_may_still_be_acked(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    q.publish(jobs, duly.Message(b"x", ttl=5))
    batch = q.claim(jobs)
    clock.advance(10)
    assert batch.ack().done == 1


@pytest.mark.parametrize("attempts", [1, 3])
def test_a_nack_drops_a_message_that_expired_under_its_lease(
    q: duly.Client, clock: duly.ManualClock, events: list[duly.Event], attempts: int
) -> None:
    q.create_topic("t", kind="queue", lease=30, retry=sharp(1, max_attempts=attempts))
    q.publish("t", duly.Message(b"x", ttl=5))
    batch = q.claim("t")
    clock.advance(10)
    assert batch.nack().done == 1
    assert not list(q.dead("t"))
    assert eventually(lambda: [event for event in events if event.kind == "ttl_expired"])
    clock.advance(60)
    assert not len(q.claim("t"))
    assert not list(q.dead("t"))


def test_many_expired_ones_do_not_hide_a_living_one(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, [duly.Message(b"x", ttl=1)] * 5000)
    q.publish(jobs, duly.Message(b"alive", priority=9))
    clock.advance(2)
    assert eventually(lambda: q.claim(jobs, max_messages=1).payloads) == [b"alive"]
