"""The inbox."""

from __future__ import annotations

from .seat import Seat
from .transaction import PostgresTransaction


def take_in(tx: PostgresTransaction, seat: Seat) -> None:
    raise NotImplementedError
