"""A session's broker side: requests read from one exchange, done, and answered (wire/talk.py draws it).

It has a thread, which is gRPC's. Whatever a client sends, it gets an answer or the stream ends: never a traceback.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from .. import __version__
from ..broker.entry import Entry
from ..client.port import Watch
from ..clock import monotonic_s
from ..engine.claimed import Claim
from ..engine.settle import Held
from ..engine.tail import Tail
from ..errors import Busy, Error, InvalidArgument, LimitExceeded
from ..events import log
from ..limits import LIMITS
from ..wire import batches, claims
from ..wire.faults import Fault, to_fault
from ..wire.operations import decode_command, encode, unpacking
from ..wire.talk import PROTOCOL, Answer, Hello, Request
from .caller import Caller, Left
from .streams import Streams, forget, size_of

_requests = msgspec.msgpack.Decoder(Request)
_TIMEOUT_MS_MAX = 3_600_000
_WATCHES_MAX = 16
_LEAVES_S = 0.05
# The longest that a session's thread waits for one client; whoever wants to wait longer asks again.
_WAIT_MS_MAX = 60_000


class Session:
    """One client's exchange."""

    def __init__(
        self,
        caller: Caller,
        reader: Any,
        writer: Any,
        streams: Streams,
    ) -> None:
        self._entry = caller.entry
        self._broker = caller.entry.broker
        self._caller = caller
        self._streams = streams
        self._reader = reader
        self._writer = writer
        self._begun = False
        # The peers that the client knows of.
        self._told = self._broker.peers
        # The least recently used first: a line that is passed on from watch to watch forgets the old ones.
        self._watches: OrderedDict[tuple[str, str, str, str], Watch] = OrderedDict()

    def run(self) -> None:
        """Answers until the client leaves. Raises InvalidArgument when it sends what is no stream of Arrow's."""
        greeting = hello(self._entry)
        self._told = greeting.peers
        self._writer.write_metadata(encode(greeting))
        # Nothing of the last request is held while the next is waited for: that may be for days.
        while (size := self._serve_next()) is not None:
            forget(size)

    def _serve_next(self) -> int | None:
        chunk = read_chunk(self._reader, self._caller)
        if chunk is None:
            return None
        with self._streams.at_work():
            self._serve(chunk)
        return size_of(chunk)

    def _serve(self, chunk: Any) -> None:
        try:
            began = monotonic_s()
            answer, batch = self._answer(chunk)
            # To ask gRPC takes 90 µs, a tenth of a publish: only when there was time to leave.
            if monotonic_s() - began > _LEAVES_S and self._caller.is_gone():
                raise Left
            with self._streams.sending(_size(answer, batch), self._caller.tenant):
                self._write(answer, batch)
        except BaseException as error:
            self._caller.give_back()
            if not isinstance(error, Busy):
                raise
            self._write(Answer(fault=to_fault(error)), None)
        self._caller.sent()

    def _write(self, answer: Answer, batch: pa.RecordBatch | None) -> None:
        if self._told is not self._broker.peers:
            self._told = self._broker.peers
            answer = replace(answer, peers=self._told)
        if batch is None:
            self._writer.write_metadata(encode(answer))
            return
        if not self._begun:
            self._writer.begin(claims.delivered_schema())
            self._begun = True
        self._writer.write_with_metadata(batch, encode(answer))

    def _answer(self, chunk: Any) -> tuple[Answer, pa.RecordBatch | None]:
        try:
            request = read_request(chunk.app_metadata)
            body, batch = self._perform(request, chunk.data)
        except Left:
            raise
        except Exception as error:
            self._caller.give_back()
            return Answer(fault=told(error, "a request failed")), None
        return Answer(body=msgspec.Raw(body)), batch

    def _perform(self, request: Request, sent: pa.RecordBatch | None) -> tuple[bytes, pa.RecordBatch | None]:
        self._caller.check_open()
        if request.name in ("publish", "stage"):
            return encode(publish(self._entry, batches.decode(request.body), sent)), None
        if sent is not None:
            raise InvalidArgument(f"{request.name} takes no record batch.")
        if request.name not in ("look", "await"):
            return perform(self._caller, request)
        command = self._entry.admit(decode_command("claim", request.body))
        self._broker.check_ready()
        watch = self._watch(command)
        if request.name == "await":
            self._caller.wait(command, watch, monotonic_s() + min(request.wait_ms, _WAIT_MS_MAX) / 1000)
            return encode(None), None
        deadline = monotonic_s() + request.timeout_ms / 1000
        claimed = watch.claim(command.max_messages, deadline=deadline, acks=command.acks)
        handed, batch = claims.to_wire(self._caller.holding(command, claimed), arrow=request.arrow)
        return encode(handed), batch

    def _watch(self, command: Claim) -> Watch:
        key = (command.tenant, command.topic, command.group, command.consumer)
        if key not in self._watches:
            while len(self._watches) >= _WATCHES_MAX:
                self._watches.popitem(last=False)
            self._watches[key] = self._entry.watch(command)
        self._watches.move_to_end(key)
        return self._watches[key]


