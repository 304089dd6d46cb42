"""Denials: what this broker has refused, on its way into the audit.

    refused ──note──▶ waiting ──twice a second, up to two hundred──▶ the chain of the principal's tenant, and `$events`
                        └─ too many: counted by tenant; every ten seconds one entry tells how many more there were

Whoever is refused does not wait for that, nor does whoever refuses, be it an event loop: to note something takes no
more than a lock. Nobody can fill the store by being refused, nor the broker's memory while the store is away: of each
principal two hundred are noted, and one a second from then on. (All who have no key are one: a stranger's flood hides
what other strangers do, and nobody else's.)
"""

from __future__ import annotations

import re
import threading
from collections import Counter, deque
from typing import Any

from ..clock import monotonic_s
from ..engine.audit import Denied, NoteDenials, note_denials
from ..errors import Error
from ..events import log
from ..grants import By
from ..keys import KEY_PATTERN

_TENANT = "$denials"
_BETWEEN_S = 0.5
_AT_ONCE = 200
_WAITING_MAX = 1000
# Of one principal so many, and so many a second from then on.
_BURST, _A_SECOND = 200, 1.0
_PRINCIPALS_MAX = 10_000
_TELL_MORE_S = 10.0
_WRITE_S = 10.0
# What a stranger says is quoted no further than this.
_TEXT_CHARS_MAX = 256
_KEY = re.compile(KEY_PATTERN)


def _quoted(text: str) -> str:
    """What was said, as it may be kept: without a key that somebody gave for a name."""
    return _KEY.sub("duly_…", text)[:_TEXT_CHARS_MAX]


class Denials:
    """One broker's. Thread-safe; a thread begins with the first."""

    def __init__(self, home: Any) -> None:
        self._home = home
        self._changed = threading.Condition()
        self._waiting: deque[Denied] = deque()
        # How many were not noted, by the tenant of whoever was refused; and since when that waits to be told.
        self._more: Counter[str] = Counter()
        self._more_since = 0.0
        # By principal: how many may still be noted, and when that was so.
        self._left: dict[tuple[str, str], tuple[float, float]] = {}
        self._thread: threading.Thread | None = None
        self._over = False

    def note(self, by: By, action: str, tenant: str, topic: str | None, error: Error) -> None:
        """Something was refused: to whom, what, of which tenant and topic, and why."""
        facts = {"of": _quoted(tenant)} if tenant != by.tenant else {}
        denied = Denied(self._home.now_ms(), by, action, _quoted(topic or ""), error.code, facts)
        with self._changed:
            if self._over:
                return
            if len(self._waiting) < _WAITING_MAX and self._may_note(by):
                self._waiting.append(denied)
            else:
                self._count_more(by.tenant, 1)
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="duly-denials", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _may_note(self, by: By) -> bool:
        """Whether there is room for one more of that principal; it takes it."""
        now, who = monotonic_s(), (by.tenant, by.principal)
        left, at = self._left.pop(who, (float(_BURST), now))
        left = min(float(_BURST), left + (now - at) * _A_SECOND)
        # The one that was refused last stands last: the first to be forgotten was not seen for longest.
        self._left[who] = (max(left - 1, 0.0) if left >= 1 else left, now)
        if len(self._left) > _PRINCIPALS_MAX:
            del self._left[next(iter(self._left))]
        return left >= 1

    def _count_more(self, tenant: str, count: int) -> None:
        if not self._more:
            self._more_since = monotonic_s()
        self._more[tenant] += count

    def close(self) -> None:
        """Writes what waits, and ends."""
        with self._changed:
            self._over = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_WRITE_S)

    def _loop(self) -> None:
        while (some := self._take()) is not None:
            try:
                self._home.store.write(
                    note_denials, NoteDenials(_TENANT, some), tenant=_TENANT, cost=0, deadline=monotonic_s() + _WRITE_S
                )
            except Error as error:
                log.warning("%d denials could not be noted in the audit, yet: %s", len(some), error)
                self._put_back(some)
            with self._changed:
                self._changed.wait_for(lambda: self._over, _BETWEEN_S)

    def _take(self) -> tuple[Denied, ...] | None:
        """The next group; None when it is over and nothing is left, or cannot be written."""
        with self._changed:
            while not self._over and not self._waiting and not self._is_more_due():
                self._changed.wait(_TELL_MORE_S if self._more else None)
            some = [self._waiting.popleft() for _ in range(min(_AT_ONCE, len(self._waiting)))]
            if not self._waiting and (self._over or self._is_more_due()):
                some += self._told_more()
            return tuple(some) or None

    def _is_more_due(self) -> bool:
        return bool(self._more) and monotonic_s() >= self._more_since + _TELL_MORE_S

    def _told_more(self) -> list[Denied]:
        counts, self._more = self._more, Counter()
        now = self._home.now_ms()
        return [
            Denied(now, By(tenant=tenant), "more", "", "denied", {"count": count}) for tenant, count in counts.items()
        ]

    def _put_back(self, some: tuple[Denied, ...]) -> None:
        with self._changed:
            if self._over:
                self._waiting.clear()
                self._more.clear()
                return
            for denied in reversed(some):
                if len(self._waiting) < _WAITING_MAX:
                    self._waiting.appendleft(denied)
                else:
                    self._count_more(denied.by.tenant, int(denied.facts.get("count", 1)))
