"""What a request carries: a message as it is, with its facts as headers; or a batch of messages as JSON.

Nothing of a message gets into a header as it is: what is not plain ASCII is percent-encoded, so that no text can end a
header and begin another. Header names are ours, or were checked when the push was made.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote

import msgspec

from ...client.batch import Delivery
from ...message import OPERATION
from ...push import HEADERS_KEPT, RunningPush
from .signing import id_of, sign

JSON, OCTETS = "application/json", "application/octet-stream"

_CONTENT_TYPE = "content-type"
# A media type, with parameters. Another text in a message's header of this name says nothing to anybody.
_MEDIA_TYPE = re.compile(r"[!#$&^_.+\w-]+/[!#$&^_.+\w-]+(\s*;\s*[\x21-\x7e ]+)?", re.ASCII)
_PLAIN = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")

_encoder = msgspec.json.Encoder()


class Content(msgspec.Struct, frozen=True):
    """A request's headers and its body."""

    headers: dict[str, str]
    body: bytes


class Pushed(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A message in a batch, told as REST tells it. `attempt` counts deliveries, from 1 on."""

    id: str
    partition: int
    offset: int
    attempt: int
    published_at_ms: int
    payload_base64: bytes
    key: str | None = None
    headers: Mapping[str, str] = {}
    lane: str | None = None
    priority: int = 0
    due_at_ms: int | None = None


class PushedBatch(msgspec.Struct):
    """The body of a request with several messages."""

    topic: str
    group: str
    messages: list[Pushed]


def content_of(push: RunningPush, deliveries: Sequence[Delivery], *, batch: bool, at_ms: int) -> Content:
    """The request that delivers these: one message as it is, or a batch of at least one."""
    if batch:
        body = _encoder.encode(PushedBatch(push.topic, push.group, [_pushed(one) for one in deliveries]))
        own = {_CONTENT_TYPE: JSON, "duly-topic": _text(push.topic), "duly-group": _text(push.group)}
    else:
        [one] = deliveries
        body = one.payload
        own = _facts(push, one)
    webhook_id = _webhook_id(push, deliveries)
    return sealed(push, own, body, webhook_id=webhook_id, at_ms=at_ms)


def trial_of(push: RunningPush, *, at_ms: int) -> Content:
    """A request that delivers nothing: for whoever wants to see whether the endpoint answers."""
    body = _encoder.encode({"type": "duly.test", "push": push.name, "topic": push.topic, "sent_at_ms": at_ms})
    own = {_CONTENT_TYPE: JSON, "duly-topic": _text(push.topic), "duly-group": _text(push.group), "duly-test": "true"}
    return sealed(push, own, body, webhook_id=id_of("test", push.tenant, push.name, at_ms), at_ms=at_ms)


def sealed(push: RunningPush, own: Mapping[str, str], body: bytes, *, webhook_id: str, at_ms: int) -> Content:
    """The push's own headers, ours over them, and the signature over all."""
    given = {name.lower(): value for name, value in push.to.headers.items()}  # type: ignore[union-attr]
    headers = {_CONTENT_TYPE: OCTETS} | {name: given[name] for name in given.keys() - HEADERS_KEPT} | dict(own)
    headers.update(sign(push.secrets, webhook_id=webhook_id, at_s=at_ms // 1000, body=body))
    return Content(headers, body)


def _webhook_id(push: RunningPush, deliveries: Sequence[Delivery]) -> str:
    """The same for the same messages, whenever they are tried."""
    places = [fact for one in deliveries for fact in (one.partition, one.offset, one.published_at_ms)]
    return id_of(push.tenant, push.topic, push.group, *places)


def _facts(push: RunningPush, one: Delivery) -> dict[str, str]:
    facts = {
        "duly-topic": _text(push.topic),
        "duly-group": _text(push.group),
        "duly-id": _text(one.id),
        "duly-partition": str(one.partition),
        "duly-offset": str(one.offset),
        "duly-attempt": str(one.attempt),
        "duly-published-at-ms": str(one.published_at_ms),
        OPERATION: _text(one.operation),
    }
    if one.key is not None:
        facts["duly-key"] = _text(one.key)
    if one.lane is not None:
        facts["duly-lane"] = _text(one.lane)
    if one.priority:
        facts["duly-priority"] = str(one.priority)
    if one.due_at_ms is not None:
        facts["duly-due-at-ms"] = str(one.due_at_ms)
    given = one.headers
    if given:
        kind = next((value for name, value in given.items() if name.lower() == _CONTENT_TYPE), "")
        if _MEDIA_TYPE.fullmatch(kind):
            facts[_CONTENT_TYPE] = kind
        facts["duly-headers"] = _text(_encoder.encode(dict(given)).decode())
    return facts


def _text(text: str) -> str:
    """A text as it may stand in a header; percent-decoded it is itself again."""
    as_it_is = text.isascii() and text.isprintable() and "%" not in text and text == text.strip()
    return text if as_it_is else quote(text, safe=_PLAIN, errors="replace")


def _pushed(one: Delivery) -> Pushed:
    return Pushed(
        id=one.id,
        partition=one.partition,
        offset=one.offset,
        attempt=one.attempt,
        published_at_ms=one.published_at_ms,
        payload_base64=one.payload,
        key=one.key,
        headers=one.headers,
        lane=one.lane,
        priority=one.priority,
        due_at_ms=one.due_at_ms,
    )
