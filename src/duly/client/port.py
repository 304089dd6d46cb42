"""Where a client's operations go: what the embedded home and a broker's connection both offer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from ..clock import ClockReading
from ..engine.claimed import Acks, Claim, Claimed
from ..engine.stretch import Stretch
from ..engine.tail import Tail, Tailed
from ..health import Finding
from ..member import Member
from ..store.contract import Backup, Progress


class Port(Protocol):
    """Carries out operations, wherever the store is."""

    def do(self, command: Any, *, deadline: float | None, cost: int = 0, publish_id: str = "", tx: Any = None) -> Any:
        """Runs one operation, inside the application's transaction if given one, and returns its answer."""
        ...

    def transaction(self, patience_s: float) -> Any:
        """A transaction for the application."""
        ...

    def when_undone(self, tx: Any, act: Callable[[], None]) -> bool:
        """Calls back if the application's transaction is rolled back. False: that will not be heard of."""
        ...

    def claim(self, command: Claim, *, wait_until: float | None, deadline: float | None) -> Claimed:
        """Claims, waiting for something to claim until `wait_until`."""
        ...

    def tail(self, command: Tail, *, wait_until: float) -> Tailed:
        """Looks whether a log has grown, waiting until it has or until `wait_until`."""
        ...

    def batches(self, stretch: Stretch, *, patience_s: float) -> Iterator[Any]:
        """A stretch of a log as record batches; with no word from a broker for longer than that, it raises."""
        ...

    def watch(self, command: Claim) -> Watch:
        """Claims that never wait, and a way to wait for them that holds nothing."""
        ...

    def wake(self) -> None:
        """Ends every wait of this process for something to claim."""
        ...

    def examine(self) -> Iterator[Finding]:
        """Looks the store over."""
        ...

    def back_up(
        self,
        folder: str,
        *,
        keep: int | None,
        rate: float | None,
        on_progress: Progress | None,
        deadline: float | None,
    ) -> Backup:
        """Takes a backup of the whole store."""
        ...

    def now_ms(self) -> int:
        """The store's time."""
        ...

    def make_publish_id(self) -> str:
        """An id for a publish that was given none."""
        ...

    def clock(self) -> ClockReading:
        """The store's time beside the host's."""
        ...

    def accept_clock(self, *, deadline: float | None) -> None:
        """Takes the host's time for the store's."""
        ...

    def members(self, *, deadline: float | None) -> list[Member]:
        """The brokers that serve the store."""
        ...

    def own_tenant(self) -> str:
        """Whose the key is that is shown; "" of an operator, and of whoever has the store itself open."""
        ...

    def check_leaving(self) -> None:
        """Raises if it cannot be let go of now."""
        ...

    def close(self) -> None:
        """Lets go of the store."""
        ...


class Watch(Protocol):
    """One consumer's eye on one group: looking takes what is due, waiting takes nothing."""

    def claim(self, max_messages: int, *, deadline: float | None, acks: Acks | None = None) -> Claimed:
        """Claims what is due now, and before that acks what is done with."""
        ...

    def wait(self, deadline: float) -> None:
        """Returns when a claim may find what the last one did not, at the deadline, or at `wake`.

        A wake between the last claim and the wait ends it at once.
        """
        ...
