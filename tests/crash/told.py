"""What a store's events say of its state: they are replayed, message by message.

Every event has to be possible where it stands (nothing is acked that is not held, under that lease), so one that is
missing, doubled or out of order is noticed; and what they come to in the end has to be what the store says of itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import duly

from .checker import Broken

OPEN, LEASED, ACKED, DEAD, GONE = "open", "leased", "acked", "dead", "gone"
Place = tuple[int, int]

# What each kind leaves a message as, and what it may have been before.
_STEPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "claimed": (LEASED, (OPEN, LEASED)),
    "extended": (LEASED, (LEASED,)),
    "acked": (ACKED, (LEASED,)),
    "nacked": (OPEN, (LEASED,)),
    "released": (OPEN, (LEASED,)),
    "lease_taken_over": (OPEN, (LEASED,)),
    "buried": (DEAD, (OPEN, LEASED)),
    "redriven": (OPEN, (DEAD,)),
    "ttl_expired": (GONE, (OPEN, LEASED)),
    "cancelled": (GONE, (OPEN, LEASED)),
    "moved": (OPEN, (OPEN,)),
}


class Told:
    """A store as its events tell of it."""

    def __init__(self, events: Iterable[duly.Event]) -> None:
        self.published: dict[str, set[Place]] = defaultdict(set)
        self.first: dict[tuple[str, int], int] = defaultdict(int)
        # To a group: what a message is, and under which lease; one that is not listed is open.
        self._states: dict[tuple[str, str], dict[Place, tuple[str, int]]] = defaultdict(dict)
        self._leases: dict[int, set[Place]] = defaultdict(set)
        for event in events:
            self._apply(event)

    def having(self, topic: str, group: str, *wanted: str) -> set[Place]:
        """The messages of a topic that a group has in some states."""
        states = self._states[topic, group]
        return {place for place in self.published[topic] if states.get(place, (OPEN, 0))[0] in wanted}

    def _apply(self, event: duly.Event) -> None:
        if event.kind == "published":
            places = {(event.partition, offset) for offset in event.offsets}
            if places & self.published[event.topic]:
                raise Broken(f"published twice: {event}")
            self.published[event.topic] |= places
        elif event.kind == "truncated":
            self.first[event.topic, event.partition] = event.offset + event.count
        elif event.kind in _STEPS:
            for place in self._places(event):
                self._step(event, place)

    def _places(self, event: duly.Event) -> set[Place]:
        places = {(event.partition, offset) for offset in event.offsets}
        if event.whole:
            places = set(self._leases[event.lease])
        if len(places) != event.count:
            raise Broken(f"it is about {len(places)}: {event}")
        return places

    def _step(self, event: duly.Event, place: Place) -> None:
        after, before = _STEPS[event.kind]
        states = self._states[event.topic, event.group or "queue"]
        state, lease = states.get(place, (OPEN, 0))
        new = event.kind in ("claimed", "extended")
        if place not in self.published[event.topic] or state not in before:
            raise Broken(f"{place} was {state}: {event}")
        if lease and event.lease and lease != event.lease and not new:
            raise Broken(f"{place} was under lease {lease}: {event}")
        self._leases[lease].discard(place)
        states[place] = (after, event.lease if new else 0)
        if new:
            self._leases[event.lease].add(place)
