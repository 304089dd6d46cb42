"""A session's broker side: requests read from one exchange, done, and answered (wire/talk.py draws it).

It has a thread, which is gRPC's. Whatever a client sends, it gets an answer or the stream ends: never a traceback.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import msgspec
import pyarrow as pa

from .. import __version__
from ..broker.broker import Broker
from ..client.port import Watch
from ..clock import monotonic_s
from ..engine.claimed import Claim
from ..engine.settle import Held
from ..engine.tail import Tail
from ..errors import Error, InvalidArgument, LimitExceeded
from ..events import log
from ..limits import LIMITS
from ..wire import batches, claims
from ..wire.faults import to_fault
from ..wire.operations import decode_command, encode
from ..wire.talk import PROTOCOL, Answer, Hello, Request

_requests = msgspec.msgpack.Decoder(Request)
_TIMEOUT_MS_MAX = 3_600_000
_WATCHES_MAX = 16
# The longest that a session's thread waits for one client; whoever wants to wait longer asks again.
_WAIT_MS_MAX = 60_000


class Session:
    """One client's exchange."""

    def __init__(
        self, broker: Broker, reader: Any, writer: Any, at_work: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._broker = broker
        self._at_work = at_work
        self._reader = reader
        self._writer = writer
        self._begun = False
        self._watches: dict[tuple[str, str, str, str], Watch] = {}

    def run(self) -> None:
        """Answers until the client leaves."""
        self._writer.write_metadata(encode(hello(self._broker)))
        while True:
            try:
                chunk = self._reader.read_chunk()
            except StopIteration:
                return
            with self._at_work():
                self._write(*self._answer(chunk))

    def _write(self, answer: Answer, batch: pa.RecordBatch | None) -> None:
        if batch is None:
            self._writer.write_metadata(encode(answer))
            return
        if not self._begun:
            self._writer.begin(claims.delivered_schema())
            self._begun = True
        self._writer.write_with_metadata(batch, encode(answer))

    def _answer(self, chunk: Any) -> tuple[Answer, pa.RecordBatch | None]:
        try:
            body, batch = self._perform(read_request(chunk.app_metadata))
        except Exception as error:
            if not isinstance(error, Error):
                log.exception("a request failed")
            return Answer(fault=to_fault(error)), None
        return Answer(body=msgspec.Raw(body)), batch

    def _perform(self, request: Request) -> tuple[bytes, pa.RecordBatch | None]:
        if request.name not in ("look", "await"):
            return perform(self._broker, request)
        command = decode_command("claim", request.body)
        self._broker.check_open()
        key = (command.tenant, command.topic, command.group, command.consumer)
        if key not in self._watches:
            if len(self._watches) >= _WATCHES_MAX:
                raise LimitExceeded(f"A session watches at most {_WATCHES_MAX} groups. Open another.")
            self._watches[key] = self._broker.watch(command)
        watch = self._watches[key]
        if request.name == "await":
            watch.wait(monotonic_s() + min(request.wait_ms, _WAIT_MS_MAX) / 1000)
            return encode(None), None
        claimed = watch.claim(command.max_messages, deadline=monotonic_s() + request.timeout_ms / 1000)
        handed, batch = claims.to_wire(claimed, arrow=request.arrow)
        return encode(handed), batch


def hello(broker: Broker) -> Hello:
    """Who and when it is."""
    return Hello(PROTOCOL, __version__, broker.incarnation, broker.now_ms())


def read_request(metadata: Any) -> Request:
    """A request as it came. Raises InvalidArgument."""
    if metadata is None:
        raise InvalidArgument("A request is msgpack in app_metadata; this message has none.")
    try:
        request = _requests.decode(memoryview(metadata))
    except msgspec.DecodeError as error:
        raise InvalidArgument(f"What was sent is no request: {error}.") from None
    if not 1 <= request.timeout_ms <= _TIMEOUT_MS_MAX or not 0 <= request.wait_ms <= LIMITS.wait_ms_max:
        raise LimitExceeded(f"timeout_ms must be 1 to {_TIMEOUT_MS_MAX}, wait_ms 0 to {LIMITS.wait_ms_max}.")
    return request


def perform(broker: Broker, request: Request) -> tuple[bytes, pa.RecordBatch | None]:
    """Does what is asked; returns the answer's body and the record batch that goes with it."""
    broker.check_open()
    deadline = monotonic_s() + request.timeout_ms / 1000
    if request.name == "publish":
        return encode(publish(broker, batches.decode(request.body), None)), None
    if request.name in ("clock", "accept_clock", "examine"):
        return encode(_of_store(broker, request.name, deadline)), None
    command = decode_command(request.name, request.body)
    wait_until = monotonic_s() + min(request.wait_ms, _WAIT_MS_MAX) / 1000 if request.wait_ms else None
    if isinstance(command, Claim):
        claimed = broker.claim(command, wait_until=wait_until, deadline=deadline)
        handed, batch = claims.to_wire(claimed, arrow=request.arrow)
        return encode(handed), batch
    if isinstance(command, Tail) and wait_until is not None:
        return encode(broker.tail(command, wait_until=wait_until)), None
    answer = broker.do(command, deadline=deadline)
    if isinstance(command, Held):
        return encode([_packed(*claims.to_wire(claimed)) for claimed in answer]), None
    return encode(answer), None


def _of_store(broker: Broker, name: str, deadline: float) -> Any:
    """What concerns the store as a whole."""
    if name == "examine":
        return list(broker.examine())
    if name == "accept_clock":
        broker.accept_clock(deadline=deadline)
    return broker.clock()


def _packed(handed: claims.Handed, batch: pa.RecordBatch | None) -> tuple[claims.Handed, bytes | None]:
    return handed, None if batch is None else batch.serialize().to_pybytes()


def publish(broker: Broker, published: batches.Published, batch: pa.RecordBatch | None) -> Any:
    """Publishes what came with its description."""
    broker.check_open()
    command = batches.from_wire(published, batch)
    deadline = monotonic_s() + min(max(published.timeout_ms, 1), _TIMEOUT_MS_MAX) / 1000
    return broker.do(command, deadline=deadline, cost=command.batch.bytes, publish_id=command.publish_id)
