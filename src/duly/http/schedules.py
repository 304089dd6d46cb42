"""Schedules: make, list, describe, change, pause and delete them, and see when an expression ticks."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Meta, UnsetType

from .. import schedule
from ..clock import from_ms
from ..engine.schedules import CreateSchedule, DeleteSchedule, DescribeSchedule, ListSchedules, UpdateSchedule
from ..limits import LIMITS
from ..schedule import ScheduleDescription
from .endpoint import Call, endpoint
from .fields import Limit, Moment, Name, Next, Payload, Priority, Texts, Ttl
from .problems import invalid
from .reply import Reply
from .tokens import cursor, read_cursor
from .topics import version_of

_PATH = "/v1/schedules/{schedule}"
_FOUND = ("schedule_not_found", "invalid_argument")
_CHANGES = (*_FOUND, "stale_version")
_ETAG = {"ETag": "The schedule's version: send it back as If-Match to change only what you have seen."}
_IF_MATCH = {"If-Match": "The ETag of the version to change; another one is refused with 412."}
_Cron = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=schedule.CRON_CHARS_MAX,
        description="Five fields, six with seconds first, @hourly and the like, or @every 90s.",
    ),
]
_Zone = Annotated[str, Meta(min_length=1, max_length=LIMITS.name_chars_max, description="A time zone's IANA name.")]
_Count = Annotated[int, Meta(ge=1, le=LIMITS.schedule_ticks_max, description="How many of the next ticks.")]
_Missed = Literal["latest", "skip", "all"]


class ScheduleSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a schedule publishes, and when. What is left out takes its default, or stays as it is.

    Its payload is given once: as base64, as text, or as a template with ${tick}, ${tick_ms}, ${date}, ${previous},
    ${run} and ${schedule} in it.
    """

    cron: _Cron | UnsetType = UNSET
    zone: _Zone | UnsetType = UNSET
    payload_base64: Payload | UnsetType = UNSET
    payload_text: str | UnsetType = UNSET
    template: str | UnsetType | None = UNSET
    headers: Texts | UnsetType = UNSET
    key: str | UnsetType | None = UNSET
    priority: Priority | UnsetType | None = UNSET
    lane: Name | UnsetType | None = UNSET
    ttl_ms: Ttl | UnsetType | None = UNSET
    missed: _Missed | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=schedule.LIMIT_MAX)] | UnsetType = UNSET
    jitter_ms: Annotated[int, Meta(ge=0, le=schedule.JITTER_MS_MAX)] | UnsetType = UNSET

    def given(self) -> dict[str, Any]:
        """What was given, as the keyword arguments of the Python API."""
        if sum(given is not UNSET for given in (self.payload_base64, self.payload_text)) > 1:
            raise invalid("Give payload_base64 or payload_text, not both.")
        found: dict[str, Any] = {}
        for name in ("cron", "zone", "template", "headers", "key", "priority", "lane", "missed", "limit"):
            if (value := getattr(self, name)) is not UNSET:
                found[name] = value
        if self.payload_base64 is not UNSET:
            found["payload"] = self.payload_base64
        elif self.payload_text is not UNSET:
            found["payload"] = self.payload_text.encode()
        if self.ttl_ms is not UNSET:
            found["ttl"] = None if self.ttl_ms is None else self.ttl_ms / 1000
        if self.jitter_ms is not UNSET:
            found["jitter"] = self.jitter_ms / 1000
        return found

    @classmethod
    def of(cls, known: schedule.Schedule) -> ScheduleSettings:
        facts: dict[str, Any] = asdict(known)
        payload = facts.pop("payload")
        del facts["topic"], facts["ttl"], facts["jitter"]
        if known.template is None:
            facts["payload_base64"] = payload
        return cls(ttl_ms=known.ttl_ms, jitter_ms=known.jitter_ms, **facts)


class NewSchedule(ScheduleSettings, forbid_unknown_fields=True, kw_only=True):
    """A schedule to be made. With `exist_ok` an equal one is left as it is."""

    name: Name
    topic: Name
    cron: _Cron
    paused: bool = False
    exist_ok: bool = False


class ScheduleRun(msgspec.Struct):
    """A tick that was published: when, as which message, and how long after its moment."""

    tick_ms: int
    published_at_ms: int
    late_ms: int
    id: str


class Schedule(msgspec.Struct, kw_only=True):
    """A schedule as it stands: its next ticks, its last runs (newest first), and how many ticks were published and
    missed since it was made. `trouble`: why the tick whose time has come could not be published so far.
    """

    name: str
    topic: str
    settings: ScheduleSettings
    paused: bool
    version: int
    created_at_ms: int
    next_ms: tuple[int, ...]
    runs: list[ScheduleRun]
    published: int
    missed: int
    trouble: str | None

    @classmethod
    def of(cls, known: ScheduleDescription) -> Schedule:
        return cls(
            name=known.name,
            topic=known.topic,
            settings=ScheduleSettings.of(known.settings),
            paused=known.paused,
            version=known.version,
            created_at_ms=known.created_at_ms,
            next_ms=known.next_ms,
            runs=[ScheduleRun(run.tick_ms, run.published_at_ms, run.late_ms, run.id) for run in known.runs],
            published=known.published,
            missed=known.missed,
            trouble=known.trouble,
        )


class SchedulePage(msgspec.Struct):
    """Schedules by name, each with its next tick. `next` leads to the next page; null: there is none."""

    schedules: list[Schedule]
    next: str | None


