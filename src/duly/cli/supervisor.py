"""The parent of `duly work`: starts worker processes, replaces those that die, passes signals on.

It opens no store and imports no application, so there is little that could make it die. What a dead process held
comes back when its leases end, each message with its attempt counted; nothing is released on its behalf, because
one of those messages may be what killed it.

    starting ──ready──▶ at work ──told to stop, or drained──▶ ended (0)
       │ refused               └──died──▶ waiting (longer each time it dies young) ──▶ starting
       └ the first one: everything ends, with its refusal as ours

The first process is started alone: what is wrong with the application is said once. Each process is a session of
its own, so that Ctrl-C reaches the supervisor only and is passed on once. When the supervisor dies, its end of
their standard input closes and they stop.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from ..clock import monotonic_s
from ..events import log
from ..workers.mailbox import Mailbox
from ..workers.signals import on_signals
from .assignment import EXIT_REFUSED, EXIT_RELOAD, EXIT_STUCK, Assignment

# One that lived so long has earned a prompt replacement; one that did not waits, longer each time.
_YOUNG_S = 5.0
_WAIT_S, _WAIT_S_MAX = 0.1, 10.0
# How long after its grace a process may still take to end before it is killed.
_KILL_AFTER_S = 10.0


@dataclass(eq=False)
class Member:
    """One of the processes, through all its incarnations."""

    number: int
    process: subprocess.Popen[bytes] | None = None
    ever_ready: bool = False
    started_at: float = 0.0
    # When to start it; None while it runs, or for good.
    start_at: float | None = None
    deaths_young: int = 0
    code: int | None = None


@dataclass(frozen=True, slots=True)
class Ready:
    """A process has begun to work."""

    member: Member


@dataclass(frozen=True, slots=True)
class Exited:
    """A process has ended."""

    member: Member
    code: int


@dataclass(frozen=True, slots=True)
class Signalled:
    """We were told to stop."""

    number: int


Told = Ready | Exited | Signalled


@dataclass
class Supervisor:
    """Keeps so many processes at work on one assignment."""

    assignment: Assignment
    processes: int
    restarts: int = 0
    _members: list[Member] = field(default_factory=list)
    _told: Mailbox[Told] = field(default_factory=Mailbox)
    _refused: bool = False
    _killed: bool = False
    # When those that have not ended are killed; None while nobody wants them to end.
    _kill_at: float | None = None

    def run(self) -> int:
        """Works until told to stop, or until all are drained; returns an exit code."""
        self._members = [Member(number + 1) for number in range(self.processes)]
        self._members[0].start_at = monotonic_s()
        with on_signals(self._told, Signalled):
            while self._going_on():
                self._start_due()
                self._hear()
                self._kill_late()
        return 1 if self._refused or self._killed else 0

    def _going_on(self) -> bool:
        return any(member.process is not None or member.start_at is not None for member in self._members)

    def _hear(self) -> None:
        """Waits for the next thing to happen, or for the next moment something is to be done."""
        moments = [member.start_at for member in self._members if member.start_at is not None]
        moments += [] if self._kill_at is None else [self._kill_at]
        told = self._told.get(max(0.0, min(moments) - monotonic_s()) if moments else None)
        if told is None:
            return
        if isinstance(told, Signalled):
            log.info("stopping: %s", signal.Signals(told.number).name)
            self._stop()
        elif isinstance(told, Ready):
            told.member.ever_ready = True
            self._start_others()
        else:
            self._exited(told.member, told.code)

    # Starting

    def _start_due(self) -> None:
        now = monotonic_s()
        for member in self._members:
            if member.start_at is not None and member.start_at <= now:
                self._start(member)

    def _start_others(self) -> None:
        for member in self._members:
            if member.process is None and member.code is None and self._kill_at is None:
                member.start_at = member.start_at or monotonic_s()

    def _start(self, member: Member) -> None:
        ready, written = os.pipe()
        orders = msgspec.json.encode(msgspec.structs.replace(self.assignment, ready_fd=written)) + b"\n"
        try:
            member.process = subprocess.Popen(
                [sys.executable, "-m", "duly.cli.worker_process"],
                # Unbuffered, and small: it is written whether anybody reads it or not.
                bufsize=0,
                stdin=subprocess.PIPE,
                pass_fds=(written,),
                start_new_session=True,
            )
        finally:
            os.close(written)
        assert member.process.stdin is not None
        with suppress(BrokenPipeError):
            # One that has died already is told of by how it ended.
            member.process.stdin.write(orders)
        member.start_at, member.started_at = None, monotonic_s()
        threading.Thread(target=self._follow, args=(member, member.process, ready), daemon=True).start()

    def _follow(self, member: Member, process: subprocess.Popen[bytes], ready: int) -> None:
        """Tells when a process has begun and when it has ended."""
        with os.fdopen(ready, "rb") as pipe:
            if pipe.read(1):
                self._told.put(Ready(member))
        self._told.put(Exited(member, process.wait()))

    # Ending

    def _exited(self, member: Member, code: int) -> None:
        process, member.process, member.code = member.process, None, code
        assert process is not None
        assert process.stdin is not None
        process.stdin.close()
        if self._kill_at is not None:
            return
        # What one of them could do is not the application's fault: its broker may be away for a while, say.
        if code == EXIT_REFUSED and not any(one.ever_ready for one in self._members):
            self._refused = True
            self._stop()
        elif not (code == 0 and self.assignment.drain):
            self._replace(member, process.pid, code)

    def _replace(self, member: Member, pid: int, code: int) -> None:
        """Starts another in its place, at once or after a wait."""
        now = monotonic_s()
        self.restarts += 1
        if code == EXIT_RELOAD:
            member.start_at = now
            return
        young = now - member.started_at < _YOUNG_S
        member.deaths_young = member.deaths_young + 1 if young else 0
        wait_s = min(_WAIT_S_MAX, _WAIT_S * 2 ** max(0, member.deaths_young - 1))
        member.start_at = now + wait_s
        log.error("worker process %d (pid %d) %s; another starts in %g s", member.number, pid, _how(code), wait_s)

    def _stop(self) -> None:
        """Passes the wish to end on. The first leaves the processes their grace, a second does not."""
        grace_s = self.assignment.grace_s if self._kill_at is None else 0.0
        self._kill_at = monotonic_s() + grace_s + _KILL_AFTER_S
        for member in self._members:
            member.start_at = None
            if member.process is not None:
                member.process.send_signal(signal.SIGTERM)

    def _kill_late(self) -> None:
        if self._kill_at is None or monotonic_s() < self._kill_at:
            return
        for member in self._members:
            if member.process is not None:
                log.error("worker process %d (pid %d) does not end: killed", member.number, member.process.pid)
                member.process.kill()
                self._killed = True
        self._kill_at = monotonic_s() + _KILL_AFTER_S


def _how(code: int) -> str:
    """How a process ended, in words."""
    if code == EXIT_STUCK:
        return "left a handler behind that was stuck past its time limit"
    if code == EXIT_REFUSED:
        return "could not begin"
    if code < 0:
        return f"died of signal {-code} ({signal.Signals(-code).name})"
    return "ended by itself" if code == 0 else f"died with exit code {code}"
