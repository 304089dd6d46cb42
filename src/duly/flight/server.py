"""The broker on Arrow Flight.

    DoPut       publish: a record batch each, its description in app_metadata, a receipt back for each
    DoExchange  sessions: claims, publishing and every other operation, one after the other; or a push by credit
    DoAction    every operation once, for who has no session
    DoGet       a stretch of a log, by a ticket
    GetFlightInfo   a topic's tickets, one a partition

Every handler is wrapped: what is ours is told with its code, what is not is logged here and named there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow import flight

from ..broker.broker import Broker
from ..broker.certificates import Certificate
from ..errors import Closed, Error, InvalidArgument
from ..events import log
from ..wire import batches
from ..wire.claims import delivered_schema
from ..wire.operations import COMMANDS, encode
from ..wire.talk import CONSUME, SESSION, Answer, Request
from .caller import Caller, Left, caller_of
from .pushing import Push
from .reading import flight_info, read_ticket, stream
from .session import Session, hello, perform, publish, read_chunk, told
from .shown import MIDDLEWARE, HeadersFactory
from .statuses import to_status
from .streams import Streams, forget, size_of


def _call(handler: Callable[..., Any]) -> Callable[..., Any]:
    """A handler that counts as a stream, and whose errors end the call with a status of ours: never a traceback."""

    @wraps(handler)
    def call(self: FlightServer, context: Any, *given: Any) -> Any:
        try:
            with (
                self.streams_open.one(),
                caller_of(self.broker, context, self.check_staying) as caller,
                self.streams_open.owned(caller.tenant),
            ):
                return handler(self, caller, *given)
        except Left:
            return None
        except Exception as error:
            if not isinstance(error, Error):
                if context.is_cancelled():
                    return None
                log.exception("a call of Flight's failed")
            raise to_status(error) from None

    return call


class FlightServer(flight.FlightServerBase):  # type: ignore[misc]
    """Serves one broker until `shutdown`."""

    def __init__(
        self,
        broker: Broker,
        host: str,
        port: int,
        *,
        certificate: Certificate | None = None,
        streams: Streams | None = None,
    ) -> None:
        self.broker = broker
        # Shared by the servers that follow one another on a port.
        self.streams_open = streams or Streams()
        self.retired = False
        scheme, options = ("grpc", {}) if certificate is None else ("grpc+tls", _tls(certificate))
        super().__init__(f"{scheme}://{host}:{port}", middleware={MIDDLEWARE: HeadersFactory()}, **options)

    def retire(self) -> None:
        """Another server takes its place: sessions end after their present request."""
        self.retired = True

    def check_staying(self) -> None:
        """Raises Closed when nothing more is done on this server's streams."""
        self.broker.check_open()
        if self.retired:
            raise Closed("The broker has a new certificate. Nothing was done; connect again.")

    @property
    def streams(self) -> int:
        """How many calls are under way."""
        return self.streams_open.count

    @_call
    def do_exchange(self, caller: Caller, descriptor: Any, reader: Any, writer: Any) -> None:
        """A session."""
        self.broker.check_open()
        if descriptor.command == CONSUME:
            Push(caller, reader, writer).run()
            return
        if descriptor.command != SESSION:
            raise InvalidArgument(f"There is no such exchange. Ask for the command {SESSION!r} or {CONSUME!r}.")
        Session(caller, reader, writer, self.streams_open).run()

    @_call
    def do_put(self, caller: Caller, _descriptor: Any, reader: Any, writer: Any) -> None:
        """Publishes every batch that comes, and answers each."""
        while (size := self._put_next(caller, reader, writer)) is not None:
            forget(size)

    def _put_next(self, caller: Caller, reader: Any, writer: Any) -> int | None:
        chunk = read_chunk(reader, caller)
        if chunk is None:
            return None
        with self.streams_open.at_work():
            writer.write(encode(self._published(caller, chunk)))
        return size_of(chunk)

    def _published(self, caller: Caller, chunk: Any) -> Answer:
        try:
            caller.check_open()
            if chunk.app_metadata is None or chunk.data is None:
                raise InvalidArgument("A batch to publish comes with its description, msgpack in app_metadata.")
            described = batches.decode(memoryview(chunk.app_metadata))
            return Answer(body=msgspec.Raw(encode(publish(caller.entry, described, chunk.data))))
        except Exception as error:
            return Answer(fault=told(error, "a publish failed"))

    @_call
    def do_get(self, caller: Caller, ticket: Any) -> Any:
        """A stretch of a log."""
        return stream(caller.entry, read_ticket(ticket.ticket), self.streams_open)

    @_call
    def get_flight_info(self, caller: Caller, descriptor: Any) -> flight.FlightInfo:
        """The tickets of a topic."""
        return flight_info(caller.entry, descriptor)

    @_call
    def do_action(self, caller: Caller, action: Any) -> Iterator[flight.Result]:
        """One operation, whose command is the action's body; `hello` says who is here.

        The answer is the first result; deliveries that are too many for it are the second, a stream of Arrow's.
        """
        with self.streams_open.at_work():
            if action.type == "hello":
                return iter([flight.Result(encode(hello(caller.entry)))])
            body = action.body.to_pybytes() if action.body is not None else b""
            answer, batch = perform(caller, Request(action.type, msgspec.Raw(body)))
            if caller.is_gone():
                caller.give_back()
            found = [flight.Result(answer)]
            return iter(found if batch is None else [*found, flight.Result(_stream(batch))])

    @_call
    def list_actions(self, _caller: Caller) -> list[tuple[str, str]]:
        """The operations."""
        described = [(name, (kind.__doc__ or "").strip()) for name, kind in sorted(COMMANDS.items())]
        return [("hello", "Who is here, and what time it is."), *described]

    def get_schema(self, _context: Any, _descriptor: Any) -> Any:
        """That of deliveries, which is one. Nothing may be raised here: pyarrow would send the traceback along."""
        return flight.SchemaResult(delivered_schema())

    @_call
    def list_flights(self, _caller: Caller, _criteria: Any) -> Any:
        """Nothing yet."""
        raise InvalidArgument("Flights are not listed. Ask for topics with the action `list_topics`.")

    def finish(self, seconds: float) -> None:
        """Waits until what is under way is answered, for so long at most. Streams may stay open, idle."""
        self.streams_open.finish(seconds)


def _tls(certificate: Certificate) -> dict[str, Any]:
    """Flight's options. gRPC's own floor is TLS 1.2, with forward secrecy and authenticated encryption alone."""
    options: dict[str, Any] = {"tls_certificates": [(certificate.chain, certificate.key)]}
    if certificate.client_ca is not None:
        options |= {"verify_client": True, "root_certificates": certificate.client_ca}
    return options


def _stream(batch: Any) -> Any:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue()
