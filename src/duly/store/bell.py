"""Wakes those who wait in this process. Each store adds how it hears of others, and tells them.

Partitions share 1,024 slots. Lost wake-ups cannot happen: a waiter takes a ticket *before* it looks for work, and the
ticket knows whether a slot has rung since.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from functools import partial

import msgspec

from .patience import patience_here

SLOTS = 1024


class Ticket(msgspec.Struct, frozen=True):
    """Slots and how often each had rung when the ticket was taken."""

    slots: tuple[int, ...]
    rung: tuple[int, ...]
    # Others' rings do not matter.
    here_only: bool = False


class Bell:
    """One process's end of the bell. By itself nobody else can hear it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rung = [0] * SLOTS
        self._sleepers: dict[int, list[threading.Lock]] = defaultdict(list)
        self._listeners: list[Callable[[Collection[int]], None]] = []
        self._closed = False

    def _hear_others(self) -> None:
        """Somebody waits, or listens: from now on others' rings matter. Called under the lock, often."""

    def ticket(self, partitions: Iterable[int], *, here_only: bool = False) -> Ticket:
        """Remembers how often the partitions have rung so far; `here_only` does without other processes' rings."""
        slots = tuple({partition % SLOTS for partition in partitions})
        with self._lock:
            if not here_only and not self._closed:
                self._hear_others()
            return Ticket(slots, tuple(self._rung[slot] for slot in slots), here_only)

    def sleep(self, ticket: Ticket, seconds: float | None) -> None:
        """Returns when one of the ticket's slots has rung since it was taken, or the time is over.

        Raises Interrupted when this thread's patience ends.
        """
        alarm = threading.Lock()
        alarm.acquire()
        with patience_here().waking(partial(self._rouse, alarm)):
            self._sleep(alarm, ticket, seconds)

    def _sleep(self, alarm: threading.Lock, ticket: Ticket, seconds: float | None) -> None:
        with self._lock:
            if self._closed or any(
                self._rung[slot] != then for slot, then in zip(ticket.slots, ticket.rung, strict=True)
            ):
                return
            for slot in ticket.slots:
                self._sleepers[slot].append(alarm)
        try:
            alarm.acquire(timeout=-1 if seconds is None else min(seconds, threading.TIMEOUT_MAX))
        finally:
            with self._lock:
                for slot in ticket.slots:
                    if alarm in self._sleepers[slot]:
                        self._sleepers[slot].remove(alarm)

    def listen(self, listener: Callable[[Collection[int]], None]) -> None:
        """Calls back with the slots that ring, from now on and also in other processes. It must not wait."""
        with self._lock:
            self._listeners.append(listener)
            if not self._closed:
                self._hear_others()

    def _rouse(self, alarm: threading.Lock) -> None:
        with self._lock:
            if alarm.locked():
                alarm.release()

    def ring_all_here(self) -> None:
        """Wakes everyone in this process: time was moved, or it is time to go."""
        self._wake(range(SLOTS))

    def _wake(self, slots: Collection[int]) -> None:
        with self._lock:
            for slot in slots:
                self._rung[slot] += 1
                for alarm in self._sleepers.pop(slot, ()):
                    if alarm.locked():
                        alarm.release()
            listeners = tuple(self._listeners)
        for listener in listeners:
            listener(slots)
