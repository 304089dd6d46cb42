"""What happened, as values: one event per range or list of messages and not per message.

The engine collects them in a transaction, which stores them with everything else (engine/record.py); alerts and
notable events also reach whoever listens after its commit: the log, and the `on_event` of `duly.connect`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import accumulate

import msgspec

from .clock import from_ms

ALERTS = frozenset(
    {
        "lease_taken_over",
        "buried",
        "group_pins_log",
        "block_corrupt",
        "events_corrupt",
        "store_full",
        "disk_nearly_full",
        "clock_refused",
        "clock_drift",
        "clock_drift_over",
        "breaker_opened",
        "operation_stopped",
        "tick_failed",
        "push_disabled",
    }
)

# A tenant's log of them.
EVENTS = "$events"

log = logging.getLogger("duly")


class Event(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=False):
    """A state change of some messages, or an alert.

    It is about `count` messages from `offset` on or, with `deltas`, about those at the offsets that they lead to.
    `lease` names what they were claimed under; `whole`: about all that was left of it, and which those were is told
    by the event of the claim.
    """

    kind: str
    at: int
    tenant: str = ""
    topic: str = ""
    group: str = ""
    partition: int = 0
    offset: int = 0
    count: int = 0
    facts: dict[str, object] = {}
    consumer: str = ""
    lease: int = 0
    whole: bool = False
    deltas: tuple[int, ...] = ()

    @property
    def alert(self) -> bool:
        """Whether a person should hear of it."""
        return self.kind in ALERTS

    @property
    def when(self) -> datetime:
        """When it happened, by the store's clock."""
        return from_ms(self.at)

    @property
    def offsets(self) -> Sequence[int]:
        """The messages that it is about; none where it is about the `whole` of a lease: its claim told them."""
        if self.whole:
            return ()
        if self.deltas:
            return list(accumulate(self.deltas, initial=self.offset))
        return range(self.offset, self.offset + self.count)


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
            # Why a message failed is often the text of an exception, which may quote it.
            {name: value for name, value in event.facts.items() if name != "reason"},
        )
    if listener is not None:
        try:
            listener(event)
        except Exception:
            log.exception("on_event raised for %s", event.kind)
