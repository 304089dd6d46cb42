"""The waiting room: claims that found nothing wait here, without a thread each, and are served in turn.

    come ──▶ asked ──something, or an error──▶ told
               │ ▲
         nothing │ a partition rings, a due time comes, somebody comes
               ▼ │
             waiting ──its time is over──▶ told: nothing
                 └────its client left────▶ forgotten; what was on its way to it is released

Before each group stands a queue, its *desk* (desk.py). Who was asked for in vain keeps its place; who was served and
comes again stands at the end again: nobody gets a second batch while another waits with none.

When something may be claimable the first at the desk is asked for. If it is served the next two are, then four, and so
on, until one gets nothing: a thousand who wait for one message cost three claims, and a thousand messages for a
thousand who wait cost eleven merges (claims that are asked for together are one merge). A desk has one round of these
under way at a time, so that a busy one is no more than one caller to the writer.

No wake-up is lost. A desk listens before its first claim is asked for: to every ring, until an answer says which
partitions are its own. A ring during a round causes another round. In one process rings and answers come in the order
of the commits; rings of other processes come after what they tell of, and so cause a look in vain at worst.
A topic or group that goes rings, and all who wait there are told, for an error is followed by the next round as well.

Rings come from whoever commits, answers from the writer's thread: neither may wait, and no error may get out there.
Nothing foreign is called under the lock: neither the store's `submit` nor `then`, which may come back into the room.
One thread sleeps until the next due time, or the end of the next waiter's patience.

There is room for so many; a tenant that fills it is turned away, and nobody else is (engine/allowance.py).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from ..clock import monotonic_s
from ..engine.allowance import Allowance
from ..engine.claimed import Claim, Claimed
from ..engine.operations import WRITES
from ..engine.verdict import Settle, Token
from ..errors import Busy, Closed, Error
from ..events import log
from ..limits import LIMITS
from .alarms import Alarms
from .desk import Answered, Desk, Key, Waiter, key_of

# Where a desk listens that does not know its partitions yet: it hears every ring.
_EVERYWHERE = frozenset({-1})


class Room:
    """Everyone who waits for something to claim."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._desks: dict[Key, Desk] = {}
        self._by_slot: dict[int, set[Desk]] = {}
        self._places = Allowance()
        self._numbers = itertools.count()
        self._alarms: Alarms[Waiter | Desk] = Alarms()
        self._sooner = threading.Condition(self._lock)
        self._closed = False
        self._thread = threading.Thread(target=self._watch_time, name="duly-room", daemon=True)
        self._thread.start()
        store.listen(self._rang)

    @property
    def count(self) -> int:
        """How many wait."""
        return self._places.held

    def is_waited_at(self, command: Claim) -> bool:
        """Whether somebody waits for what this would claim."""
        return key_of(command) in self._desks

    def claim(self, command: Claim, *, wait_until: float | None, then: Answered) -> Waiter:
        """Claims in turn. `then` is told once, perhaps before this returns, on a thread that must not be kept.

        Raises Busy when too many of its tenant's wait.
        """
        key = key_of(command)
        with self._lock:
            if self._closed:
                raise _going_down()
            if not self._places.allows(command.tenant, LIMITS.claims_waiting_max):
                raise Busy("Too many of the tenant's claims wait already. Back off and try again.")
            desk = self._desks.get(key) or self._open(key)
            waiter = Waiter(next(self._numbers), command, desk, wait_until, then)
            desk.come(waiter)
            self._places.take(command.tenant)
            if wait_until is not None:
                self._look_at(waiter, wait_until)
            chosen = [] if desk.asking else desk.begin_round()
        self._ask(chosen)
        return waiter

    def leave(self, waiter: Waiter) -> bool:
        """Forgets a claim: `then` is never told, and what it would have got is released.

        False: too late. `then` was told, or is at this moment, and what it gets is its own to settle.
        """
        with self._lock:
            if not self._dismiss(waiter):
                return False
            waiter.desk.leave(waiter)
            self._drop_if_empty(waiter.desk)
            return True

    def close(self) -> None:
        """Turns everyone away who waits, and takes nobody in. Those asked for at this moment are told their answers."""
        with self._lock:
            self._closed = True
            left = self._empty_all()
            self._sooner.notify()
        self._thread.join()
        for waiter in left:
            self._tell(waiter, _going_down())

    def turn_away(self, why: Callable[[], Exception]) -> None:
        """Turns everyone away who waits. Those asked for at this moment are told their answers, or wait on."""
        with self._lock:
            left = self._empty_all()
        for waiter in left:
            self._tell(waiter, why())

    def release(self, command: Claim, claimed: Claimed) -> None:
        """Gives back at once what nobody is there to take."""
        tokens = tuple(Token(parcel.lease_id) for parcel in claimed.parcels)
        settle = Settle(command.tenant, claimed.incarnation, claimed.topic, claimed.group, "release", tokens)
        try:
            self._store.submit(WRITES[Settle], settle, tenant=command.tenant, cost=0, then=_note_failure)
        except Error as error:
            _note_failure(error)

    # Who is asked for, and what they get

    def _ask(self, chosen: list[Waiter]) -> None:
        for waiter in chosen:
            command, then = waiter.command, partial(self._answered, waiter)
            try:
                self._store.submit(WRITES[Claim], command, tenant=command.tenant, cost=0, then=then)
            except Error as error:
                self._answered(waiter, error)

    def _answered(self, waiter: Waiter, answer: Claimed | Exception) -> None:
        """On the writer's thread: nothing may be raised here."""
        try:
            self._take_answer(waiter, answer)
        except Exception:
            log.exception("the waiting room failed; the claim of %s is lost", waiter.command.consumer)

    def _take_answer(self, waiter: Waiter, answer: Claimed | Exception) -> None:
        desk = waiter.desk
        served = not isinstance(answer, Claimed) or bool(answer.parcels)
        over: list[Waiter] = []
        chosen: list[Waiter] = []
        with self._lock:
            if isinstance(answer, Claimed):
                self._listen_for(desk, answer)
            there = served and self._dismiss(waiter)
            if desk.answered(waiter, served=served):
                over, chosen = self._end_round(desk)
        if there:
            self._tell(waiter, answer)
        elif served:
            self._give_back(waiter, answer)
        for one in over:
            self._tell(one, _going_down() if self._closed else self._nothing(one))
        self._ask(chosen)

    def _end_round(self, desk: Desk) -> tuple[list[Waiter], list[Waiter]]:
        """Who goes with nothing, and who is asked for next."""
        over = [waiter for waiter in desk.end_round(monotonic_s()) if self._dismiss(waiter)]
        if self._closed:
            over += self._empty(desk)
        elif desk.may_get_more:
            return over, desk.begin_round()
        elif desk.waiting:
            self._set_alarm(desk)
        self._drop_if_empty(desk)
        return over, []

    def _dismiss(self, waiter: Waiter) -> bool:
        """Whoever does this, and nobody else, tells it its answer. False: somebody did, or its client left."""
        if waiter.gone:
            return False
        waiter.gone = True
        self._places.give_back(waiter.command.tenant)
        self._alarms.drop(waiter)
        return True

    def _empty_all(self) -> list[Waiter]:
        return [waiter for desk in list(self._desks.values()) for waiter in self._empty(desk)]

    def _empty(self, desk: Desk) -> list[Waiter]:
        left = [waiter for waiter in desk.leave_all() if self._dismiss(waiter)]
        self._drop_if_empty(desk)
        return left

    def _tell(self, waiter: Waiter, answer: Claimed | Exception) -> None:
        try:
            waiter.then(answer)
        except Exception as error:
            # It is a surface's, which may be on its way out: those behind at the desk must not wait for ever.
            log.warning("the answer to a claim of %s was not taken: %r", waiter.command.consumer, error)
            self._give_back(waiter, answer)

    def _give_back(self, waiter: Waiter, answer: Claimed | Exception) -> None:
        if isinstance(answer, Claimed) and answer.parcels:
            self.release(waiter.command, answer)

    def _nothing(self, waiter: Waiter) -> Claimed:
        command = waiter.command
        return Claimed(command.topic, command.group, self._store.incarnation, command.lease_ms or 0, 0)

    # Desks, and where they listen

    def _open(self, key: Key) -> Desk:
        desk = self._desks[key] = Desk(key)
        self._listen(desk, _EVERYWHERE)
        return desk

    def _drop_if_empty(self, desk: Desk) -> None:
        if desk.empty:
            # It may have been dropped already, and another one stand in its place.
            if self._desks.get(desk.key) is desk:
                del self._desks[desk.key]
            self._listen(desk, frozenset())
            self._alarms.drop(desk)

    def _listen_for(self, desk: Desk, claimed: Claimed) -> None:
        self._listen(desk, frozenset(self._store.slot(partition) for partition in claimed.partitions))
        if not claimed.parcels:
            desk.next_due = claimed.next_due

    def _listen(self, desk: Desk, slots: frozenset[int]) -> None:
        for slot in desk.slots - slots:
            self._by_slot[slot].discard(desk)
            if not self._by_slot[slot]:
                del self._by_slot[slot]
        for slot in slots - desk.slots:
            self._by_slot.setdefault(slot, set()).add(desk)
        desk.slots = slots

    def _rang(self, slots: Collection[int]) -> None:
        """Something was committed: on the thread of whoever did."""
        if not self._desks:
            return
        try:
            with self._lock:
                desks = set().union(*(self._by_slot.get(slot, ()) for slot in (*slots, *_EVERYWHERE)))
                chosen = [waiter for desk in desks for waiter in self._look(desk)]
            self._ask(chosen)
        except Exception:
            log.exception("the waiting room failed; who waits finds out later")

    def _look(self, desk: Desk) -> list[Waiter]:
        """Something may be there: who is asked for now, if nobody is yet."""
        if desk.asking:
            desk.rung = True
            return []
        return desk.begin_round() if desk.waiting else []

    # Time

    def _set_alarm(self, desk: Desk) -> None:
        wait_s = None if desk.next_due is None else self._store.clock.wait_s(desk.next_due)
        if wait_s is None:
            self._alarms.drop(desk)
        else:
            self._look_at(desk, monotonic_s() + wait_s)

    def _look_at(self, what: Waiter | Desk, moment: float) -> None:
        if self._alarms.set(what, moment):
            self._sooner.notify()

    def _watch_time(self) -> None:
        while True:
            with self._lock:
                while not self._closed and (what := self._alarms.take(monotonic_s())) is None:
                    first = self._alarms.first()
                    self._sooner.wait(None if first is None else max(0.0, first - monotonic_s()))
                if self._closed:
                    return
                over = isinstance(what, Waiter) and self._end(what)
                chosen = self._look(what) if isinstance(what, Desk) else []
            if isinstance(what, Waiter) and over:
                self._tell(what, self._nothing(what))
            self._ask(chosen)

    def _end(self, waiter: Waiter) -> bool:
        """Sends one away whose time is over; one that is asked for at this moment goes at the end of its round."""
        if not waiter.desk.leave(waiter):
            return False
        self._drop_if_empty(waiter.desk)
        return self._dismiss(waiter)


def _going_down() -> Closed:
    return Closed("The broker is going down. Try another, or again in a moment.")


def _note_failure(answer: Any) -> None:
    if isinstance(answer, Exception):
        log.warning("a claim that nobody was there to take could not be released: %s", answer)
