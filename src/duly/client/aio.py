"""duly.aio: the names of duly.Client, awaited.

    async with duly.aio.connect("app.duly") as q:
        await q.publish("orders", b"one")
        async with q.claim("orders", group="billing", wait=5) as batch:
            async for d in batch:
                await d.ack()

Not a second client but a way into the first: each method runs as it is, in a thread (threads.py), with the same
arguments, answers and errors. What answers with an iterator is read with `async for`. Payload, id and all else
that is only looked at is at hand and not awaited; ack, nack, release, bury and extend are awaited.
A method that duly.Client gains is here by itself; its line below tells type checkers of it, and a test asks for that.

Cancelling is safe at any moment. A call that has begun runs to its end, whole; a claim stops waiting, and should it
bring something all the same, that is released at once, no attempt counted. A publish that was cancelled may be
stored or not: give it a publish_id to be able to repeat it. A cancelled `async with` block gives its batch
back as any block that raises does: nack.

A client may be used from several event loops at once. `on_event` is called in threads, not in a loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial, wraps
from inspect import Parameter, signature
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast, get_origin, get_type_hints

from ..clock import Duration, monotonic_s
from ..errors import Error, InvalidArgument, Timeout
from ..events import log
from ..store.awaited import Awaited, is_asyncio
from . import batch as plain
from .aio_producer import Producer
from .arguments import timeout_s
from .awaitables import Entering, Stream
from .client import Client as PlainClient
from .connect import connect as plain_connect
from .threads import Line, Threads

if TYPE_CHECKING:
    from ..store.sqlite.application import Transaction as PlainTransaction
else:
    PlainTransaction = object

P = ParamSpec("P")
R = TypeVar("R")


# How a method becomes one of ours. Which of the first four is only news to type checkers.


def _awaited(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """A method that is awaited."""

    @wraps(method)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        answer: R = await self._call(method, *args, **kwargs)
        return answer

    return call


def _settled(
    method: Callable[Concatenate[Any, P], plain.Settled],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, Settled]]:
    """A method that answers with what it settled."""
    return _awaited(cast(Any, method))


def _settling(
    method: Callable[Concatenate[Any, Any, P], plain.Settled],
) -> Callable[Concatenate[Any, Batch | Iterable[Delivery], P], Coroutine[Any, Any, Settled]]:
    """A method that takes deliveries, and answers with what it settled."""

    @wraps(method)
    async def call(self: Any, deliveries: Any, /, *args: P.args, **kwargs: P.kwargs) -> Settled:
        settled: Settled = await self._call(method, _bare_all(deliveries), *args, **kwargs)
        return settled

    return call


def _regained(
    method: Callable[Concatenate[Any, P], list[plain.Batch]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, list[Batch]]]:
    """A method that answers with batches."""
    return _awaited(cast(Any, method))


def _streamed(
    method: Callable[Concatenate[Any, P], Iterator[R]],
) -> Callable[Concatenate[Any, P], Stream[R]]:
    """A method whose answers are read with `async for`."""

    @wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Stream[R]:
        return Stream(partial(method, self._plain, *args, **kwargs), self._threads.line, self._dressed)

    return call


def _delivered(
    method: Callable[Concatenate[Any, P], Iterator[plain.Delivery]],
) -> Callable[Concatenate[Any, P], Stream[Delivery]]:
    """A method whose deliveries are read with `async for`."""
    return _streamed(cast(Any, method))


class _Call:
    """What has a plain object behind it, whose methods run in threads."""

    __slots__ = ("_client", "_plain")

    _plain: Any
    _client: Client

    async def _call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Runs a method in the pool. The time that it waits for a thread is part of its timeout.

        A call that is given a `wait` gets a thread of its own.
        """
        # In the task's context: it says which operation is published for.
        work = partial(copy_context().run, method, self._plain, *map(_bare, args))
        tx = kwargs.get("tx")
        if is_asyncio(tx):
            # The loop is free while a thread does this: the connection's own statements run there.
            kwargs["tx"] = Awaited(tx, asyncio.get_running_loop())
        if isinstance(tx, Transaction):
            return self._dressed(await tx.there(partial(work, **{**kwargs, "tx": tx._plain})))
        if kwargs.get("wait"):
            return self._dressed(await self._client._threads.wait(partial(work, **kwargs)))
        if "timeout" not in _parameters(method):
            return self._dressed(await self._client._threads.run(partial(work, **kwargs)))
        allowed = self._client._allowed_s(kwargs.pop("timeout", None))
        until = monotonic_s() + allowed

        def in_time() -> Any:
            left = until - monotonic_s()
            if left < 0.001:
                raise Timeout()
            return work(timeout=left, **kwargs)

        running = self._client._threads.run(in_time, timeout_s=allowed)
        return self._dressed(await (running if tx is None else _to_its_end(running)))

    def _dressed(self, answer: Any) -> Any:
        """An answer with our batches and deliveries in place of plain ones."""
        if isinstance(answer, plain.Batch):
            return Batch(self._client, answer)
        if isinstance(answer, plain.Delivery):
            return Delivery(self._client, answer)
        if isinstance(answer, plain.Settled):
            lost, cancelled = (tuple(map(self._dressed, some)) for some in (answer.lost, answer.cancelled))
            return Settled(answer.done, lost, cancelled)
        if isinstance(answer, list) and answer and isinstance(answer[0], plain.Batch):
            return [self._dressed(batch) for batch in answer]
        return answer


