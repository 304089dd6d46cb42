"""The keeper: sees to it that this broker runs the pushes that are its, and no others.

    every second: a glance ──the same as the last──▶ nothing more
                     └──▶ its share (engine/push_holding.py): take, give back ──▶ a runner a push that it holds

    (nothing) ──held, active──▶ running ──changed──▶ ending ──▶ running, as it is now
                                   └──not its any more──▶ ending ──▶ (nothing)

A push is given back when its runner has ended: so it does not run here beside a broker that took it from here. A broker
that is stopped is no member any more, and gives back what it held: others take it at their next look. After a kill they
do once it was not seen for a while. What ends does so on threads of its own: nobody waits for a slow one.

A runner that cannot be made (what a push says cannot be opened, a fault) is told once and tried again after a while.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, Protocol

import msgspec

from ...client.client import Client
from ...client.embedded import Embedded
from ...clock import monotonic_s
from ...engine.push_holding import (
    DisablePush,
    Glance,
    HoldPushes,
    LetGoPushes,
    Share,
    disable_pushes,
    glance,
    hold_pushes,
    let_go_pushes,
    look_at_share,
)
from ...engine.pushes import PushPlace, runnable_push
from ...errors import Error
from ...events import log
from ...limits import LIMITS
from ...push import LastAnswer, RunningPush, ToHttp, ToTopic

LOOK_S = 1.0
# How long a runner may finish what is under way: when its push was changed or goes elsewhere, and when the broker ends.
_PATIENCE_S = 10.0
_LAST_PATIENCE_S = 5.0
# What cannot be run is tried again; and everything is looked at now and then, whatever a glance says.
_AGAIN_S = 10.0
_LOOK_CLOSELY_S = 60.0
# What a joining broker is due comes to it in steps, so that a runner that ends is not one of thousands.
_GIVEN_BACK_MAX = 100
_ENDING_AT_ONCE = 32
_WRITE_S = 10.0
_CALL_S = 30.0
_TENANT = "$pushes"

Key = tuple[str, str]
# Told by a runner: "disabled", with a reason; "answered", with status and ms.
Tell = Callable[[RunningPush, str, Mapping[str, Any]], None]


class Runner(Protocol):
    """Delivers a push's messages from the moment that it is made, until it is stopped."""

    def stop(self, patience_s: float) -> None:
        """Claims nothing more, and returns when what is under way is finished or released."""
        ...


# Makes the runner of a push. The client is of the push's tenant, on the broker's own store, and is not to be closed.
Makes = Callable[[Client, RunningPush, Tell], Runner]
Makers = Mapping[type[ToHttp] | type[ToTopic], Makes]


class _Running(msgspec.Struct, frozen=True):
    """A push with its runner; `until_ms`: then it has to be made anew, as a secret ends."""

    push: RunningPush
    runner: Any
    until_ms: int | None


