"""Schedules tick in every process that has the store open: each sleeps until the next tick, and asks for it then.

    sleeping ──the next tick's moment──▶ asked for (engine/schedules.py) ──▶ sleeping
       └── every two seconds: is the next tick another one now? ──┘

Who makes or changes a schedule wakes its own process by that, which is there to have it tick on time. The others learn
of it by looking, one index look-up every two seconds: so they know the next tick when a process is killed, whichever it
was and whether or not it lived to tell, and an idle store costs no more than that. All wake for the same tick; one
publishes it, the others find nothing due.

A tick that fails (the disk is full, a key is not here) is tried again in a while, and keeps nothing else from being
done. Where a process lacks the key of a tenant's data, others may have it: it leaves them ten seconds, and only then
puts that tenant's schedules off, for the sake of all others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..clock import monotonic_s
from ..engine.pause import is_paused
from ..engine.schedules import Tick, put_off_ticks, tick
from ..errors import Error, Sealed
from ..events import log
from ..store.contract import ScheduleLook, Transaction

# How often a process looks for what others did to schedules.
LOOK_S = 2.0
_AGAIN_S = 5.0
# Nothing was due after all: the store's clock is a hair behind, or the rows are just being changed.
_SOON_S = 0.05
_OTHERS_MAY_MS = 10_000


class Ticker:
    """Has schedules tick."""

    def __init__(self, store: Any, write: Callable[[Any, Any], Any]) -> None:
        self._store = store
        self._write = write
        # Until then it does nothing.
        self._rests_until = 0.0
        self._seen: ScheduleLook | None = None

    def run(self) -> int | None:
        """Does what is due; answers the moment at which something will be. None: there is nothing, or it rests."""
        while monotonic_s() >= self._rests_until:
            look = self.look()
            if look is None or look.at > self._store.clock.now_ms():
                return None if look is None else look.at
            self._do(look)
        return None

    def look(self) -> ScheduleLook | None:
        """The schedule that is next; None: there is none, or the store is paused."""
        tx: Transaction
        with self._store.read() as tx:
            return None if is_paused(tx) else tx.schedule_next()

    def rest_s(self) -> float:
        """How long from now on it wants to be asked again."""
        return min(LOOK_S, max(0.0, self._rests_until - monotonic_s()) or LOOK_S)

    def _do(self, look: ScheduleLook) -> None:
        try:
            if not self._write(tick, Tick(look.tenant, look.topic)) and look == self._seen:
                self._rests_until = monotonic_s() + _SOON_S
            self._seen = look
        except Sealed as error:
            log.warning("a tick needs a key that is not here: %s", error)
            self._rests_until = monotonic_s() + _AGAIN_S
            if look.at < self._store.clock.now_ms() - _OTHERS_MAY_MS:
                self._write(put_off_ticks, Tick(look.tenant, look.topic))
        except Error as error:
            log.warning("a tick failed and will be tried again: %s", error)
            self._rests_until = monotonic_s() + _AGAIN_S
