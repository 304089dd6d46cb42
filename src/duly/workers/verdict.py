"""How a handler's end is answered: a return acks, an exception nacks, two exceptions say more.

A handler that may not publish just now, because the operation of its message has published too much, has not failed:
its message is released until it may.
"""

from __future__ import annotations

import asyncio
import traceback
from dataclasses import dataclass

from ..client.arguments import delay_ms, reason_text
from ..client.batch import Delivery
from ..clock import Duration
from ..errors import OperationExhausted


class RetryLater(Exception):
    """Raise it in a handler to have the message tried again after `delay`, instead of the retry policy's wait.

    The attempt counts: after the topic's last one the message is buried.
    """

    def __init__(self, delay: Duration | None = None, reason: str = "") -> None:
        self.delay = delay
        self.delay_ms = None if delay is None else delay_ms(delay)
        self.reason = reason_text(reason)
        super().__init__(reason or "to be tried again later")


class Bury(Exception):
    """Raise it in a handler to move the message to the dead letters at once: trying again would not help."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason_text(reason)
        super().__init__(reason or "buried by its handler")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a delivery: `ack`, `nack`, `bury` or `release`."""

    word: str
    reason: str = ""
    delay: Duration | None = None

    def settle(self, delivery: Delivery) -> None:
        """Asks the store for it. Raises LeaseLost."""
        if self.word == "ack":
            delivery.ack()
        elif self.word == "nack":
            delivery.nack(delay=self.delay, reason=self.reason)
        elif self.word == "bury":
            delivery.bury(self.reason)
        else:
            delivery.release(delay=self.delay)


def verdict_on(error: BaseException | None) -> Verdict:
    """The verdict on a message whose handler ended so; None: it returned."""
    if error is None:
        return Verdict("ack")
    if isinstance(error, RetryLater):
        return Verdict("nack", error.reason or "RetryLater", error.delay)
    if isinstance(error, Bury):
        return Verdict("bury", error.reason)
    if isinstance(error, OperationExhausted) and error.retry_after_ms is not None:
        # No attempt is used up: nothing is buried because somebody's loop is stopped.
        return Verdict("release", delay=error.retry_after_ms / 1000)
    return Verdict("nack", reason_of(error))


def reason_of(error: BaseException) -> str:
    """The last line of the traceback: `ValueError: no such address`."""
    if isinstance(error, asyncio.CancelledError) and not error.args:
        return "CancelledError: the handler's task was cancelled"
    # A message of several lines stays together: its last line alone would say nothing.
    return " ".join(traceback.format_exception_only(error)[-1].split())
