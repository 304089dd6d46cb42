"""What becomes of pushes when the group or topic that they belong to goes, or the topic that they go to."""

from __future__ import annotations

from msgspec.structs import replace

from ..events import Event
from ..push import ACTIVE, DISABLED
from ..store.contract import PushRow, TopicRow, Transaction

GONE = "the topic that it goes to was deleted"
_WITH_TOPIC, _WITH_GROUP = "its topic was deleted", "its group was deleted"


def tell_push(tx: Transaction, row: PushRow, kind: str, **facts: object) -> None:
    """Adds an event of a push; an alert reaches whoever listens, too."""
    event = Event(kind, tx.now_ms, row.tenant, row.topic, row.group, facts={"push": row.name, **facts})
    tx.aftermath.records.append((row.tenant_id, event))
    if event.alert:
        tx.aftermath.events.append(event)


def disable(tx: Transaction, row: PushRow, reason: str, *, target: int | None) -> None:
    """A push runs no longer, until it is resumed. One that is paused stays so: nobody waits for it."""
    if row.state == ACTIVE:
        tx.push_state(replace(row, state=DISABLED, reason=reason, version=row.version + 1, target=target))
        tell_push(tx, row, "push_disabled", reason=reason)
    else:
        tx.push_state(replace(row, target=target))


def end_pushes(tx: Transaction, topic: TopicRow, group_id: int | None = None) -> None:
    """Deletes the pushes of a topic, or of one of its groups, as these are being deleted."""
    reason = _WITH_TOPIC if group_id is None else _WITH_GROUP
    for row in tx.pushes_of_topic(topic.id):
        if group_id in (None, row.group_id):
            tx.push_delete(row)
            tell_push(tx, row, "push_deleted", reason=reason)


def lose_target(tx: Transaction, topic: TopicRow) -> None:
    """Disables the pushes that go to a topic which is being deleted."""
    for row in tx.pushes_to_topic(topic.id):
        disable(tx, row, GONE, target=None)
