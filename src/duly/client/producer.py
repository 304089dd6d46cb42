"""q.producer(): single publishes gathered into batches, sent by a thread of its own.

    open ──full, or `linger` after its first message──▶ sealed ──▶ sending ──▶ its future has the receipt, or the error
                                                                  │    ▲
                                                                  └────┘ busy: again after as long as the store asks

One batch a topic is open at a time; the messages of a batch share a future, those of each operation one of their own:
an operation that may publish no more is left out, and the rest is sent. Batches are sent one after the other, in
the order of their first messages, so that what one thread publishes to a topic is stored in that order. While one is
sent the next one fills: the slower the store, the bigger the batches.

What waits to be sent is bounded in bytes: past that, publish waits for room, and raises Busy if there is none in time.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ..causal import current_operation
from ..clock import Duration, milliseconds, monotonic_s
from ..engine.incoming import check_batch
from ..errors import Busy, Closed, InvalidArgument, OperationExhausted, Timeout, Unavailable
from ..limits import LIMITS
from ..message import OPERATION, Message, Receipt
from .arguments import count, named, timeout_s

if TYPE_CHECKING:
    from .messages import MessageCalls

BATCH_MESSAGES = 1000
_BATCH_BYTES = 1024 * 1024
_LINGER_MS_MAX = 60_000
# What a message costs besides its payload.
_MESSAGE_BYTES = 64
_BUSY_PAUSE_S = 0.05


class _Batch:
    """Messages of one topic that are published together, with a future for those of each operation."""

    __slots__ = ("bytes", "due", "futures", "messages", "operations", "topic")

    def __init__(self, topic: str, due: float) -> None:
        self.topic = topic
        self.due = due
        self.messages: list[Any] = []
        self.operations: list[str | None] = []
        self.bytes = 0
        self.futures: dict[str | None, Future[Receipt]] = {}

    def add(self, message: Any, operation: str | None, size: int) -> Future[Receipt]:
        """Adds a message of an operation."""
        self.messages.append(message)
        self.operations.append(operation)
        self.bytes += size
        future = self.futures.get(operation)
        if future is None:
            future = self.futures[operation] = Future()
            # From the start, so that nobody can cancel what others share.
            future.set_running_or_notify_cancel()
        return future

    def stored(self, receipt: Receipt) -> None:
        """All that is in it is stored."""
        for future in self.futures.values():
            future.set_result(receipt)

    def failed(self, error: BaseException) -> None:
        """Nothing that is in it is stored."""
        for future in self.futures.values():
            future.set_exception(error)

    def leave_out(self, error: OperationExhausted) -> bool:
        """Gives up the messages of an operation: the others have nothing to do with it. False: they are none of it."""
        future = self.futures.pop(error.operation, None)
        if future is None:
            return False
        future.set_exception(error)
        kept = [at for at, operation in enumerate(self.operations) if operation != error.operation]
        self.messages = [self.messages[at] for at in kept]
        self.operations = [self.operations[at] for at in kept]
        return True


class Producer:
    """Gathers messages into batches. For any number of threads; close it, or use it as a context manager."""

    def __init__(self, client: MessageCalls, *, linger_s: float, max_bytes: int, timeout_s: float) -> None:
        self._client = client
        self._linger_s = linger_s
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._open: dict[str, _Batch] = {}
        # In the order of their first messages; some of them are open still.
        self._line: deque[_Batch] = deque()
        self._sending: _Batch | None = None
        self._held = 0
        self._hurried = False
        self._closed = False
        self._thread = threading.Thread(target=self._send_all, name="duly-producer", daemon=True)
        self._thread.start()

    def publish(self, topic: str, message: bytes | Message) -> Future[Receipt]:
        """Adds one message to the next batch; the future of that batch has its receipt once it is stored.

        Raises at once what is wrong with the message by itself; Busy when there is no room in time. What the topic
        refuses, or an error of the store, is the future's, and then nothing of the batch was stored; except
        PublishUnknown, which says what to repeat it with.
        """
        size = self._size_of(message)
        message, operation = _with_operation(message)
        with self._changed:
            if self._held + size > self._max_bytes:
                self._wait_for_room(size)
            if self._closed:
                raise Closed()
            batch = self._open.get(topic)
            if batch is None:
                batch = self._begin(topic)
            future = batch.add(message, operation, size)
            self._held += size
            if len(batch.messages) >= BATCH_MESSAGES or batch.bytes >= _BATCH_BYTES:
                self._seal(batch)
            return future

    @property
    def has_room(self) -> bool:
        """Whether a message of some size would be taken without waiting."""
        return self._held < self._max_bytes // 2

    def flush(self, *, timeout: Duration | None = None) -> None:
        """Returns when everything published so far is stored. Raises the first error of its batches; Timeout."""
        until = monotonic_s() + (self._timeout_s if timeout is None else timeout_s(timeout))
        with self._changed:
            self._hurried = True
            waited = self._under_way()
            self._changed.notify_all()
        for future in waited:
            try:
                future.result(max(0.0, until - monotonic_s()))
            except TimeoutError as error:
                if future.done():
                    raise
                raise Timeout("Not everything is stored yet; it goes on being sent. Flush again.") from error

    def close(self) -> None:
        """Sends what is left and ends. Raises the first error of what it sends. Twice does nothing."""
        with self._changed:
            left = self._under_way()
            self._closed = self._hurried = True
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join()
        for future in left:
            future.result()

    def _under_way(self) -> list[Future[Receipt]]:
        sending = [] if self._sending is None else [self._sending]
        return [future for batch in (*sending, *self._line) for future in list(batch.futures.values())]

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _size_of(self, message: bytes | Message) -> int:
        if type(message) is not bytes:
            return check_batch([message]).bytes + _MESSAGE_BYTES
        if len(message) > LIMITS.payload_bytes_max:
            check_batch([message])
        return len(message) + _MESSAGE_BYTES

    def _wait_for_room(self, size: int) -> None:
        if size > self._max_bytes:
            raise InvalidArgument(
                f"The message alone is bigger than the {self._max_bytes} bytes this producer may hold: give it more."
            )
        self._hurried = True
        self._changed.notify_all()
        if not self._changed.wait_for(lambda: self._closed or self._held + size <= self._max_bytes, self._timeout_s):
            raise Busy("The store does not keep up: too much waits to be sent. The message was not taken; back off.")

    def _begin(self, topic: str) -> _Batch:
        batch = self._open[named(topic)] = _Batch(topic, monotonic_s() + self._linger_s)
        self._line.append(batch)
        if len(self._line) == 1:
            self._changed.notify_all()
        return batch

    def _seal(self, batch: _Batch) -> None:
        self._open.pop(batch.topic, None)
        batch.due = 0.0
        if self._line[0] is batch:
            self._changed.notify_all()

    # The thread

    def _send_all(self) -> None:
        while (batch := self._next()) is not None:
            self._send(batch)
            with self._changed:
                self._sending = None
                self._held -= batch.bytes
                self._changed.notify_all()

    def _next(self) -> _Batch | None:
        """The next batch, when its time has come; None at the end."""
        with self._changed:
            while True:
                if not self._line:
                    self._hurried = False
                    if self._closed:
                        return None
                    self._changed.wait()
                    continue
                batch = self._line[0]
                wait_s = batch.due - monotonic_s()
                if wait_s > 0 and not self._hurried:
                    self._changed.wait(wait_s)
                    continue
                self._sending = self._line.popleft()
                if self._open.get(batch.topic) is batch:
                    del self._open[batch.topic]
                return batch

    def _send(self, batch: _Batch) -> None:
        until = monotonic_s() + self._timeout_s
        while batch.messages:
            try:
                receipt = self._client.publish(batch.topic, batch.messages, timeout=max(0.001, until - monotonic_s()))
            except Unavailable as error:
                pause_s = float(error.facts.get("retry_after_s", _BUSY_PAUSE_S))
                if isinstance(error, Busy) and monotonic_s() + pause_s < until:
                    threading.Event().wait(pause_s)
                    continue
                batch.failed(error)
            except OperationExhausted as error:
                if batch.leave_out(error):
                    continue
                batch.failed(error)
            except Exception as error:
                batch.failed(error)
            else:
                batch.stored(receipt)
            return


def _with_operation(message: bytes | Message) -> tuple[bytes | Message, str | None]:
    """A message as it is published, and its operation: the one that it has, or that of whoever publishes it."""
    headers = message.headers or {} if isinstance(message, Message) else {}
    if OPERATION in headers:
        return message, headers[OPERATION] or None
    operation = current_operation()
    if operation is None:
        return message, None
    if not isinstance(message, Message):
        message = Message(message)
    return replace(message, headers={**headers, OPERATION: operation}), operation


def make_producer(
    client: MessageCalls, *, linger: Duration, max_bytes: int | None, timeout: Duration | None, timeout_default: float
) -> Producer:
    """A producer, its arguments checked."""
    linger_ms = milliseconds(linger, "linger")
    if not 0 <= linger_ms <= _LINGER_MS_MAX:
        raise InvalidArgument(f"linger must be 0 to {_LINGER_MS_MAX // 1000} seconds.")
    most = 64 * 1024 * 1024 if max_bytes is None else count(max_bytes, "max_bytes", 16 * 1024**3)
    waits_s = timeout_default if timeout is None else timeout_s(timeout)
    return Producer(client, linger_s=linger_ms / 1000, max_bytes=most, timeout_s=waits_s)
