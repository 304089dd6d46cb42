"""Publish: a batch as JSON, or one message as the raw bytes of the body."""

from __future__ import annotations

from typing import Any

import msgspec

from ..clock import from_ms
from ..engine.incoming import Checked, check_batch
from ..engine.publish import MADE_PUBLISH_ID_MARK, Publish, check_publish_id, make_publish_id
from ..errors import InvalidArgument, PublishUnknown
from ..message import Message, Receipt
from ..tenant import check_name
from .endpoint import Call, endpoint
from .fields import Delay, MessageId, Moment, Name, Partition, Payload, Priority, Texts, Ttl
from .problems import invalid

# A batch from here on is made into columns in a thread, so that the loop has its turns.
_MANY = 5_000


class About(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What belongs to a message besides its payload. On a queue: due (a moment or a wait), priority, lane."""

    id: MessageId | None = None
    key: str | None = None
    headers: Texts | None = None
    ttl_ms: Ttl | None = None
    expires_at_ms: Moment | None = None
    partition: Partition | None = None
    due_in_ms: Delay | None = None
    due_at_ms: Moment | None = None
    priority: Priority | None = None
    lane: Name | None = None


class NewMessage(About, forbid_unknown_fields=True, kw_only=True):
    """A message. Its payload is given once: as base64, as text, or as JSON, which is stored as it is written."""

    payload_base64: Payload | None = None
    payload_text: str | None = None
    payload_json: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


class NewMessages(msgspec.Struct, forbid_unknown_fields=True):
    """A batch to be stored, whole or not at all."""

    messages: list[NewMessage]


class OctetsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What belongs to a message whose payload is the body."""

    id: MessageId | None = None
    key: str | None = None
    ttl_ms: Ttl | None = None
    expires_at_ms: Moment | None = None
    partition: Partition | None = None
    due_in_ms: Delay | None = None
    due_at_ms: Moment | None = None
    priority: Priority | None = None
    lane: Name | None = None


class PlainMessage(msgspec.Struct, forbid_unknown_fields=True):
    """The common message: a payload and nothing else."""

    payload_base64: Payload


class PlainMessages(msgspec.Struct, forbid_unknown_fields=True):
    """The common batch, for which nothing has to be looked at message by message."""

    messages: list[PlainMessage]


class Span(msgspec.Struct):
    """`count` offsets of a partition, from `first_offset` on."""

    partition: int
    first_offset: int
    count: int


class Duplicate(msgspec.Struct):
    """A message that was not stored because its id is in use, and where the one is that has it."""

    index: int
    partition: int
    offset: int


class Published(msgspec.Struct):
    """The batch is on stable storage. `duplicate`: it had been before, and nothing was added now.

    `ids` are those of the messages, in the order given: yours, or made by Duly.
    """

    publish_id: str
    count: int
    duplicate: bool
    ids: list[str]
    spans: list[Span]
    duplicates: list[Duplicate]

    @classmethod
    def of(cls, receipt: Receipt) -> Published:
        return cls(
            receipt.publish_id,
            receipt.count,
            receipt.duplicate,
            receipt.ids,
            [Span(span.partition, span.first_offset, span.count) for span in receipt.spans],
            [Duplicate(index, *place) for index, place in receipt.duplicates.items()],
        )


_plain = msgspec.json.Decoder(PlainMessages)
_full = msgspec.json.Decoder(NewMessages)


class Batch:
    """Reads the body of a publish."""

    @staticmethod
    def decode(body: bytes) -> list[bytes] | list[NewMessage]:
        """The payloads of a plain batch, or the messages of any other."""
        try:
            return [message.payload_base64 for message in _plain.decode(body).messages]
        except msgspec.ValidationError:
            return _full.decode(body).messages


def messages_of(given: list[Any]) -> list[bytes] | list[Message]:
    if given and isinstance(given[0], bytes):
        return given
    found: list[Message] = []
    for index, wanted in enumerate(given):
        try:
            found.append(_message(_payload(wanted), wanted, wanted.headers))
        except InvalidArgument as error:
            raise invalid(f"Message {index}: {error}", index=index) from None
    return found


def _payload(wanted: NewMessage) -> bytes:
    raw = bytes(wanted.payload_json)
    given = [value for value in (wanted.payload_base64, wanted.payload_text, raw or None) if value is not None]
    if len(given) != 1:
        raise invalid("give one of payload_base64, payload_text and payload_json.")
    return given[0].encode() if isinstance(given[0], str) else given[0]


def _message(payload: bytes, about: About | OctetsQuery, headers: Texts | None) -> Message:
    if about.due_in_ms is not None and about.due_at_ms is not None:
        raise invalid("give due_in_ms or due_at_ms, not both.")
    wait = None if about.due_in_ms is None else about.due_in_ms / 1000
    return Message(
        payload,
        id=about.id,
        key=about.key,
        headers=headers,
        ttl=None if about.ttl_ms is None else about.ttl_ms / 1000,
        expires_at=None if about.expires_at_ms is None else from_ms(about.expires_at_ms),
        partition=about.partition,
        due=wait if about.due_at_ms is None else from_ms(about.due_at_ms),
        priority=about.priority,
        lane=about.lane,
    )


def _headers_of(call: Call) -> Texts | None:
    """A raw message's headers, which came as one header of JSON."""
    text = call.header(b"duly-headers")
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=Texts)
    except msgspec.MsgspecError as error:
        raise invalid(f"Duly-Headers is a JSON object of texts: {error}.") from error


def _checked(given: list[Any]) -> Checked:
    return check_batch(messages_of(given))


async def _batch(call: Call) -> Checked:
    if call.octets is not None:
        return check_batch(_message(call.octets, call.query, _headers_of(call)))
    given: list[Any] = call.body
    return _checked(given) if len(given) < _MANY else await call.in_thread(_checked, given)


@endpoint(
    "POST",
    "/v1/topics/{topic}/messages",
    tag="messages",
    does=(Publish,),
    body=NewMessages,
    octets=OctetsQuery,
    decoder=Batch,
    answer=Published,
    status=201,
    refuses=("topic_not_found", "invalid_argument", "limit_exceeded", "store_full", "publish_unknown", "not_ready"),
    takes_headers={
        "Idempotency-Key": "The publish id: repeated within a day it stores nothing twice.",
        "Duly-Headers": "The headers of a message sent as raw bytes: a JSON object of texts.",
    },
)
async def publish(call: Call) -> Published:
    """Store messages, whole or not at all: a batch as JSON, or one message as raw bytes (application/octet-stream).

    It answers when they are on stable storage. When it fails with 503 and `publish_unknown`, publish again with that
    `publish_id` as Idempotency-Key.
    """
    topic = check_name(call.topic, "name")
    batch = await _batch(call)
    given = call.header(b"idempotency-key")
    repeated = given is not None and check_publish_id(given).startswith(MADE_PUBLISH_ID_MARK)
    own = make_publish_id(call.broker.now_ms()) if given is None else given
    command = Publish(call.tenant, topic, batch, own, repeated)
    try:
        receipt = await call.do(command, cost=batch.bytes, publish_id=own)
    except TimeoutError:
        raise PublishUnknown(publish_id=own) from None
    return Published.of(receipt)
