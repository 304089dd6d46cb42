"""NATS JetStream: a durable consumer to take from, acknowledged publishes to put into.

From JetStream: the consumer acknowledges up to a message (AckPolicy all), and one batch is under way at a time. So what
the server has between the consumer's floor and what it delivered is one batch, whole, named by the sequence that it
ends with; after a kill exactly that is read again, from the stream itself, and published under the same name: Duly
stores it once.

Into JetStream: each message has a Nats-Msg-Id made of its place, so that the stream drops what it got before, as far
back as its duplicate window reaches. Messages of a batch are sent in their order on one line, and waited for together:
what a kill cuts off is the end of it, and what is put again is appended behind.

nats-py is asyncio's; a loop in a thread of its own has the connection.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import threading
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import nats
import nats.errors
import nats.js.errors
from nats.js import api

from ..clock import moment_ms
from ..errors import InvalidArgument
from .address import NatsPlace
from .entry import of_nats, to_nats
from .raw_jetstream import publish, pull
from .redis_streams import place_name
from .sides import Down, Taken

if TYPE_CHECKING:
    from ..client.batch import Delivery

R = TypeVar("R")

_CONNECT_S, _AGAIN_S, _ANSWERS_S = 5.0, 0.1, 20.0
# Nothing is delivered again by itself while a batch is under way: after a kill it is read from the stream.
_ACK_WAIT_S = 24 * 3600.0
_AT_ONCE = 64


class Line:
    """A connection in a loop of its own. Every call raises Down, or InvalidArgument for what a person puts right."""

    def __init__(self, place: NatsPlace) -> None:
        self._place = place
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="duly-nats", daemon=True)
        self._thread.start()
        self._nats: Any = None
        # Set when the connection has ended.
        self.gone = asyncio.Event()
        # After a failure nothing that was asked for may still be answered: the connection is given up.
        self._failed = False

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Runs something in the loop and returns what comes of it."""
        failed, self._failed = self._failed, True
        try:
            done = asyncio.run_coroutine_threadsafe(self._anew(work, failed=failed), self._loop).result()
            self._failed = False
            return done
        except (nats.errors.AuthorizationError, nats.js.errors.NotFoundError, nats.js.errors.BadRequestError) as error:
            raise InvalidArgument(f"NATS does not do that: {error}") from error
        except nats.js.errors.APIError as error:
            raise Down(f"JetStream: {error.description or error}") from error
        except (TimeoutError, nats.errors.Error, OSError) as error:
            raise Down(str(error) or type(error).__name__) from error

    async def _anew(self, work: Coroutine[Any, Any, R], *, failed: bool) -> R:
        if failed:
            await self._let_go()
        return await work

    async def there(self) -> Any:
        """The connection; another one if it was closed."""
        if self._nats is None or not self._nats.is_connected:
            await self._let_go()
            self._nats = await self._connect()
        return self._nats

    async def _connect(self) -> Any:
        place = self._place
        tls = {"tls": ssl.create_default_context()} if place.tls else {}
        token = {"token": place.user} if place.user and place.password is None else {}
        named = {"user": place.user, "password": place.password} if place.user and not token else {}
        refused: list[Exception] = []
        self.gone = gone = asyncio.Event()

        async def note(error: Exception) -> None:
            refused.append(error)

        async def note_end() -> None:
            gone.set()

        try:
            return await nats.connect(
                [f"{'tls' if place.tls else 'nats'}://{server}" for server in place.servers],
                name="duly-bridge",
                # We come back ourselves: what was sent meanwhile must not be sent later, behind what came after.
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=_AGAIN_S,
                connect_timeout=int(_CONNECT_S),
                error_cb=note,
                closed_cb=note_end,
                disconnected_cb=note_end,
                **tls,
                **token,
                **named,
            )
        except nats.errors.NoServersError as error:
            if any("authorization" in str(one).lower() for one in refused):
                raise InvalidArgument("NATS lets nobody in with this name and password.") from error
            raise Down(str(refused[-1]) if refused else str(error)) from error

    async def _let_go(self) -> None:
        if self._nats is not None:
            with suppress(nats.errors.Error, OSError):
                await self._nats.close()
            self._nats = None

    def close(self) -> None:
        """Ends the connection and the loop."""
        with suppress(Down, InvalidArgument):
            self.run(self._let_go())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class JetStreamSource:
    """Takes from a stream by a durable consumer."""

    def __init__(self, place: NatsPlace, *, group: str) -> None:
        if not re.fullmatch(r"[^.*>\s/\\]{1,128}", group):
            raise InvalidArgument("The name of a consumer of JetStream has no dots, stars, slashes or spaces.")
        self._line = Line(place)
        self._stream, self._subject, self._durable = place.stream, place.subject, group
        self._recovers = True
        # The consumer's own number of the next delivery: none may be missing, as acknowledging goes up to the last.
        self._next = 0

    def take(self, most: int, wait_s: float) -> Taken | None:
        return self._line.run(self._take(most, wait_s))

    def done(self, taken: Taken) -> None:
        self._recovers = True
        self._line.run(self._ack(taken.mark))
        self._recovers = False

    def close(self) -> None:
        self._line.close()

    async def _take(self, most: int, wait_s: float) -> Taken | None:
        line = await self._line.there()
        if self._recovers:
            taken = await self._under_way(line)
            if taken is not None:
                return taken
        # Until it is known what came of this, what was delivered is not known.
        self._recovers = True
        found = await pull(line, self._stream, self._durable, most, wait_s)
        numbers = [message.metadata.sequence.consumer for message in found]
        if numbers != list(range(self._next, self._next + len(numbers))):
            raise Down("Something was delivered to a connection that is gone")
        self._recovers = False
        self._next += len(numbers)
        if not found:
            return None
        last = found[-1]
        entries = [self._entry(m.metadata.sequence.stream, _ms(m.metadata.timestamp), m) for m in found]
        return Taken(entries, self._name(last.metadata.sequence.stream), last.reply)

    async def _under_way(self, line: Any) -> Taken | None:
        """What was delivered and not acknowledged, read from the stream."""
        js = line.jetstream(timeout=_ANSWERS_S)
        info = await self._consumer(js)
        self._next = info.delivered.consumer_seq + 1
        first, last = info.ack_floor.stream_seq + 1, info.delivered.stream_seq
        if not info.num_ack_pending or last < first:
            return None
        entries = []
        for start in range(first, last + 1, _AT_ONCE):
            numbers = range(start, min(start + _AT_ONCE, last + 1))
            for number, message in zip(
                numbers, await asyncio.gather(*[self._stored(js, n) for n in numbers]), strict=True
            ):
                if message is not None and matches(info.config.filter_subject or ">", message.subject):
                    entries.append(self._entry(number, _ms(message.time), message))
        reply = f"$JS.ACK.{self._stream}.{self._durable}.1.{last}.{info.delivered.consumer_seq}.0.0"
        return Taken(entries, self._name(last), reply)

    async def _stored(self, js: Any, number: int) -> Any:
        """A message of the stream; None: it was deleted, and nobody has it any more."""
        try:
            return await js.get_msg(self._stream, seq=number)
        except nats.js.errors.NotFoundError:
            return None

    async def _consumer(self, js: Any) -> Any:
        try:
            info = await js.consumer_info(self._stream, self._durable)
        except nats.js.errors.NotFoundError:
            wanted = api.ConsumerConfig(
                durable_name=self._durable,
                ack_policy=api.AckPolicy.ALL,
                ack_wait=_ACK_WAIT_S,
                max_ack_pending=-1,
                filter_subject=self._subject,
            )
            info = await js.add_consumer(self._stream, wanted)
        if info.config.ack_policy != api.AckPolicy.ALL:
            raise InvalidArgument(
                f"The consumer {self._durable!r} of {self._stream!r} acknowledges message by message; a bridge wants "
                "one of its own, with the policy all. Give another name with --group."
            )
        return info

    def _entry(self, number: int, at_ms: int, message: Any) -> Any:
        place = f"nats/{self._stream}/{number}"
        return of_nats(place, at_ms, message.subject, message.data or b"", message.headers)

    def _name(self, last: int) -> str:
        return f"nats-{self._stream}-{self._durable}-{last}"[-128:]

    async def _ack(self, reply: str) -> None:
        line = await self._line.there()
        await line.request(reply, b"+ACK", timeout=_ANSWERS_S)