async def _to_its_end(work: Coroutine[Any, Any, R]) -> R:
    """Awaits what uses the application's transaction. A task that is cancelled meanwhile goes on when that has ended:
    what came after the rollback would be outside of it, and committed by itself.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            # It is nobody's any more.
            task.exception()
        raise


def _bare(value: Any) -> Any:
    """An argument with a plain batch or delivery in place of ours."""
    return value._plain if isinstance(value, (Batch, Delivery)) else value


def _bare_all(deliveries: Any) -> Any:
    """What is to be settled, as the plain client takes it; what is neither of ours is for that to refuse."""
    if isinstance(deliveries, Iterable) and not isinstance(deliveries, (Batch, plain.Batch)):
        return [_bare(one) for one in deliveries]
    return _bare(deliveries)


def _give_back(answer: Any) -> None:
    """What to do with an answer whose task is gone, in a thread."""
    try:
        if isinstance(answer, PlainClient):
            answer.close()
        elif isinstance(answer, (plain.Batch, plain.Delivery)):
            answer.release()
        elif isinstance(answer, list) and answer and isinstance(answer[0], plain.Batch):
            for batch in answer:
                batch.release()
    except Error as error:
        # Leases run out by themselves.
        log.warning("what a cancelled task had claimed could not be released: %s", error)


class Delivery(_Call):
    """A message under a lease, as duly.Delivery; what settles or extends it is awaited."""

    __slots__ = ()

    if TYPE_CHECKING:
        payload: bytes
        id: str
        key: str | None
        headers: Mapping[str, str]
        topic: str
        group: str
        partition: int
        offset: int
        attempt: int
        lane: str | None
        priority: int
        due: datetime | None
        published_at: datetime
        published_at_ms: int
        lease_expires_at: datetime
        operation: str
        settled: bool
        cancelled: bool
        lost: bool

        def json(self) -> Any: ...

    def __init__(self, client: Client, delivery: plain.Delivery) -> None:
        self._client = client
        self._plain = delivery

    ack = _awaited(plain.Delivery.ack)
    nack = _awaited(plain.Delivery.nack)
    release = _awaited(plain.Delivery.release)
    bury = _awaited(plain.Delivery.bury)
    extend = _awaited(plain.Delivery.extend)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            return _shown(self, name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Delivery) and self._plain is other._plain

    def __hash__(self) -> int:
        return hash(self._plain)

    def __repr__(self) -> str:
        return repr(self._plain)


class Transaction(PlainTransaction):
    """duly.Transaction for asyncio. All of it runs in one thread, in the order in which it was asked for.

    Nobody else writes while the block is open: await nothing slow inside it.
    """

    __slots__ = ("_line", "_plain", "_threads")

    def __init__(self, threads: Threads, transaction: PlainTransaction) -> None:
        self._threads = threads
        self._plain = transaction
        self._line: Line | None = None

    async def execute(self, sql: str, values: Any = ()) -> list[tuple[Any, ...]]:  # type: ignore[override]
        """Runs the application's own SQL and returns the rows that it gives."""
        return await self.there(partial(self._plain.execute, sql, values))

    async def executemany(self, sql: str, rows: Iterable[Any]) -> None:  # type: ignore[override]
        """Runs a statement of the application once for each of some rows of values."""
        await self.there(partial(self._plain.executemany, sql, rows))

    async def rollback(self) -> None:  # type: ignore[override]
        """Undoes everything."""
        await self.there(self._plain.rollback)

    async def there(self, work: Callable[[], R]) -> R:
        """Runs something in the thread of the transaction."""
        if self._line is None:
            raise InvalidArgument("The transaction is not open: use it as `async with q.transaction() as tx:`.")
        return await self._line.run(work)

    async def __aenter__(self) -> Transaction:
        self._line = self._threads.line()
        entering = asyncio.ensure_future(self._line.run(self._plain.__enter__))
        try:
            await asyncio.shield(entering)
        except BaseException:
            # Cancelled while it waited for others: once it is open it has to be closed again.
            await asyncio.wait([entering])
            if entering.exception() is None:
                await self._line.run(self._plain.rollback)
            self._line.let_go()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._line is not None
        leaving = asyncio.ensure_future(self._line.run(partial(self._plain.__exit__, kind, error, trace)))
        try:
            await asyncio.shield(leaving)
        finally:
            await asyncio.wait([leaving])
            self._line.let_go()


