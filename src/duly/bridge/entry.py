"""A message on its way through a bridge, and how it is written in Redis and in NATS.

In a Redis stream a message's fields are

    payload, key, id, due, priority, lane     as they are; due in milliseconds since 1970
    h:NAME                                    a header

An entry of somebody else's that has no field `payload` becomes a JSON object of all its fields; with `--field NAME`
that field is the payload, and the other ones are headers. In NATS the payload is the data and headers are headers; key,
id, due, priority and lane travel as `Duly-Key`, …, and headers that NATS cannot write together in one, as JSON.

Where it came from is in the header `duly-from`: redis/STREAM/ID, nats/STREAM/SEQUENCE; of a message of a topic
topic/PARTITION/OFFSET.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from ..clock import from_ms, moment_ms
from ..errors import Error, InvalidArgument
from ..expression import Expression, Subject
from ..limits import LIMITS
from ..message import MADE_ID_MARK, Message

if TYPE_CHECKING:
    from ..client.batch import Delivery

FROM, ERROR, SUBJECT = "duly-from", "duly-bridge-error", "nats-subject"
_OWN = ("key", "id", "due", "priority", "lane")
_OTHERS = "Duly-Headers"
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class Entry(msgspec.Struct, frozen=True):
    """A message of the other side. `own` are the texts of key, id, due, priority and lane, as far as it has them."""

    place: str
    published_ms: int
    payload: bytes
    own: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}


class Shape(msgspec.Struct, frozen=True):
    """How entries become messages of a topic."""

    into_queue: bool
    due: Expression | None = None
    priority: Expression | None = None
    lane: Expression | None = None

    def message(self, entry: Entry, topic: str, now_ms: int) -> Message:
        """The message. What cannot be said of it is left out, and why is in a header: it is not lost for that."""
        fields: dict[str, Any] = {}
        wrong: list[str] = []
        asked = (("key", None), ("id", None)) if not self.into_queue else self._asked()
        subject = None
        for name, expression in asked:
            try:
                if expression is None:
                    value = _own(name, entry.own.get(name))
                else:
                    subject = subject or _subject(entry, topic, now_ms)
                    value = _moment(expression.due_ms(subject)) if name == "due" else getattr(expression, name)(subject)
            except InvalidArgument as error:
                wrong.append(str(error))
                continue
            if value is not None:
                fields[name] = value
        headers = {**_fitting(entry.headers), FROM: entry.place}
        if wrong:
            headers[ERROR] = " ".join(wrong)[:500]
        return Message(entry.payload, headers=headers, **fields)

    def _asked(self) -> tuple[tuple[str, Expression | None], ...]:
        return (
            ("key", None),
            ("id", None),
            ("due", self.due),
            ("priority", self.priority),
            ("lane", self.lane),
        )


def _subject(entry: Entry, topic: str, now_ms: int) -> Subject:
    due, priority = entry.own.get("due", ""), entry.own.get("priority", "")
    return Subject(
        entry.payload,
        now_ms=now_ms,
        published_ms=entry.published_ms,
        topic=topic,
        id=entry.own.get("id") or entry.place,
        key=entry.own.get("key"),
        headers=entry.headers,
        lane=entry.own.get("lane"),
        priority=int(priority) if priority.isdigit() and len(priority) < 6 else 0,
        due_ms=int(due) if due.isdigit() and len(due) < 16 else None,
    )


def _own(name: str, text: str | None) -> Any:
    """What an entry says itself, of a kind that a message takes."""
    if not text:
        return None
    if name == "due":
        if not text.isdigit() or len(text) > 15:
            raise InvalidArgument("due is milliseconds since 1970.")
        return _moment(int(text))
    if name == "priority":
        if not text.isdigit() or not int(text[:9]) <= LIMITS.priority_max:
            raise InvalidArgument(f"priority is 0 to {LIMITS.priority_max}.")
        return int(text)
    most = {"key": LIMITS.key_bytes_max, "id": LIMITS.id_bytes_max}.get(name, LIMITS.name_chars_max)
    if len(text.encode()) > most or (name == "lane" and not text.isprintable()):
        raise InvalidArgument(f"{name} has at most {most} bytes, and a lane printable characters.")
    return None if name == "id" and text.startswith(MADE_ID_MARK) else text


def _moment(at_ms: int | None) -> Any:
    if at_ms is None:
        return None
    try:
        return from_ms(at_ms)
    except OverflowError as error:
        raise InvalidArgument("due is beyond the year 9999.") from error


def _fitting(headers: Mapping[str, str]) -> dict[str, str]:
    """As many headers as a message takes, with ours."""
    found: dict[str, str] = {}
    left = LIMITS.headers_bytes_max - 2048
    for name, text in headers.items():
        left -= len(name.encode()) + len(text.encode())
        if left < 0 or len(found) >= LIMITS.headers_max - 2:
            break
        found[name] = text
    return found


# Redis


def of_fields(place: str, published_ms: int, fields: Mapping[bytes, bytes], payload_field: str | None) -> Entry:
    """An entry of a Redis stream."""
    body = (payload_field or "payload").encode()
    if body not in fields:
        payload = json.dumps({_text(name): _value(value) for name, value in fields.items()}, ensure_ascii=False)
        return Entry(place, published_ms, payload.encode())
    own: dict[str, str] = {}
    headers: dict[str, str] = {}
    for name, value in fields.items():
        known = _text(name)
        if name == body:
            continue
        if payload_field is None and known in _OWN:
            own[known] = _text(value)
        else:
            headers[known.removeprefix("h:")] = _text(value)
    return Entry(place, published_ms, fields[body], own, headers)


def fields_of(delivery: Delivery) -> dict[str | bytes, str | bytes]:
    """A message as the fields of an entry."""
    fields: dict[str | bytes, str | bytes] = {"payload": delivery.payload}
    fields.update(own_of(delivery))
    fields.update({f"h:{name}": text for name, text in headers_of(delivery).items()})
    return fields


def own_of(delivery: Delivery) -> dict[str, str]:
    """What a message has of key, id, due, priority and lane, as texts."""
    own: dict[str, str] = {}
    if delivery.key is not None:
        own["key"] = delivery.key
    if not delivery.id.startswith(MADE_ID_MARK):
        own["id"] = delivery.id
    if delivery.due is not None:
        own["due"] = str(moment_ms(delivery.due, "due"))
    if delivery.priority:
        own["priority"] = str(delivery.priority)
    if delivery.lane is not None:
        own["lane"] = delivery.lane
    return own


def headers_of(delivery: Delivery) -> dict[str, str]:
    """A message's headers, and where it was."""
    return {**delivery.headers, FROM: f"{delivery.topic}/{delivery.partition}/{delivery.offset}"}


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