class JetStreamSink:
    """Publishes to a subject of a stream."""

    def __init__(self, place: NatsPlace) -> None:
        if place.subject is None or any(mark in place.subject for mark in "*>"):
            raise InvalidArgument("Say which subject to publish to: nats://host:4222/STREAM/SUBJECT, without stars.")
        self._line = Line(place)
        self._stream, self._subject = place.stream, place.subject
        # Whether it was asked for the stream, and has it.
        self._is_there = False

    def put(self, deliveries: Sequence[Delivery]) -> dict[int, str]:
        return self._line.run(self._put(deliveries))

    def close(self) -> None:
        self._line.close()

    async def _put(self, deliveries: Sequence[Delivery]) -> dict[int, str]:
        line = await self._line.there()
        if not self._is_there:
            await line.jetstream(timeout=_ANSWERS_S).stream_info(self._stream)
            self._is_there = True
        refused: dict[int, str] = {}
        messages: list[tuple[bytes, dict[str, str]]] = []
        for index, delivery in enumerate(deliveries):
            headers = {**to_nats(delivery), "Nats-Msg-Id": place_name(delivery)}
            size = len(delivery.payload) + sum(len(name) + len(text) + 4 for name, text in headers.items()) + 64
            if size > line.max_payload:
                refused[index] = f"NATS takes {line.max_payload} bytes at most, headers included."
                continue
            messages.append((delivery.payload, headers))
        await publish(line, self._line.gone, self._stream, self._subject, messages)
        return refused


def matches(pattern: str, subject: str) -> bool:
    """Whether a subject is one of those that a pattern means."""
    wanted, given = pattern.split("."), subject.split(".")
    for at, token in enumerate(wanted):
        if token == ">":
            return len(given) > at
        if at >= len(given) or token not in ("*", given[at]):
            return False
    return len(wanted) == len(given)


def _ms(moment: Any) -> int:
    return 0 if moment is None else moment_ms(moment, "moment")