class SchedulesQuery(msgspec.Struct, forbid_unknown_fields=True):
    limit: Limit = 100
    next: Next | None = None


class TicksQuery(msgspec.Struct, forbid_unknown_fields=True):
    count: _Count = 10


class Preview(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """An expression, and the moment after which its ticks are wanted; null: now."""

    cron: _Cron
    zone: _Zone = "UTC"
    count: _Count = 10
    after_ms: Moment | None = None


class Ticks(msgspec.Struct):
    """Ticks in order: in milliseconds since 1970, and in the zone of the expression."""

    next_ms: list[int]
    next: list[str]


def _described(known: ScheduleDescription, status: int = 200, **headers: str) -> Reply:
    return Reply.of(Schedule.of(known), status, {"etag": f'"{known.version}"', **headers})


@endpoint(
    "POST",
    "/v1/schedules",
    tag="schedules",
    does=(CreateSchedule,),
    body=NewSchedule,
    answer=Schedule,
    status=201,
    refuses=("schedule_exists", "topic_not_found", "invalid_argument", "limit_exceeded"),
    gives_headers={**_ETAG, "Location": "The schedule's path."},
)
def create_schedule(call: Call) -> Reply:
    """Have a message published into a queue once a tick."""
    wanted: NewSchedule = call.body
    made = call.client.create_schedule(
        wanted.name, topic=wanted.topic, paused=wanted.paused, exist_ok=wanted.exist_ok, **wanted.given()
    )
    return _described(made, 201, location=f"/v1/schedules/{quote(made.name, safe='')}")


@endpoint("GET", "/v1/schedules", tag="schedules", does=(ListSchedules,), query=SchedulesQuery, answer=SchedulePage)
def list_schedules(call: Call) -> SchedulePage:
    """List schedules by name."""
    after = "" if call.query.next is None else read_cursor(call.query.next, str)
    found = call.client.schedules(after=after, limit=call.query.limit)
    return SchedulePage(
        [Schedule.of(one) for one in found], cursor(found[-1].name) if len(found) == call.query.limit else None
    )


@endpoint("GET", _PATH, tag="schedules", does=(DescribeSchedule,), answer=Schedule, refuses=_FOUND, gives_headers=_ETAG)
def describe_schedule(call: Call) -> Reply:
    """Describe a schedule: its settings, its next ticks and its last runs."""
    return _described(call.client.describe_schedule(call.path["schedule"]))


@endpoint(
    "GET",
    f"{_PATH}/next",
    tag="schedules",
    does=(DescribeSchedule,),
    query=TicksQuery,
    answer=Ticks,
    refuses=_FOUND,
)
def next_ticks(call: Call) -> Ticks:
    """The next ticks of a schedule; none while it is paused."""
    found = call.client.describe_schedule(call.path["schedule"], count=call.query.count)
    return Ticks(list(found.next_ms), [tick.isoformat() for tick in found.next])


@endpoint(
    "PATCH",
    _PATH,
    tag="schedules",
    does=(UpdateSchedule,),
    body=ScheduleSettings,
    answer=Schedule,
    refuses=(*_CHANGES, "limit_exceeded"),
    takes_headers=_IF_MATCH,
    gives_headers=_ETAG,
)
def update_schedule(call: Call) -> Reply:
    """Change a schedule. What is left out stays; its topic always does."""
    changes = call.body.given()
    return _described(call.client.update_schedule(call.path["schedule"], version=version_of(call), **changes))


@endpoint(
    "POST",
    f"{_PATH}/pause",
    tag="schedules",
    does=(UpdateSchedule,),
    answer=Schedule,
    refuses=_CHANGES,
    takes_headers=_IF_MATCH,
    gives_headers=_ETAG,
)
def pause_schedule(call: Call) -> Reply:
    """Have a schedule tick no more until it is resumed."""
    return _described(call.client.pause_schedule(call.path["schedule"], version=version_of(call)))


@endpoint(
    "POST",
    f"{_PATH}/resume",
    tag="schedules",
    does=(UpdateSchedule,),
    answer=Schedule,
    refuses=_CHANGES,
    takes_headers=_IF_MATCH,
    gives_headers=_ETAG,
)
def resume_schedule(call: Call) -> Reply:
    """Have a schedule tick again, from its next tick on."""
    return _described(call.client.resume_schedule(call.path["schedule"], version=version_of(call)))


@endpoint(
    "DELETE",
    _PATH,
    tag="schedules",
    does=(DeleteSchedule,),
    status=204,
    refuses=_CHANGES,
    takes_headers=_IF_MATCH,
)
def delete_schedule(call: Call) -> None:
    """Delete a schedule. What it has published stays."""
    call.client.delete_schedule(call.path["schedule"], version=version_of(call))


@endpoint(
    "POST",
    "/v1/schedules:preview",
    tag="schedules",
    call="preview",
    body=Preview,
    answer=Ticks,
    refuses=("invalid_argument", "limit_exceeded"),
)
def preview_schedule(call: Call) -> Ticks:
    """When an expression ticks. Nothing is stored."""
    asked: Preview = call.body
    after = None if asked.after_ms is None else from_ms(asked.after_ms)
    found = call.client.preview_schedule(asked.cron, zone=asked.zone, count=asked.count, after=after)
    return Ticks([round(tick.timestamp() * 1000) for tick in found], [tick.isoformat() for tick in found])
