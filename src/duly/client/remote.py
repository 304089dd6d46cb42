"""A broker's end of a client: operations are sent to it over Arrow Flight.

What happens when the connection breaks while something is under way depends on what it was:

    nothing was sent     any operation is sent to the next address, until its time is over
    publish              sent again with its publish id: stored once, whatever happened. PublishUnknown at the end
    looking              asked again
    reading              goes on from the last message that came
    claim                asked again; what the first may have got is due again when its lease ends. Its acks are as
                         those of settle
    stage, commit,       asked again: known by its number, and by the job's version
    replay
    settle               asked again; what was settled by the first counts as lost, and is not done twice
    anything else        Unavailable, which says that it may have been done

A broker that is not ready refuses publishes and claims: the next is asked, and NotReady is raised when all refuse.

The clock: the broker's time is taken from its Hello, and from then on kept by this machine's own counter, which goes on
while the machine sleeps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from ..clock import HOST, ClockReading, monotonic_s
from ..engine.claimed import Acks, Claim, Claimed
from ..engine.operations import READS
from ..engine.publish import MADE_PUBLISH_ID_MARK, Publish, make_publish_id
from ..engine.replay import Replay
from ..engine.settle import Held
from ..engine.stage import CommitStages, DropStages, Stage
from ..engine.stretch import Stretch
from ..engine.tail import Tail, Tailed
from ..engine.verdict import Settle
from ..errors import Closed, InvalidArgument, PublishUnknown, Timeout, Unavailable
from ..events import Event, Listener, tell
from ..health import Finding
from ..member import Member
from ..store.contract import Backup
from ..store.patience import patience_here
from ..wire import batches, claims
from ..wire.operations import NAMES, decode_answer
from ..wire.talk import Hello
from .lines import Broken, Line, Lines, answered, check_staying, elsewhere, make_request, unavailable
from .port import Watch
from .streaming import Stream, read_batches
from .tls import Tls

# A break is followed by tries at these distances: a broker that restarts is back within a second or two.
_AGAIN_S = (0.02, 0.05, 0.1, 0.2, 0.4)
# A claim waits at the broker for so long at most, and is asked again; an answer that is later than this is lost.
_WAIT_S = 20.0
_LATE_S = 10.0
# A Hello that took longer than this tells the time badly; it does for want of a better one, and after a while.
_TRIP_MS_MAX = 50
_TIME_S_MAX = 60.0
# A broker may have gone and come again since a line was last used.
_IDLE_S = 0.5
_TOO_LATE = "What was claimed came after its lease had ended. Claim again, with a longer lease."
_DRIFT_MS_MAX = 1000
_EXAMINE_S = 3600.0

_handed = msgspec.msgpack.Decoder(claims.Handed)
_findings = msgspec.msgpack.Decoder(list[Finding])
_clock = msgspec.msgpack.Decoder(ClockReading)
_members = msgspec.msgpack.Decoder(list[Member])
_held = msgspec.msgpack.Decoder(list[claims.Handed])


class Remote:
    """Operations carried out by a broker."""

    def __init__(
        self, addresses: tuple[str, ...], listener: Listener | None, tls: Tls | None = None, token: str | None = None
    ) -> None:
        self._listener = listener
        self._lines = Lines(addresses, self._greet, tls, token)
        # Whose the key is, as the last Hello said.
        self._tenant: str | None = None
        # The broker's time less our counter's, in milliseconds; None before the first Hello.
        self._shift: float | None = None
        self._shift_at = 0.0
        self._told_drift = False
        self._waiting: set[Line] = set()
        self._lock = threading.Lock()
        self.wakes = 0

    # A Port

    def do(
        self,
        command: Any,
        *,
        deadline: float | None,
        cost: int = 0,  # noqa: ARG002
        publish_id: str = "",  # noqa: ARG002
        tx: Any = None,
    ) -> Any:
        if tx is not None:
            self.transaction(0)
        if deadline is None:
            deadline = monotonic_s() + 30
        kind = type(command)
        if kind is Publish:
            return self._publish(command, deadline)
        if kind is Stage:
            return self._stage(command, deadline)
        if kind is Claim:
            return self.claim(command, wait_until=None, deadline=deadline)
        again = kind in READS or kind in (Settle, Held, CommitStages, DropStages, Replay)
        body, _ = self._ask(NAMES[kind], command, deadline, again=again)
        if kind is Held:
            return [claims.from_wire(handed, None) for handed in _held.decode(body)]
        return decode_answer(kind, body)

    def transaction(self, patience_s: float) -> Any:  # noqa: ARG002
        raise InvalidArgument(
            "A broker has no part in your transactions: they are for a client that is connected to the store itself."
        )

    def when_undone(self, tx: Any, act: Callable[[], None]) -> bool:  # noqa: ARG002
        return False

    def claim(self, command: Claim, *, wait_until: float | None, deadline: float | None) -> Claimed:
        if deadline is None:
            deadline = max(monotonic_s(), wait_until or 0.0) + 30
        while True:
            left_s = 0.0 if wait_until is None else min(_WAIT_S, wait_until - monotonic_s())
            claimed = self._claim_once(command, max(0.0, left_s), deadline)
            # What comes with acks is not asked for again, and does not wait: they are to be heard of.
            if command.acks is not None:
                return _without_parcels(claimed) if self._has_lapsed(claimed) else claimed
            if self._has_lapsed(claimed):
                if monotonic_s() >= deadline:
                    raise Timeout(_TOO_LATE)
                continue
            if claimed.parcels or wait_until is None or monotonic_s() >= wait_until:
                return claimed

    def _claim_once(self, command: Claim, wait_s: float, deadline: float) -> Claimed:
        body, batch = self._ask("claim", command, deadline, wait_s=wait_s, again=True)
        return claims.from_wire(_handed.decode(body), batch)

    def _has_lapsed(self, claimed: Claimed) -> bool:
        """Whether what was got is ours no longer: this machine slept, or the answer took too long."""
        return bool(claimed.parcels) and claimed.expires_at <= self.now_ms()

    def tail(self, command: Tail, *, wait_until: float) -> Tailed:
        while True:
            left_s = min(_WAIT_S, max(0.0, wait_until - monotonic_s()))
            body, _ = self._ask("tail", command, monotonic_s() + left_s + _LATE_S, wait_s=left_s, again=True)
            tailed: Tailed = decode_answer(Tail, body)
            if tailed.grown or monotonic_s() >= wait_until:
                return tailed

    def batches(self, stretch: Stretch, *, patience_s: float) -> Iterator[Any]:
        return read_batches(self, stretch, patience_s)

    def watch(self, command: Claim) -> Watch:
        return RemoteWatch(self, command)

    def wake(self) -> None:
        if not self._lines.ours:
            return
        with self._lock:
            self.wakes += 1
            waiting = list(self._waiting)
            self._waiting.clear()
        for line in waiting:
            line.cancel()

    def examine(self) -> Iterator[Finding]:
        body, _ = self._ask("examine", None, monotonic_s() + _EXAMINE_S, again=True)
        yield from _findings.decode(body)

    def back_up(self, folder: str, **how: Any) -> Backup:  # noqa: ARG002
        raise InvalidArgument("Back the store up on the broker's machine: `duly backup --store PATH`.")

    def now_ms(self) -> int:
        self._lines.check_process()
        if self._shift is None:
            # Nobody has told yet: a guess, for a publish id that is made anew when somebody has.
            return HOST.wall_ns() // 1_000_000
        return int(_counter_ms() + self._shift)

    def make_publish_id(self) -> str:
        return make_publish_id(self.now_ms(), repeatable=True)

    def clock(self) -> ClockReading:
        body, _ = self._ask("clock", None, monotonic_s() + 30, again=True)
        return _clock.decode(body)

    def accept_clock(self, *, deadline: float | None) -> None:
        self._ask("accept_clock", None, monotonic_s() + 30 if deadline is None else deadline, again=True)

    def members(self, *, deadline: float | None) -> list[Member]:
        body, _ = self._ask("cluster", None, monotonic_s() + 30 if deadline is None else deadline, again=True)
        return _members.decode(body)

    def own_tenant(self) -> str:
        if self._tenant is None:
            self._lines.give_back(self._line(monotonic_s() + 30))
        return self._tenant or ""

    def check_leaving(self) -> None:
        """It can always be let go of."""

    def close(self) -> None:
        self.wake()
        self._lines.close()

    # Asking

    def stream(self, ticket: bytes, deadline: float) -> Stream:
        """Opens a stream of batches at whichever broker answers. Raises Broken, and what the broker says."""
        line = self._line(deadline)
        try:
            stream = Stream(line.client, ticket, deadline, self._lines.headers)
        except Broken:
            self._lines.give_up(line)
            raise
        except BaseException:
            self._lines.give_back(line)
            raise
        self._lines.give_back(line)
        return stream

    def pause(self, tries: int, deadline: float) -> None:
        """Waits a little before the next try."""
        pause_s = _AGAIN_S[min(tries, len(_AGAIN_S) - 1)]
        threading.Event().wait(max(0.0, min(pause_s, deadline - monotonic_s())))

    def _line(self, deadline: float, schema: Any = None, *, wakes: int | None = None) -> Line:
        """A line to whichever broker answers before the deadline, or a wake after `wakes`. Raises Unavailable."""
        tries = 0
        while True:
            try:
                return self._lines.take(deadline, schema)
            except Broken as error:
                if monotonic_s() >= deadline or wakes not in (None, self.wakes):
                    raise unavailable(str(error)) from error
                self.pause(tries, deadline)
                tries += 1

    def _ask(
        self, name: str, command: Any, deadline: float, *, wait_s: float = 0.0, again: bool
    ) -> tuple[msgspec.Raw, Any]:
        """Has an operation done. Raises Unavailable when it is unknown whether it was."""
        wait_until = monotonic_s() + wait_s
        tries = 0
        while True:
            line = self._line(deadline)
            left_ms = max(1, int((deadline - monotonic_s()) * 1000))
            wait_ms = max(0, int((wait_until - monotonic_s()) * 1000))
            if wait_ms:
                # Whoever waits is not kept by a broker that stands still: sooner or later it asks another.
                line.deadline = min(line.deadline or 0.0, monotonic_s() + wait_ms / 1000 + _LATE_S)
            request = make_request(name, command, left_ms, wait_ms)
            try:
                if not again:
                    self._try_out(line)
                answer, batch = self._asked(line, request, waits=wait_ms > 0)
            except Broken as error:
                if error.asked and not again:
                    raise Unavailable(
                        f"The connection to the broker broke while it was at it ({error}): it may have been done, or "
                        "not. Look, then repeat it if need be."
                    ) from error
                self._go_on(error, tries, deadline)
                tries += 1
                continue
            return answered(answer), batch

    def _go_on(self, error: Broken, tries: int, deadline: float) -> None:
        """Waits a little before the next try, unless there is none: its time is over, or all brokers refused it."""
        if error.refusal is not None and tries + 1 >= self._lines.brokers:
            raise error.refusal from None
        if monotonic_s() >= deadline:
            raise unavailable(str(error)) from error
        self.pause(tries, deadline)

    def _try_out(self, line: Line) -> None:
        """Before what cannot be repeated: a line that lay idle may have lost its broker. Raises Broken, not asked."""
        if monotonic_s() - line.used_at < _IDLE_S:
            return
        try:
            self._asked(line, make_request("clock", None, 1000), keeps=True)
        except Broken as error:
            raise Broken(str(error), asked=False) from error

    def _asked(
        self, line: Line, request: bytes, batch: Any = None, *, waits: bool = False, keeps: bool = False
    ) -> tuple[Any, Any]:
        """Asks on a line, and gives it back unless it is kept, or up when it breaks. Raises Broken."""
        ask = partial(line.ask, request, batch)
        try:
            if not waits:
                answer, found = ask()
            else:
                with patience_here().waking(line.cancel):
                    on_main = threading.current_thread() is threading.main_thread()
                    answer, found = elsewhere(ask, line.cancel) if on_main else ask()
            if answer.peers is not None:
                self._lines.learn(answer.peers)
            check_staying(answer)
        except BaseException:
            self._lines.give_up(line)
            raise
        if not keeps:
            self._lines.give_back(line)
        return answer, found

    # Publishing

    def _publish(self, command: Publish, deadline: float) -> Any:
        """Publishes, again and again if need be.

        Once something may have been stored, an answer that says that nothing was done speaks of that try alone.
        """
        asked, tries = False, 0
        while True:
            try:
                if not asked:
                    command = self._timed(command, deadline)
                answer = self._publish_once(command, deadline, asked=asked)
                return decode_answer(Publish, answered(answer))
            except (Broken, Unavailable) as error:
                if isinstance(error, Unavailable) and not asked:
                    raise
                asked = asked or (isinstance(error, Broken) and error.asked)
                if isinstance(error, Broken) and not asked:
                    self._go_on(error, tries, deadline)
                    tries += 1
                    continue
                if monotonic_s() < deadline and not isinstance(error, Closed):
                    self.pause(tries, deadline)
                    tries += 1
                    continue
                raise PublishUnknown(
                    f"The connection to the broker broke ({error}): it is unknown whether the batch was stored. "
                    f"Publish it again with publish_id={command.publish_id!r}: it is stored once in any case.",
                    publish_id=command.publish_id,
                ) from error

    def _stage(self, command: Stage, deadline: float) -> Any:
        """Stages; a call that comes twice is known by its number."""
        tries = 0
        while True:
            try:
                return decode_answer(Stage, answered(self._send(command, deadline)))
            except Broken as error:
                self._go_on(error, tries, deadline)
                tries += 1

    def _timed(self, command: Publish, deadline: float) -> Publish:
        """The command, its publish id made anew if it was made before a broker had told the time."""
        if self._shift is not None or command.repeated or not command.publish_id.startswith(MADE_PUBLISH_ID_MARK):
            return command
        self._lines.give_back(self._line(deadline))
        return replace(command, publish_id=self.make_publish_id())

    def _publish_once(self, command: Publish, deadline: float, *, asked: bool) -> Any:
        return self._send(replace(command, repeated=command.repeated or asked), deadline)

    def _send(self, command: Publish | Stage, deadline: float) -> Any:
        left_ms = max(1, int((deadline - monotonic_s()) * 1000))
        published, batch = batches.to_wire(command, left_ms)
        line = self._line(deadline, None if batch is None else batch.schema)
        answer, _ = self._asked(line, make_request(NAMES[type(command)], published, left_ms), batch)
        return answer

    # Time

    def _greet(self, hello: Hello, asked_at: float) -> None:
        """Takes the broker's time: as it was in the middle of the question, give or take half of its way."""
        self._tenant = hello.tenant
        now = monotonic_s()
        trip_ms = (now - asked_at) * 1000
        if self._shift is None or trip_ms <= _TRIP_MS_MAX or now - self._shift_at > _TIME_S_MAX:
            self._shift = hello.now_ms - (_counter_ms() - trip_ms / 2)
            self._shift_at = now
        drift_ms = HOST.wall_ns() // 1_000_000 - hello.now_ms
        if abs(drift_ms) > _DRIFT_MS_MAX and not self._told_drift:
            self._told_drift = True
            facts: dict[str, object] = {
                "drift_ms": drift_ms,
                "advice": "Set this machine's clock: due times that it reckons are off by so much.",
            }
            tell(Event("clock_drift", hello.now_ms, facts=facts), self._listener)

    # Watching

    def look(self, line: Line | None, command: Claim, deadline: float) -> tuple[Line, Claimed]:
        """Claims what is due now, on a line whose session remembers what it looked at. A wake ends its tries."""
        tries, wakes = 0, self.wakes
        while True:
            line = line or self._line(deadline, wakes=wakes)
            line.deadline = deadline + 2
            left_ms = max(1, int((deadline - monotonic_s()) * 1000))
            try:
                answer, batch = self._asked(line, make_request("look", command, left_ms), keeps=True)
            except Broken as error:
                line = None
                if self.wakes != wakes:
                    raise error.refusal or unavailable(str(error)) from error
                self._go_on(error, tries, deadline)
                tries += 1
                continue
            line.deadline = None
            try:
                claimed = claims.from_wire(_handed.decode(answered(answer)), batch)
            except BaseException:
                self._lines.give_back(line)
                raise
            if not self._has_lapsed(claimed):
                return line, claimed
            if command.acks is not None:
                return line, _without_parcels(claimed)
            if monotonic_s() >= deadline:
                self._lines.give_back(line)
                raise Timeout(_TOO_LATE)

    def sleep(self, line: Line, command: Claim, deadline: float, wakes: int) -> bool:
        """Waits on a line that looked. False: the line is gone; a wake breaks it, too."""
        left_ms = int(max(0.0, min(_WAIT_S, deadline - monotonic_s())) * 1000)
        with self._lock:
            if self.wakes != wakes or line.cancelled:
                return True
            self._waiting.add(line)
        line.deadline = monotonic_s() + left_ms / 1000 + _LATE_S
        try:
            self._asked(line, make_request("await", command, 30_000, left_ms), waits=True, keeps=True)
        except Broken:
            return False
        finally:
            with self._lock:
                self._waiting.discard(line)
        line.deadline = None
        return not line.cancelled

    def drop(self, line: Line) -> None:
        """A line that nobody watches on any more; told by the collector of garbage, wherever that runs."""
        if self._lines.ours:
            self._lines.orphan(line)


