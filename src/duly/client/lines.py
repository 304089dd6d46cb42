"""Lines to a broker: exchanges of Flight's, kept open between calls, one call at a time on each.

    opened ──Hello──▶ free ──taken──▶ asked ──answered──▶ free
       │                                 └─ broken, or its time is over: dropped, what was asked is in doubt
       └─ no Hello: nothing was asked; the next address is tried

A call takes a free line, or opens one. A line that broke tells that its broker is gone, so all lines of that time are
dropped; the next call opens one anew, at whichever address answers. The addresses are those that were given and, after
them, those of other brokers on the store, which brokers tell with their Hello and whenever they change.

A stream of Arrow's has one schema, so lines that carry record batches are kept by theirs.

Flight's calls wait in C, where neither a signal nor a deadline reaches them. So a watchman looks after all lines of a
client four times a second while some are asked, and cancels those whose time is over; and on the main thread a call
that may wait for long is made by another thread, so that Ctrl-C ends the wait.
"""

from __future__ import annotations

import os
import random
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from ..clock import monotonic_s
from ..errors import (
    Busy,
    Closed,
    Denied,
    Error,
    InvalidArgument,
    NotReady,
    QuotaExceeded,
    StoreError,
    Unauthenticated,
    Unavailable,
)
from ..wire.faults import decode_fault, to_error
from ..wire.operations import encode
from ..wire.talk import PROTOCOL, SESSION, Answer, Hello, Request
from .addresses import flight_address
from .handshake import why_not
from .tls import Tls

if TYPE_CHECKING:
    import pyarrow as pa

_WATCH_S = 0.25
# A broker answers in the time it was given; only one that does not is cancelled, this much later.
_GRACE_S = 2.0
_FREE_LINES_MAX = 32
# A Hello takes no work; a broker that does not say it in this time stands still. The least is for calls in a hurry.
_HELLO_S = 5.0
_HELLO_S_MIN = 0.25
_CONNECT_MS_MAX = 2000
# Brokers that are remembered besides the given ones.
_LEARNT_MAX = 64
# Not the application's own: it may have seeded that, in every process alike.
_dice = random.SystemRandom()

# The process in which gRPC was first used.
_began_in: int | None = None

_hello = msgspec.msgpack.Decoder(Hello)
_answer = msgspec.msgpack.Decoder(Answer)


class Broken(Exception):
    """The line broke. `asked`: whether something may have been done. `refusal`: the broker is there, but not ready."""

    def __init__(self, why: str, *, asked: bool, refusal: Error | None = None) -> None:
        super().__init__(why)
        self.asked = asked
        self.refusal = refusal


class Line:
    """One stream to a broker."""

    __slots__ = ("age", "cancelled", "client", "deadline", "key", "late", "reader", "used_at", "writer")

    def __init__(self, key: pa.Schema | None, age: int, client: Any, writer: Any, reader: Any) -> None:
        self.key = key
        self.age = age
        # Flight's, on whose connection this is one stream.
        self.client = client
        self.writer = writer
        self.reader = reader
        self.deadline: float | None = None
        self.used_at = monotonic_s()
        self.cancelled = False
        # Its time was over: the broker does not answer, or only late.
        self.late = False

    def cancel(self) -> None:
        """Breaks it, from any thread: whoever waits for its answer is told so."""
        self.cancelled = True
        self.reader.cancel()

    def leave(self) -> None:
        """Ends it, when nobody waits on it. Cancelled first: a broker that stands still would never say goodbye."""
        import pyarrow as pa

        self.cancel()
        with suppress(pa.ArrowException, OSError):
            self.writer.close()

    def ask(self, request: bytes, batch: pa.RecordBatch | None = None) -> tuple[Answer, pa.RecordBatch | None]:
        """Sends a request and waits for its answer. Raises Broken."""
        import pyarrow as pa

        try:
            if batch is None:
                self.writer.write_metadata(request)
            else:
                self.writer.write_with_metadata(batch, request)
            chunk = self.reader.read_chunk()
            return _answer.decode(memoryview(chunk.app_metadata)), chunk.data
        except (pa.ArrowException, StopIteration, OSError, TypeError, msgspec.DecodeError) as error:
            if isinstance(refused := status_error(error), InvalidArgument):
                raise refused from error
            raise Broken(why(error), asked=True) from error


def why(error: BaseException) -> str:
    """One line of what Flight says, without its debugging context."""
    said = str(error).strip().splitlines()
    return said[0].split(". gRPC client debug context")[0] if said else type(error).__name__


def status_error(error: BaseException) -> Error | None:
    """Our error inside a status of Flight's; None if there is none."""
    inside = getattr(error, "extra_info", None)
    if not inside:
        return None
    try:
        return to_error(decode_fault(inside))
    except msgspec.DecodeError:
        return None


