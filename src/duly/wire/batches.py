"""What is published, on its way to the broker: lists in msgpack when messages are few, else an Arrow record batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ..engine.incoming import Checked, check_columns
from ..engine.publish import Publish, check_publish_id
from ..errors import InvalidArgument
from ..tenant import check_name
from .operations import unpacking

if TYPE_CHECKING:
    import pyarrow as pa


class Published(msgspec.Struct, frozen=True):
    """A batch without its record batch; `lists` has the messages when they are few, `partitions` what they name."""

    tenant: str
    topic: str
    publish_id: str
    repeated: bool = False
    # Its due times or expiries are durations, counted from when it is stored.
    relative: bool = False
    partitions: list[int] | None = None
    lists: dict[str, list[Any]] | None = None
    timeout_ms: int = 30_000


_decoder = msgspec.msgpack.Decoder(Published)


def to_wire(command: Publish, timeout_ms: int) -> tuple[Published, pa.RecordBatch | None]:
    """What is sent."""
    batch = command.batch
    lists = dict(batch.columns.listed) if batch.columns.arrow is None else None
    partitions = None if batch.partitions is None else batch.partitions.tolist()
    published = Published(
        command.tenant,
        command.topic,
        command.publish_id,
        command.repeated,
        batch.relative,
        partitions,
        lists,
        timeout_ms,
    )
    return published, batch.columns.arrow


def decode(body: bytes | memoryview) -> Published:
    """What a broker received, before its messages are looked at. Raises InvalidArgument."""
    with unpacking("What came with the batch is not its description"):
        return _decoder.decode(body)


def from_wire(published: Published, batch: pa.RecordBatch | None) -> Publish:
    """The command, checked as if it had been made here."""
    check_name(published.tenant, "tenant name")
    check_name(published.topic, "topic name")
    check_publish_id(published.publish_id)
    if (batch is None) == (published.lists is None):
        raise InvalidArgument("Send messages as a record batch, or as lists.")
    checked = _check_lists(published) if batch is None else _check_batch(published, batch)
    return Publish(published.tenant, published.topic, checked, published.publish_id, published.repeated)


def _check_lists(published: Published) -> Checked:
    return check_columns(published.lists, published.partitions, relative=published.relative)


def _check_batch(published: Published, batch: pa.RecordBatch) -> Checked:
    import pyarrow as pa

    try:
        return check_columns(batch, published.partitions, relative=published.relative)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        # A schema that a flipped bit made: names that are no text, types that nobody has.
        raise InvalidArgument(f"The record batch cannot be read: {type(error).__name__}.") from error
