"""Messages as rows: one layout each for claim, read, browse and the dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..clock import moment_ms
from ..message import DeadLetter, QueuedMessage, StoredMessage
from .documents import (
    dead_document,
    delivery_document,
    message_document,
    queue_delivery_document,
    queued_document,
)
from .text import age, payload_text, until

if TYPE_CHECKING:
    from ..client.batch import Delivery
    from .show import Cell, Row

READ_WIDTHS: dict[str, int | None] = {"place": 12, "age": 7, "id": 14, "key": 14, "payload": None}
CLAIM_WIDTHS: dict[str, int | None] = {
    "place": 12,
    "age": 7,
    "id": 14,
    "key": 14,
    "attempt": 7,
    "payload": None,
}
QUEUE_CLAIM_WIDTHS: dict[str, int | None] = {
    "id": 14,
    "age": 7,
    "priority": 8,
    "lane": 14,
    "due": 12,
    "attempt": 7,
    "payload": None,
}
BROWSE_WIDTHS: dict[str, int | None] = {
    "id": 14,
    "state": 8,
    "priority": 8,
    "lane": 14,
    "due": 12,
    "attempts": 8,
    "key": 14,
    "payload": None,
}
DEAD_COLUMNS = ("id", "buried", "attempts", "reason", "payload")


def stored_row(message: StoredMessage) -> Row:
    """A message that was read."""
    return message_document(message), (*_who(message), payload_text(message.payload))


def delivery_row(delivery: Delivery, verdict: str) -> Row:
    """A message that was claimed, and how it is settled."""
    cells = (*_who(delivery), str(delivery.attempt), payload_text(delivery.payload))
    return delivery_document(delivery, verdict), cells


def queue_delivery_row(delivery: Delivery, verdict: str) -> Row:
    """A message that was claimed from a queue, and how it is settled."""
    cells = (
        delivery.id,
        age(delivery.published_at_ms),
        str(delivery.priority),
        delivery.lane or "",
        "" if delivery.due is None else until(moment_ms(delivery.due, "due")),
        str(delivery.attempt),
        payload_text(delivery.payload),
    )
    return queue_delivery_document(delivery, verdict), cells


def queued_row(message: QueuedMessage) -> Row:
    """A message as it stands in a queue."""
    cells = (
        message.id,
        message.state,
        str(message.priority),
        message.lane or "",
        "" if message.due_at_ms is None else until(message.due_at_ms),
        str(message.attempts),
        message.key or "",
        payload_text(message.payload or b""),
    )
    return queued_document(message), cells


def dead_row(letter: DeadLetter) -> Row:
    """A message that was given up."""
    cells = (
        letter.id,
        age(letter.buried_at_ms),
        letter.attempts,
        letter.reason,
        payload_text(letter.payload),
    )
    return dead_document(letter), cells


def _who(message: StoredMessage | Delivery) -> tuple[Cell, ...]:
    return (
        f"{message.partition}/{message.offset}",
        age(message.published_at_ms),
        message.id,
        message.key or "",
    )