class Lines:
    """All lines of a client, to whichever of its brokers answers."""

    def __init__(
        self,
        addresses: tuple[str, ...],
        on_hello: Callable[[Hello, float], None],
        tls: Tls | None = None,
        token: str | None = None,
    ) -> None:
        # What every call begins with.
        self.headers = [] if token is None else [(b"authorization", b"Bearer " + token.encode())]
        self._given = self._addresses = addresses
        # None: without TLS. Brokers that are learnt are reached as the given ones are.
        self._tls = tls
        self._on_hello = on_hello
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._free: dict[pa.Schema | None, deque[Line]] = {}
        self._orphans: deque[Line] = deque()
        self._taken: set[Line] = set()
        self._at = 0
        self._clients: dict[str, Any] = {}
        # Lines of an age before this are to a broker that is gone.
        self._age = 0
        self._watching = False
        self._closed = False
        # A client that nobody closed: Arrow complains on stderr of streams that were dropped and not ended.
        weakref.finalize(self, _leave_all, self._free, self._pid)

    def take(self, deadline: float, schema: pa.Schema | None = None) -> Line:
        """A line for requests, with record batches of one schema if given. Raises Broken when no broker answers."""
        self.check_process()
        self._drop_orphans()
        with self._lock:
            if self._closed:
                raise Closed()
            free = self._free.get(schema)
            line = free.popleft() if free else None
        if line is None:
            line = self._open(deadline, schema)
        line.deadline = deadline + _GRACE_S
        with self._lock:
            closed = self._closed
            if not closed:
                self._taken.add(line)
            if not self._watching and not closed:
                self._watching = True
                threading.Thread(target=self._watch, name="duly-lines", daemon=True).start()
        if closed:
            line.leave()
            raise Closed()
        return line

    @property
    def ours(self) -> bool:
        """Whether this is the process that connected: in a forked child nothing of gRPC's may be touched."""
        return os.getpid() == self._pid

    def check_process(self) -> None:
        """Raises StoreError in a forked child of a process that has used gRPC: even a new connection would hang."""
        if not self.ours or _began_in not in (None, os.getpid()):
            raise StoreError(
                "gRPC does not survive a fork, and this process was forked after a broker was connected to. Start it "
                "with spawn (multiprocessing.get_context('spawn')), or connect after the fork only, in the child."
            )

    @property
    def brokers(self) -> int:
        """How many addresses there are to try."""
        return len(self._addresses)

    def learn(self, peers: tuple[str, ...]) -> None:
        """Takes note of the brokers that serve the store. New ones in no order: not everyone goes to the same next."""
        secure = self._tls is not None
        found = (flight_address(peer, tls=secure) for peer in peers[:_LEARNT_MAX])
        told = [address for address in found if address is not None]
        _dice.shuffle(told)
        with self._lock:
            here = self._addresses[self._at % len(self._addresses)]
            known = [address for address in self._addresses[len(self._given) :] if address in told]
            new = [address for address in dict.fromkeys(told) if address not in {*self._given, *known}]
            self._addresses = (*self._given, *known, *new)
            self._at = self._addresses.index(here) if here in self._addresses else 0

    def orphan(self, line: Line) -> None:
        """A line whose keeper was collected as garbage, which may be at any moment and under any lock."""
        self._orphans.append(line)

    def _drop_orphans(self) -> None:
        while self._orphans:
            self.give_back(self._orphans.popleft())

    def give_back(self, line: Line) -> None:
        """A line that was answered, for the next call."""
        line.deadline = None
        line.used_at = monotonic_s()
        with self._lock:
            self._taken.discard(line)
            free = self._free.setdefault(line.key, deque())
            if not self._closed and not line.cancelled and line.age == self._age and len(free) < _FREE_LINES_MAX:
                free.appendleft(line)
                return
        line.leave()

    def give_up(self, line: Line) -> None:
        """A line that broke: so did all others of its age, most likely. One that was cancelled tells nothing."""
        line.deadline = None
        with self._lock:
            self._taken.discard(line)
            dropped = [line]
            if line.age == self._age and (line.late or not line.cancelled):
                self._age += 1
                self._at += 1
                dropped += [other for free in self._free.values() for other in free]
                self._free.clear()
                self._clients.clear()
        for other in dropped:
            other.leave()

    def close(self) -> None:
        """Drops all lines; calls under way break."""
        if not self.ours:
            return
        self._drop_orphans()
        with self._lock:
            self._closed = True
            free = [line for lines in self._free.values() for line in lines]
            taken = list(self._taken)
            self._free.clear()
            self._clients.clear()
        for line in free:
            line.leave()
        for line in taken:
            line.cancel()

    def _open(self, deadline: float, schema: pa.Schema | None) -> Line:
        """Opens a line at the first address that answers; each has its share of the time that is left."""
        import pyarrow as pa

        whys: list[str] = []
        busy: Busy | QuotaExceeded | None = None
        with self._lock:
            first, addresses = self._at, self._addresses
        many = len(addresses)
        for turn in range(many):
            share_s = max(_HELLO_S_MIN, (deadline - monotonic_s()) / (many - turn))
            with self._lock:
                at = (first + turn) % many
                address = addresses[at]
                age = self._age
                client = self._clients.get(address) or self._connect(address)
            try:
                line = self._greeted(client, age, schema, min(_HELLO_S, share_s))
            except (pa.ArrowException, StopIteration, OSError, TypeError, msgspec.DecodeError) as error:
                ours = status_error(error)
                if isinstance(ours, (Unauthenticated, Denied)):
                    # So would all the others say.
                    raise ours from None
                busy = ours if isinstance(ours, (Busy, QuotaExceeded)) else busy
                whys.append(f"{address}: {ours or why(error)}")
                with self._lock:
                    self._clients.pop(address, None)
                continue
            with self._lock:
                if turn and self._at == first and self._addresses is addresses:
                    self._at = at
            return line
        if busy is not None:
            raise busy
        self._check_handshakes(addresses, deadline)
        raise Broken("; ".join(whys), asked=False)

    def _check_handshakes(self, addresses: tuple[str, ...], deadline: float) -> None:
        """Raises what is wrong when TLS keeps this client from all of its brokers: to try again would not help."""
        found: list[Error] = []
        for address in addresses:
            left_s = deadline - monotonic_s()
            wrong = why_not(address, self._tls, left_s) if left_s > 0 else None
            if wrong is None:
                return
            found.append(wrong)
        raise found[0]

    def _connect(self, address: str) -> Any:
        from pyarrow import flight

        global _began_in
        _began_in = os.getpid()
        # Reconnecting is ours to time, and every client has a connection of its own. The least "back-off" is what gRPC
        # calls the time that one attempt may take: twenty seconds by default, in which no call can be cancelled.
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.min_reconnect_backoff_ms", _CONNECT_MS_MAX),
        ]
        secrets = {} if self._tls is None else self._tls.flight_options()
        self._clients[address] = client = flight.FlightClient(address, generic_options=options, **secrets)
        return client

    def _greeted(self, client: Any, age: int, schema: pa.Schema | None, patience_s: float) -> Line:
        """A line on which the broker has said Hello."""
        from pyarrow import flight

        began = monotonic_s()
        options = flight.FlightCallOptions(headers=self.headers)
        line = Line(schema, age, client, *client.do_exchange(flight.FlightDescriptor.for_command(SESSION), options))
        guard = threading.Timer(patience_s, line.cancel)
        guard.daemon = True
        guard.start()
        try:
            hello = _hello.decode(memoryview(line.reader.read_chunk().app_metadata))
            if hello.protocol != PROTOCOL:
                raise InvalidArgument(
                    f"The broker (Duly {hello.version}) speaks protocol {hello.protocol}, this client {PROTOCOL}: "
                    "use the same version of Duly."
                )
            if schema is not None:
                line.writer.begin(schema)
        except BaseException:
            line.leave()
            raise
        finally:
            guard.cancel()
        self._on_hello(hello, began)
        if hello.peers:
            self.learn(hello.peers)
        return line

    def _watch(self) -> None:
        """Cancels lines whose time is over, until none is taken any more."""
        pause = threading.Event()
        while True:
            pause.wait(_WATCH_S)
            self._drop_orphans()
            now = monotonic_s()
            with self._lock:
                if not self._taken:
                    self._watching = False
                    return
                late = [line for line in self._taken if line.deadline is not None and line.deadline < now]
            for line in late:
                line.late = True
                line.cancel()


