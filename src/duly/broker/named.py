"""What has a name of its own and belongs to a topic: which topic that is. Grants speak of topics.

It is looked up before anything is decided, and goes with the command: the store refuses it should that name stand for
something of another topic by then. Whoever may not see the topic is told that there is no such thing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from ..engine.schedules import (
    DeleteSchedule,
    DescribeSchedule,
    ListSchedules,
    UpdateSchedule,
    no_schedule,
    topic_of_schedule,
)
from ..grants import Identity, is_allowed, is_visible
from ..schedule import ScheduleDescription

NAMED = frozenset({UpdateSchedule, DeleteSchedule, DescribeSchedule})


def with_topic(look: Callable[..., Any], command: Any, identity: Identity, tenant: str) -> Any:
    """The command with the topic that it is about. Raises ScheduleNotFound."""
    topic: str = look(topic_of_schedule, replace(command, tenant=tenant, topic=None))
    if not is_visible(identity, topic, tenant=tenant):
        raise no_schedule(command.schedule)
    return replace(command, topic=topic)


def visible_schedules(
    do: Callable[[Any], list[ScheduleDescription]], command: ListSchedules, identity: Identity
) -> list[ScheduleDescription]:
    """Up to `limit` schedules of topics that one may look into."""
    found: list[ScheduleDescription] = []
    after = command.after
    while len(found) < command.limit:
        page = do(replace(command, after=after))
        found += [one for one in page if is_allowed(identity, "browse", one.topic, tenant=command.tenant)]
        if len(page) < command.limit:
            break
        after = page[-1].name
    return found[: command.limit]
