"""tail: whether a log has grown past given places, for those who wait at its end."""

from __future__ import annotations

import msgspec

from ..store.contract import Transaction
from .find import find_log, head_of
from .read import partition_id


class Tail(msgspec.Struct, frozen=True):
    """Places at the end of a log: (partition, offset) pairs."""

    tenant: str
    topic: str
    places: tuple[tuple[int, int], ...]


class Tailed(msgspec.Struct, frozen=True):
    """The partitions that have a message there by now, and what to listen to for the others."""

    grown: tuple[int, ...]
    partitions: tuple[int, ...]


def tail(tx: Transaction, command: Tail) -> Tailed:
    """Looks whether there are messages from the places on."""
    topic = find_log(tx, command.tenant, command.topic)
    partitions = [partition_id(topic, number) for number, _ in command.places]
    grown = tuple(
        number
        for (number, offset), partition in zip(command.places, partitions, strict=True)
        if head_of(tx, topic.tenant_id, partition).next_offset > offset
    )
    return Tailed(grown, tuple(partitions))
