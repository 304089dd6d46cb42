"""Messages as rows: one layout for claim, read and the dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..message import DeadLetter, StoredMessage
from .documents import dead_document, delivery_document, message_document
from .text import age, payload_text

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
DEAD_COLUMNS = ("id", "buried", "attempts", "reason", "payload")


def stored_row(message: StoredMessage) -> Row:
    """A message that was read."""
    return message_document(message), (*_who(message), payload_text(message.payload))


def delivery_row(delivery: Delivery, verdict: str) -> Row:
    """A message that was claimed, and how it is settled."""
    cells = (*_who(delivery), str(delivery.attempt), payload_text(delivery.payload))
    return delivery_document(delivery, verdict), cells


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
