"""Pulling from JetStream so that it is known what was delivered, and publishing so that each answer is heard.

What the server counts as delivered and what came here have to be the same, or a batch that is published and one that
is taken again after a kill would not be. So a request asks for what there is and for no waiting: the server answers
with that and says that there is no more. Only where nothing is there one message is waited for.

Publishes are sent one behind the other and answered in any order. (nats-py's publish_async never hears of a refusal:
its future stays open.)
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import nats.errors
from nats.js import api

from ..errors import InvalidArgument
from .sides import Down

_NS = 1_000_000_000
# How long the server may say nothing in the middle of an answer.
_SILENCE_S = 5.0
_ANSWERS_S = 20.0
# What JetStream answers when a subject belongs to another stream than was said.
_OTHER_STREAM = 10060
# There are no messages, or the request is over.
_NOTHING = ("404", "408")


async def pull(line: Any, stream: str, durable: str, most: int, wait_s: float) -> list[Any]:
    """Up to `most` messages; the first is waited for. Raises Down when it cannot be told what was delivered."""
    found = await _request(line, stream, durable, {"batch": most, "no_wait": True})
    if found or wait_s <= 0:
        return found
    first = await _request(line, stream, durable, {"batch": 1, "expires": round(wait_s * _NS)}, wait_s)
    if not first or most == 1:
        return first
    return first + await _request(line, stream, durable, {"batch": most - 1, "no_wait": True})


async def publish(
    line: Any, gone: asyncio.Event, stream: str, subject: str, messages: Sequence[tuple[bytes, dict[str, str]]]
) -> None:
    """Publishes messages in their order. Raises Down unless each is stored, and InvalidArgument for another stream."""
    inbox = line.new_inbox()
    answers: dict[str, Any] = {}
    ended = asyncio.Event()

    async def hear(answer: Any) -> None:
        answers[answer.subject] = answer
        if len(answers) == len(messages):
            ended.set()

    hearing = await line.subscribe(f"{inbox}.*", cb=hear)
    try:
        for number, (data, headers) in enumerate(messages):
            own = {**headers, api.Header.EXPECTED_STREAM.value: stream}
            await line.publish(subject, data, reply=f"{inbox}.{number}", headers=own)
        waits = [asyncio.ensure_future(gone.wait()), asyncio.ensure_future(ended.wait())]
        try:
            await asyncio.wait(waits, timeout=_ANSWERS_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if messages and not ended.is_set():
            raise Down("The connection ended" if gone.is_set() else "JetStream does not answer")
        for answer in answers.values():
            _check_stored(answer)
    except nats.errors.Error as error:
        raise Down(str(error)) from error
    finally:
        with suppress(nats.errors.Error):
            await hearing.unsubscribe()


def _check_stored(answer: Any) -> None:
    if not answer.data:
        raise Down("no stream takes that subject now")
    error = json.loads(answer.data).get("error")
    if error is None:
        return
    why = f"JetStream: {error.get('description')}"
    if error.get("err_code") == _OTHER_STREAM:
        raise InvalidArgument(why)
    # It is full, or has no leader just now. Whatever it is, the message is not to be given up for it.
    raise Down(why)


async def _request(line: Any, stream: str, durable: str, wish: dict[str, Any], wait_s: float = 0.0) -> list[Any]:
    inbox = line.new_inbox()
    answers = await line.subscribe(inbox)
    try:
        await line.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{durable}", json.dumps(wish).encode(), reply=inbox)
        found: list[Any] = []
        while len(found) < wish["batch"]:
            message = await answers.next_msg(timeout=wait_s + _SILENCE_S)
            status = (message.headers or {}).get("Status")
            if status is None:
                found.append(message)
            elif status in _NOTHING:
                break
            elif status != "100":
                raise Down(f"JetStream answers {status} {message.headers.get('Description', '')}".strip())
        return found
    except (TimeoutError, nats.errors.Error) as error:
        raise Down(str(error) or "JetStream does not answer") from error
    finally:
        with suppress(nats.errors.Error):
            await answers.unsubscribe()
