"""Membership: a broker tells the others on its store that it is there, and learns who else is.

    joining ──▶ beating, every two seconds ──▶ leaving: its row is removed
                   └─ killed, or cut off from the store: its row grows old, and is left out after seven seconds

Nothing depends on the list being right: brokers are equal and share the store alone. It tells clients where else to go
(wire/talk.py), and people how each broker does. So a beat that fails is told once, and followed by the next; whoever
serves does not wait for it.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from ..errors import Error
from ..events import log
from ..member import BEAT_S, Member

_LEAVE_S = 5.0


def member_name() -> str:
    """A name that no other start of a broker has."""
    return f"{socket.gethostname()[:64]}-{os.getpid()}-{secrets.token_hex(3)}"


class Membership:
    """One broker's place among those on its store."""

    def __init__(
        self,
        store: Any,
        member: Member,
        *,
        state: Callable[[], tuple[int, str]],
        found: Callable[[list[Member]], None],
    ) -> None:
        """`state` measures the drift and says why the broker is not ready; `found` is told who is there, each time."""
        self._store = store
        self._member = member
        self._state = state
        self._found = found
        self._failing = False
        self._over = threading.Event()
        self._beat()
        self._thread = threading.Thread(target=self._loop, name="duly-member", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        """What it is called."""
        return self._member.name

    def leave(self) -> None:
        """Takes the broker off the list: nobody is sent to it any more."""
        if self._over.is_set():
            return
        self._over.set()
        self._thread.join(_LEAVE_S)
        try:
            self._store.member_remove(self.name)
        except Error as error:
            log.warning("it could not be noted that this broker leaves: %s", error)

    def _loop(self) -> None:
        while not self._over.wait(BEAT_S):
            self._beat()

    def _beat(self) -> None:
        try:
            drift_ms, reason = self._state()
            self._store.member_put(replace(self._member, drift_ms=drift_ms, ready=not reason, reason=reason))
            self._found(self._store.members())
        except Exception as error:
            # Whatever it is, the next beat may succeed: a broker that stopped beating would be taken for dead.
            if not self._failing:
                log.warning("a beat failed, and others may not see this broker: %s", error, exc_info=_fault(error))
            self._failing = True
            return
        self._failing = False


def _fault(error: Exception) -> Exception | None:
    """What nobody foresaw is logged with its traceback."""
    return None if isinstance(error, Error) else error
