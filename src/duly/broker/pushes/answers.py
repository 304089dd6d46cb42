"""What an answer means for the messages that were sent.

    2xx            taken, but for those of a batch that the answer names: {"failed": ["id", …]}
    410            the endpoint is gone for good: the push ends, and what is under way is given back
    Retry-After    later, and nothing else meanwhile
    everything else, and no answer at all: failed, to be tried again by the group's retry policy

In doubt nothing counts as taken. An answer to a batch that is JSON, or looks as if it held a list of failures, and
cannot be read to its end, says of no message that it was taken.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from ...limits import DAY_MS
from ...push import PushAnswer

GONE = 410
_TOLD_CHARS_MAX = 2_000
_LINE_CHARS_MAX = 200
_DAY_S = DAY_MS // 1000
_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


class Answer(msgspec.Struct, frozen=True):
    """What came back. `status` None: nothing did, and `error` says why. `whole`: the body was read to its end.

    `ours`: it was this machine that could not, and no fault of the endpoint.
    """

    status: int | None
    ms: int
    body: bytes = b""
    error: str = ""
    whole: bool = True
    ours: bool = False
    content_type: str = ""
    content_encoding: str = ""
    retry_after: str = ""

    @property
    def told(self) -> PushAnswer:
        """The answer as people are told of it."""
        text = self.body[: 4 * _TOLD_CHARS_MAX].decode("utf-8", "replace")
        return PushAnswer(self.status, self.ms, text[:_TOLD_CHARS_MAX], self.error)


class Meaning(msgspec.Struct, frozen=True):
    """What becomes of the messages: `verdict` is ack, nack or release; of the `failed` it is nack in any case.

    `delay_ms` None: as the retry policy says. `hold_s`: nothing is sent for so long. `gone`: nothing ever again.
    """

    verdict: str
    reason: str
    delay_ms: int | None = None
    failed: Collection[str] = ()
    hold_s: float = 0.0
    gone: bool = False


def meaning_of(answer: Answer, *, sent: Collection[str], batch: bool, now_ms: int) -> Meaning:
    """What an answer to these ids means; `now_ms` by the store's clock, for a Retry-After that is a date."""
    if answer.ours:
        return Meaning("release", answer.error, delay_ms=1_000, hold_s=1.0)
    if answer.status is None:
        return Meaning("nack", f"no answer in {answer.ms} ms: {answer.error}")
    took = f"{answer.status} in {answer.ms} ms"
    if answer.status == GONE:
        return Meaning("release", took, gone=True)
    if 200 <= answer.status < 300 and not answer.error:
        failed = _failed(answer, sent) if batch else ()
        if failed is None:
            return Meaning("nack", f"{took}: which messages failed cannot be read in the answer")
        return Meaning("ack", took, failed=failed)
    reason = f"{took}: {answer.error or _why(answer)}".rstrip(": ")
    wait_s = _retry_after_s(answer.retry_after, now_ms)
    if wait_s is None:
        return Meaning("nack", reason)
    return Meaning("nack", reason, delay_ms=round(wait_s * 1000), hold_s=wait_s)


def cleaned(text: str) -> str:
    """The first line of a text that has anything to show, without what terminals and logs would act on."""
    for line in text.splitlines():
        shown = " ".join("".join(c if c.isprintable() else " " for c in line).split())
        if shown:
            return shown[:_LINE_CHARS_MAX]
    return ""


def _why(answer: Answer) -> str:
    if 300 <= answer.status < 400:  # type: ignore[operator]
        return "redirects are not followed"
    return "" if answer.content_encoding else cleaned(answer.body.decode("utf-8", "replace"))


def _failed(answer: Answer, sent: Collection[str]) -> Collection[str] | None:
    """The ids that the answer says were not taken; None: that cannot be told."""
    is_json = "json" in answer.content_type.lower() or b'"failed"' in answer.body
    if not is_json or (answer.whole and not answer.body.strip()):
        return ()
    if not answer.whole or answer.content_encoding:
        return None
    try:
        said = _decoder.decode(answer.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    failed = said.get("failed", []) if isinstance(said, dict) else []
    # An id that was not sent may be one of ours, garbled.
    known = isinstance(failed, list) and all(isinstance(one, str) and one in sent for one in failed)
    return frozenset(failed) if known else None


def _retry_after_s(text: str, now_ms: int) -> float | None:
    """Seconds, or a date; at most a day. None: it says nothing, or "at once", which is no way to spare anybody."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        wait_s = float(text[:10])
    else:
        try:
            moment = parsedate_to_datetime(text)
            wait_s = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now_ms / 1000
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
    return min(wait_s, float(_DAY_S)) if wait_s > 0 else None
