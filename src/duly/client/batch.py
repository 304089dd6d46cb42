"""What a consumer holds: a batch of deliveries under one or more leases."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from ..causal import is_operation, operation_at
from ..clock import Duration, from_ms
from ..engine.claimed import Claimed, Parcel
from ..engine.verdict import Token, Verdicts
from ..errors import LeaseLost
from ..interrupt import SHIELD
from ..message import OPERATION, made_id

if TYPE_CHECKING:
    from types import TracebackType

    from .consuming import ConsumeCalls


_DELIVERED = ("payload", "id", "key", "headers", "lane", "priority", "due_at")


class Delivery:
    """A message under a lease. Settle it with ack, nack, release or bury; extend it while you work."""

    __slots__ = (
        "_batch",
        "_first_index",
        "_given_id",
        "_headers",
        "_index",
        "_lease_id",
        "_lost",
        "_parcel",
        "_queued",
        "_settled",
        "key",
        "offset",
        "payload",
        "published_at_ms",
    )

    def __init__(
        self,
        batch: Batch,
        parcel: Parcel,
        index: int,
        offset: int,
        published_at_ms: int,
        payload: bytes,
        given_id: str | None,
        key: str | None,
        headers: Mapping[str, str] | None,
        lane: str | None,
        priority: int | None,
        due_at: int | None,
    ) -> None:
        self._batch = batch
        self._parcel = parcel
        self._lease_id = parcel.lease_id
        # Part of a lease that is extended gets another lease and index; the parcel knows it by its first.
        self._index = self._first_index = index
        self._queued = (lane, priority, due_at)
        self._settled = False
        self._lost = False
        self.offset = offset
        self.published_at_ms = published_at_ms
        self.payload = payload
        self._given_id = given_id
        self.key = key
        self._headers = headers

    @property
    def id(self) -> str:
        """Its id: the one it was published with, or the one that Duly made."""
        return self._given_id or made_id(self._parcel.partition_id, self.offset)

    @property
    def topic(self) -> str:
        """The topic it was claimed from."""
        return self._batch.topic

    @property
    def group(self) -> str:
        """The group it was claimed for."""
        return self._batch.group

    @property
    def partition(self) -> int:
        """The partition it lies in."""
        return self._parcel.partition

    @property
    def headers(self) -> Mapping[str, str]:
        """Its headers."""
        return self._headers or {}

    @property
    def attempt(self) -> int:
        """Which delivery of this message this is, from 1 on."""
        attempts = self._parcel.attempts
        return self._parcel.attempt if attempts is None else attempts[self._first_index]

    @property
    def lane(self) -> str | None:
        """Its lane in a queue; None in the default lane."""
        return self._queued[0]

    @property
    def priority(self) -> int:
        """Its priority in a queue, as it was published."""
        return self._queued[1] or 0

    @property
    def due(self) -> datetime | None:
        """When it was due in a queue, as it was published; None: at once."""
        return None if self._queued[2] is None else from_ms(self._queued[2])

    @property
    def due_at_ms(self) -> int | None:
        """The same in milliseconds since 1970."""
        return self._queued[2]

    @property
    def published_at(self) -> datetime:
        """When it was stored, by the store's clock."""
        return from_ms(self.published_at_ms)

    @property
    def lease_expires_at(self) -> datetime:
        """Until when it is yours, unless extended."""
        return from_ms(self._batch.expires_at_ms(self._lease_id))

    @property
    def operation(self) -> str:
        """The operation that it belongs to, or that begins with it: `with duly.operation(d.operation): …`."""
        given = self.headers.get(OPERATION)
        if given is not None and is_operation(given):
            return given
        return operation_at(self.topic, self._parcel.partition_id, self.offset)

    @property
    def settled(self) -> bool:
        """Whether you have settled it through this object."""
        return self._settled

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled while you hold it, as far as the last extension (or renewal) told."""
        return self._batch.is_cancelled(self._lease_id, self._index)

    @property
    def lost(self) -> bool:
        """Whether its lease is known to have been lost, as far as the last settling, extension or renewal told."""
        return not self._settled and self._batch._has_lost(self)

    def json(self) -> Any:
        """The payload read as JSON."""
        return json.loads(self.payload)

    def ack(self, *, tx: Any = None, timeout: Duration | None = None) -> None:
        """Finishes it; with `tx` if and when that commits. Raises LeaseLost."""
        self._one(self._batch.client.ack([self], tx=tx, timeout=timeout))

    def nack(
        self,
        *,
        delay: Duration | None = None,
        reason: str = "",
        tx: Any = None,
        timeout: Duration | None = None,
    ) -> None:
        """Gives it back to be tried again, after `delay` or the retry policy's wait. Raises LeaseLost."""
        self._one(self._batch.client.nack([self], delay=delay, reason=reason, tx=tx, timeout=timeout))

    def release(self, *, delay: Duration | None = None, tx: Any = None, timeout: Duration | None = None) -> None:
        """Gives it back, at once or after `delay`; no attempt is counted. Raises LeaseLost."""
        self._one(self._batch.client.release([self], delay=delay, tx=tx, timeout=timeout))

    def bury(self, reason: str = "", *, tx: Any = None, timeout: Duration | None = None) -> None:
        """Moves it to the dead letters now. Raises LeaseLost."""
        self._one(self._batch.client.bury([self], reason=reason, tx=tx, timeout=timeout))

    def extend(self, lease: Duration | None = None, *, timeout: Duration | None = None) -> None:
        """Holds it for `lease` from now on; by default as long as it was first held for. Raises LeaseLost."""
        self._one(self._batch.client.extend([self], lease, timeout=timeout))

    def _lease_lost(self) -> LeaseLost:
        """The error that says so of this one."""
        return LeaseLost(f"The lease on message {self.id!r} expired or was taken over. Claim again; do not ack.")

    def _one(self, settled: Settled) -> None:
        if settled.lost:
            raise self._lease_lost()

    def __repr__(self) -> str:
        return f"<Delivery {self.id!r} of {self.topic!r} attempt {self.attempt}, {len(self.payload)} bytes>"