class RemoteWatch:
    """A watch on a line of its own: the broker's session remembers what was looked at, and waits for more."""

    def __init__(self, port: Remote, command: Claim) -> None:
        self._port = port
        self._command = command
        self._line: Line | None = None
        self._wakes = port.wakes

    def claim(self, max_messages: int, *, deadline: float | None, acks: Acks | None = None) -> Claimed:
        self._wakes = self._port.wakes
        until = monotonic_s() + 30 if deadline is None else deadline
        command = replace(self._command, max_messages=max_messages, acks=acks)
        self._line, claimed = self._port.look(self._taken(), command, until)
        return claimed

    def wait(self, deadline: float) -> None:
        line = self._taken()
        if line is not None and self._port.sleep(line, self._command, deadline, self._wakes):
            self._line = line

    def _taken(self) -> Line | None:
        """The line, no longer kept here: whatever raises has seen to it, and somebody else may be using it."""
        line, self._line = self._line, None
        return line

    def __del__(self) -> None:
        if self._line is not None:
            self._port.drop(self._line)


def _without_parcels(claimed: Claimed) -> Claimed:
    """What a claim told, of which the messages came too late."""
    return replace(claimed, parcels=[])


def _counter_ms() -> float:
    """This machine's counter, which no setting of clocks moves, and which sleep does not stop."""
    return HOST.boot_ns() / 1_000_000
