"""A client's calls on schedules: make, change, pause and look at them, and see when an expression ticks."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ..clock import Duration, moment_ms
from ..engine.schedules import CreateSchedule, DeleteSchedule, DescribeSchedule, ListSchedules, UpdateSchedule
from ..errors import InvalidArgument
from ..limits import LIMITS
from ..schedule import Schedule, ScheduleDescription, check_given, check_schedule_name, preview
from .arguments import after_name, count, flag, named, page_size, whole
from .calls import Calls

_PAGE = 100


class ScheduleCalls(Calls):
    """Schedules."""

    def create_schedule(
        self,
        name: str,
        *,
        topic: str,
        cron: str,
        paused: bool = False,
        exist_ok: bool = False,
        timeout: Duration | None = None,
        **settings: Any,
    ) -> ScheduleDescription:
        """Has a message published into a queue once a tick: `cron="30 2 * * *", zone="Europe/Berlin"`.

        Five fields, six with seconds first, @hourly and the like, or `@every 90s`. Settings are those of duly.Schedule.
        With `exist_ok` an equal one is left as it is; one with other settings is ScheduleExists.
        """
        wanted = Schedule(topic, cron, **check_given(settings))
        paused, exist_ok = flag(paused, "paused"), flag(exist_ok, "exist_ok")
        command = CreateSchedule(self._tenant, check_schedule_name(name), wanted.topic, wanted, paused, exist_ok)
        return self._do(command, timeout)

    def update_schedule(
        self, name: str, *, version: int | None = None, timeout: Duration | None = None, **changes: Any
    ) -> ScheduleDescription:
        """Changes settings, all but the topic. With `version`, only if nobody changed it since."""
        return self._update_schedule(name, check_given(changes), None, version, timeout)

    def delete_schedule(self, name: str, *, version: int | None = None, timeout: Duration | None = None) -> None:
        """Removes a schedule. What it has published stays."""
        self._do(DeleteSchedule(self._tenant, named(name), _version(version)), timeout)

    def pause_schedule(
        self, name: str, *, version: int | None = None, timeout: Duration | None = None
    ) -> ScheduleDescription:
        """Has it tick no more until it is resumed. What would have ticked meanwhile never does."""
        return self._update_schedule(name, {}, True, version, timeout)

    def resume_schedule(
        self, name: str, *, version: int | None = None, timeout: Duration | None = None
    ) -> ScheduleDescription:
        """Has it tick again, from its next tick on."""
        return self._update_schedule(name, {}, False, version, timeout)

    def describe_schedule(self, name: str, *, count: int = 5, timeout: Duration | None = None) -> ScheduleDescription:
        """A schedule's settings, so many of its next ticks, its last runs, and what was missed."""
        return self._do(DescribeSchedule(self._tenant, named(name), _count(count)), timeout)

    def schedules(
        self, *, after: str = "", limit: int | None = None, timeout: Duration | None = None
    ) -> list[ScheduleDescription]:
        """Schedules by name, each with its next tick: all of them, or a page of `limit` after a name."""
        most, after = page_size(limit), after_name(after)
        found: list[ScheduleDescription] = []
        while len(found) < most:
            asked = min(_PAGE, most - len(found))
            page = self._do(ListSchedules(self._tenant, found[-1].name if found else after, asked), timeout)
            found.extend(page)
            if len(page) < asked:
                break
        return found

    def preview_schedule(
        self, cron: str, *, zone: str = "UTC", count: int = 10, after: datetime | None = None
    ) -> list[datetime]:
        """The next ticks of an expression after a moment, or after now, in its zone. Nothing is stored or looked up."""
        after_ms = self._alive().now_ms() if after is None else moment_ms(after, "after")
        return preview(cron, zone=zone, count=_count(count), after_ms=after_ms)

    def _update_schedule(
        self, name: str, changes: Any, paused: bool | None, version: int | None, timeout: Duration | None
    ) -> ScheduleDescription:
        if not changes and paused is None:
            raise InvalidArgument("Nothing is to be changed. Name a setting: see duly.Schedule.")
        return self._do(UpdateSchedule(self._tenant, named(name), changes, paused, _version(version)), timeout)


def _version(version: int | None) -> int | None:
    return None if version is None else whole(version, "version")


def _count(given: int) -> int:
    return count(given, "count", LIMITS.schedule_ticks_max)
