"""The waiting room: claims that found nothing wait here, without a thread each, and are served in turn.

    come ──▶ asked ──something──▶ served
               │ ▲
         nothing │ a partition rings, or a due time comes
               ▼ │
             waiting ──its time is over──▶ served with nothing
                 └────its client left────▶ forgotten; what was on its way to it is released

A *desk* is the queue before one group. Who comes stands at its end; who was asked for in vain keeps its place; who was
served and comes again stands at the end again: nobody gets a second batch while another waits with none.

When something may be claimable the first at the desk is asked for. If it gets something the next two are, then four,
and so on, until one gets nothing: a thousand who wait for one message cost one claim, and a thousand messages for a
thousand who wait cost ten merges (claims that are asked for together are one merge).

Rings come from whoever commits, answers from the writer's thread: neither may wait, and no error may get out there.
One thread sleeps until the next due time, or the end of the next waiter's patience.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from ..clock import monotonic_s
from ..engine.claimed import Claim, Claimed
from ..engine.operations import WRITES
from ..engine.settling import Settle, Token
from ..errors import Busy, Closed, Error
from ..events import log
from ..limits import LIMITS

Answered = Callable[[Claimed | Exception], None]
_Key = tuple[str, str, str]

# Claims of one desk that are asked for at the same time.
_ABREAST_MAX = 256


class Waiter:
    """One claim in the room."""

    __slots__ = ("command", "gone", "number", "then", "until")

    def __init__(self, number: int, command: Claim, until: float, then: Answered) -> None:
        self.number = number
        self.command = command
        self.until = until
        self.then = then
        self.gone = False


class Desk:
    """The queue before one group."""

    __slots__ = ("abreast", "asked", "hurried", "key", "next_due", "rung", "slots", "waiting")

    def __init__(self, key: _Key) -> None:
        self.key = key
        # In the order of their coming, which their numbers have.
        self.waiting: OrderedDict[int, Waiter] = OrderedDict()
        # Asked for at this moment.
        self.asked: dict[int, Waiter] = {}
        self.abreast = 1
        # Something rang since the last ones were asked for.
        self.rung = False
        # Those who will not wait, to be asked for behind the others.
        self.hurried: list[Waiter] = []
        self.slots: frozenset[int] = frozenset()
        self.next_due: int | None = None

    @property
    def empty(self) -> bool:
        return not (self.waiting or self.asked or self.hurried)


class Room:
    """Everyone who waits for something to claim."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._desks: dict[_Key, Desk] = {}
        self._by_slot: dict[int, set[_Key]] = {}
        self._count = 0
        self._numbers = itertools.count()
        # (moment, number, waiter or desk): when to look again, most of it out of date when it comes.
        self._times: list[tuple[float, int, Waiter | _Key]] = []
        self._sooner = threading.Condition(self._lock)
        self._closed = False
        self._thread = threading.Thread(target=self._watch_time, name="duly-room", daemon=True)
        self._thread.start()
        store.listen(self._rang)

    @property
    def count(self) -> int:
        """How many wait."""
        return self._count

    def is_waited_at(self, command: Claim) -> bool:
        """Whether somebody waits for what this would claim."""
        return (command.tenant, command.topic, command.group) in self._desks

    def claim(self, command: Claim, *, wait_until: float | None, then: Answered) -> Waiter:
        """Claims in turn. `then` is told on a thread that must not be kept. Raises Busy when too many wait."""
        until = -1.0 if wait_until is None else wait_until
        waiter = Waiter(next(self._numbers), command, until, then)
        key = (command.tenant, command.topic, command.group)
        with self._lock:
            if self._closed:
                raise Closed("The broker is going down. Try another, or again in a moment.")
            if self._count >= LIMITS.claims_waiting_max:
                raise Busy("Too many claims wait already. Back off and try again.")
            desk = self._desks.get(key)
            if desk is None:
                desk = self._desks[key] = Desk(key)
            self._count += 1
            if wait_until is None:
                desk.hurried.append(waiter)
            else:
                desk.waiting[waiter.number] = waiter
                self._look_at(until, waiter)
            chosen = self._choose(desk) if not desk.asked else []
        self._ask(desk, chosen)
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """Forgets a claim: nobody is there any more to take what it gets."""
        with self._lock:
            if waiter.gone:
                return
            waiter.gone = True
            self._count -= 1
            desk = self._desks.get((waiter.command.tenant, waiter.command.topic, waiter.command.group))
            if desk is not None:
                desk.waiting.pop(waiter.number, None)
                self._drop_if_empty(desk)

    def close(self) -> None:
        """Answers everyone who waits with nothing, and takes nobody in."""
        with self._lock:
            self._closed = True
            waiting = [waiter for desk in self._desks.values() for waiter in desk.waiting.values()]
            for desk in self._desks.values():
                desk.waiting.clear()
            self._sooner.notify()
        self._thread.join()
        for waiter in waiting:
            self._serve(waiter, Closed("The broker is going down. Try another, or again in a moment."))

    # Who is asked for, and what they get

    def _choose(self, desk: Desk) -> list[Waiter]:
        """The next to be asked for; they stand at the desk until they are answered."""
        chosen = [waiter for _, waiter in zip(range(desk.abreast), desk.waiting.values(), strict=False)]
        for waiter in chosen:
            del desk.waiting[waiter.number]
        chosen += desk.hurried
        desk.hurried = []
        desk.asked = {waiter.number: waiter for waiter in chosen}
        desk.rung = False
        return chosen

    def _ask(self, desk: Desk, chosen: list[Waiter]) -> None:
        for waiter in chosen:
            try:
                self._store.submit(
                    WRITES[Claim],
                    waiter.command,
                    tenant=waiter.command.tenant,
                    cost=0,
                    then=partial(self._answered, desk, waiter),
                )
            except Error as error:
                self._answered(desk, waiter, error)

    def _answered(self, desk: Desk, waiter: Waiter, answer: Claimed | Exception) -> None:
        """On the writer's thread: nothing may be raised here."""
        try:
            self._take_answer(desk, waiter, answer)
        except Exception:
            log.exception("the waiting room failed; the claim of %s is lost", waiter.command.consumer)

    def _take_answer(self, desk: Desk, waiter: Waiter, answer: Claimed | Exception) -> None:
        served = True
        with self._lock:
            desk.asked.pop(waiter.number, None)
            if isinstance(answer, Claimed):
                self._listen_for(desk, answer)
                if answer.parcels:
                    desk.abreast = min(desk.abreast * 2, _ABREAST_MAX)
                else:
                    desk.abreast = 1
                    served = waiter.gone or waiter.until <= monotonic_s() or self._closed
                    if not served:
                        desk.waiting[waiter.number] = waiter
                        # Back to its place: those asked for together come back in their order, before all others.
                        self._put_back(desk, waiter)
            again = not desk.asked and (desk.rung or desk.hurried or (desk.abreast > 1 and desk.waiting))
            chosen = self._choose(desk) if again else []
            if not desk.asked and desk.waiting and desk.next_due is not None:
                wait_s = self._store.clock.wait_s(desk.next_due)
                if wait_s is not None:
                    self._look_at(monotonic_s() + wait_s, desk.key)
        if served:
            self._serve(waiter, answer)
        self._ask(desk, chosen)
        with self._lock:
            self._drop_if_empty(desk)

    def _put_back(self, desk: Desk, waiter: Waiter) -> None:
        before = [number for number in desk.waiting if number > waiter.number]
        for number in before:
            desk.waiting.move_to_end(number)

    def _serve(self, waiter: Waiter, answer: Claimed | Exception) -> None:
        with self._lock:
            gone, waiter.gone = waiter.gone, True
            if not gone:
                self._count -= 1
        if not gone:
            waiter.then(answer)
        elif isinstance(answer, Claimed) and answer.parcels:
            self.release(waiter.command, answer)

    def release(self, command: Claim, claimed: Claimed) -> None:
        """Gives back at once what nobody is there to take."""
        tokens = tuple(Token(parcel.lease_id) for parcel in claimed.parcels)
        settle = Settle(command.tenant, claimed.incarnation, claimed.topic, claimed.group, "release", tokens)
        try:
            self._store.submit(WRITES[Settle], settle, tenant=command.tenant, cost=0, then=_note_failure)
        except Error as error:
            _note_failure(error)

    # When to look again

    def _listen_for(self, desk: Desk, claimed: Claimed) -> None:
        desk.next_due = claimed.next_due
        slots = frozenset(self._store.slot(partition) for partition in claimed.partitions)
        if slots == desk.slots:
            return
        for slot in desk.slots:
            self._by_slot[slot].discard(desk.key)
        for slot in slots:
            self._by_slot.setdefault(slot, set()).add(desk.key)
        desk.slots = slots

    def _drop_if_empty(self, desk: Desk) -> None:
        if desk.empty and self._desks.get(desk.key) is desk:
            del self._desks[desk.key]
            for slot in desk.slots:
                keys = self._by_slot[slot]
                keys.discard(desk.key)
                if not keys:
                    del self._by_slot[slot]

    def _rang(self, slots: Collection[int]) -> None:
        """Something was committed: on the thread of whoever did."""
        if not self._desks:
            return
        try:
            for desk, chosen in self._ringing(slots):
                self._ask(desk, chosen)
        except Exception:
            log.exception("the waiting room failed; who waits finds out later")

    def _ringing(self, slots: Collection[int]) -> list[tuple[Desk, list[Waiter]]]:
        found: list[tuple[Desk, list[Waiter]]] = []
        with self._lock:
            # One that was never asked for does not know yet where to listen.
            keys = set().union(*(self._by_slot.get(slot, ()) for slot in slots))
            keys.update(desk.key for desk in self._desks.values() if not desk.slots)
            for key in keys:
                found += self._again(key)
        return found

    def _again(self, key: _Key) -> list[tuple[Desk, list[Waiter]]]:
        desk = self._desks.get(key)
        if desk is None:
            return []
        desk.rung = True
        if desk.asked or not desk.waiting:
            return []
        desk.abreast = 1
        return [(desk, self._choose(desk))]

    def _look_at(self, moment: float, what: Waiter | _Key) -> None:
        sooner = not self._times or moment < self._times[0][0]
        heapq.heappush(self._times, (moment, next(self._numbers), what))
        if sooner:
            self._sooner.notify()

    def _watch_time(self) -> None:
        while True:
            ended: list[Waiter] = []
            asked: list[tuple[Desk, list[Waiter]]] = []
            with self._lock:
                while not self._closed and (not self._times or self._times[0][0] > monotonic_s()):
                    self._sooner.wait(self._times[0][0] - monotonic_s() if self._times else None)
                if self._closed:
                    return
                _, _, what = heapq.heappop(self._times)
                if isinstance(what, Waiter):
                    ended += self._end(what)
                else:
                    asked += self._again(what)
            for waiter in ended:
                self._serve(waiter, self._nothing(waiter))
            for desk, chosen in asked:
                self._ask(desk, chosen)

    def _end(self, waiter: Waiter) -> list[Waiter]:
        """A waiter whose time is over; one that is asked for at this moment is served by its answer."""
        command = waiter.command
        desk = self._desks.get((command.tenant, command.topic, command.group))
        if waiter.gone or desk is None or desk.waiting.pop(waiter.number, None) is None:
            return []
        self._drop_if_empty(desk)
        return [waiter]

    def _nothing(self, waiter: Waiter) -> Claimed:
        command = waiter.command
        return Claimed(command.topic, command.group, self._store.incarnation, command.lease_ms or 0, 0)


def _note_failure(answer: Any) -> None:
    if isinstance(answer, Exception):
        log.warning("a claim that nobody was there to take could not be released: %s", answer)
