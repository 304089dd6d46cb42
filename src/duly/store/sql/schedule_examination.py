"""The examination of schedules: whether each can be read, and which have not been able to publish."""

from __future__ import annotations

from collections.abc import Iterator

from ...engine.schedules import trouble_of
from ...engine.seal import bound_to, open_value
from ...errors import CorruptBlock, Sealed, StoreError
from ...health import Finding
from .sealed_examination import Ask, Opening

_SCHEDULES = "SELECT tenant, name, settings, state FROM {0}schedule"


def schedules(opened: Opening, ask: Ask, prefix: str) -> Iterator[Finding]:
    """Every schedule; of those whose key is not here the state alone."""
    for tenant_id, name, stored, state in list(ask(_SCHEDULES.format(prefix))):
        try:
            settings = open_value(stored, tenant_id, bound_to("schedule", name), opened.unseal)
        except (Sealed, CorruptBlock):
            # A broken seal is told of with all others.
            settings = None
        try:
            trouble = trouble_of(name, settings, state)
        except StoreError as error:
            yield Finding(
                "alert",
                str(error).removesuffix(" Run `duly doctor`."),
                "It was changed by somebody else than Duly. It does not tick.",
                "Delete it and make it anew, or restore the newest backup.",
            )
            continue
        if trouble is not None:
            yield Finding(
                "warn",
                f"Schedule {name!r} cannot publish its message: {trouble}",
                "It is tried again until it can, and judged then by its policy for missed ticks.",
                "Do as it says, or pause the schedule.",
            )
