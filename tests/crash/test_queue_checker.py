"""Steps without an answer, judged by the checker of queues: half of one is noticed, nothing else is taken for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import duly
from duly.clock import from_ms

from .checker import Broken
from .queue_checker import check_queues
from .queue_steps import small_steps
from .queue_workload import LANES, LEASE_S, START_MS, QueueJournal, Spec, key_of

LATER = START_MS + 90_000
EARLIER = START_MS + 30_000
FIRST, SECOND, THIRD = "id-1:0", "id-1:1", "id-1:2"


class Told:
    """A store and its journal, in which a step may be said to be other than it was."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        clock = duly.ManualClock(START_MS)
        self.journal = QueueJournal(str(folder / "journal"), None, clock)
        self.q = duly.connect(folder / "app.duly", clock=clock, consumer="script")
        act = lambda: self.q.create_topic("jobs", kind="queue", lease=LEASE_S, lanes=LANES["jobs"])  # noqa: E731
        self.journal.do("create_topic", act, topic="jobs")

    def publish(self, *, due: int | None = None) -> None:
        specs = [Spec(f"1:{at}", priority=5, due=due, id=f"id-1:{at}") for at in range(3)]
        act = lambda: self.q.publish("jobs", [spec.message() for spec in specs])  # noqa: E731
        told = [asdict(spec) for spec in specs]
        self.journal.do("publish", act, topic="jobs", batch=1, publish_id=None, specs=told)

    def move(self, *ids: str, **to: int | None) -> None:
        self.journal.do("move", lambda: self.really_move(*ids, **to), **moving(*ids, **to))

    def really_move(self, *ids: str, due: int | None = None, priority: int | None = None) -> dict[str, str]:
        return self.q.move("jobs", ids, due=None if due is None else from_ms(due), priority=priority)

    def doubt(self, what: str, act: Callable[[], object] = lambda: None, **facts: Any) -> None:
        """A step that got no answer, in the middle of others; `act` is what became of it."""

        def fail() -> None:
            act()
            raise duly.StoreError("The commit failed.")

        self.journal.do(what, fail, **facts)

    def check_after(self, what: str, **facts: Any) -> None:
        """The power goes in the middle of a step: checks what is left."""
        self.journal.note(begin=1000, what=what, **facts)
        self.q.close()
        check_queues(self.folder / "app.duly", (self.folder / "journal").read_text().splitlines())


def moving(*ids: str, due: int | None = None, priority: int | None = None) -> dict[str, Any]:
    return {"topic": "jobs", "ids": ids, "due": due, "priority": priority}


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    with small_steps():
        told = Told(tmp_path)
        yield told
        told.q.close()


MOVES = {
    "due": {"due": LATER},
    "priority": {"priority": 3},
    "both": {"due": LATER, "priority": 3},
}


@pytest.mark.parametrize("due", [None, EARLIER])
@pytest.mark.parametrize("to", MOVES.values(), ids=MOVES)
def test_half_a_move_is_noticed(told: Told, due: int | None, to: dict[str, int]) -> None:
    told.publish(due=due)
    told.really_move(FIRST, **to)
    with pytest.raises(Broken, match="in part"):
        told.check_after("move", **moving(FIRST, SECOND, THIRD, **to))


@pytest.mark.parametrize("half", [{"due": LATER}, {"priority": 3}], ids=["due", "priority"])
def test_half_of_what_a_move_gives_each_is_noticed(told: Told, half: dict[str, int]) -> None:
    told.publish()
    told.really_move(FIRST, SECOND, **half)
    with pytest.raises(Broken, match="in part"):
        told.check_after("move", **moving(FIRST, SECOND, due=LATER, priority=3))


@pytest.mark.parametrize("to", MOVES.values(), ids=MOVES)
@pytest.mark.parametrize("done", [True, False])
def test_a_whole_move_or_none_is_not_taken_for_half(told: Told, to: dict[str, int], done: bool) -> None:
    told.publish(due=EARLIER)
    if done:
        told.really_move(FIRST, SECOND, THIRD, **to)
    told.check_after("move", **moving(FIRST, SECOND, THIRD, **to))


@pytest.mark.parametrize("done", [True, False])
def test_a_move_to_where_one_was_moved_before_says_nothing_of_that_one(told: Told, done: bool) -> None:
    # Found by DULY_TEST_SEED=1965612816 of test_queue_power.py: its clock had not moved between two moves.
    told.publish(due=EARLIER)
    told.move(FIRST, due=LATER)
    if done:
        told.really_move(FIRST, SECOND, THIRD, due=LATER, priority=3)
    told.check_after("move", **moving(FIRST, SECOND, THIRD, due=LATER, priority=3))


