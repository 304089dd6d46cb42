"""Groups: the consumers' side of a topic."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, cast

import msgspec

from ..clock import from_ms
from ..engine.groups import CreateGroup, DeleteGroup, DescribeGroup, ListGroups, PurgeGroup, Seek, UpdateGroup
from ..topic import ConsumerDescription, GateDescription, GroupDescription
from .endpoint import Call, endpoint
from .fields import Name, Offsets
from .problems import invalid
from .settings import GroupSettings, Place
from .topics import Dropped

_PATH = "/v1/topics/{topic}/groups/{group}"
_FOUND = ("topic_not_found", "group_not_found", "invalid_argument")


class LaneBreaker(msgspec.Struct):
    """A lane whose breaker is not closed."""

    lane: str
    state: Literal["open", "ramp"]
    rate_per_s: float | None


class Gate(msgspec.Struct):
    """What holds a group back: the rate that holds now, what is in flight, its breaker, and lanes with theirs open."""

    rate_per_s: float | None
    max_in_flight: int | None
    in_flight: int
    breaker: Literal["closed", "open", "ramp"]
    probe_at_ms: int | None
    lanes: tuple[LaneBreaker, ...]

    @classmethod
    def of(cls, known: GateDescription | None) -> Gate | None:
        if known is None:
            return None
        state: Any = known.breaker
        lanes: Any = tuple(LaneBreaker(one.lane, cast("Any", one.state), one.rate) for one in known.lanes)
        return cls(known.rate, known.max_in_flight, known.in_flight, state, known.probe_at_ms, lanes)


class Group(msgspec.Struct, kw_only=True):
    """A group as it stands. `lag` counts what was never claimed; offsets are by partition."""

    topic: str
    name: str
    settings: GroupSettings
    paused: bool
    cursors: Offsets
    first_offsets: Offsets
    next_offsets: Offsets
    lag: int
    leased: int
    retrying: int
    dead: int
    consumers: tuple[ConsumerDescription, ...]
    gate: Gate | None

    @classmethod
    def of(cls, known: GroupDescription) -> Group:
        return cls(
            topic=known.topic,
            name=known.name,
            settings=GroupSettings.of(known.settings),
            paused=known.paused,
            cursors=by_partition(known.cursors),
            first_offsets=by_partition(known.first_offsets),
            next_offsets=by_partition(known.next_offsets),
            lag=known.lag,
            leased=known.leased,
            retrying=known.retrying,
            dead=known.dead,
            consumers=known.consumers,
            gate=Gate.of(known.gate),
        )


class NewGroup(GroupSettings, forbid_unknown_fields=True, kw_only=True):
    """A group of a log to be made, and where it starts: at the earliest message, unless `start` says otherwise."""

    name: Name
    start: Place = msgspec.field(default_factory=lambda: Place(to="earliest"))
    exist_ok: bool = False


class GroupNames(msgspec.Struct):
    """The names of a topic's groups."""

    groups: list[str]


class PlacedAt(msgspec.Struct):
    """Offsets by partition."""

    offsets: Offsets


def start_of(place: Place) -> str | int | Mapping[int, int] | datetime:
    """A place as the Python API takes it. Raises when it is not exactly one."""
    moment = None if place.at_ms is None else from_ms(place.at_ms)
    offsets = None if place.offsets is None else partitions_of(place.offsets)
    given: list[Any] = [value for value in (place.to, place.offset, offsets, moment) if value is not None]
    if len(given) != 1:
        raise invalid("Give one place: to, offset, offsets or at_ms.")
    found: str | int | Mapping[int, int] | datetime = given[0]
    return found


def partitions_of(offsets: Mapping[str, int]) -> dict[int, int]:
    """Offsets by the number of their partition, which JSON has as text."""
    for text in offsets:
        if not text.isascii() or not text.isdigit() or len(text) > 9:
            raise invalid(f"offsets are by partition number; got {text!r}.")
    return {int(text): offset for text, offset in offsets.items()}


def by_partition(offsets: Mapping[int, int]) -> dict[str, int]:
    """The same, as JSON has it."""
    return {str(number): offset for number, offset in offsets.items()}


@endpoint(
    "POST",
    "/v1/topics/{topic}/groups",
    tag="groups",
    does=(CreateGroup,),
    body=NewGroup,
    status=201,
    answer=Group,
    refuses=(*_FOUND, "group_exists", "limit_exceeded", "offset_truncated"),
)
def create_group(call: Call) -> Group:
    """Make a group of a log."""
    wanted: NewGroup = call.body
    start = start_of(wanted.start)
    call.client.create_group(call.topic, wanted.name, start=start, exist_ok=wanted.exist_ok, **wanted.given())
    return Group.of(call.client.describe_group(call.topic, wanted.name))


@endpoint("GET", "/v1/topics/{topic}/groups", tag="groups", does=(ListGroups,), answer=GroupNames, refuses=_FOUND)
def list_groups(call: Call) -> GroupNames:
    """List the groups of a topic."""
    return GroupNames(call.client.list_groups(call.topic))


@endpoint("GET", _PATH, tag="groups", does=(DescribeGroup,), answer=Group, refuses=_FOUND)
def describe_group(call: Call) -> Group:
    """Describe a group: where it stands, and its consumers."""
    return Group.of(call.client.describe_group(call.topic, call.path["group"]))


@endpoint(
    "PATCH",
    _PATH,
    tag="groups",
    does=(UpdateGroup,),
    body=GroupSettings,
    answer=Group,
    refuses=(*_FOUND, "limit_exceeded"),
)
def update_group(call: Call) -> Group:
    """Change a group's own settings; null takes the topic's."""
    call.client.update_group(call.topic, call.path["group"], **call.body.given())
    return Group.of(call.client.describe_group(call.topic, call.path["group"]))


@endpoint("DELETE", _PATH, tag="groups", does=(DeleteGroup,), status=204, refuses=_FOUND)
def delete_group(call: Call) -> None:
    """Delete a group; its open leases are lost."""
    call.client.delete_group(call.topic, call.path["group"])


@endpoint("POST", _PATH + "/pause", tag="groups", does=(UpdateGroup,), status=204, refuses=_FOUND)
def pause_group(call: Call) -> None:
    """Stop deliveries to a group."""
    call.client.pause(call.topic, group=call.path["group"])


@endpoint("POST", _PATH + "/resume", tag="groups", does=(UpdateGroup,), status=204, refuses=_FOUND)
def resume_group(call: Call) -> None:
    """Start deliveries to a group again."""
    call.client.resume(call.topic, group=call.path["group"])


@endpoint("POST", _PATH + "/purge", tag="groups", does=(PurgeGroup,), answer=Dropped, refuses=_FOUND)
def purge_group(call: Call) -> Dropped:
    """Drop what a group has not settled."""
    return Dropped(call.client.purge(call.topic, group=call.path["group"]))


@endpoint(
    "POST",
    _PATH + "/seek",
    tag="groups",
    does=(Seek,),
    body=Place,
    answer=PlacedAt,
    refuses=(*_FOUND, "offset_truncated"),
)
def seek(call: Call) -> PlacedAt:
    """Move a group's cursor. Its open leases are fenced off."""
    place = start_of(call.body)
    name = {str: "to", datetime: "at"}.get(type(place), "offset")
    arguments: dict[str, Any] = {name: place}
    return PlacedAt(by_partition(call.client.seek(call.topic, call.path["group"], **arguments)))
