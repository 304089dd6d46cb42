"""Events as the tests of them compare them."""

from __future__ import annotations

from typing import Any

import duly

Told = tuple[str, str, int, list[int]]


def told(q: duly.Client, topic: str, *, skip: tuple[str, ...] = ("topic_created", "group_created")) -> list[Told]:
    """(kind, group, partition, offsets) of a topic's events in order; of a whole lease those that its claim told."""
    claims: dict[int, list[int]] = {}
    found: list[Told] = []
    for event in q.events(topic=topic):
        offsets = list(event.offsets)
        if event.kind in ("claimed", "extended"):
            claims[event.lease] = offsets
        if event.kind == "extended":
            # The part that was extended is under its own lease from then on.
            claims.update({lease: [o for o in c if o not in offsets] for lease, c in claims.items() if c != offsets})
        elif event.lease in claims and not event.whole and event.kind != "claimed":
            claims[event.lease] = [o for o in claims[event.lease] if o not in offsets]
        if event.whole:
            offsets = claims[event.lease]
        assert len(offsets) == event.count
        if event.kind not in skip:
            found.append((event.kind, event.group, event.partition, offsets))
    return found


def history(q: duly.Client, topic: str, message: str, **asked: Any) -> list[str]:
    """What happened to one message."""
    return [event.kind for event in q.events(topic=topic, message=message, **asked)]


def kinds(q: duly.Client, **asked: Any) -> list[str]:
    """What happened, by kind."""
    return [event.kind for event in q.events(**asked)]


def only(q: duly.Client, kind: str, **asked: Any) -> list[duly.Event]:
    """The events of one kind."""
    return [event for event in q.events(**asked) if event.kind == kind]
