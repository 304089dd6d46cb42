"""Pulling from a JetStream consumer so that it is known what was delivered.

What the server counts as delivered and what came here have to be the same, or a batch that is published and one that
is taken again after a kill would not be. So a request asks for what there is and for no waiting: the server answers
with that and says that there is no more. Only where nothing is there one message is waited for.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import nats.errors

from .sides import Down

_NS = 1_000_000_000
# How long the server may say nothing in the middle of an answer.
_SILENCE_S = 5.0
# No messages; the request is over; it was more than the consumer may have under way; the stream's is another leader.
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