@dataclass(frozen=True, slots=True)
class Settled:
    """As duly.Settled: how many were settled, and the deliveries that were lost, or cancelled meanwhile."""

    done: int
    lost: tuple[Delivery, ...] = ()
    cancelled: tuple[Delivery, ...] = ()


class Batch(_Call):
    """Deliveries of one claim, as duly.Batch: in an `async with` block its leases are renewed, and what is not
    settled at the end is acked, or nacked when the block raised.
    """

    __slots__ = ("_deliveries",)

    if TYPE_CHECKING:
        topic: str
        group: str
        payloads: list[bytes]
        lease_expires_at: datetime | None
        lost: bool

    def __init__(self, client: Client, batch: plain.Batch) -> None:
        self._client = client
        self._plain = batch
        self._deliveries: list[Delivery] | None = None

    @property
    def deliveries(self) -> list[Delivery]:
        """The deliveries, in order; made when first asked for."""
        if self._deliveries is None:
            self._deliveries = [Delivery(self._client, one) for one in self._plain]
        return self._deliveries

    @property
    def acked(self) -> Settled | None:
        """What became of the deliveries that were acked with this claim."""
        acked: Settled | None = self._client._dressed(self._plain.acked)
        return acked

    ack = _settled(plain.Batch.ack)
    nack = _settled(plain.Batch.nack)
    release = _settled(plain.Batch.release)
    extend = _settled(plain.Batch.extend)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            return _shown(self, name)

    def __len__(self) -> int:
        return len(self._plain)

    def __getitem__(self, index: int) -> Delivery:
        return self.deliveries[index]

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self.deliveries)

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        for delivery in self.deliveries:
            yield delivery

    async def __aenter__(self) -> Batch:
        self._plain.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # However often its task is cancelled: left undone, the leases would be renewed for ever.
        await self._client._threads.finish(partial(self._plain.__exit__, kind, error, trace))

    def __repr__(self) -> str:
        return repr(self._plain)


def _shown(ours: Batch | Delivery, name: str) -> Any:
    """What can be looked at without asking the store; what asks it is awaited."""
    if name.startswith("_"):
        raise AttributeError(name)
    method = getattr(type(ours._plain), name, None)
    if callable(method) and "timeout" in _parameters(method):
        return partial(_awaited(method), ours)
    return getattr(ours._plain, name)


def _is_stream(method: Callable[..., Any]) -> bool:
    """Whether it answers with an iterator, as far as it says so."""
    answer = get_type_hints(method).get("return")
    kind = get_origin(answer) or answer
    return isinstance(kind, type) and issubclass(kind, Iterator)


@cache
def _parameters(method: Callable[..., Any]) -> Mapping[str, Parameter]:
    return signature(method).parameters