def _value(value: bytes) -> object:
    """Bytes in JSON: a text, or what they are in base64."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


# NATS


def of_nats(place: str, published_ms: int, subject: str, data: bytes, given: Mapping[str, str] | None) -> Entry:
    """A message of a JetStream stream. What begins with Nats- is between the publisher and NATS."""
    own: dict[str, str] = {}
    headers: dict[str, str] = {SUBJECT: subject}
    for name, text in (given or {}).items():
        lower = name.lower()
        if lower == _OTHERS.lower():
            headers.update(_others(text))
        elif lower.startswith("duly-") and lower.removeprefix("duly-") in _OWN:
            own[lower.removeprefix("duly-")] = _unquoted(text)
        elif not lower.startswith("nats-"):
            headers[name] = text
    return Entry(place, published_ms, data, own, headers)


def to_nats(delivery: Delivery) -> dict[str, str]:
    """The headers under which a message is published."""
    headers: dict[str, str] = {}
    others: dict[str, str] = {}
    for name, text in headers_of(delivery).items():
        plain = bool(_NAME.fullmatch(name)) and text.isascii() and text.isprintable() and text.strip() == text != ""
        (headers if plain and not name.lower().startswith("nats-") else others)[name] = text
    for name, text in own_of(delivery).items():
        headers[f"Duly-{name.capitalize()}"] = json.dumps(text)
    if others:
        headers[_OTHERS] = json.dumps(others)
    return headers


def _unquoted(text: str) -> str:
    try:
        return msgspec.json.decode(text.encode(), type=str)
    except msgspec.DecodeError:
        return text


def _others(text: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(text.encode(), type=dict[str, str])
    except (msgspec.DecodeError, Error):
        return {"duly-headers": text}