def _size(answer: Answer, batch: pa.RecordBatch | None) -> int:
    return len(answer.body) + (0 if batch is None else batch.nbytes)


def read_chunk(reader: Any, caller: Caller) -> Any:
    """What the client sends next; None when it left. Raises InvalidArgument when that cannot be read."""
    try:
        return reader.read_chunk()
    except StopIteration:
        return None
    except (pa.ArrowException, OSError) as error:
        if caller.is_gone():
            return None
        raise InvalidArgument(f"What was sent is no stream of Arrow's: {first_line(error)}") from None


def first_line(error: BaseException) -> str:
    """What Arrow says is wrong, without where in its sources it was found."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def told(error: Exception, what: str) -> Fault:
    """What the client is told of an error; what is not ours is logged here."""
    if not isinstance(error, Error):
        log.error(what, exc_info=error)
    return to_fault(error)


def hello(entry: Entry) -> Hello:
    """Who and when it is, and whose the caller's key is."""
    entry.check("hello")
    broker = entry.broker
    return Hello(PROTOCOL, __version__, broker.incarnation, broker.now_ms(), broker.peers, entry.own_tenant())


def read_request(metadata: Any) -> Request:
    """A request as it came. Raises InvalidArgument."""
    if metadata is None:
        raise InvalidArgument("A request is msgpack in app_metadata; this message has none.")
    with unpacking("What was sent is no request"):
        request = _requests.decode(memoryview(metadata))
    if not 1 <= request.timeout_ms <= _TIMEOUT_MS_MAX or not 0 <= request.wait_ms <= LIMITS.wait_ms_max:
        raise LimitExceeded(f"timeout_ms must be 1 to {_TIMEOUT_MS_MAX}, wait_ms 0 to {LIMITS.wait_ms_max}.")
    return request


def perform(caller: Caller, request: Request) -> tuple[bytes, pa.RecordBatch | None]:
    """Does what is asked; returns the answer's body and the record batch that goes with it."""
    entry = caller.entry
    entry.broker.check_open()
    deadline = monotonic_s() + request.timeout_ms / 1000
    if request.name in ("publish", "stage"):
        return encode(publish(entry, batches.decode(request.body), None)), None
    if request.name in ("clock", "accept_clock", "examine", "cluster"):
        return encode(_of_store(entry, request.name, deadline)), None
    command = decode_command(request.name, request.body)
    wait_until = monotonic_s() + min(request.wait_ms, _WAIT_MS_MAX) / 1000 if request.wait_ms else None
    if isinstance(command, Claim):
        claimed = caller.claim(command, wait_until=wait_until, deadline=deadline)
        handed, batch = claims.to_wire(claimed, arrow=request.arrow)
        return encode(handed), batch
    if isinstance(command, Tail) and wait_until is not None:
        return encode(caller.tail(command, wait_until=wait_until)), None
    answer = entry.do(command, deadline=deadline)
    if isinstance(command, Held):
        return encode([claims.to_wire(claimed, packed_bytes_max=2**62)[0] for claimed in answer]), None
    return encode(answer), None


def _of_store(entry: Entry, name: str, deadline: float) -> Any:
    """What concerns the store as a whole."""
    if name == "examine":
        return list(entry.examine())
    if name == "cluster":
        return entry.members(deadline=deadline)
    if name == "accept_clock":
        entry.accept_clock(deadline=deadline)
    return entry.clock()


def publish(entry: Entry, published: batches.Published, batch: pa.RecordBatch | None) -> Any:
    """Publishes what came with its description, or stages it."""
    entry.broker.check_open()
    deadline = monotonic_s() + min(max(published.timeout_ms, 1), _TIMEOUT_MS_MAX) / 1000
    if published.stage:
        staged = batches.stage_from_wire(published, batch)
        return entry.do(staged, deadline=deadline, cost=staged.batch.bytes)
    command = batches.from_wire(published, batch)
    return entry.do(command, deadline=deadline, cost=command.batch.bytes, publish_id=command.publish_id)