class Client(_Call):
    """duly.Client for asyncio. Made by `duly.aio.connect`; close it, or use it as a context manager."""

    __slots__ = ("_threads",)

    def __init__(self, client: PlainClient, threads: Threads) -> None:
        self._client = self
        self._plain = client
        self._threads = threads

    # mypy minds that `self` could be one of the settings.
    create_topic = _awaited(PlainClient.create_topic)  # type: ignore[arg-type]
    update_topic = _awaited(PlainClient.update_topic)  # type: ignore[arg-type]
    describe_topic = _awaited(PlainClient.describe_topic)
    list_topics = _awaited(PlainClient.list_topics)
    delete_topic = _awaited(PlainClient.delete_topic)
    create_tenant = _awaited(PlainClient.create_tenant)  # type: ignore[arg-type]
    update_tenant = _awaited(PlainClient.update_tenant)  # type: ignore[arg-type]
    describe_tenant = _awaited(PlainClient.describe_tenant)
    list_tenants = _awaited(PlainClient.list_tenants)
    suspend_tenant = _awaited(PlainClient.suspend_tenant)
    resume_tenant = _awaited(PlainClient.resume_tenant)
    delete_tenant = _awaited(PlainClient.delete_tenant)
    operations = _awaited(PlainClient.operations)

    create_push = _awaited(PlainClient.create_push)
    update_push = _awaited(PlainClient.update_push)  # type: ignore[arg-type]
    delete_push = _awaited(PlainClient.delete_push)
    pause_push = _awaited(PlainClient.pause_push)
    resume_push = _awaited(PlainClient.resume_push)
    describe_push = _awaited(PlainClient.describe_push)
    pushes = _awaited(PlainClient.pushes)
    rotate_push_secret = _awaited(PlainClient.rotate_push_secret)
    test_push = _awaited(PlainClient.test_push)
    resume_operation = _awaited(PlainClient.resume_operation)
    stop_operation = _awaited(PlainClient.stop_operation)
    create_schedule = _awaited(PlainClient.create_schedule)  # type: ignore[arg-type]
    update_schedule = _awaited(PlainClient.update_schedule)  # type: ignore[arg-type]
    delete_schedule = _awaited(PlainClient.delete_schedule)
    pause_schedule = _awaited(PlainClient.pause_schedule)
    resume_schedule = _awaited(PlainClient.resume_schedule)
    describe_schedule = _awaited(PlainClient.describe_schedule)
    schedules = _awaited(PlainClient.schedules)
    preview_schedule = _awaited(PlainClient.preview_schedule)
    audit = _streamed(PlainClient.audit)
    pause = _awaited(PlainClient.pause)
    resume = _awaited(PlainClient.resume)
    purge = _awaited(PlainClient.purge)
    archived = _awaited(PlainClient.archived)
    create_group = _awaited(PlainClient.create_group)  # type: ignore[arg-type]
    update_group = _awaited(PlainClient.update_group)  # type: ignore[arg-type]
    describe_group = _awaited(PlainClient.describe_group)
    list_groups = _awaited(PlainClient.list_groups)
    delete_group = _awaited(PlainClient.delete_group)
    seek = _awaited(PlainClient.seek)
    publish = _awaited(PlainClient.publish)
    read = _awaited(PlainClient.read)
    read_arrow = _streamed(PlainClient.read_arrow)
    offset_at = _awaited(PlainClient.offset_at)
    stage = _awaited(PlainClient.stage)
    commit_stages = _awaited(PlainClient.commit_stages)
    drop_stages = _awaited(PlainClient.drop_stages)
    move = _awaited(PlainClient.move)
    cancel = _awaited(PlainClient.cancel)
    get = _awaited(PlainClient.get)
    browse = _awaited(PlainClient.browse)
    coming = _awaited(PlainClient.coming)
    ack = _settling(PlainClient.ack)
    nack = _settling(PlainClient.nack)
    extend = _settling(PlainClient.extend)
    bury = _settling(PlainClient.bury)
    held = _regained(PlainClient.held)
    dead = _streamed(PlainClient.dead)
    redrive = _awaited(PlainClient.redrive)
    replay = _awaited(PlainClient.replay)
    examine = _streamed(PlainClient.examine)
    health = _awaited(PlainClient.health)
    forecast = _awaited(PlainClient.forecast)
    forecasts = _awaited(PlainClient.forecasts)
    cluster = _awaited(PlainClient.cluster)
    limits = _awaited(PlainClient.limits)
    consume = _delivered(PlainClient.consume)
    events = _streamed(PlainClient.events)
    await_messages = _awaited(PlainClient.await_messages)
    pause_store = _awaited(PlainClient.pause_store)
    resume_store = _awaited(PlainClient.resume_store)
    put_principal = _awaited(PlainClient.put_principal)
    list_principals = _awaited(PlainClient.list_principals)
    delete_principal = _awaited(PlainClient.delete_principal)
    create_key = _awaited(PlainClient.create_key)
    rotate_key = _awaited(PlainClient.rotate_key)
    revoke_key = _awaited(PlainClient.revoke_key)
    list_keys = _awaited(PlainClient.list_keys)
    clock = _awaited(PlainClient.clock)
    accept_clock = _awaited(PlainClient.accept_clock)
    backup = _awaited(PlainClient.backup)

    # None of these can be told to type checkers in a line: deliveries that may be left out, and a batch alone.

    def claim(
        self,
        topic: str,
        *,
        group: str | None = None,
        max_messages: int = 100,
        max_bytes: int | None = None,
        wait: Duration = 0,
        lease: Duration | None = None,
        consumer: str | None = None,
        acks: Batch | Iterable[Delivery] | None = None,
        timeout: Duration | None = None,
    ) -> Entering[Batch]:
        """Takes up to `max_messages` due messages under a lease, waiting up to `wait` for the first; before that it
        acks what is done with, in the same transaction.
        """
        size = {"max_messages": max_messages, "max_bytes": max_bytes}
        whose = {"group": group, "consumer": consumer, "acks": None if acks is None else _bare_all(acks)}
        claimed = self._call(PlainClient.claim, topic, **whose, **size, wait=wait, lease=lease, timeout=timeout)
        return Entering(claimed)

    async def release(
        self,
        deliveries: Batch | Iterable[Delivery] | None = None,
        *,
        delay: Duration | None = None,
        consumer: str | None = None,
        topic: str | None = None,
        group: str | None = None,
        tx: Any = None,
        timeout: Duration | None = None,
    ) -> Settled:
        """Gives deliveries back without counting an attempt, at once or after `delay`; or all that a (hung) consumer
        holds.
        """
        how = {"delay": delay, "consumer": consumer, "topic": topic, "group": group}
        settled: Settled = await self._call(PlainClient.release, _bare_all(deliveries), **how, tx=tx, timeout=timeout)
        return settled

    def producer(
        self, *, linger: Duration = 0.005, max_bytes: int | None = None, timeout: Duration | None = None
    ) -> Producer:
        """Gathers single publishes into batches: `async with q.producer() as p:`."""
        return Producer(self._threads, self._plain.producer(linger=linger, max_bytes=max_bytes, timeout=timeout))

    def transaction(self, *, timeout: Duration | None = None) -> Transaction:
        """The application's transaction: `async with q.transaction() as tx:`, and `tx=tx` to what joins it."""
        return Transaction(self._threads, self._plain.transaction(timeout=timeout))

    async def renew(self, batch: Batch) -> Callable[[], None]:
        """Renews a batch in the background until the returned function is called."""
        stop: Callable[[], None] = await self._call(PlainClient.renew, batch)
        return stop

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """What duly.Client has gained since: awaited, or read with `async for`."""
            method = None if name.startswith("_") else getattr(PlainClient, name, None)
            if method is None:
                raise AttributeError(f"duly.aio.Client has no {name!r}")
            if not callable(method):
                return getattr(self._plain, name)
            return partial(_streamed(method) if _is_stream(method) else _awaited(method), self)

    @property
    def tenant(self) -> str:
        """The tenant whose topics these are."""
        return str(self._plain.tenant)

    @property
    def consumer(self) -> str:
        """The name under which this client claims."""
        return str(self._plain.consumer)

    def _allowed_s(self, timeout: Duration | None) -> float:
        own: float = self._plain._timeout_s
        return own if timeout is None else timeout_s(timeout)

    async def close(self) -> None:
        """Finishes what was accepted and lets go of the store; calls that wait end with Closed. Twice does nothing."""
        await self._threads.close(self._plain.close)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _opened(connect: Callable[P, PlainClient]) -> Callable[P, Entering[Client]]:
    @wraps(connect)
    def call(*args: P.args, **kwargs: P.kwargs) -> Entering[Client]:
        return Entering(_open(partial(connect, *args, **kwargs)))

    return call


async def _open(connect: Callable[[], PlainClient]) -> Client:
    threads = Threads(_give_back)
    try:
        return Client(await threads.run(connect), threads)
    except BaseException:
        threads.let_go()
        raise


connect = _opened(plain_connect)
