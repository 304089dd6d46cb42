"""Messages as JSON lines: what `duly publish --json-lines` takes, in the words in which claim and read print.

{"payload": "text", "id": "welcome-42", "due": "2027-01-31T12:00:00Z", "priority": 5, "lane": "acme"}

`payload` is text, or any other JSON, which is published as JSON; `payload_base64` stands for bytes. `due` is an ISO
time or seconds from now on, `ttl` is seconds.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import typer

from ..errors import InvalidArgument
from ..message import Message
from .parse import due, moment

_PLAIN = ("id", "key", "headers", "ttl", "partition", "priority", "lane")
_KNOWN = ("payload", "payload_base64", *_PLAIN, "due", "expires_at")


def messages_of(lines: Iterable[bytes], defaults: Message) -> Iterator[Message]:
    """A message a line, empty lines apart; what a line leaves out is taken from `defaults`."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _message(line, defaults)
        except InvalidArgument as error:
            raise InvalidArgument(f"Line {number}: {error}") from error


def _message(line: bytes, defaults: Message) -> Message:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"it is no JSON: {error}.") from error
    if not isinstance(document, dict):
        raise InvalidArgument('a message is an object: {"payload": …}.')
    for name in document:
        if name not in _KNOWN:
            raise InvalidArgument(f"there is no field {name!r}. Fields: {', '.join(_KNOWN)}.")
    given = {name: value for name, value in document.items() if value is not None}
    fields: dict[str, Any] = {name: given.get(name, getattr(defaults, name)) for name in _PLAIN}
    fields["due"] = _due(given["due"]) if "due" in given else defaults.due
    if "expires_at" in given:
        fields |= {"expires_at": _moment(given["expires_at"]), "ttl": given.get("ttl")}
    return Message(_payload(document), **fields)


def _payload(document: dict[str, Any]) -> bytes:
    if ("payload" in document) == ("payload_base64" in document):
        raise InvalidArgument("give payload or payload_base64.")
    if "payload" in document:
        payload = document["payload"]
        if not isinstance(payload, str):
            return Message.json(payload).payload
        try:
            return payload.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument("payload is not valid Unicode.") from error
    try:
        return base64.b64decode(document["payload_base64"], validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise InvalidArgument("payload_base64 is no base64.") from error


def _due(given: Any) -> datetime | float:
    """An ISO time, a duration, or seconds; what is none of them is for publish to refuse."""
    if not isinstance(given, str):
        seconds: float = given
        return seconds
    try:
        return due(given)
    except typer.BadParameter as error:
        raise InvalidArgument(f"due: {error.message}") from error


def _moment(given: Any) -> datetime:
    try:
        return moment(given)
    except (typer.BadParameter, AttributeError) as error:
        raise InvalidArgument(f"expires_at: {given!r} is not a time. Write 2026-01-31T12:00:00Z.") from error
