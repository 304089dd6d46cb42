"""What happened, as values: one event per range of messages and not per message.

The engine collects them in a transaction; they go out only after its commit. Until `$events`
arrives (issue 3) they reach whoever listens: the log, and the `on_event` of `duly.connect`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

ALERTS = frozenset({"lease_taken_over", "buried", "group_pins_log", "block_corrupt", "store_full", "clock_refused"})

log = logging.getLogger("duly")


@dataclass(frozen=True, slots=True)
class Event:
    """A state change of some messages, or an alert."""

    kind: str
    at: int
    tenant: str = ""
    topic: str = ""
    group: str = ""
    partition: int = 0
    offset: int = 0
    count: int = 0
    facts: dict[str, object] = field(default_factory=dict)

    @property
    def alert(self) -> bool:
        """Whether a person should hear of it."""
        return self.kind in ALERTS


Listener = Callable[[Event], None]


def tell(event: Event, listener: Listener | None) -> None:
    """Logs an alert and passes the event on. A listener that raises hurts nobody else."""
    if event.alert:
        log.warning(
            "%s topic=%s group=%s partition=%d offset=%d count=%d %s",
            event.kind,
            event.topic,
            event.group,
            event.partition,
            event.offset,
            event.count,
            event.facts,
        )
    if listener is not None:
        try:
            listener(event)
        except Exception:
            log.exception("on_event raised for %s", event.kind)
