"""Replay: messages of a log go back to one group."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ..engine.replay import Replay
from ..limits import LIMITS
from ..message import MADE_ID_MARK, Replayed, StoredMessage
from .endpoint import Call, endpoint
from .fields import MessageId, Moment, Partition, Payload, Texts, Whole

_FOUND = ("topic_not_found", "group_not_found", "invalid_argument", "limit_exceeded", "store_full")


class Copy(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A message that the log may have dropped."""

    offset: Whole
    id: MessageId | None = None
    payload_base64: Payload
    key: str | None = None
    headers: Texts = {}
    published_at_ms: Moment
    expires_at_ms: Moment | None = None

    def stored(self, partition: int) -> StoredMessage:
        """The same, as the Python API has it."""
        return StoredMessage(
            partition=partition,
            offset=self.offset,
            id=MADE_ID_MARK if self.id is None else self.id,
            payload=self.payload_base64,
            key=self.key,
            headers=self.headers,
            published_at_ms=self.published_at_ms,
            expires_at_ms=self.expires_at_ms,
        )


class WantedReplay(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Messages of a partition, by offset, or as copies.

    `incarnation` and `partition_id` are those of the topic's description when the offsets were noted.
    """

    partition: Partition = 0
    incarnation: Annotated[str, Meta(max_length=64)]
    partition_id: Whole
    offsets: Annotated[list[Whole], Meta(max_length=LIMITS.replay_messages_max)] = []
    copies: Annotated[list[Copy], Meta(max_length=LIMITS.replay_messages_max)] = []


@endpoint(
    "PUT",
    "/v1/topics/{topic}/groups/{group}/replays/{job}/{version}",
    tag="groups",
    does=(Replay,),
    body=WantedReplay,
    answer=Replayed,
    refuses=(*_FOUND, "stale_version", "offset_truncated", "busy"),
)
def replay(call: Call) -> Replayed:
    """Send messages of a log back to one group, under their own offsets, as a version of a job.

    What the group has in its backlog is left alone. A version that is not above the job's newest was done before.
    """
    wanted: WantedReplay = call.body
    return call.client.replay(
        call.topic,
        [*wanted.offsets, *(copy.stored(wanted.partition) for copy in wanted.copies)],
        group=call.path["group"],
        of=(wanted.incarnation, wanted.partition_id),
        job=call.path["job"],
        version=call.number("version"),
        partition=wanted.partition,
    )
