"""What is published or staged, on its way to the broker: lists in msgpack when few, else an Arrow record batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from ..engine.incoming import Checked, check_columns
from ..engine.publish import Publish, check_publish_id
from ..engine.stage import Stage, check_stage
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
    # To be staged and not published: the stage, and the number of the call. It has no publish id.
    stage: str = ""
    number: int = 0


_decoder = msgspec.msgpack.Decoder(Published)


def to_wire(command: Publish | Stage, timeout_ms: int) -> tuple[Published, pa.RecordBatch | None]:
    """What is sent."""
    batch = command.batch
    published = Published(
        command.tenant,
        command.topic,
        command.publish_id if isinstance(command, Publish) else "",
        isinstance(command, Publish) and command.repeated,
        batch.relative,
        None if batch.partitions is None else batch.partitions.tolist(),
        dict(batch.columns.listed) if batch.columns.arrow is None else None,
        timeout_ms,
    )
    if isinstance(command, Stage):
        published = replace(published, stage=command.stage, number=command.number)
    return published, batch.columns.arrow


def decode(body: bytes | memoryview) -> Published:
    """What a broker received, before its messages are looked at. Raises InvalidArgument."""
    with unpacking("What came with the batch is not its description"):
        return _decoder.decode(body)


def from_wire(published: Published, batch: pa.RecordBatch | None) -> Publish:
    """The command, checked as if it had been made here."""
    check_publish_id(published.publish_id)
    checked = _checked(published, batch)
    return Publish(published.tenant, published.topic, checked, published.publish_id, published.repeated)


def stage_from_wire(published: Published, batch: pa.RecordBatch | None) -> Stage:
    """The same of a batch that is staged."""
    check_stage(published.stage, published.number)
    return Stage(published.tenant, published.topic, published.stage, published.number, _checked(published, batch))


def _checked(published: Published, batch: pa.RecordBatch | None) -> Checked:
    if published.tenant:
        check_name(published.tenant, "tenant name")
    check_name(published.topic, "topic name")
    if (batch is None) == (published.lists is None):
        raise InvalidArgument("Send messages as a record batch, or as lists.")
    return _check_lists(published) if batch is None else _check_batch(published, batch)


def _check_lists(published: Published) -> Checked:
    return check_columns(published.lists, published.partitions, relative=published.relative)


def _check_batch(published: Published, batch: pa.RecordBatch) -> Checked:
    import pyarrow as pa

    try:
        return check_columns(batch, published.partitions, relative=published.relative)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        # A schema that a flipped bit made: names that are no text, types that nobody has.
        raise InvalidArgument(f"The record batch cannot be read: {type(error).__name__}.") from error