@dataclass(frozen=True, slots=True)
class Settled:
    """What a list form answers: how many were settled, and the deliveries whose lease was lost.

    `cancelled`: extended, but cancelled meanwhile. Ack them if the work is done; otherwise they are gone.
    """

    done: int
    lost: tuple[Delivery, ...] = ()
    cancelled: tuple[Delivery, ...] = ()


class Hold(NamedTuple):
    """Where a delivery stands in its lease, of so many messages: what settling it is made of."""

    incarnation: str
    lease_id: int
    position: int
    size: int


def hold_of(delivery: Delivery) -> Hold:
    """How a delivery is held, for whoever settles many at once without waiting."""
    batch = delivery._batch
    return Hold(batch.incarnation, delivery._lease_id, delivery._index, delivery._parcel.count)


class Batch(Sequence[Delivery]):
    """Deliveries of one claim. As a context manager it renews its leases while inside; what is not
    settled at the end is acked, or nacked when the block raised.
    """

    def __init__(self, client: ConsumeCalls, claimed: Claimed, acked: Settled | None = None) -> None:
        self.client = client
        # What became of the deliveries that were acked with this claim.
        self.acked = acked
        self.topic = claimed.topic
        self.group = claimed.group
        self.incarnation = claimed.incarnation
        self.lease_ms = claimed.lease_ms
        self._parcels = claimed.parcels
        self._count = claimed.count
        self._lock = threading.Lock()
        # Messages still open, and the end, of every lease of this batch.
        self._open = {parcel.lease_id: parcel.count for parcel in claimed.parcels}
        self._expires_at = dict.fromkeys(self._open, claimed.expires_at)
        self._lost: set[int] = set()
        # (lease, index) of messages that were cancelled meanwhile.
        self._cancelled: set[tuple[int, int]] = set()
        self._deliveries: list[Delivery] | None = None
        self._stop_renewal: Callable[[], None] | None = None
        self._pledges: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Delivery: ...
    @overload
    def __getitem__(self, index: slice) -> list[Delivery]: ...
    def __getitem__(self, index: int | slice) -> Delivery | list[Delivery]:
        return self.deliveries[index]

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self.deliveries)

    @property
    def deliveries(self) -> list[Delivery]:
        """The deliveries, in order; made when first asked for."""
        if self._deliveries is None:
            self._deliveries = [delivery for parcel in self._parcels for delivery in self._unpack(parcel)]
            if not all(self._open.values()):
                self.mark_settled()
        return self._deliveries

    @property
    def payloads(self) -> list[bytes]:
        """The payloads alone, in the order of the deliveries: the fastest way to read a big batch."""
        found: list[bytes] = []
        for parcel in self._parcels:
            for part in parcel.slices:
                found.extend(part.block.columns.values("payload", part.start, part.stop) or ())
        return found

    @property
    def lease_expires_at(self) -> datetime | None:
        """When the first of the leases still open ends; None when all is settled."""
        with self._lock:
            ends = [self._expires_at[lease] for lease, left in self._open.items() if left]
        return from_ms(min(ends)) if ends else None

    @property
    def lost(self) -> bool:
        """Whether something of this batch is known to be lost."""
        return bool(self._lost) or any(delivery._lost for delivery in self._deliveries or ())

    def expires_at_ms(self, lease_id: int) -> int:
        """The end of one lease."""
        return self._expires_at[lease_id]

    def _unpack(self, parcel: Parcel) -> Iterator[Delivery]:
        for part in parcel.slices:
            columns, none = part.block.columns, [None] * (part.stop - part.start)
            base = part.block.base
            offsets = columns.values("offset", part.start, part.stop) or range(base + part.start, base + part.stop)
            moments = columns.values("published_at", part.start, part.stop) or [part.block.published_at] * len(none)
            others = (columns.values(name, part.start, part.stop) or none for name in _DELIVERED)
            rows = zip(offsets, moments, *others, strict=True)
            for shift, (offset, moment, *row) in enumerate(rows):
                yield Delivery(self, parcel, part.first_index + shift, offset, moment, *row)

    # Settling

    def ack(self, *, tx: Any = None, timeout: Duration | None = None) -> Settled:
        """Finishes what is left of the batch; with `tx` if and when that commits."""
        return self.client.ack(self, tx=tx, timeout=timeout)

    def nack(
        self,
        *,
        delay: Duration | None = None,
        reason: str = "",
        tx: Any = None,
        timeout: Duration | None = None,
    ) -> Settled:
        """Gives back what is left of the batch, to be tried again."""
        return self.client.nack(self, delay=delay, reason=reason, tx=tx, timeout=timeout)

    def release(self, *, tx: Any = None, timeout: Duration | None = None) -> Settled:
        """Gives back what is left of the batch at once; no attempt is counted."""
        return self.client.release(self, tx=tx, timeout=timeout)

    def extend(self, lease: Duration | None = None, *, timeout: Duration | None = None) -> Settled:
        """Holds what is left of the batch for longer."""
        return self.client.extend(self, lease, timeout=timeout)

    def open_tokens(self) -> tuple[Token, ...]:
        """Tokens for everything that is not settled."""
        with self._lock:
            return tuple(Token(lease) for lease, left in self._open.items() if left)

    def apply(self, verdict: str, tokens: Iterable[Token], verdicts: Verdicts) -> None:
        """Takes note of how the store answered."""
        lost = {lease for lease, _ in verdicts.lost}
        with self._lock:
            self._cancelled.update(verdicts.renewed.get(pair, pair) for pair in verdicts.cancelled)
            for token in tokens:
                self._apply_one(verdict, token, verdicts, lost)

    def _apply_one(self, verdict: str, token: Token, verdicts: Verdicts, lost: set[int]) -> None:
        settles = verdict != "extend"
        if token.indexes is None:
            if not settles and not self._open[token.lease_id]:
                # It was settled while its renewal waited.
                return
            if token.lease_id in lost:
                self._lost.add(token.lease_id)
                self._open[token.lease_id] = 0
            elif settles:
                self._open[token.lease_id] = 0
            else:
                self._expires_at[token.lease_id] = verdicts.expires_at
            return
        gone = {index for lease, index in verdicts.lost if lease == token.lease_id}
        for index in token.indexes:
            renewed = verdicts.renewed.get((token.lease_id, index))
            if renewed is not None:
                self._open[token.lease_id] -= 1
                self._open[renewed[0]] = self._open.get(renewed[0], 0) + 1
                self._expires_at[renewed[0]] = verdicts.expires_at
            elif index in gone:
                continue
            elif settles:
                # A renewal under way at the same time may have found the lease gone, and noted it so already.
                self._open[token.lease_id] = max(0, self._open[token.lease_id] - 1)
            else:
                self._expires_at[token.lease_id] = verdicts.expires_at

    def as_it_is(self) -> Callable[[], None]:
        """What puts the batch back to how it stands now: for a transaction that is undone."""
        with self._lock:
            kept = (dict(self._open), dict(self._expires_at), set(self._lost), set(self._cancelled))
        known = {id(d): (d._lease_id, d._index, d._settled, d._lost) for d in self._deliveries or ()}

        def put_back() -> None:
            with self._lock:
                self._open, self._expires_at, self._lost, self._cancelled = kept
            for delivery in self._deliveries or ():
                before = (delivery._parcel.lease_id, delivery._first_index, False, False)
                delivery._lease_id, delivery._index, delivery._settled, delivery._lost = known.get(id(delivery), before)

        return put_back

    def pledged(self, undo: Callable[[], None]) -> None:
        """Something was settled in a transaction whose end is not heard of; `undo` takes that back."""
        self._pledges.append(undo)

    def is_cancelled(self, lease_id: int, index: int) -> bool:
        """Whether a message was cancelled while it is held."""
        return (lease_id, index) in self._cancelled

    def cancelled_deliveries(self) -> list[Delivery]:
        """Deliveries that were cancelled while they are held."""
        return [delivery for delivery in self.deliveries if delivery.cancelled] if self._cancelled else []

    def lost_deliveries(self) -> list[Delivery]:
        """Deliveries that are not settled and whose lease is known to be lost."""
        if not self._lost and self._deliveries is None:
            return []
        return [delivery for delivery in self.deliveries if not delivery._settled and self._has_lost(delivery)]

    def mark_settled(self) -> None:
        """Notes on every delivery whose lease has nothing open that it is settled, unless the lease was lost."""
        for delivery in self._deliveries or ():
            over = not self._open[delivery._lease_id] and not self._has_lost(delivery)
            delivery._settled = delivery._settled or over

    def _has_lost(self, delivery: Delivery) -> bool:
        return delivery._lost or delivery._lease_id in self._lost

    def __enter__(self) -> Batch:
        try:
            with SHIELD:
                if self._count:
                    self._stop_renewal = self.client.renew(self)
        except BaseException:
            # An interruption that waited for us: nobody will call __exit__, and it must not be renewed for ever.
            self._end_renewal()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_renewal()
        if error is not None:
            # What was settled in a transaction is most likely undone with it; if not, the store knows better.
            for undo in reversed(self._pledges):
                undo()
            self.nack(reason=f"{type(error).__name__}: {error}")
        elif lost := self._ack_rest().lost:
            raise LeaseLost(
                f"The lease on {len(lost)} of {self._count} messages expired or was taken over: they will be "
                "delivered again. Make the lease longer, or the batch smaller."
            )

    def _ack_rest(self) -> Settled:
        """Acks what is open; not what was settled in a transaction, which may have been rolled back since."""
        if not self._pledges:
            return self.ack()
        return self.client.ack([one for one in self.deliveries if not one._settled and not self._has_lost(one)])

    def _end_renewal(self) -> None:
        if self._stop_renewal is not None:
            self._stop_renewal()

    def __repr__(self) -> str:
        return f"<Batch of {self._count} from {self.topic!r} for group {self.group!r}>"