def test_where_the_due_time_says_nothing_the_priority_tells_half_a_move(told: Told) -> None:
    told.publish()
    told.move(FIRST, due=LATER)
    told.really_move(SECOND, THIRD, due=LATER, priority=3)
    with pytest.raises(Broken, match="in part"):
        told.check_after("move", **moving(FIRST, SECOND, THIRD, due=LATER, priority=3))


def test_a_move_to_where_another_in_doubt_put_one_says_nothing_of_that_one(told: Told) -> None:
    told.publish(due=EARLIER)
    told.doubt("move", lambda: told.really_move(FIRST, due=LATER), **moving(FIRST, due=LATER))
    told.check_after("move", **moving(FIRST, SECOND, due=LATER))


@pytest.mark.parametrize("answered", [True, False])
def test_a_move_to_when_a_nack_put_one_says_nothing_of_that_one(told: Told, answered: bool) -> None:
    told.publish()
    batch = told.journal.do("claim", lambda: told.q.claim("jobs", max_messages=3), topic="jobs", most=3)
    first = [delivery for delivery in batch if key_of(delivery.payload) == "1:0"]
    others = [delivery for delivery in batch if key_of(delivery.payload) != "1:0"]
    nack = told.journal.do if answered else told.doubt
    nack("nack", lambda: told.q.nack(first, delay=90), topic="jobs", keys=["1:0"], delay=90)
    told.journal.do("release", lambda: told.q.release(others), topic="jobs", keys=["1:1", "1:2"])
    told.check_after("move", **moving(FIRST, SECOND, THIRD, due=LATER))


@pytest.mark.parametrize("what", ["move", "cancel"])
def test_one_that_a_claim_in_doubt_holds_is_not_taken_for_half(told: Told, what: str) -> None:
    told.publish(due=START_MS - 5000)
    told.doubt("claim", lambda: told.q.claim("jobs", max_messages=1), topic="jobs", most=1)
    if what == "move":
        told.really_move(FIRST, SECOND, THIRD, due=LATER)
        told.check_after("move", **moving(FIRST, SECOND, THIRD, due=LATER))
    else:
        told.q.cancel("jobs", [FIRST, SECOND, THIRD])
        told.check_after("cancel", topic="jobs", ids=[FIRST, SECOND, THIRD])


def test_half_a_cancel_is_noticed_also_under_a_claim_in_doubt(told: Told) -> None:
    told.publish()
    told.doubt("claim", lambda: told.q.claim("jobs", max_messages=1), topic="jobs", most=1)
    told.q.cancel("jobs", [SECOND, THIRD])
    with pytest.raises(Broken, match="in part"):
        told.check_after("cancel", topic="jobs", ids=[FIRST, SECOND, THIRD])


def test_a_cancel_in_doubt_says_nothing_of_one_that_a_later_one_took(told: Told) -> None:
    told.publish()
    told.doubt("cancel", topic="jobs", ids=[FIRST, SECOND])
    told.q.cancel("jobs", [FIRST, THIRD])
    told.check_after("cancel", topic="jobs", ids=[FIRST, THIRD])


def test_a_redrive_in_doubt_says_nothing_of_one_that_a_later_one_sent(told: Told) -> None:
    told.publish()
    batch = told.journal.do("claim", lambda: told.q.claim("jobs", max_messages=3), topic="jobs", most=3)
    told.journal.do("bury", lambda: told.q.bury(batch), topic="jobs", keys=["1:0", "1:1", "1:2"])
    told.doubt("redrive", topic="jobs", keys=["1:0", "1:1"])
    told.q.redrive("jobs", ids=[FIRST, THIRD])
    told.check_after("redrive", topic="jobs", keys=["1:0", "1:2"])


def test_a_bury_in_doubt_says_nothing_of_one_that_was_sent_back_perhaps(told: Told) -> None:
    told.publish()
    batch = told.journal.do("claim", lambda: told.q.claim("jobs", max_messages=3), topic="jobs", most=3)
    told.doubt("bury", lambda: told.q.bury(batch), topic="jobs", keys=["1:0", "1:1", "1:2"])
    told.q.redrive("jobs", ids=[FIRST])
    told.check_after("redrive", topic="jobs", keys=["1:0"])


def test_a_redrive_in_doubt_may_have_given_a_moved_one_its_first_priority_again(told: Told) -> None:
    told.publish()
    told.move(FIRST, SECOND, THIRD, priority=3)
    batch = told.journal.do("claim", lambda: told.q.claim("jobs", max_messages=3), topic="jobs", most=3)
    told.journal.do("bury", lambda: told.q.bury(batch), topic="jobs", keys=["1:0", "1:1", "1:2"])
    told.doubt("redrive", lambda: told.q.redrive("jobs"), topic="jobs", keys=["1:0", "1:1", "1:2"])
    told.move(FIRST, due=EARLIER)
    told.check_after("claim", topic="jobs", most=1)
