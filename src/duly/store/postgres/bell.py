"""Wakes those who wait, here and in every other process on the store.

Others are told by NOTIFY, after the commit and on a connection of its own: inside the transaction it would make all
commits of the database wait for each other. What rang while one was being sent, or a moment after, goes with the next.
Whoever hears nothing because its connection broke looks again when it has another.

A process that dies between its commit and its NOTIFY tells nobody: so whoever waits looks again after a while.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

import psycopg

from ...clock import monotonic_s
from ...events import log
from ..bell import SLOTS, Bell, Ticket

_RETRY_S = 0.5
# A NOTIFY is not followed by the next at once: on a busy topic one tells of many commits.
_GATHER_S = 0.002


class NotifyBell(Bell):
    """One process's end of the bell."""

    def __init__(self, connect: Callable[[], psycopg.Connection[Any]], channel: str) -> None:
        super().__init__()
        self._connect = connect
        self._channel = channel
        self._name = f"{os.getpid()}.{id(self):x}"
        self._unsent: set[int] = set()
        self._changed = threading.Condition()
        self._ended = threading.Event()
        self._ringer: threading.Thread | None = None
        self._hearer: threading.Thread | None = None
        self._heard: psycopg.Connection[Any] | None = None
        self.attentive = threading.Event()
        self.awaited = threading.Event()
        self._sleeping = 0
        self._at_first: Callable[[], None] | None = None

    def when_awaited(self, act: Callable[[], None]) -> None:
        """Calls back once, when somebody waits here for the first time; `awaited` tells whether anybody does now."""
        self._at_first = act

    def _hear_others(self) -> None:
        if self._listeners:
            self.awaited.set()
        if self._at_first is not None:
            act, self._at_first = self._at_first, None
            act()
        if self._hearer is None:
            self._hearer = threading.Thread(target=self._hear, name="duly-bell", daemon=True)
            self._hearer.start()

    def sleep(self, ticket: Ticket, seconds: float | None) -> None:
        """As any bell; while somebody sleeps for what others do, it is `awaited`."""
        if ticket.here_only:
            super().sleep(ticket, seconds)
            return
        self._sleeping += 1
        self.awaited.set()
        try:
            super().sleep(ticket, seconds)
        finally:
            self._sleeping -= 1

    def rest(self) -> None:
        """Whoever looks for others' doings may stop if nobody waits for them."""
        if not self._sleeping and not self._listeners and not self._closed:
            self.awaited.clear()
            # One that came between the two.
            if self._sleeping:
                self.awaited.set()

    def ring(self, partitions: Iterable[int]) -> None:
        """Tells everyone, here and in other processes."""
        slots = {partition % SLOTS for partition in partitions}
        if not slots:
            return
        self._wake(slots)
        with self._changed:
            self._unsent |= slots
            if self._ringer is None and not self._closed:
                self._ringer = threading.Thread(target=self._tell, name="duly-ringer", daemon=True)
                self._ringer.start()
            self._changed.notify()

    def ring_here(self, partitions: Iterable[int]) -> None:
        """Tells this process alone."""
        self._wake({partition % SLOTS for partition in partitions})

    def close(self) -> None:
        """Stops listening and wakes whoever still sleeps."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._ended.set()
        with self._changed:
            self._changed.notify_all()
        self.ring_all_here()
        if self._heard is not None:
            self._heard.close()
        for thread in (self._ringer, self._hearer):
            if thread is not None:
                thread.join(5.0)

    def _tell(self) -> None:
        connection: psycopg.Connection[Any] | None = None
        while True:
            with self._changed:
                while not self._unsent and not self._closed:
                    self._changed.wait()
                if not self._unsent:
                    break
                slots, self._unsent = self._unsent, set()
            try:
                # What has begun to ring is told at once; the pause comes behind it.
                if connection is None:
                    connection = self._connect()
                told = f"{self._name} {','.join(map(str, sorted(slots)))}"
                connection.execute("SELECT pg_notify(%s, %s)", (self._channel, told if len(told) < 7000 else "* *"))
            except psycopg.Error as error:
                if connection is not None:
                    connection.close()
                connection = None
                if self._closed:
                    break
                with self._changed:
                    self._unsent |= slots
                    self._changed.wait(_RETRY_S)
                log.debug("others cannot be told yet: %s", error)
            self._ended.wait(_GATHER_S)
        if connection is not None:
            connection.close()

    def _hear(self) -> None:
        while not self._closed:
            try:
                with self._connect() as connection:
                    self._heard = connection
                    connection.execute(f'LISTEN "{self._channel}"')
                    self.attentive.set()
                    # What rang before it listened was not heard.
                    self.ring_all_here()
                    for told in connection.notifies():
                        sender, _, slots = told.payload.partition(" ")
                        if sender != self._name:
                            self._wake(range(SLOTS) if slots == "*" else [int(slot) for slot in slots.split(",")])
            except (psycopg.Error, OSError) as error:
                self.attentive.clear()
                if self._closed:
                    return
                log.debug("others are not heard for now: %s", error)
                until = monotonic_s() + _RETRY_S
                while not self._closed and monotonic_s() < until:
                    threading.Event().wait(0.05)
