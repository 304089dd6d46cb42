"""Lines to a broker: exchanges and puts of Flight's, kept open between calls, one call at a time on each.

    opened ──Hello──▶ free ──taken──▶ asked ──answered──▶ free
       │                                 └─ broken, or its time is over: dropped, what was asked is in doubt
       └─ no Hello: nothing was asked; the next address is tried

A call takes a free line, or opens one. A line that broke tells that its broker is gone, so all lines of that time are
dropped; the next call opens one anew, at whichever address answers.

Flight's calls wait in C, where neither a signal nor a deadline reaches them. So a watchman looks after all lines of a
client four times a second while some are asked, and cancels those whose time is over; and on the main thread a call
that may wait for long is made by another thread, so that Ctrl-C ends the wait.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from ..clock import monotonic_s
from ..errors import Busy, Closed, Error, InvalidArgument, StoreError, Unavailable
from ..wire.faults import decode_fault, to_error
from ..wire.operations import encode
from ..wire.talk import PROTOCOL, SESSION, Answer, Hello, Request

if TYPE_CHECKING:
    import pyarrow as pa

_WATCH_S = 0.25
# A broker answers in the time it was given; only one that does not is cancelled, this much later.
_GRACE_S = 2.0
_FREE_LINES_MAX = 32
_HELLO_S = 5.0

_hello = msgspec.msgpack.Decoder(Hello)
_answer = msgspec.msgpack.Decoder(Answer)


class Broken(Exception):
    """The line broke. `asked`: whether something may have been done."""

    def __init__(self, why: str, *, asked: bool) -> None:
        super().__init__(why)
        self.asked = asked


class Line:
    """One stream to a broker."""

    __slots__ = ("age", "cancelled", "deadline", "key", "reader", "writer")

    def __init__(self, key: Any, age: int, writer: Any, reader: Any) -> None:
        self.key = key
        self.age = age
        self.writer = writer
        self.reader = reader
        self.deadline: float | None = None
        self.cancelled = False

    def cancel(self) -> None:
        """Breaks it, from any thread: whoever waits for its answer is told so."""
        self.cancelled = True
        self.reader.cancel() if hasattr(self.reader, "cancel") else self.writer.close()

    def leave(self) -> None:
        """Ends it, when nothing is under way on it. One that broke says so once more, which is no news."""
        import pyarrow as pa

        with suppress(pa.ArrowException, OSError):
            self.writer.close()

    def ask(self, request: bytes) -> tuple[Answer, pa.RecordBatch | None]:
        """Sends a request and waits for its answer. Raises Broken."""
        import pyarrow as pa

        try:
            self.writer.write_metadata(request)
            chunk = self.reader.read_chunk()
        except (pa.ArrowException, StopIteration, OSError) as error:
            raise Broken(_why(error), asked=True) from error
        return _answer.decode(memoryview(chunk.app_metadata)), chunk.data

    def put(self, batch: pa.RecordBatch, description: bytes) -> Answer:
        """Sends a batch to publish and waits for its answer. Raises Broken."""
        import pyarrow as pa

        try:
            self.writer.write_with_metadata(batch, description)
            found = self.reader.read()
        except (pa.ArrowException, StopIteration, OSError) as error:
            raise Broken(_why(error), asked=True) from error
        if found is None:
            raise Broken("The broker ended the stream.", asked=True)
        return _answer.decode(memoryview(found))


def _why(error: BaseException) -> str:
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

    def __init__(self, addresses: tuple[str, ...], on_hello: Callable[[Hello, float], None]) -> None:
        self._addresses = addresses
        self._on_hello = on_hello
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._free: dict[Any, deque[Line]] = {}
        self._taken: set[Line] = set()
        self._at = 0
        self._clients: dict[str, Any] = {}
        # Lines of an age before this are to a broker that is gone.
        self._age = 0
        self._watching = False
        self._closed = False

    def session(self, deadline: float) -> Line:
        """A line for requests. Raises Broken when no broker answers, Timeout never."""
        return self._take(SESSION, deadline, self._open_session)

    def put(self, schema: pa.Schema, deadline: float) -> Line:
        """A line for batches of one schema."""

        def open_put(client: Any, age: int) -> Line:
            from pyarrow import flight

            writer, reader = client.do_put(flight.FlightDescriptor.for_command(b"duly.publish"), schema)
            return Line(schema, age, writer, reader)

        return self._take(schema, deadline, open_put)

    def _take(self, key: Any, deadline: float, open_line: Callable[[Any, int], Line]) -> Line:
        if os.getpid() != self._pid:
            raise StoreError("gRPC does not survive a fork. Connect to the broker in the child.")
        with self._lock:
            if self._closed:
                raise Closed()
            free = self._free.get(key)
            line = free.popleft() if free else None
        if line is None:
            line = self._open(deadline, open_line)
        line.deadline = deadline + _GRACE_S
        with self._lock:
            self._taken.add(line)
            if not self._watching:
                self._watching = True
                threading.Thread(target=self._watch, name="duly-lines", daemon=True).start()
        return line

    def give_back(self, line: Line) -> None:
        """A line that was answered, for the next call."""
        line.deadline = None
        with self._lock:
            self._taken.discard(line)
            free = self._free.setdefault(line.key, deque())
            if not self._closed and not line.cancelled and line.age == self._age and len(free) < _FREE_LINES_MAX:
                free.appendleft(line)
                return
        line.leave()

    def give_up(self, line: Line) -> None:
        """A line that broke: so did all others of its age, most likely."""
        line.deadline = None
        with self._lock:
            self._taken.discard(line)
            dropped = [line]
            if line.age == self._age and not line.cancelled:
                self._age += 1
                self._at += 1
                dropped += [other for free in self._free.values() for other in free]
                self._free.clear()
                self._clients.clear()
        for other in dropped:
            other.leave()

    def close(self) -> None:
        """Drops all lines; calls under way break."""
        with self._lock:
            self._closed = True
            free = [line for lines in self._free.values() for line in lines]
            taken = list(self._taken)
            self._free.clear()
            clients, self._clients = list(self._clients.values()), {}
        for line in free:
            line.leave()
        for line in taken:
            line.cancel()
        for client in clients:
            client.close()

    def _open(self, deadline: float, open_line: Callable[[Any, int], Line]) -> Line:
        """Opens a line at the first address that answers."""
        import pyarrow as pa

        whys: list[str] = []
        for turn in range(len(self._addresses)):
            with self._lock:
                address = self._addresses[(self._at + turn) % len(self._addresses)]
                age = self._age
                client = self._clients.get(address) or self._connect(address)
            try:
                return open_line(client, age)
            except (pa.ArrowException, StopIteration, OSError, Broken) as error:
                ours = status_error(error)
                if isinstance(ours, Busy):
                    raise ours from None
                whys.append(f"{address}: {ours or _why(error)}")
                with self._lock:
                    self._clients.pop(address, None)
            if monotonic_s() >= deadline:
                break
        raise Broken("; ".join(whys), asked=False)

    def _connect(self, address: str) -> Any:
        from pyarrow import flight

        # Reconnecting is ours to time; and every client has a connection of its own.
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.initial_reconnect_backoff_ms", 50)]
        self._clients[address] = client = flight.FlightClient(address, generic_options=options)
        return client

    def _open_session(self, client: Any, age: int) -> Line:
        from pyarrow import flight

        began = monotonic_s()
        writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(SESSION))
        line = Line(SESSION, age, writer, reader)
        guard = threading.Timer(_HELLO_S, line.cancel)
        guard.daemon = True
        guard.start()
        try:
            hello = _hello.decode(memoryview(reader.read_chunk().app_metadata))
        finally:
            guard.cancel()
        if hello.protocol != PROTOCOL:
            raise InvalidArgument(
                f"The broker (Duly {hello.version}) speaks protocol {hello.protocol}, this client {PROTOCOL}: "
                "use the same version of Duly."
            )
        self._on_hello(hello, began)
        return line

    def _watch(self) -> None:
        """Cancels lines whose time is over, until none is taken any more."""
        pause = threading.Event()
        while True:
            pause.wait(_WATCH_S)
            now = monotonic_s()
            with self._lock:
                if not self._taken:
                    self._watching = False
                    return
                late = [line for line in self._taken if line.deadline is not None and line.deadline < now]
            for line in late:
                line.cancel()


def make_request(name: str, command: Any, timeout_ms: int, wait_ms: int = 0) -> bytes:
    """A request's bytes."""
    return encode(Request(name, msgspec.Raw(encode(command)), timeout_ms, wait_ms))


def check_staying(answer: Answer) -> None:
    """Raises Broken if the broker is going down, and did nothing: others may be there, or it comes back."""
    if answer.fault is not None and answer.fault.code == Closed.code:
        raise Broken(answer.fault.message, asked=False)


def answered(answer: Answer) -> msgspec.Raw:
    """An answer's body; its fault is raised as the error it is."""
    if answer.fault is not None:
        raise to_error(answer.fault)
    return answer.body


def unavailable(why: str) -> Unavailable:
    """No broker could be reached."""
    return Unavailable(f"No broker answers ({why}). Nothing was done; is one running? Start it with `duly serve`.")
