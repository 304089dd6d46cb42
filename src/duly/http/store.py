"""The store as a whole: what happened, how it does, its limits, its clock, and stopping all deliveries."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import asdict

from ..clock import ClockReading, monotonic_s
from ..engine.event_log import ListEvents, Page
from ..engine.pause import PauseStore
from ..engine.wellbeing import CheckHealth
from ..errors import NotReady
from ..events import Event
from ..health import Finding, GroupHealth, HealthReason, worst
from ..member import Member
from ..tenant import check_name
from .endpoint import Call, endpoint
from .fields import Limit, MessageId, Moment, Name, Next
from .problems import invalid
from .tokens import cursor, read_cursor

_CALL_S = 30.0
_Level = Literal["ok", "warn", "alert"]


class EventEntry(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A state change of `count` messages from `offset` on or, with `deltas`, of those at the offsets that they lead to.

    `lease` names what they were claimed under; `whole`: about all that was left of it.
    """

    kind: str
    at_ms: int
    alert: bool = False
    topic: str = ""
    group: str = ""
    partition: int = 0
    offset: int = 0
    count: int = 0
    facts: dict[str, Any] = {}
    consumer: str = ""
    lease: int = 0
    whole: bool = False
    deltas: tuple[int, ...] = ()

    @classmethod
    def of(cls, event: Event) -> EventEntry:
        facts: dict[str, Any] = {name: getattr(event, name) for name in Event.__struct_fields__}
        del facts["tenant"]
        return cls(at_ms=facts.pop("at"), alert=event.alert, **facts)


class EventPage(msgspec.Struct):
    """What happened, in order. `next` leads to what came after; a page may be empty and still have one."""

    events: list[EventEntry]
    next: str | None


class EventsQuery(msgspec.Struct, forbid_unknown_fields=True):
    since_ms: Moment | None = None
    topic: Name | None = None
    message: Annotated[MessageId, Meta(description="The history of one message; with its topic.")] | None = None
    limit: Limit = 1000
    next: Next | None = None


class Reason(msgspec.Struct):
    """A figure that has reached a threshold."""

    level: _Level
    measure: str
    figure: float
    threshold: float
    text: str

    @classmethod
    def of(cls, known: HealthReason) -> Reason:
        level: Any = known.level
        if known.measure != "oldest_age":
            return cls(level, known.measure, known.figure, known.threshold, known.text)
        return cls(level, "oldest_age_ms", known.figure * 1000, known.threshold * 1000, known.text)


class GroupState(msgspec.Struct, kw_only=True):
    """How a group does by its topic's thresholds, with reasons and figures."""

    topic: str
    group: str
    level: _Level
    paused: bool
    reasons: list[Reason]
    consumers: int
    undelivered: int
    oldest_age_ms: int
    retry_ratio: float
    dead: int

    @classmethod
    def of(cls, known: GroupHealth) -> GroupState:
        level: Any = known.level
        return cls(
            topic=known.topic,
            group=known.group,
            level=level,
            paused=known.paused,
            reasons=[Reason.of(reason) for reason in known.reasons],
            consumers=known.figures.consumers,
            undelivered=known.figures.undelivered,
            oldest_age_ms=round(known.figures.oldest_age * 1000),
            retry_ratio=known.figures.retry_ratio,
            dead=known.figures.dead,
        )


class HealthPage(msgspec.Struct):
    """Groups, a page of topics at a time, and the worst level among them."""

    level: _Level
    groups: list[GroupState]
    next: str | None


class HealthQuery(msgspec.Struct, forbid_unknown_fields=True):
    topic: Name | None = None
    limit: Limit = 100
    next: Next | None = None


class Time(msgspec.Struct):
    """The store's time beside the host's. `refused`: the host's clock has leapt ahead, and nobody confirmed it."""

    now_ms: int
    host_ms: int
    state: Literal["together", "behind", "refused"]

    @classmethod
    def of(cls, read: ClockReading) -> Time:
        state: Any = read.state
        return cls(_ms(read.now), _ms(read.host), state)


class ClusterMember(msgspec.Struct, kw_only=True):
    """A broker on the store, as it was when last seen. `url` and `http_url` are what its clients should use.

    `drift_ms`: its host's clock less the store's. One that is not `ready` takes neither publishes nor claims.
    """

    name: str
    url: str
    http_url: str
    version: str
    started_at_ms: int
    seen_at_ms: int
    drift_ms: int
    ready: bool
    reason: str

    @classmethod
    def of(cls, known: Member) -> ClusterMember:
        return cls(**asdict(known))


class Cluster(msgspec.Struct):
    """The brokers that serve the store."""

    members: list[ClusterMember]


