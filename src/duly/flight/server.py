"""The broker on Arrow Flight.

    DoPut       publish: a record batch each, its description in app_metadata, a receipt back for each
    DoExchange  sessions: claims, settling and every other operation, one after the other; or a push by credit
    DoAction    every operation once, for who has no session
    DoGet       a stretch of a log, by a ticket
    GetFlightInfo   a topic's tickets, one a partition

Every handler is wrapped: what is ours is told with its code, what is not is logged here and named there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from pyarrow import flight

from ..broker.broker import Broker
from ..errors import Busy, Error, InvalidArgument
from ..events import log
from ..limits import LIMITS
from ..wire import batches
from ..wire.faults import to_fault
from ..wire.operations import COMMANDS, encode
from ..wire.talk import CONSUME, SESSION, Answer, Request
from .pushing import Push
from .reading import flight_info, read_ticket, stream
from .session import Session, hello, perform, publish
from .statuses import to_status


class FlightServer(flight.FlightServerBase):  # type: ignore[misc]
    """Serves one broker until `shutdown`."""

    def __init__(self, broker: Broker, host: str, port: int) -> None:
        self._broker = broker
        self._streams = Streams()
        super().__init__(f"grpc://{host}:{port}")

    @property
    def streams(self) -> int:
        """How many calls are under way."""
        return self._streams.count

    def do_exchange(self, _context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """A session."""
        with self._streams.one():
            if descriptor.command == CONSUME:
                Push(self._broker, reader, writer).run()
                return
            if descriptor.command != SESSION:
                raise to_status(
                    InvalidArgument(f"There is no exchange {descriptor.command!r}. Ask for {SESSION!r} or {CONSUME!r}.")
                )
            Session(self._broker, reader, writer, self._streams.at_work).run()

    def do_put(self, _context: Any, _descriptor: Any, reader: Any, writer: Any) -> None:
        """Publishes every batch that comes, and answers each."""
        with self._streams.one():
            while True:
                try:
                    chunk = reader.read_chunk()
                except StopIteration:
                    return
                with self._streams.at_work():
                    writer.write(encode(self._published(chunk)))

    def _published(self, chunk: Any) -> Answer:
        try:
            if chunk.app_metadata is None or chunk.data is None:
                raise InvalidArgument("A batch to publish comes with its description, msgpack in app_metadata.")
            described = batches.decode(memoryview(chunk.app_metadata))
            return Answer(body=msgspec.Raw(encode(publish(self._broker, described, chunk.data))))
        except Exception as error:
            if not isinstance(error, Error):
                log.exception("a publish failed")
            return Answer(fault=to_fault(error))

    def do_get(self, _context: Any, ticket: Any) -> Any:
        """A stretch of a log."""
        with self._streams.one(), self._told():
            return stream(self._broker, read_ticket(ticket.ticket))

    def get_flight_info(self, _context: Any, descriptor: Any) -> flight.FlightInfo:
        """The tickets of a topic."""
        with self._streams.one(), self._told():
            return flight_info(self._broker, descriptor)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Whatever comes up is told as a status."""
        try:
            yield
        except Exception as error:
            if not isinstance(error, Error):
                log.exception("a call failed")
            raise to_status(error) from None

    def do_action(self, _context: Any, action: Any) -> Iterator[flight.Result]:
        """One operation, whose command is the action's body; `hello` says who is here."""
        with self._streams.one(), self._streams.at_work():
            body = action.body.to_pybytes() if action.body is not None else b""
            try:
                if action.type == "hello":
                    answer = encode(hello(self._broker))
                else:
                    answer, _ = perform(self._broker, Request(action.type, msgspec.Raw(body)))
            except Exception as error:
                if not isinstance(error, Error):
                    log.exception("an action failed")
                raise to_status(error) from None
            return iter([flight.Result(answer)])

    def list_actions(self, _context: Any) -> list[tuple[str, str]]:
        """The operations."""
        described = [(name, (kind.__doc__ or "").strip()) for name, kind in sorted(COMMANDS.items())]
        return [("hello", "Who is here, and what time it is."), *described]

    def finish(self, seconds: float) -> None:
        """Waits until what is under way is answered, for so long at most. Streams may stay open, idle."""
        self._streams.finish(seconds)


class Streams:
    """Counts the streams that are open, each of which has a thread, and the requests under way on them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.count = 0
        self._working = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Around a stream. Raises Busy, as a status, when there are too many."""
        with self._changed:
            if self.count >= LIMITS.streams_max:
                raise to_status(Busy(f"{LIMITS.streams_max} streams are open already. Back off and try again."))
            self.count += 1
        try:
            yield
        finally:
            with self._changed:
                self.count -= 1

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Around a request and its answer."""
        with self._changed:
            self._working += 1
        try:
            yield
        finally:
            with self._changed:
                self._working -= 1
                if not self._working:
                    self._changed.notify_all()

    def finish(self, seconds: float) -> None:
        """Waits until nothing is under way."""
        with self._changed:
            self._changed.wait_for(lambda: not self._working, timeout=seconds)