class Keeper:
    """A broker's pushes, and the thread that keeps them."""

    def __init__(self, home: Embedded, name: str, makers: Makers, *, is_ready: Callable[[], bool]) -> None:
        """`name` is the broker's among members; one that is not ready runs nothing."""
        self._home = home
        self._name = name
        self._makers = makers
        self._is_ready = is_ready
        self._running: dict[Key, _Running] = {}
        self._ending: dict[Key, Future[None]] = {}
        # Of those that end: what is not this broker's any more once they have.
        self._leaving: set[Key] = set()
        self._again_at: dict[Key, float] = {}
        self._last: dict[Key, LastAnswer] = {}
        # What the last look saw, and whether it was ready then.
        self._seen: tuple[Glance, bool] | None = None
        self._closely_at = 0.0
        self._failing = False
        self._over = threading.Event()
        self._ends = ThreadPoolExecutor(_ENDING_AT_ONCE, "duly-push-end")
        self._thread = threading.Thread(target=self._loop, name="duly-pushes", daemon=True)
        self._thread.start()

    def last(self, tenant: str, name: str) -> LastAnswer | None:
        """The last answer that a push had here."""
        return self._last.get((tenant, name))

    def begin_to_end(self) -> None:
        """Has all runners end, and starts no other."""
        self._over.set()
        self._thread.join()
        for key in list(self._running):
            self._end(key, _LAST_PATIENCE_S)

    def close(self) -> None:
        """Waits for that, and leaves the pushes to others."""
        self.begin_to_end()
        wait(self._ending.values(), _LAST_PATIENCE_S + 1)
        self._ends.shutdown(wait=False, cancel_futures=True)
        if self._seen is None or self._seen[0].pulse[0]:
            try:
                self._write(let_go_pushes, LetGoPushes("", self._name, None))
            except Error as error:
                log.warning("pushes could not be given back; others take them when this broker is gone: %s", error)

    # The look

    def _loop(self) -> None:
        while not self._over.wait(LOOK_S):
            try:
                self._look()
            except Exception as error:
                # Whatever it is, the next look may succeed; whatever runs goes on.
                if not self._failing:
                    log.warning("it cannot be told which pushes are this broker's: %s", error, exc_info=_fault(error))
                self._failing, self._seen = True, None
            else:
                self._failing = False

    def _look(self) -> None:
        seen = self._home.look(glance, None), self._is_ready()
        self._collect()
        if seen == self._seen and monotonic_s() < self._closely_at and not self._is_due():
            return
        if seen[0].paused or not seen[1] or not seen[0].pulse[0]:
            for key in list(self._running):
                self._end(key)
        else:
            self._heed(self._take())
        # What was taken or given back just now makes another glance: then it is looked at again.
        self._seen, self._closely_at = seen, monotonic_s() + _LOOK_CLOSELY_S

    def _is_due(self) -> bool:
        """Whether something is to be done that no row tells of."""
        now_ms, now = self._home.now_ms(), monotonic_s()
        return any(at <= now for at in self._again_at.values()) or any(
            one.until_ms is not None and one.until_ms <= now_ms for one in self._running.values()
        )

    def _take(self) -> Share:
        """Its share, once it has taken what it may."""
        share: Share = self._home.look(look_at_share, self._name)
        while share.to_take and not self._over.is_set() and self._write(hold_pushes, HoldPushes("", self._name)):
            share = self._home.look(look_at_share, self._name)
        return share

    def _heed(self, share: Share) -> None:
        """Runs what is its, and ends what is not, or has changed."""
        mine = {(row.tenant, row.name): row.version for row in share.mine}
        self._leaving = self._too_many(mine, share.too_many)
        now_ms, now = self._home.now_ms(), monotonic_s()
        for key, one in list(self._running.items()):
            is_as_it_was = mine.get(key) == one.push.version and (one.until_ms is None or one.until_ms > now_ms)
            if not is_as_it_was or key in self._leaving:
                self._end(key)
        self._give_back(key for key in self._leaving if key not in self._ending)
        self._again_at = {key: at for key, at in self._again_at.items() if key in mine}
        self._last = {key: last for key, last in self._last.items() if key in mine}
        for key in mine:
            is_busy = key in self._running or key in self._ending or key in self._leaving
            if not is_busy and self._again_at.get(key, 0.0) <= now and not self._over.is_set():
                self._start(key)

    def _too_many(self, mine: Mapping[Key, int], count: int) -> set[Key]:
        """Which are given back, some at a time: first those that are on their way out or do not run."""
        at_hand = sorted(mine, key=lambda key: (key not in self._leaving, key in self._running))
        return set(at_hand[: min(count, _GIVEN_BACK_MAX)])

    def _collect(self) -> None:
        """What has ended is given back, or may be started anew."""
        ended = [key for key, ending in self._ending.items() if ending.done()]
        for key in ended:
            del self._ending[key]
            self._seen = None
        self._give_back(key for key in ended if key in self._leaving)

    def _give_back(self, keys: Iterable[Key]) -> None:
        given = tuple(keys)
        if given:
            self._write(let_go_pushes, LetGoPushes("", self._name, given))
            self._leaving.difference_update(given)
            self._seen = None

    # Runners

    def _start(self, key: Key) -> None:
        tenant, name = key
        self._again_at.pop(key, None)
        try:
            found = self._home.look(runnable_push, PushPlace(tenant, name))
            if found is not None:
                client = Client(self._home, tenant=tenant, consumer=self._consumer(name), timeout=_CALL_S)
                runner = self._makers[type(found.push.to)](client, found.push, self._tell)
                self._running[key] = _Running(found.push, runner, found.until_ms)
        except Exception as error:
            # One that cannot be run must not keep the others from it.
            log.warning("push %s of tenant %s cannot be run here: %s", name, tenant, error, exc_info=_fault(error))
            self._again_at[key] = monotonic_s() + _AGAIN_S

    def _consumer(self, name: str) -> str:
        """The name under which its messages are claimed: of which push, at which broker."""
        return f"{name}@{self._name}"[: LIMITS.consumer_chars_max]

    def _end(self, key: Key, patience_s: float = _PATIENCE_S) -> None:
        self._ending[key] = self._ends.submit(_stop, self._running.pop(key), patience_s)

    def _tell(self, push: RunningPush, kind: str, facts: Mapping[str, Any]) -> None:
        """What a runner has to say: on a thread of its own, and it does not wait here."""
        if kind == "answered":
            last = LastAnswer(facts["status"], facts["ms"], self._home.now_ms())
            self._last[push.tenant, push.name] = last
        elif kind == "disabled":
            command = DisablePush(push.tenant, push.name, push.version, facts["reason"])
            self._home.store.submit(disable_pushes, command, tenant=_TENANT, cost=0, then=partial(_told, push))
        else:
            raise ValueError(f"A runner tells that it is answered or disabled, not {kind!r}.")

    def _write(self, verb: Any, command: Any) -> Any:
        return self._home.store.write(verb, command, tenant=_TENANT, cost=0, deadline=monotonic_s() + _WRITE_S)


def _stop(one: _Running, patience_s: float) -> None:
    try:
        one.runner.stop(patience_s)
    except Exception as error:
        # It is over for this broker all the same: what it holds is due again when its leases end.
        log.warning("the runner of %r did not end as it should: %s", one.push, error, exc_info=_fault(error))


def _told(push: RunningPush, answer: Any) -> None:
    if isinstance(answer, Exception):
        log.warning("%r could not be disabled: %s", push, answer)


def _fault(error: Exception) -> Exception | None:
    """What nobody foresaw is logged with its traceback."""
    return None if isinstance(error, Error) else error