class Examined(msgspec.Struct):
    """What an examination of the store came upon, and the worst of it."""

    level: str
    findings: list[Finding]


class Health(msgspec.Struct):
    """How the broker is."""

    status: Literal["live", "ready"]


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


@endpoint(
    "GET",
    "/v1/events",
    tag="store",
    does=(ListEvents,),
    query=EventsQuery,
    answer=EventPage,
    refuses=("topic_not_found", "message_not_found", "invalid_argument", "corrupt_block"),
)
def list_events(call: Call) -> EventPage:
    """What happened: all that is recorded, or since a moment; of one topic, or of one message of it."""
    wanted: EventsQuery = call.query
    if wanted.message is not None and wanted.topic is None:
        raise invalid("The history of a message takes its topic too: ids are a topic's own.")
    after, leases = ((-1, -1), ()) if wanted.next is None else _after(wanted.next)
    command = ListEvents(
        call.tenant,
        after=after,
        since=wanted.since_ms,
        topic=None if wanted.topic is None else check_name(wanted.topic, "name"),
        message=wanted.message,
        limit=wanted.limit,
        leases=leases,
    )
    page: Page = call.entry.do(command, deadline=monotonic_s() + _CALL_S)
    following = cursor((page.after, page.leases)) if page.more else None
    return EventPage([EventEntry.of(event) for event in page.events], following)


def _after(text: str) -> tuple[tuple[int, int], tuple[tuple[str, int], ...]]:
    return read_cursor(text, tuple[tuple[int, int], tuple[tuple[str, int], ...]])


@endpoint(
    "GET",
    "/v1/health",
    tag="store",
    does=(CheckHealth,),
    query=HealthQuery,
    answer=HealthPage,
    refuses=("topic_not_found", "invalid_argument"),
)
def health(call: Call) -> HealthPage:
    """How each group does by its topic's thresholds: of one topic, or of a page of topics."""
    wanted: HealthQuery = call.query
    after = "" if wanted.next is None else read_cursor(wanted.next, str)
    found = call.client.health(wanted.topic, after=after, limit=wanted.limit)
    full = wanted.topic is None and len({one.topic for one in found}) == wanted.limit
    level: Any = worst(one.level for one in found)
    return HealthPage(level, [GroupState.of(one) for one in found], cursor(found[-1].topic) if full else None)


@endpoint("GET", "/v1/limits", tag="store", call="limits", answer=dict[str, int], always=True)
def limits(call: Call) -> dict[str, int]:
    """The hard limits."""
    return call.client.limits()


@endpoint("GET", "/v1/clock", tag="store", call="clock", answer=Time, always=True)
def clock(call: Call) -> Time:
    """The store's time beside the host's."""
    return Time.of(call.client.clock())


@endpoint("POST", "/v1/clock/accept", tag="store", call="accept_clock", answer=Time)
def accept_clock(call: Call) -> Time:
    """Confirm the host's clock: the store's time becomes the host's."""
    return Time.of(call.client.accept_clock())


@endpoint("GET", "/v1/cluster", tag="store", call="cluster", answer=Cluster, always=True)
def cluster(call: Call) -> Cluster:
    """The brokers that serve the store, this one among them, with the drift of their clocks."""
    return Cluster([ClusterMember.of(member) for member in call.client.cluster()])


@endpoint("POST", "/v1/pause", tag="store", does=(PauseStore,), status=204)
def pause_store(call: Call) -> None:
    """Stop all deliveries, of every topic and tenant. Publishing and settling go on."""
    call.client.pause_store()


@endpoint("POST", "/v1/resume", tag="store", does=(PauseStore,), status=204)
def resume_store(call: Call) -> None:
    """Start deliveries again. Of a restored store it frees what its consumers held."""
    call.client.resume_store()


@endpoint("POST", "/v1/doctor", tag="store", call="examine", answer=Examined)
def examine(call: Call) -> Examined:
    """Look the whole store over: integrity, checksums, references, clock, disk, settings. It takes its time."""
    findings = list(call.client.examine())
    return Examined(worst(finding.level for finding in findings), findings)


@endpoint("GET", "/health/live", tag="broker", answer=Health, always=True, public=True)
async def live(call: Call) -> Health:  # noqa: ARG001
    """Whether the broker runs at all."""
    return Health("live")


@endpoint("GET", "/health/ready", tag="broker", answer=Health, always=True, public=True)
def ready(call: Call) -> Health:
    """Whether it takes work: not while it goes down, nor while the host's clock is off, or refused by the store."""
    if reason := call.broker.reason():
        raise NotReady(reason)
    return Health("ready")
