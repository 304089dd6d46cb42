"""What the calls of a client have in common: where they go, whose they are, how long they may take."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from ..clock import Duration, monotonic_s
from .arguments import (
    timeout_s,
)
from .port import Port

if TYPE_CHECKING:
    from ..store.sqlite.application import Transaction


class Calls(ABC):
    """The base of a client's calls."""

    _tenant: str
    _timeout_s: float

    @abstractmethod
    def _alive(self) -> Port:
        """Where operations go. Raises Closed."""

    @abstractmethod
    def _consumer_name(self, consumer: str | None) -> str:
        """The name to claim under."""

    def _do(self, command: Any, timeout: Duration | None, tx: Transaction | None = None) -> Any:
        return self._alive().do(command, deadline=self._deadline(timeout), tx=tx)

    def _deadline(self, timeout: Duration | None) -> float | None:
        return monotonic_s() + (self._timeout_s if timeout is None else timeout_s(timeout))
