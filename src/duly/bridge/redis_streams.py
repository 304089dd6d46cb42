"""Redis Streams: a consumer group to take from, XADD to put into.

From Redis: one batch is under way at a time, and what Redis counts as pending for this consumer is that batch, whole:
XREADGROUP makes it pending, XACK of all its ids ends it at once. So whoever comes after a kill finds exactly what was
under way, and the publish id, a hash of the ids, is the one it had: Duly stores it once. What another consumer of the
group left pending for longer than `TAKE_OVER_MS` is claimed (XCLAIM), one consumer's batch at a time, for the same
reason.

Into Redis: a batch is one MULTI, with a note of which it was. A batch that is put again, after a kill or a line that
broke before the answer, is found in that note, as long as it is still the same batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ..errors import InvalidArgument
from .address import RedisPlace
from .entry import fields_of, of_fields
from .sides import Down, Taken

if TYPE_CHECKING:
    from ..client.batch import Delivery

R = TypeVar("R")

TAKE_OVER_MS = 5 * 60_000
# More than any batch has.
_ALL = 100_000
_ANSWERS_S = 10.0
_NOTE_S = 7 * 24 * 3600
_DOWN = (redis.ConnectionError, redis.TimeoutError, redis.exceptions.BusyLoadingError, redis.exceptions.ReadOnlyError)
# What Redis answers when it has to be waited for, though it is there.
_FOR_NOW = ("LOADING", "READONLY", "OOM", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "MISCONF", "NOREPLICAS", "BUSY ")


def connect(place: RedisPlace) -> Any:
    """A client; it connects when it is first used."""
    return redis.Redis(
        host=place.host,
        port=place.port,
        db=place.db,
        username=place.user,
        password=place.password,
        ssl=place.tls,
        protocol=2,
        socket_timeout=_ANSWERS_S,
        socket_connect_timeout=_ANSWERS_S,
        # What may have been done is not simply done again: see RedisSink.
        retry=Retry(NoBackoff(), 0),
    )


def asked(call: Callable[[], R]) -> R:
    """Asks Redis. Raises Down, or InvalidArgument for what a person has to put right."""
    try:
        return call()
    except redis.AuthenticationError as error:
        raise InvalidArgument(f"Redis lets nobody in with this name and password: {error}") from error
    except _DOWN as error:
        raise Down(str(error)) from error
    except redis.ResponseError as error:
        if str(error).startswith(_FOR_NOW) or type(error) is redis.exceptions.OutOfMemoryError:
            raise Down(str(error)) from error
        raise InvalidArgument(f"Redis does not do that: {error}") from error


class RedisSource:
    """Takes from a stream by a consumer group."""

    def __init__(self, place: RedisPlace, *, group: str, name: str, field: str | None = None) -> None:
        self._redis = connect(place)
        self._stream, self._group, self._name, self._field = place.stream, group, name, field
        # What was under way when it was last left is looked for first.
        self._recovers = True
        self._is_there = False

    def take(self, most: int, wait_s: float) -> Taken | None:
        self._make_group()
        if self._recovers:
            found = self._read("0", _ALL, None)
            if found:
                return self._taken(found)
            self._recovers = False
        found = self._read(">", most, max(1, round(wait_s * 1000)))
        if not found:
            # Nothing new: somebody may have left something.
            self._recovers = self._take_over()
            return self.take(most, 0) if self._recovers else None
        return self._taken(found)

    def done(self, taken: Taken) -> None:
        self._recovers = True
        asked(lambda: self._redis.xack(self._stream, self._group, *taken.mark))
        self._recovers = False

    def close(self) -> None:
        self._redis.close()

    def _make_group(self) -> None:
        if self._is_there:
            return
        try:
            asked(lambda: self._redis.xgroup_create(self._stream, self._group, id="0", mkstream=True))
        except InvalidArgument as error:
            if "BUSYGROUP" not in str(error):
                raise
        self._is_there = True

    def _read(self, after: str, most: int, block_ms: int | None) -> list[tuple[bytes, dict[bytes, bytes] | None]]:
        try:
            found: Any = asked(
                lambda: self._redis.xreadgroup(
                    self._group, self._name, {self._stream: after}, count=most, block=block_ms
                )
            )
        except Down:
            # An answer may be on its way that nobody hears: those entries are pending.
            self._recovers = True
            raise
        except InvalidArgument as error:
            # The stream was deleted and made anew, perhaps.
            self._is_there = "NOGROUP" not in str(error)
            if self._is_there:
                raise
            raise Down(str(error)) from error
        return list(found[0][1]) if found else []

    def _take_over(self) -> bool:
        """Claims what one other consumer left. Whether there was something."""
        consumers: Any = asked(lambda: self._redis.xinfo_consumers(self._stream, self._group))
        for one in consumers:
            if one["pending"] and one["name"] != self._name.encode() and (ids := self._left_by(one["name"])):
                asked(lambda: self._redis.xclaim(self._stream, self._group, self._name, TAKE_OVER_MS, ids, justid=True))
                return True
        return False

    def _left_by(self, other: bytes) -> list[bytes]:
        pending: Any = asked(
            lambda: self._redis.xpending_range(
                self._stream, self._group, "-", "+", _ALL, consumername=other, idle=TAKE_OVER_MS
            )
        )
        return [entry["message_id"] for entry in pending]

    def _taken(self, found: list[tuple[bytes, dict[bytes, bytes] | None]]) -> Taken:
        """A batch. What was deleted from the stream while it was pending has no fields: nobody has it any more."""
        ids = [entry_id for entry_id, _ in found]
        name = hashlib.sha256(b"\0".join([self._stream.encode(), self._group.encode(), *ids])).hexdigest()
        entries = []
        for entry_id, fields in found:
            if fields:
                shown = entry_id.decode()
                place = f"redis/{self._stream}/{shown}"
                entries.append(of_fields(place, int(shown.partition("-")[0]), fields, self._field))
        return Taken(entries, f"redis-{name[:48]}", ids)


class RedisSink:
    """Appends to a stream."""

    def __init__(self, place: RedisPlace, *, name: str) -> None:
        self._redis = connect(place)
        self._stream = place.stream
        # In a cluster, by the braces, on the stream's own server.
        self._note = f"{{{place.stream}}}:duly-bridge:{name}"
        self._doubts = True

    def put(self, deliveries: Sequence[Delivery]) -> dict[int, str]:
        name = batch_name(deliveries)
        if self._doubts and asked(lambda: self._redis.get(self._note)) == name.encode():
            self._doubts = False
            return {}
        self._doubts = True
        pipe = self._redis.pipeline(transaction=True)
        for delivery in deliveries:
            pipe.xadd(self._stream, fields_of(delivery))
        pipe.set(self._note, name, ex=_NOTE_S)
        asked(pipe.execute)
        self._doubts = False
        return {}

    def close(self) -> None:
        self._redis.close()


def batch_name(deliveries: Sequence[Delivery]) -> str:
    """A name that nothing but these messages have together."""
    return hashlib.sha256("\0".join(sorted(map(place_name, deliveries))).encode()).hexdigest()


def place_name(delivery: Delivery) -> str:
    """The name of a message that no other has, in no other store: its place, which is never given again."""
    return f"{delivery._batch.incarnation}-{delivery._parcel.partition_id}-{delivery.offset}"
