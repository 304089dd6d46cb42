"""A queue's messages by id: move, cancel and get find them wherever they are; browse and coming tell what is there."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import duly
from duly.clock import from_ms

from .conftest import sharp

MINUTE_MS = 60_000


@pytest.fixture
def jobs(q: duly.Client) -> str:
    """Leases of 30 s, retries after 10 s sharp, 3 attempts."""
    return make_jobs(q)


def make_jobs(q: duly.Client) -> str:
    q.create_topic("jobs", kind="queue", lease=30, retry=sharp(10, max_attempts=3))
    return "jobs"


def named(ids: list[str], **fields: Any) -> list[duly.Message]:
    return [duly.Message(text.encode(), id=text, **fields) for text in ids]


def drain(q: duly.Client, topic: str = "jobs") -> list[str]:
    """All that is due, acked: the ids, in the order of service."""
    found: list[str] = []
    while batch := q.claim(topic, max_messages=1000):
        found += [d.id for d in batch]
        batch.ack()
    return found


def take(q: duly.Client, wanted: str, topic: str = "jobs") -> duly.Delivery:
    """The delivery of one message; all others are given back."""
    batch = q.claim(topic, max_messages=10_000)
    (chosen,) = [d for d in batch if d.id == wanted]
    q.release([d for d in batch if d.id != wanted])
    return chosen


def state_of(q: duly.Client, message_id: str, topic: str = "jobs") -> str:
    found = q.get(topic, message_id)
    return "none" if found is None else found.state


def after(clock: duly.ManualClock, seconds: float) -> Any:
    return from_ms(clock.now_ms() + round(seconds * 1000))


# Wherever a message is. Each place puts a message "m" of priority 5 somewhere, beside others of priority 5.

Place = Callable[[duly.Client, duly.ManualClock], None]
BESIDE = [f"o{n}" for n in range(6)]
MANY = [f"o{n}" for n in range(2100)]


def publish_beside(q: duly.Client, others: list[str], due: float | None = None) -> None:
    half = len(others) // 2
    q.publish("jobs", named([*others[:half], "m", *others[half:]], priority=5, due=due))


def just_published(q: duly.Client, clock: duly.ManualClock) -> None:
    publish_beside(q, BESIDE)


def in_a_run(q: duly.Client, clock: duly.ManualClock) -> None:
    publish_beside(q, MANY)


def waiting(q: duly.Client, clock: duly.ManualClock) -> None:
    publish_beside(q, BESIDE, due=60)


def waiting_in_a_run(q: duly.Client, clock: duly.ManualClock) -> None:
    publish_beside(q, MANY, due=60)


def come_due(q: duly.Client, clock: duly.ManualClock) -> None:
    publish_beside(q, MANY, due=60)
    clock.advance(60)
    q.claim("jobs", max_messages=2).release()


def retrying(q: duly.Client, clock: duly.ManualClock) -> None:
    publish_beside(q, BESIDE)
    take(q, "m").nack(delay=60)


def retry_come_due(q: duly.Client, clock: duly.ManualClock) -> None:
    publish_beside(q, BESIDE)
    take(q, "m").nack(delay=60)
    clock.advance(60)
    q.claim("jobs", max_messages=1).release()


def released(q: duly.Client, clock: duly.ManualClock) -> None:
    publish_beside(q, BESIDE)
    take(q, "m").release()


def moved(q: duly.Client, clock: duly.ManualClock) -> None:
    publish_beside(q, BESIDE)
    assert q.move("jobs", "m", due=60) == {"m": "moved"}


def moved_twice(q: duly.Client, clock: duly.ManualClock) -> None:
    publish_beside(q, BESIDE)
    assert q.move("jobs", "m", due=60) == {"m": "moved"}
    assert q.move("jobs", "m", due=30) == {"m": "moved"}


def moved_back(q: duly.Client, clock: duly.ManualClock) -> None:
    publish_beside(q, BESIDE)
    assert q.move("jobs", "m", due=60) == {"m": "moved"}
    assert q.move("jobs", "m", due=0) == {"m": "moved"}


def moved_from_waiting(q: duly.Client, clock: duly.ManualClock) -> None:
    publish_beside(q, MANY, due=60)
    assert q.move("jobs", "m", due=0) == {"m": "moved"}


def moved_and_come_due(q: duly.Client, clock: duly.ManualClock) -> None:
    publish_beside(q, BESIDE)
    assert q.move("jobs", "m", due=20) == {"m": "moved"}
    clock.advance(20)
    q.claim("jobs", max_messages=1).release()


def moved_after_a_failure(q: duly.Client, clock: duly.ManualClock) -> None:
    publish_beside(q, BESIDE)
    take(q, "m").nack(delay=60)
    assert q.move("jobs", "m", due=20) == {"m": "moved"}


def redriven(q: duly.Client, clock: duly.ManualClock) -> None:
    publish_beside(q, BESIDE)
    take(q, "m").bury()
    assert q.redrive("jobs") == 1


def back_from_a_lost_lease(q: duly.Client, clock: duly.ManualClock) -> None:
    q.publish("jobs", named(["m"], priority=5))
    q.claim("jobs", consumer="crashed")
    clock.advance(30)
    q.claim("jobs").release()
    q.publish("jobs", named(BESIDE, priority=5))


PLACES: dict[str, Place] = {
    place.__name__.replace("_", " "): place
    for place in (
        just_published, in_a_run, waiting, waiting_in_a_run, come_due, retrying, retry_come_due, released, moved,
        moved_twice, moved_back, moved_from_waiting, moved_and_come_due, moved_after_a_failure, redriven,
        back_from_a_lost_lease,
    )
}  # fmt: skip
everywhere = pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())


def check_cancel(q: duly.Client, clock: duly.ManualClock) -> None:
    before = q.describe_topic("jobs").messages
    found = q.get("jobs", "m")
    assert found is not None
    here = (found.partition, found.offset - 1)
    assert [message.id for message in q.browse("jobs", after=here, limit=1)] == ["m"]
    assert q.cancel("jobs", "m") == {"m": "cancelled"}
    assert q.describe_topic("jobs").messages == before - 1
    assert state_of(q, "m") == "finished"
    assert [message.id for message in q.browse("jobs", after=here, limit=1)] != ["m"]
    assert q.cancel("jobs", "m") == {"m": "finished"}
    assert q.move("jobs", "m", due=1) == {"m": "finished"}
    came = drain(q)
    clock.advance(3600)
    came += drain(q)
    assert "m" not in came
    assert len(came) == len(set(came)) == before - 1
    assert q.describe_topic("jobs").messages == 0


def check_move(q: duly.Client, clock: duly.ManualClock) -> None:
    due = after(clock, 500)
    failed = q.get("jobs", "m")
    assert failed is not None
    assert q.move("jobs", "m", due=due) == {"m": "moved"}
    found = q.get("jobs", "m")
    assert found is not None
    assert (found.state, found.due, found.priority) == ("retrying" if failed.attempts else "waiting", due, 5)
    assert (found.attempts, found.history, found.payload) == (failed.attempts, failed.history, b"m")
    came = drain(q)
    clock.advance(60)
    came += drain(q)
    assert state_of(q, "m") == found.state
    clock.advance(439.999)
    came += drain(q)
    assert "m" not in came
    assert len(came) == len(set(came))
    clock.advance(0.001)
    assert state_of(q, "m") == "ready"
    assert drain(q) == ["m"]
    assert state_of(q, "m") == "finished"
    clock.advance(3600)
    assert drain(q) == []
    assert q.describe_topic("jobs").messages == 0


@everywhere
def test_a_message_is_cancelled_wherever_it_is(
    q: duly.Client, jobs: str, clock: duly.ManualClock, place: Place
) -> None:
    place(q, clock)
    check_cancel(q, clock)


@everywhere
def test_a_message_is_moved_in_time_wherever_it_is(
    q: duly.Client, jobs: str, clock: duly.ManualClock, place: Place
) -> None:
    place(q, clock)
    check_move(q, clock)


@everywhere
def test_a_message_is_moved_in_priority_wherever_it_is(
    q: duly.Client, jobs: str, clock: duly.ManualClock, place: Place
) -> None:
    place(q, clock)
    before = q.get(jobs, "m")
    assert q.move(jobs, "m", priority=1) == {"m": "moved"}
    found = q.get(jobs, "m")
    assert before is not None
    assert found is not None
    assert (found.priority, found.due, found.state) == (1, before.due, before.state)
    clock.advance(60)
    came = drain(q)
    assert came[0] == "m"
    assert len(came) == len(set(came))


@everywhere
@pytest.mark.parametrize("check", [check_cancel, check_move], ids=["cancel", "move"])
def test_a_message_is_found_wherever_it_is_after_reopening(
    q: duly.Client,
    jobs: str,
    clock: duly.ManualClock,
    reopen: Callable[[], duly.Client],
    place: Place,
    check: Callable[[duly.Client, duly.ManualClock], None],
) -> None:
    place(q, clock)
    before = q.get(jobs, "m")
    q.close()
    again = reopen()
    assert again.get(jobs, "m") == before
    check(again, clock)


@everywhere
def test_a_move_outlives_reopening(
    q: duly.Client, jobs: str, clock: duly.ManualClock, reopen: Callable[[], duly.Client], place: Place
) -> None:
    place(q, clock)
    q.move(jobs, "m", due=500)
    q.close()
    again = reopen()
    came = drain(again)
    clock.advance(499.999)
    came += drain(again)
    assert "m" not in came
    clock.advance(0.001)
    assert drain(again) == ["m"]


# Answers


def test_what_never_was_is_not_found(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, named(["a"]))
    strange = ["b", "@1-99", "@99-0", "@", "@x-y", "@1", "@-1", "@1-", "\N{SNOWMAN}", "a ", "A"]
    assert q.move(jobs, strange, due=5) == dict.fromkeys(strange, "not_found")
    assert q.cancel(jobs, strange) == dict.fromkeys(strange, "not_found")
    assert [q.get(jobs, text) for text in strange] == [None] * len(strange)
    assert drain(q) == ["a"]


@pytest.mark.parametrize("text", ["@1-" + "9" * 30, "@1-" + "9" * 5000, "@" + "9" * 5000 + "-1", "x" * 100_000])
def test_an_id_of_any_length_is_answered(q: duly.Client, jobs: str, text: str) -> None:
    q.publish(jobs, b"x")
    assert q.get(jobs, text) is None
    assert q.cancel(jobs, text) == {text: "not_found"}
    assert q.move(jobs, text, due=1) == {text: "not_found"}


def test_a_made_id_is_written_in_one_way(q: duly.Client, jobs: str) -> None:
    (made,) = q.publish(jobs, b"x").ids
    partition, offset = made[1:].split("-")
    others = [f"@{partition}-0{offset}", f"@0{partition}-{offset}", f"@{partition}-\N{ARABIC-INDIC DIGIT ZERO}"]
    assert q.cancel(jobs, others) == dict.fromkeys(others, "not_found")
    assert q.cancel(jobs, made) == {made: "cancelled"}


def test_what_was_acked_is_finished(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, named(["a", "b"]))
    q.ack([take(q, "a")])
    assert (q.cancel(jobs, "a"), q.move(jobs, "a", due=5)) == ({"a": "finished"}, {"a": "finished"})
    assert (state_of(q, "a"), state_of(q, "b")) == ("finished", "ready")


def test_a_dead_letter_is_finished_for_move_and_cancel_and_stays(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, named(["a"]))
    q.claim(jobs).deliveries[0].bury("why")
    assert (q.cancel(jobs, "a"), q.move(jobs, "a", priority=5)) == ({"a": "finished"}, {"a": "finished"})
    assert state_of(q, "a") == "dead"
    assert [letter.id for letter in q.dead(jobs)] == ["a"]


def test_answers_come_in_the_order_asked_each_once(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, named([f"i{n}" for n in range(50)]))
    asked = [f"i{n}" for n in random.Random(3).sample(range(60), 60)]
    answers = q.move(jobs, [*asked, *asked[:10]], due=60)
    assert list(answers) == asked
    assert answers == {text: "moved" if int(text[1:]) < 50 else "not_found" for text in asked}


def test_a_mixed_list_gets_mixed_answers(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, named(["held", "acked", "dead"]))
    held, acked, dead = q.claim(jobs)
    acked.ack()
    dead.bury()
    q.publish(jobs, named(["ready"]) + named(["later"], due=60))
    asked = ["none", "ready", "dead", "held", "later", "acked"]
    assert list(q.move(jobs, asked, priority=3).values()) == [
        "not_found", "moved", "finished", "leased", "moved", "finished",
    ]  # fmt: skip
    assert list(q.cancel(jobs, asked).values()) == [
        "not_found", "cancelled", "finished", "leased", "cancelled", "finished",
    ]  # fmt: skip
    held.ack()


@pytest.mark.parametrize("text", ["ключ", "鍵", "a b", "🦆" * 100, "'; --", "%", "é", "e\u0301", "\x00"])
def test_any_text_is_an_id(q: duly.Client, jobs: str, text: str) -> None:
    q.publish(jobs, [b"x", duly.Message(b"y", id=text)])
    found = q.get(jobs, text)
    assert found is not None
    assert (found.id, found.payload) == (text, b"y")
    assert q.move(jobs, text, priority=7) == {text: "moved"}
    assert q.cancel(jobs, [text]) == {text: "cancelled"}
    assert q.claim(jobs).payloads == [b"x"]


def test_ids_that_duly_made_serve_as_well(q: duly.Client, clock: duly.ManualClock) -> None:
    q.create_topic("wide", kind="queue", partitions=4)
    ids = [text for n in range(8) for text in q.publish("wide", [b"%d" % (2 * n), b"%d" % (2 * n + 1)]).ids]
    assert all(text.startswith("@") for text in ids)
    for n, text in enumerate(ids):
        found = q.get("wide", text)
        assert found is not None
        assert (found.id, found.payload) == (text, b"%d" % n)
    assert set(q.cancel("wide", ids[::4]).values()) == {"cancelled"}
    assert set(q.move("wide", ids[1::4], due=60).values()) == {"moved"}
    came = drain(q, "wide")
    clock.advance(60)
    assert sorted(drain(q, "wide")) == sorted(ids[1::4])
    assert sorted(came) == sorted(ids[2::4] + ids[3::4])


def test_ids_of_another_topic_are_not_found(q: duly.Client, jobs: str) -> None:
    q.create_topic("other", kind="queue")
    receipt = q.publish("other", [b"x", duly.Message(b"y", id="a")])
    q.publish(jobs, b"z")
    assert q.cancel(jobs, receipt.ids) == dict.fromkeys(receipt.ids, "not_found")
    assert q.get(jobs, receipt.ids[0]) is None
    assert len(drain(q, "other")) == 2


REFUSED: dict[str, Callable[[duly.Client], Any]] = {
    "move nowhere": lambda q: q.move("jobs", "a"),
    "move a log": lambda q: q.move("log", "a", due=1),
    "cancel in a log": lambda q: q.cancel("log", "a"),
    "get from a log": lambda q: q.get("log", "a"),
    "browse a log": lambda q: q.browse("log"),
    "coming of a log": lambda q: q.coming("log"),
    "unknown topic": lambda q: q.cancel("nowhere", "a"),
    "too many ids": lambda q: q.cancel("jobs", [str(n) for n in range(100_001)]),
    "a negative due": lambda q: q.move("jobs", "a", due=-1),
    "a priority beyond": lambda q: q.move("jobs", "a", priority=65_536),
    "due too far": lambda q: q.move("jobs", "a", due=4000 * 86_400),
    "bytes": lambda q: q.cancel("jobs", b"a"),  # type: ignore[arg-type]
    "an empty id": lambda q: q.cancel("jobs", [""]),
    "a number": lambda q: q.get("jobs", 5),  # type: ignore[arg-type]
    "an unknown state": lambda q: q.browse("jobs", state="lost"),
    "finished is nowhere": lambda q: q.browse("jobs", state="finished"),
    "priorities upside down": lambda q: q.browse("jobs", priority=(5, 1)),
    "no minutes": lambda q: q.coming("jobs", minutes=0),
    "no place": lambda q: q.browse("jobs", after="a"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_asked_is_refused_and_changes_nothing(q: duly.Client, jobs: str, what: str) -> None:
    q.create_topic("log", kind="log")
    q.publish(jobs, named(["a"]))
    with pytest.raises(duly.Error):
        REFUSED[what](q)
    assert drain(q) == ["a"]


def test_no_ids_no_answers(q: duly.Client, jobs: str) -> None:
    assert (q.move(jobs, [], due=5), q.cancel(jobs, [])) == ({}, {})


# In bulk


def test_in_the_middle_of_sixty_batches(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    """Enough for runs to be folded, more than once, before, between and after."""
    for b in range(60):
        q.publish(jobs, [duly.Message(b"", id=f"{b}-{n}", due=60 * (n % 2), priority=n % 3) for n in range(1000)])
    gone = [f"{b}-{n}" for b in (0, 29, 30, 59) for n in range(0, 1000, 3)]
    later = [f"{b}-{n}" for b in (1, 29, 31, 59) for n in range(1, 1000, 3)]
    assert set(q.cancel(jobs, gone).values()) == {"cancelled"}
    assert set(q.move(jobs, later, due=500).values()) == {"moved"}
    more = [f"x{n}" for n in range(10_000)]
    for b in range(10):
        q.publish(jobs, [duly.Message(b"", id=text) for text in more[b * 1000 : (b + 1) * 1000]])
    assert set(q.cancel(jobs, gone[::50]).values()) == {"finished"}
    back = later[::2]
    assert set(q.move(jobs, back, due=120).values()) == {"moved"}
    everything = {f"{b}-{n}" for b in range(60) for n in range(1000)} | set(more)
    at_once = {t for t in everything if t[0] == "x" or int(t.split("-")[1]) % 2 == 0} - set(gone) - set(later)
    came = drain(q)
    assert Counter(came) == Counter(at_once)
    clock.advance(60)
    assert Counter(drain(q)) == Counter(everything - at_once - set(gone) - set(later))
    clock.advance(59.999)
    assert drain(q) == []
    clock.advance(0.001)
    assert Counter(drain(q)) == Counter(back)
    clock.advance(380)
    assert Counter(drain(q)) == Counter(set(later) - set(back))
    clock.advance(3600)
    assert (drain(q), q.describe_topic(jobs).messages) == ([], 0)


def test_a_thousand_at_a_time_among_what_is_being_claimed(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, named([str(n) for n in range(5000)]))
    held = q.claim(jobs, max_messages=500)
    answers = q.cancel(jobs, [str(n) for n in range(1000)])
    assert [answers[str(n)] for n in range(1000)] == ["leased"] * 500 + ["cancelled"] * 500
    answers = q.move(jobs, [str(n) for n in range(4500, 5500)], due=60)
    assert [answers[str(n)] for n in range(4500, 5500)] == ["moved"] * 500 + ["not_found"] * 500
    assert held.release().done == 500
    assert drain(q) == [str(n) for n in range(1000, 4500)]
    clock.advance(60)
    assert drain(q) == [str(n) for n in range(4500, 5000)]


def test_a_move_keeps_everything_but_what_was_moved(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, duly.Message(b"x", id="i", key="k", headers={"h": "v"}, priority=9, lane="l", ttl=100))
    before = q.get(jobs, "i")
    q.move(jobs, "i", due=60)
    found = q.get(jobs, "i")
    assert before is not None
    assert found is not None
    for name in ("id", "key", "headers", "priority", "lane", "payload", "place", "published_at_ms"):
        assert getattr(found, name) == getattr(before, name), name
    clock.advance(60)
    (d,) = q.claim(jobs)
    assert (d.payload, d.id, d.key, dict(d.headers), d.lane, d.attempt) == (b"x", "i", "k", {"h": "v"}, "l", 1)


def test_moved_ones_come_by_their_new_priority_and_time(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, named(list("abcdef"), priority=5))
    q.move(jobs, "f", priority=0)
    q.move(jobs, "a", priority=65_535)
    q.move(jobs, "e", due=10, priority=1)
    q.move(jobs, "b", due=from_ms(0))
    assert drain(q) == ["f", "b", "c", "d", "a"]
    clock.advance(10)
    assert drain(q) == ["e"]


def test_a_move_wakes_a_waiting_claim(q: duly.Client, jobs: str) -> None:
    from .patience import Aside

    q.publish(jobs, named(["a"], due=3600))
    with Aside(lambda: [d.id for d in q.claim(jobs, wait=10)]) as claim:
        assert claim.still_running_after(0.05)
        q.move(jobs, "a", due=0)
        assert claim.result() == ["a"]


def test_two_clients_see_each_others_moves_and_cancels(
    q: duly.Client, jobs: str, clock: duly.ManualClock, reopen: Callable[[], duly.Client]
) -> None:
    other = reopen()
    q.publish(jobs, named([str(n) for n in range(3000)], due=60))
    assert other.move(jobs, ["7", "8"], due=0) == {"7": "moved", "8": "moved"}
    assert q.cancel(jobs, ["8", "9"]) == {"8": "cancelled", "9": "cancelled"}
    assert other.cancel(jobs, ["8", "9"]) == {"8": "finished", "9": "finished"}
    assert q.move(jobs, "10", due=30) == {"10": "moved"}
    (held,) = other.claim(jobs)
    assert (held.id, q.move(jobs, "7", due=5)) == ("7", {"7": "leased"})
    held.ack()
    clock.advance(30)
    assert drain(q) == ["10"]
    clock.advance(30)
    assert Counter(drain(other) + drain(q)) == Counter(str(n) for n in range(3000) if n not in (7, 8, 9, 10))


# Under a lease


def test_a_leased_message_is_not_moved(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, named(["a"], priority=3))
    (held,) = q.claim(jobs)
    assert q.move(jobs, "a", due=600, priority=1) == {"a": "leased"}
    held.nack(delay=5)
    found = q.get(jobs, "a")
    assert found is not None
    assert (found.priority, found.due) == (3, after(clock, 5))
    clock.advance(5)
    assert drain(q) == ["a"]


def held_and_cancelled(q: duly.Client, others: int = 0) -> duly.Batch:
    q.publish("jobs", named(["a", *(f"o{n}" for n in range(others))]))
    batch = q.claim("jobs")
    assert q.cancel("jobs", "a") == {"a": "leased"}
    found = q.get("jobs", "a")
    assert found is not None
    assert (found.state, found.cancelled) == ("leased", True)
    return batch


def test_cancelled_under_a_lease_ack_wins(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    batch = held_and_cancelled(q)
    assert batch.ack().done == 1
    assert (state_of(q, "a"), q.describe_topic(jobs).messages) == ("finished", 0)
    clock.advance(3600)
    assert drain(q) == []


@pytest.mark.parametrize("others", [0, 3])
@pytest.mark.parametrize("verdict", ["nack", "release"])
def test_cancelled_under_a_lease_it_is_gone_when_given_back(
    q: duly.Client, jobs: str, clock: duly.ManualClock, verdict: str, others: int
) -> None:
    batch = held_and_cancelled(q, others)
    assert getattr(batch, verdict)().done == 1 + others
    assert state_of(q, "a") == "finished"
    clock.advance(3600)
    assert sorted(drain(q)) == [f"o{n}" for n in range(others)]
    assert not list(q.dead(jobs))
    assert q.describe_topic(jobs).messages == 0


def test_cancelled_in_the_last_attempt_a_nack_buries_nothing(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    q.publish(jobs, named(["a"]))
    for _ in range(2):
        q.claim(jobs).nack(delay=0)
    (held,) = q.claim(jobs)
    assert (held.attempt, q.cancel(jobs, "a")) == (3, {"a": "leased"})
    held.nack()
    assert not list(q.dead(jobs))
    clock.advance(3600)
    assert drain(q) == []


@pytest.mark.parametrize("others", [0, 5])
def test_cancelled_under_a_lease_it_is_gone_at_expiry(
    q: duly.Client, jobs: str, clock: duly.ManualClock, others: int
) -> None:
    batch = held_and_cancelled(q, others)
    clock.advance(30)
    assert sorted(drain(q)) == [f"o{n}" for n in range(others)]
    assert state_of(q, "a") == "finished"
    assert len(q.ack(list(batch)).lost) == 1 + others
    assert not list(q.dead(jobs))
    clock.advance(3600)
    assert (drain(q), q.describe_topic(jobs).messages) == ([], 0)


def test_cancelled_under_a_lease_it_is_gone_when_its_consumer_is_released(q: duly.Client, jobs: str) -> None:
    batch = held_and_cancelled(q, 2)
    q.release(consumer="w1")
    assert sorted(drain(q)) == ["o0", "o1"]
    assert q.ack(list(batch)).done == 0


@pytest.mark.parametrize("part", [True, False], ids=["a part", "the batch"])
def test_extend_tells_what_was_cancelled(q: duly.Client, jobs: str, clock: duly.ManualClock, part: bool) -> None:
    batch = held_and_cancelled(q, 2)
    settled = q.extend(list(batch)[:2], 60) if part else batch.extend(60)
    assert [d.id for d in settled.cancelled] == ["a"]
    assert (settled.done, settled.lost) == (2 if part else 3, ())
    clock.advance(40)
    # It is still held, and still cancelled.
    assert [d.id for d in q.extend([batch[0]], 60).cancelled] == ["a"]
    assert [d.id for d in q.extend([batch[1]], 60).cancelled] == []
    assert q.nack([batch[0]]).done == 1
    assert state_of(q, "a") == "finished"


def test_a_cancel_under_a_lease_outlives_reopening(
    q: duly.Client, jobs: str, clock: duly.ManualClock, reopen: Callable[[], duly.Client]
) -> None:
    held_and_cancelled(q, 2)
    q.close()
    again = reopen()
    assert again.cancel(jobs, "a") == {"a": "leased"}
    (batch,) = again.held(consumer="w1")
    assert sorted(d.id for d in batch) == ["a", "o0", "o1"]
    assert [d.id for d in batch.extend(30).cancelled] == ["a"]
    clock.advance(30)
    assert sorted(drain(again)) == ["o0", "o1"]
    assert state_of(again, "a") == "finished"


def test_what_is_answered_after_a_lost_lease_is_what_happens(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    """The lease is over and nobody came since: due again by itself."""
    q.publish(jobs, named(["a", "b", "c"]))
    q.claim(jobs, consumer="crashed")
    clock.advance(31)
    assert q.move(jobs, "a", due=100) == {"a": "moved"}
    assert q.cancel(jobs, "b") == {"b": "cancelled"}
    assert state_of(q, "c") in ("ready", "retrying")
    assert drain(q) == ["c"]
    clock.advance(99.999)
    assert drain(q) == []
    clock.advance(0.001)
    assert drain(q) == ["a"]


# Get


def test_get_tells_everything(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    start, due = clock.now_ms(), after(clock, 5)
    q.publish(jobs, duly.Message(b"x", id="i", key="k", headers={"h": "v"}, due=due, priority=4, lane="l", ttl=1000))
    found = q.get(jobs, "i")
    assert found == duly.QueuedMessage(
        id="i", state="waiting", partition=0, offset=0, payload=b"x", key="k", headers={"h": "v"}, lane="l",
        priority=4, due_at_ms=start + 5000, expires_at_ms=start + 1_005_000, published_at_ms=start,
    )  # fmt: skip
    assert found.due == due
    clock.advance(5)
    assert state_of(q, "i") == "ready"
    (d,) = q.claim(jobs, consumer="c1", lease=20)
    found = q.get(jobs, "i")
    assert found is not None
    assert (found.state, found.attempts, found.consumer, found.lease_expires_at_ms) == (
        "leased", 1, "c1", clock.now_ms() + 20_000,
    )  # fmt: skip
    assert (found.priority, found.lane, found.due, found.cancelled) == (4, "l", due, False)
    d.extend(40)
    found = q.get(jobs, "i")
    assert found is not None
    assert found.lease_expires_at_ms == clock.now_ms() + 40_000
    d.nack(reason="no")
    found = q.get(jobs, "i")
    assert found is not None
    assert (found.state, found.attempts, found.consumer, found.lease_expires_at_ms) == ("retrying", 1, None, None)
    assert found.due == after(clock, 10)
    assert [(f.attempt, f.what, f.reason, f.consumer, f.at_ms) for f in found.history] == [
        (1, "nack", "no", "c1", clock.now_ms())
    ]
    clock.advance(10)
    q.claim(jobs).nack(delay=0, reason="still no")
    (d,) = q.claim(jobs)
    found = q.get(jobs, "i")
    assert found is not None
    assert (found.state, found.attempts, len(found.history)) == ("leased", 3, 2)
    d.nack(reason="never")
    found = q.get(jobs, "i")
    assert found is not None
    assert (found.state, found.attempts, found.lane, found.priority) == ("dead", 3, "l", 4)
    assert [f.reason for f in found.history] == ["no", "still no", "never"]
    q.redrive(jobs)
    found = q.get(jobs, "i")
    assert found is not None
    assert (found.state, found.attempts) == ("ready", 0)
    q.claim(jobs).ack()
    found = q.get(jobs, "i")
    assert found is not None
    assert (found.state, found.payload) == ("finished", None)


def test_due_and_priority_are_the_present_ones_under_a_lease_too(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    q.publish(jobs, named(["a"], priority=5))
    due = after(clock, 7)
    q.move(jobs, "a", due=due, priority=2)
    clock.advance(7)
    assert len(q.claim(jobs)) == 1
    found = q.get(jobs, "a")
    assert found is not None
    assert (found.state, found.priority, found.due) == ("leased", 2, due)


def test_a_payload_of_a_megabyte_is_got_and_browsed(q: duly.Client, jobs: str) -> None:
    body = random.Random(1).randbytes(1024 * 1024)
    q.publish(jobs, [duly.Message(body, id="big"), duly.Message(b"", id="empty"), duly.Message(b"[1]", id="json")])
    found = [q.get(jobs, text) for text in ("big", "empty", "json")]
    assert [None if m is None else m.payload for m in found] == [body, b"", b"[1]"]
    assert [m.payload for m in q.browse(jobs)] == [body, b"", b"[1]"]
    assert q.browse(jobs)[2].json() == [1]


def test_an_expired_message_is_not_ready(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, named(["a"], ttl=5) + named(["b"]))
    clock.advance(5)
    assert state_of(q, "a") in ("finished", "none")
    assert [m.id for m in q.browse(jobs)] == ["b"]
    # Not dropped yet, it can still be cancelled; either way it is gone.
    assert q.cancel(jobs, "a")["a"] in ("cancelled", "finished", "not_found")
    assert q.move(jobs, "a", due=50)["a"] in ("finished", "not_found")
    clock.advance(50)
    assert drain(q) == ["b"]


# Browse


def a_mixture(q: duly.Client, clock: duly.ManualClock, partitions: int = 1) -> None:
    """Messages in every state, over several lanes, priorities, keys and times."""
    q.create_topic("jobs", kind="queue", lease=3600, partitions=partitions, retry=sharp(10, max_attempts=3))
    draw = random.Random(5)
    messages = [
        duly.Message(
            b"%d" % n, id=f"i{n}", priority=draw.choice([0, 3, 9]), lane=draw.choice([None, "a", "b", "c"]),
            key=draw.choice([None, "k1", "k2"]), due=draw.choice([None, 60, 90]),
        )
        for n in range(2100)
    ]  # fmt: skip
    for start in range(0, 2100, 700):
        q.publish("jobs", messages[start : start + 700])
    batch = q.claim("jobs", max_messages=200)
    q.nack(batch[:50], delay=70)
    q.nack(batch[50:70], delay=0)
    q.bury(batch[70:110])
    q.ack(batch[110:120])
    q.release(batch[120:130])
    q.cancel("jobs", [f"i{n}" for n in range(0, 2100, 17)])
    q.move("jobs", [f"i{n}" for n in range(1, 2100, 19)], due=80, priority=4)
    clock.advance(10)


def pages(q: duly.Client, limit: int, **filters: Any) -> list[duly.QueuedMessage]:
    found: list[duly.QueuedMessage] = []
    place = (0, -1)
    while page := q.browse("jobs", after=place, limit=limit, **filters):
        assert len(page) <= limit
        found += page
        place = page[-1].place
    return found


@pytest.mark.parametrize("partitions", [1, 4])
def test_browse_and_get_agree_about_every_message(q: duly.Client, clock: duly.ManualClock, partitions: int) -> None:
    a_mixture(q, clock, partitions)
    everything = q.browse("jobs", limit=10_000)
    assert [m.place for m in everything] == sorted(m.place for m in everything)
    by_id = {m.id: m for m in everything}
    assert len(by_id) == len(everything)
    assert {m.state for m in everything} == {"ready", "waiting", "retrying", "leased", "dead"}
    for n in range(0, 2100, 23):
        found = q.get("jobs", f"i{n}")
        assert found is not None
        if found.state == "finished":
            assert found.id not in by_id
        else:
            assert by_id[found.id] == found


def test_browse_filters_alone_and_together(q: duly.Client, clock: duly.ManualClock) -> None:
    a_mixture(q, clock)
    everything = q.browse("jobs", limit=10_000)
    low, high = after(clock, 40), after(clock, 75)
    filters: dict[str, tuple[list[Any], Callable[[duly.QueuedMessage, Any], bool]]] = {
        "state": (["ready", "waiting", "retrying", "leased", "dead"], lambda m, v: m.state == v),
        "lane": (["a", "c", "none"], lambda m, v: m.lane == v),
        "priority": (
            [3, 4, 8, (0, 3), (4, 65_535)],
            lambda m, v: v[0] <= m.priority <= v[1] if isinstance(v, tuple) else m.priority == v,
        ),
        "due_from": ([low, high], lambda m, v: m.due is not None and m.due >= v),
        "due_before": ([low, high], lambda m, v: m.due is not None and m.due < v),
        "key": (["k1", "k3"], lambda m, v: m.key == v),
    }
    cases = [{name: value} for name, (values, _) in filters.items() for value in values]
    draw = random.Random(7)
    for _ in range(8):
        names = draw.sample(list(filters), draw.choice([2, 2, 3, 4]))
        cases.append({name: draw.choice(filters[name][0]) for name in names})
    for case in cases:
        wanted = [m.id for m in everything if all(filters[name][1](m, value) for name, value in case.items())]
        assert [m.id for m in q.browse("jobs", limit=10_000, **case)] == wanted, case


@pytest.mark.parametrize(("limit", "partitions"), [(17, 4), (1000, 1)])
def test_pages_have_no_gaps_and_no_repeats(
    q: duly.Client, clock: duly.ManualClock, limit: int, partitions: int
) -> None:
    a_mixture(q, clock, partitions)
    filters: list[dict[str, Any]] = [{"state": "dead"}, {"state": "leased"}, {"lane": "a", "priority": (3, 9)}]
    if limit >= 1000:
        filters += [{}, {"state": "ready"}, {"state": "retrying"}, {"key": "k2"}]
    for chosen in filters:
        whole = [m.id for m in q.browse("jobs", limit=10_000, **chosen)]
        assert [m.id for m in pages(q, limit, **chosen)] == whole, chosen


def test_browsing_changes_nothing(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, named([str(n) for n in range(3000)]))
    for _ in range(2):
        assert len(q.browse(jobs, limit=5000)) == 3000
        q.coming(jobs)
        q.get(jobs, "7")
    assert [(d.id, d.attempt) for d in q.claim(jobs, max_messages=5000)] == [(str(n), 1) for n in range(3000)]
    assert q.browse(jobs, state="ready") == []


def test_browse_of_an_empty_queue_and_after_its_end(q: duly.Client, jobs: str) -> None:
    assert q.browse(jobs) == []
    q.publish(jobs, b"x")
    assert q.browse(jobs, after=(0, 0)) == []
    assert q.browse(jobs, after=(5, 0)) == []


# Coming


def counted(q: duly.Client, clock: duly.ManualClock, minutes: int, topic: str = "jobs") -> list[tuple[Any, int]]:
    """Brute force: message by message."""
    now = clock.now_ms()
    dues = [
        m.due_at_ms // MINUTE_MS
        for m in q.browse(topic, limit=10_000)
        if m.state in ("waiting", "retrying") and m.due_at_ms is not None and m.due_at_ms > now
    ]
    counts = Counter(dues)
    first = now // MINUTE_MS
    return [(from_ms(minute * MINUTE_MS), counts[minute]) for minute in range(first, first + minutes)]


def test_coming_counts_what_falls_due_by_the_minute(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    start = clock.now_ms() // MINUTE_MS * MINUTE_MS + MINUTE_MS
    q.publish(jobs, [b"now", duly.Message(b"", due=from_ms(start)), duly.Message(b"", due=from_ms(start + 59_999))])
    q.publish(jobs, [duly.Message(b"", due=from_ms(start - 1)), duly.Message(b"", due=from_ms(start + 120_000))])
    first = from_ms(start - MINUTE_MS)
    assert q.coming(jobs, minutes=4) == [
        (from_ms(start + minute * MINUTE_MS), many) for minute, many in ((-1, 1), (0, 2), (1, 0), (2, 1))
    ]
    assert len(q.coming(jobs)) == 60
    assert q.coming(jobs, minutes=1) == [(first, 1)]
    with pytest.raises(duly.Error):
        q.coming(jobs, minutes=10_001)


@pytest.mark.parametrize("partitions", [1, 3])
def test_coming_agrees_with_a_count_of_each(q: duly.Client, clock: duly.ManualClock, partitions: int) -> None:
    q.create_topic("jobs", kind="queue", lease=3600, partitions=partitions)
    draw = random.Random(11)
    ids: list[str] = []
    for turn in range(5):
        new = [f"{turn}-{n}" for n in range(400)]
        ids += new
        q.publish("jobs", [duly.Message(b"", id=text, due=draw.uniform(0, 1200), lane=text[-1]) for text in new])
        q.cancel("jobs", draw.sample(ids, 20))
        q.move("jobs", draw.sample(ids, 20), due=draw.uniform(0, 1200))
        q.move("jobs", draw.sample(ids, 10), priority=5)
        clock.advance(draw.choice([0, 0.001, 13.7, 60, 90]))
        assert q.coming("jobs", minutes=40) == counted(q, clock, 40), turn
        q.claim("jobs", max_messages=draw.choice([1, 200])).nack(delay=draw.uniform(0, 600))
        assert q.coming("jobs", minutes=40) == counted(q, clock, 40), turn


def test_coming_across_folds(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    draw = random.Random(13)
    dues: dict[str, float] = {}
    for b in range(35):
        fresh = {f"{b}-{n}": round(draw.uniform(1, 1800), 3) for n in range(1000)}
        dues |= fresh
        q.publish(jobs, [duly.Message(b"", id=text, due=due) for text, due in fresh.items()])
        if b % 10 == 5:
            gone = draw.sample(list(dues), 300)
            assert set(q.cancel(jobs, gone).values()) == {"cancelled"}
            for text in gone:
                del dues[text]
            later = draw.sample(list(dues), 300)
            assert set(q.move(jobs, later, due=1000.5).values()) == {"moved"}
            dues.update(dict.fromkeys(later, 1000.5))
    start = clock.now_ms()

    def brute() -> list[int]:
        first = clock.now_ms() // MINUTE_MS
        counts = Counter((start + round(1000 * due)) // MINUTE_MS for due in dues.values())
        this = sum(clock.now_ms() < start + round(1000 * due) < (first + 1) * MINUTE_MS for due in dues.values())
        return [this, *(counts[minute] for minute in range(first + 1, first + 35))]

    assert [many for _, many in q.coming(jobs, minutes=35)] == brute()
    clock.advance(317.123)
    assert [many for _, many in q.coming(jobs, minutes=35)] == brute()
    came = 0
    while batch := q.claim(jobs, max_messages=20_000):
        came += len(batch)
    assert came == sum(due <= 317.123 for due in dues.values())
    assert [many for _, many in q.coming(jobs, minutes=35)] == brute()
    clock.advance(700)
    q.claim(jobs, max_messages=10)
    assert [many for _, many in q.coming(jobs, minutes=35)] == brute()


# Anything, in any order, against a plain dictionary

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["publish", "bulk", "move", "rank", "cancel", "claim", "ack", "nack", "release", "wait"]),
        st.integers(0, 2**16),
    ),
    max_size=40,
)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS)
def test_whatever_is_done_get_browse_and_coming_tell_the_truth(steps: list[tuple[str, int]]) -> None:
    clock = duly.ManualClock()
    with duly.connect(":memory:", clock=clock, consumer="w1") as q:
        q.create_topic("jobs", kind="queue", lease=86_400, retry=sharp(10, max_attempts=10_000))
        Truth(q, clock).run(steps)


class Truth:
    """What should be so. A message is [due in ms, priority, attempts, held, cancelled]."""

    def __init__(self, q: duly.Client, clock: duly.ManualClock) -> None:
        self.q = q
        self.clock = clock
        self.open: dict[str, list[int]] = {}
        self.gone: set[str] = set()
        self.held: dict[str, duly.Delivery] = {}
        self.made = 0

    def run(self, steps: list[tuple[str, int]]) -> None:
        for what, number in steps:
            getattr(self, what)(number)
            self.check()
        self.q.ack(list(self.held.values()))
        self.clock.advance(3600)
        left = sorted(text for text in self.open if text not in self.held)
        assert sorted(drain(self.q)) == left
        assert self.q.describe_topic("jobs").messages == 0

    def state(self, text: str) -> str:
        due, _, attempts, _ = self.open[text]
        if text in self.held:
            return "leased"
        return "ready" if due <= self.clock.now_ms() else "retrying" if attempts else "waiting"

    def check(self) -> None:
        found = {m.id: (m.state, m.priority, m.attempts, m.cancelled) for m in self.q.browse("jobs", limit=10_000)}
        assert found == {
            text: (self.state(text), entry[1], entry[2], bool(entry[3])) for text, entry in self.open.items()
        }
        counts = Counter(
            entry[0] // MINUTE_MS
            for text, entry in self.open.items()
            if text not in self.held and entry[0] > self.clock.now_ms()
        )
        first = self.clock.now_ms() // MINUTE_MS
        coming = self.q.coming("jobs", minutes=30)
        assert [many for _, many in coming] == [counts[minute] for minute in range(first, first + 30)]
        for text in [*list(self.open)[:2], *list(self.gone)[:2]]:
            assert state_of(self.q, text) == (self.state(text) if text in self.open else "finished")

    def _publish(self, count: int, number: int) -> None:
        fresh = [str(self.made + n) for n in range(count)]
        self.made += count
        due = [0, 0, 30, 90, 600][number % 5]
        self.q.publish("jobs", [duly.Message(b"", id=text, due=due, priority=int(text) % 3) for text in fresh])
        for text in fresh:
            self.open[text] = [self.clock.now_ms() + 1000 * due, int(text) % 3, 0, 0]

    def publish(self, number: int) -> None:
        self._publish(1 + number % 7, number // 7)

    def bulk(self, number: int) -> None:
        if self.made < 4000:
            self._publish(2100, number)

    def _some(self, number: int) -> list[str]:
        return [str(n) for n in random.Random(number).sample(range(self.made + 2), min(self.made + 2, 5))]

    def _answer(self, text: str, fine: str) -> str:
        if text in self.open:
            return "leased" if text in self.held else fine
        return "finished" if text in self.gone else "not_found"

    def move(self, number: int) -> None:
        due = number % 400
        wanted = self._some(number)
        answers = self.q.move("jobs", wanted, due=due)
        assert answers == {text: self._answer(text, "moved") for text in wanted}
        for text, answer in answers.items():
            if answer == "moved":
                self.open[text][0] = self.clock.now_ms() + 1000 * due

    def rank(self, number: int) -> None:
        for text, answer in self.q.move("jobs", self._some(number), priority=number % 65_536).items():
            assert answer == self._answer(text, "moved")
            if answer == "moved":
                self.open[text][1] = number % 65_536

    def cancel(self, number: int) -> None:
        wanted = self._some(number)
        answers = self.q.cancel("jobs", wanted)
        assert answers == {text: self._answer(text, "cancelled") for text in wanted}
        for text, answer in answers.items():
            if answer == "cancelled":
                self._finish(text)
            elif answer == "leased":
                self.open[text][3] = 1

    def _finish(self, text: str) -> None:
        del self.open[text]
        self.gone.add(text)

    def claim(self, number: int) -> None:
        most = [1, 5, 1500][number % 3]
        ready = [text for text in self.open if self.state(text) == "ready"]
        batch = self.q.claim("jobs", max_messages=most)
        assert len(batch) == min(most, len(ready))
        assert {d.id for d in batch} <= set(ready)
        ranks = [self.open[d.id][1] for d in batch]
        assert ranks == sorted(self.open[text][1] for text in ready)[: len(ranks)]
        for d in batch:
            self.held[d.id] = d
            self.open[d.id][2] += 1
            assert d.attempt == self.open[d.id][2]

    def _few(self, number: int) -> list[duly.Delivery]:
        return random.Random(number).sample(list(self.held.values()), len(self.held) * (1 + number % 4) // 4)

    def ack(self, number: int) -> None:
        chosen = self._few(number)
        assert self.q.ack(chosen).done == len(chosen)
        for d in chosen:
            del self.held[d.id]
            self._finish(d.id)

    def nack(self, number: int) -> None:
        self._back(self._few(number), number % 200)

    def release(self, number: int) -> None:
        self._back(self._few(number), None)

    def _back(self, chosen: list[duly.Delivery], delay: int | None) -> None:
        settled = self.q.release(chosen) if delay is None else self.q.nack(chosen, delay=delay)
        assert settled.done == len(chosen)
        for d in chosen:
            del self.held[d.id]
            if self.open[d.id][3]:
                self._finish(d.id)
                continue
            self.open[d.id][0] = self.clock.now_ms() + 1000 * (delay or 0)
            self.open[d.id][2] -= delay is None

    def wait(self, number: int) -> None:
        self.clock.advance([0.5, 10, 61, 300][number % 4])


def test_what_was_cancelled_and_passed_when_it_fell_due_is_not_counted_twice(
    q: duly.Client, clock: duly.ManualClock
) -> None:
    q.create_topic("jobs", kind="queue")
    # In a run, due one after another.
    q.publish("jobs", [duly.Message(b"x", id=f"m{n}", due=10 + n / 100) for n in range(2_100)])
    q.cancel("jobs", [f"m{n}" for n in range(50)])
    assert q.describe_topic("jobs").messages == 2_050
    clock.advance(11)
    q.claim("jobs", max_messages=1).release()
    assert q.describe_topic("jobs").messages == 2_050