def _leave_all(free: dict[pa.Schema | None, deque[Line]], pid: int) -> None:
    if os.getpid() == pid:
        for lines in list(free.values()):
            for line in lines:
                line.leave()


def make_request(name: str, command: Any, timeout_ms: int, wait_ms: int = 0) -> bytes:
    """A request's bytes."""
    return encode(Request(name, msgspec.Raw(encode(command)), timeout_ms, wait_ms))


def check_staying(answer: Answer) -> None:
    """Raises Broken if the broker goes down or is not ready, and did nothing: others may be there, or it comes back."""
    if answer.fault is not None and answer.fault.code in (Closed.code, NotReady.code):
        refusal = to_error(answer.fault) if answer.fault.code == NotReady.code else None
        raise Broken(answer.fault.message, asked=False, refusal=refusal)


def answered(answer: Answer) -> msgspec.Raw:
    """An answer's body; its fault is raised as the error it is."""
    if answer.fault is not None:
        raise to_error(answer.fault)
    return answer.body


def unavailable(why: str) -> Unavailable:
    """No broker could be reached."""
    return Unavailable(f"No broker answers ({why}). Nothing was done; is one running? Start it with `duly serve`.")


def elsewhere(work: Callable[[], Any], cancel: Callable[[], None]) -> Any:
    """Does something that waits in C on another thread, so that this one can be interrupted."""
    outcome: list[Any] = []
    done = threading.Lock()
    done.acquire()

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            outcome.append(error)
        finally:
            done.release()

    threading.Thread(target=run, name="duly-ask", daemon=True).start()
    try:
        done.acquire()
    except BaseException:
        cancel()
        raise
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]
