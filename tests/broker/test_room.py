"""The waiting room: a claim that finds nothing is told when something comes, its time is over, or nothing can come."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

import duly
import duly.broker.broker
import duly.broker.room
import duly.store.sqlite.writer
from duly.broker.desk import Waiter
from duly.client.batch import Batch
from duly.clock import monotonic_s
from duly.engine.claimed import Claim
from duly.limits import LIMITS
from tests.conftest import scaled
from tests.store.patience import Aside, eventually

from .conftest import Guest, Place

PROMPT_S = 5.0


def publish_aside(place: Place, *payloads: bytes, topic: str = "jobs") -> Aside[object]:
    """Publishes in another thread, and returns when the publish stands before the writer."""
    writer = place.home.store._writer
    before = len(writer._given) + writer._queue.count
    aside: Aside[object] = Aside(lambda: place.q.publish(topic, list(payloads)))
    eventually(lambda: len(writer._given) + writer._queue.count > before)
    return aside


# Something comes


def test_what_is_there_is_told_at_once(place: Place) -> None:
    place.q.publish("jobs", b"x")
    assert place.come("a").payloads() == [b"x"]
    assert place.is_deserted()


def test_a_publish_is_told_to_one_who_waits(place: Place) -> None:
    waiting = place.wait("a")
    assert place.room.count == 1
    place.q.publish("jobs", b"x")
    assert waiting.payloads() == [b"x"]
    assert place.is_deserted()


def test_a_publish_through_another_store_on_the_file_is_told(place: Place) -> None:
    waiting = place.wait("a")
    with duly.connect(place.path, clock=place.clock) as other:
        other.publish("jobs", b"x")
        assert waiting.payloads() == [b"x"]


def test_a_publish_right_behind_the_first_look_is_told(place: Place) -> None:
    with place.writing():
        # The claim goes first and finds nothing; its desk does not know yet which partition to listen to.
        waiting = place.come("a")
        publish = publish_aside(place, b"x")
    publish.result()
    assert waiting.payloads() == [b"x"]


def test_a_publish_right_behind_a_later_look_is_told(place: Place) -> None:
    waiting = place.wait("a")
    with place.writing():
        place.come("b")
        publish = publish_aside(place, b"x")
    publish.result()
    assert waiting.payloads() == [b"x"]


def test_a_publish_by_another_process_during_the_first_look_is_told(place: Place) -> None:
    """Its ring comes whenever the kernel brings it: here before the answer to the look that missed the message."""
    store = place.home.store
    with place.writing():
        waiting = place.come("a")
        place.room._rang([store.slot(1)])
    place.settle()
    assert place.asked == ["a", "a"]
    assert not waiting.told


def test_a_message_given_back_is_told_to_one_who_waits(place: Place) -> None:
    place.q.publish("jobs", b"x")
    batch = place.q.claim("jobs")
    waiting = place.wait("a")
    place.q.release(batch)
    assert waiting.payloads() == [b"x"]


@pytest.mark.parametrize("kind", ["queue", "log"])
def test_every_partition_is_listened_to(place: Place, kind: str) -> None:
    place.q.create_topic("wide", kind=kind, partitions=8)
    if kind == "log":
        place.q.create_group("wide", "queue")
    for number in range(16):
        waiting = place.wait(f"w{number}", topic="wide")
        place.q.publish("wide", duly.Message(b"x", key=f"key {number}"))
        assert waiting.payloads() == [b"x"]


def test_each_group_of_a_log_is_told(place: Place) -> None:
    place.q.create_topic("log", kind="log")
    for group in "abc":
        place.q.create_group("log", group)
    waiting = [place.wait(group, topic="log", group=group) for group in "abc"]
    place.q.publish("log", b"x")
    assert [one.payloads() for one in waiting] == [[b"x"]] * 3


# Time


def test_one_whose_time_is_over_is_told_nothing(place: Place) -> None:
    began = time.monotonic()
    waiting = place.come("a", wait=0.1)
    assert waiting.payloads() == []
    assert 0.1 <= time.monotonic() - began < PROMPT_S
    assert place.is_deserted()


def test_times_end_in_their_own_order(place: Place) -> None:
    for name, wait in (("c", 0.3), ("a", 0.1), ("b", 0.2)):
        place.wait(name, wait=wait)
    eventually(lambda: len(place.told) == 3)
    assert [one.name for one in place.told] == ["a", "b", "c"]


def test_one_who_will_not_wait_is_told_nothing_at_once(place: Place) -> None:
    assert place.come("a", wait=None).payloads() == []
    assert place.is_deserted()


def test_one_whose_time_ends_while_it_is_asked_for_is_told_once(place: Place) -> None:
    with place.writing():
        waiting = place.come("a", wait=0.05)
        time.sleep(0.15)
        assert not waiting.told
    assert waiting.payloads() == []
    assert place.is_deserted()


def test_what_comes_in_the_last_moment_is_still_told(place: Place) -> None:
    place.q.publish("jobs", b"x")
    with place.writing():
        waiting = place.come("a", wait=0.05)
        time.sleep(0.15)
    assert waiting.payloads() == [b"x"]


def test_a_due_time_is_told_when_the_clock_is_moved_there(place: Place, clock: duly.ManualClock) -> None:
    place.q.publish("jobs", duly.Message(b"x", due=60))
    waiting = place.wait("a")
    clock.advance(59)
    place.settle()
    assert not waiting.told
    clock.advance(1)
    assert waiting.payloads() == [b"x"]


def test_a_due_time_is_told_to_the_next_as_well(live_place: Place) -> None:
    place = live_place
    waiting = [place.wait(name) for name in "ab"]
    place.q.publish("jobs", [duly.Message(b"now"), duly.Message(b"soon", due=0.2)])
    assert waiting[0].payloads() == [b"now"]
    assert waiting[1].payloads() == [b"soon"]


def test_a_due_time_that_was_moved_is_told_when_it_is(live_place: Place) -> None:
    place = live_place
    place.q.publish("jobs", duly.Message(b"x", id="one", due=3600))
    waiting = place.wait("a")
    place.q.move("jobs", "one", due=0.1)
    assert waiting.payloads() == [b"x"]


def test_a_lease_that_runs_out_is_told(place: Place, clock: duly.ManualClock) -> None:
    place.q.publish("jobs", b"x")
    place.q.claim("jobs")
    waiting = place.wait("a")
    clock.advance(30)
    assert waiting.payloads() == [b"x"]


def test_a_due_time_in_the_past_is_looked_at_at_once(live_place: Place) -> None:
    """A retry that is due while nobody looks: whoever comes gets it without a ring."""
    place = live_place
    place.q.publish("jobs", b"x")
    place.q.nack(place.q.claim("jobs"), delay=0.05)
    assert place.come("a").payloads() == [b"x"]


# What stands in the way


def test_a_topic_that_is_resumed_is_told(place: Place) -> None:
    place.q.pause("jobs")
    place.q.publish("jobs", b"x")
    waiting = place.wait("a")
    place.q.resume("jobs")
    assert waiting.payloads() == [b"x"]


def test_a_store_that_is_resumed_is_told(place: Place) -> None:
    place.q.pause_store()
    place.q.publish("jobs", b"x")
    waiting = place.wait("a")
    place.q.resume_store()
    assert waiting.payloads() == [b"x"]


def test_an_unknown_topic_is_told_to_all_who_came_for_it(place: Place) -> None:
    with place.writing():
        lost = [place.come(f"w{number}", topic="nowhere") for number in range(20)]
    for one in lost:
        assert isinstance(one.answer(), duly.TopicNotFound)
    assert place.is_deserted()


def test_a_topic_that_goes_is_told_to_all_who_wait_there(place: Place) -> None:
    waiting = [place.wait(f"w{number}") for number in range(20)]
    place.q.delete_topic("jobs")
    for one in waiting:
        assert isinstance(one.answer(), duly.TopicNotFound)
    assert place.is_deserted()


def test_a_group_that_goes_is_told_to_all_who_wait_there(place: Place) -> None:
    place.q.create_topic("log", kind="log")
    place.q.create_group("log", "readers")
    waiting = [place.wait(f"w{number}", topic="log", group="readers") for number in range(5)]
    place.q.delete_group("log", "readers")
    for one in waiting:
        assert isinstance(one.answer(), duly.GroupNotFound)


def test_one_who_waits_for_a_topic_of_the_same_name_gets_what_comes_there(place: Place) -> None:
    place.wait("a")
    place.q.delete_topic("jobs")
    place.q.create_topic("other", kind="queue")
    place.q.create_topic("jobs", kind="queue", partitions=3)
    waiting = place.wait("b")
    place.q.publish("jobs", b"x")
    assert waiting.payloads() == [b"x"]


def test_a_writer_that_takes_no_more_is_told_as_busy_to_all(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = [place.come(f"w{number}") for number in range(600)]
    place.settle()
    with monkeypatch.context() as full:
        full.setattr(duly.store.sqlite.writer, "LIMITS", replace(LIMITS, writer_commands_max=0))
        place.broker.wake()
    for one in waiting:
        assert isinstance(one.answer(), duly.Busy)
    assert place.is_deserted()


def test_too_many_who_wait_are_turned_away(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duly.broker.room, "LIMITS", replace(LIMITS, claims_waiting_max=6))
    waiting = [place.wait(f"w{number}") for number in range(3)]
    with pytest.raises(duly.Busy):
        place.come("one too many")
    assert waiting[1].leave()
    place.come("again")
    assert place.room.count == 3


# Who is not there any more


def test_one_who_left_gets_nothing_and_the_next_does(place: Place) -> None:
    gone, waiting = place.wait("a"), place.wait("b")
    assert gone.leave()
    place.q.publish("jobs", b"x")
    assert waiting.payloads() == [b"x"]
    assert not gone.told
    assert place.is_deserted()


def test_what_is_under_way_to_one_who_left_is_given_to_the_next(place: Place) -> None:
    place.q.publish("jobs", b"x")
    with place.writing():
        gone = place.come("a")
        assert gone.leave()
        waiting = place.come("b")
        assert place.room.count == 1
    batch = waiting.batch()
    assert [(delivery.payload, delivery.attempt) for delivery in batch] == [(b"x", 1)]
    assert not gone.told


def test_what_is_under_way_to_one_who_left_does_not_stay_leased(place: Place) -> None:
    place.q.publish("jobs", b"x")
    with place.writing():
        gone = place.come("a")
        assert gone.leave()
    eventually(place.is_deserted)
    eventually(lambda: place.q.describe_group("jobs", "queue").leased == 0)
    assert not gone.told


def test_one_who_leaves_too_late_is_told_so_and_has_what_it_got(place: Place) -> None:
    place.q.publish("jobs", b"x")
    late = place.come("a")
    assert late.payloads() == [b"x"]
    assert not late.leave()
    assert place.room.count == 0
    place.broker.release(late.command, late.answer())  # type: ignore[arg-type]
    assert place.come("b").payloads() == [b"x"]


def test_one_can_leave_once(place: Place) -> None:
    waiting = place.wait("a")
    assert waiting.leave()
    assert not waiting.leave()
    assert place.room.count == 0


def test_an_answer_that_is_not_taken_is_given_back_and_those_behind_are_served(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(answer: object) -> None:
        raise RuntimeError("the event loop is closed")

    behind: list[Guest] = []
    place.broker.submit_claim(
        Claim("default", "jobs", "queue", "broken", 1, 1 << 26), wait_until=monotonic_s() + 60, then=refuse
    )
    place.settle()
    behind += [place.wait("b"), place.wait("c")]
    place.q.publish("jobs", [b"1", b"2"])
    assert sorted(payload for one in behind for payload in one.payloads()) == [b"1", b"2"]
    assert "the event loop is closed" in caplog.text


def test_one_can_come_again_while_it_is_told(place: Place) -> None:
    got: list[bytes] = []

    def again(answer: object) -> None:
        batch = Batch(place.q, answer)  # type: ignore[arg-type]
        got.extend(batch.payloads)
        if len(got) < 3:
            place.broker.submit_claim(command, wait_until=monotonic_s() + 60, then=again)

    command = Claim("default", "jobs", "queue", "a", 1, 1 << 26)
    place.broker.submit_claim(command, wait_until=monotonic_s() + 60, then=again)
    place.q.publish("jobs", [b"1", b"2", b"3"])
    eventually(lambda: len(got) == 3)
    eventually(place.is_deserted)


# Who waits in a thread of its own


def test_a_call_that_waits_returns_what_comes(place: Place) -> None:
    with Aside(lambda: place.q.claim("jobs", wait=30).payloads) as waiting:
        eventually(lambda: place.room.count == 1)
        place.q.publish("jobs", b"x")
        assert waiting.result() == [b"x"]


def test_a_call_that_waits_returns_empty_when_its_time_is_over(place: Place) -> None:
    assert place.q.claim("jobs", wait=0.05).payloads == []
    assert place.is_deserted()


def test_a_call_that_waits_raises_what_its_claim_met(place: Place) -> None:
    place.wait("a")
    with Aside(lambda: place.q.claim("jobs", wait=30)) as waiting:
        eventually(lambda: place.room.count == 2)
        place.q.delete_topic("jobs")
        with pytest.raises(duly.TopicNotFound):
            waiting.result()


def test_a_call_that_nobody_answers_in_time_times_out_and_leaves(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duly.broker.broker, "_GRACE_S", 0.05)
    place.wait("a")
    with place.writing(), Aside(lambda: place.q.claim("jobs")) as waiting, pytest.raises(duly.Timeout):
        waiting.result()
    eventually(lambda: place.room.count == 1)


def test_a_call_that_is_told_in_the_moment_it_gives_up_returns_what_it_is_told(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duly.broker.broker, "_GRACE_S", -0.1)
    leave = place.room.leave

    def leave_late(waiter: Waiter) -> bool:
        place.q.publish("jobs", b"x")
        eventually(lambda: waiter.gone)
        return leave(waiter)

    monkeypatch.setattr(place.room, "leave", leave_late)
    assert place.q.claim("jobs", wait=0.15).payloads == [b"x"]


# The end


def test_closing_turns_away_those_who_wait_and_those_who_come(place: Place) -> None:
    waiting = [place.wait(f"w{number}") for number in range(3)]
    place.broker.drain()
    for one in waiting:
        assert isinstance(one.answer(0), duly.Closed)
    with pytest.raises(duly.Closed):
        place.come("late")
    assert place.is_deserted()


def test_one_who_is_asked_for_while_the_room_closes_gets_its_answer(place: Place) -> None:
    place.q.publish("jobs", b"x")
    with place.writing():
        served, waiting = place.come("a"), place.come("b")
        hurried = place.come("c", wait=None)
        place.broker.drain()
        assert isinstance(waiting.answer(0), duly.Closed)
        assert isinstance(hurried.answer(0), duly.Closed)
        assert not served.told
    assert served.payloads() == [b"x"]
    assert place.is_deserted()


def test_one_who_is_asked_for_in_vain_while_the_room_closes_is_turned_away(place: Place) -> None:
    with place.writing():
        waiting = place.come("a")
        place.broker.drain()
    assert isinstance(waiting.answer(), duly.Closed)
    assert place.is_deserted()


# What it costs


def test_coming_and_going_leaves_nothing_behind(place: Place) -> None:
    for number in range(scaled(2_000, 20_000)):
        assert place.come(f"w{number % 7}", wait=3600).leave()
    assert len(place.room._alarms) < 200
    eventually(place.is_deserted)


def test_looking_in_vain_again_and_again_leaves_nothing_behind(live_place: Place) -> None:
    place = live_place
    place.q.publish("jobs", duly.Message(b"x", due=3600))
    waiting = place.wait("a")
    for _ in range(150):
        place.broker.wake()
        place.settle()
    assert len(place.asked) > 100
    assert len(place.room._alarms) < 100
    assert waiting.leave()
    assert place.is_deserted()


def test_a_desk_that_does_not_hear_a_ring_is_not_asked_for(place: Place) -> None:
    place.q.create_topic("quiet", kind="queue")
    place.wait("a", topic="quiet")
    waiting = place.wait("b")
    place.asked.clear()
    place.q.publish("jobs", b"x")
    assert waiting.payloads() == [b"x"]
    assert place.asked == ["b"]
