"""Places dealt out in turn."""

from __future__ import annotations

import threading

from duly.workers.turns import Turns
from tests.store.patience import Aside, eventually


def test_what_nobody_else_wants_is_taken_at_once() -> None:
    turns = Turns(8)
    assert turns.take(5) == 5
    assert turns.take(5) == 3


def test_one_in_line_gets_what_is_given_back() -> None:
    turns = Turns(1)
    turns.take(1)
    with Aside(lambda: turns.take(4)) as waiting:
        assert waiting.still_running_after(0.05)
        turns.give(1)
        assert waiting.result() == 1


def test_who_came_first_is_served_first_and_leaves_the_others_their_share() -> None:
    turns = Turns(6)
    turns.take(6)
    shares: list[tuple[str, int]] = []
    lock = threading.Lock()

    def take(name: str) -> None:
        share = turns.take(6)
        with lock:
            shares.append((name, share))

    waiting = []
    for count, name in enumerate("abc", start=1):
        waiting.append(Aside(lambda name=name: take(name)))  # type: ignore[misc]
        eventually(lambda count=count: len(turns._line) == count)  # type: ignore[misc]
    turns.give(6)
    for one in waiting:
        one.result()
    assert dict(shares) == {"a": 2, "b": 2, "c": 2}


def test_closing_sends_everyone_away() -> None:
    turns = Turns(1)
    turns.take(1)
    with Aside(lambda: turns.take(1)) as waiting:
        assert waiting.still_running_after(0.05)
        turns.close()
        assert waiting.result() == 0
    assert turns.take(1) == 0
