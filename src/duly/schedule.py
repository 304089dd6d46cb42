"""Schedules: cron entries that publish into a queue, and the moments at which they tick.

An expression names *local* times of its zone. Which moments those are is decided here, and by one rule each:

    a local time that does not exist (clocks go forward)    ticks at the end of the gap, once however many there are
    a local time that comes twice (clocks go back)          ticks the first time only

So `30 2 * * *` in Europe/Berlin ticks every day of the year, at 03:00 on the day of the gap; `*/15 * * * *` ticks once
at its end; and where the hour from two to three comes twice, `0 * * * *` is silent for the second one. UTC has no such
days, and `@every` counts milliseconds from when the schedule began, whatever clocks show. The rule maps later local
times never to earlier moments: ticks can be enumerated in either direction, from anywhere, without walking there.

A tick is *due* from its moment on, until it is judged: normally within milliseconds. When several are due at once, all
but the last were missed; so was the last, if it is more than a minute late.

    skip      missed ticks are dropped
    latest    the last tick is published, however late; missed ones before it are dropped
    all       the last `limit` ticks are published

What is judged stays judged: the next tick only ever moves ahead, whatever the clock does. Pure: no store, no clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from string import Template
from typing import Any, NamedTuple, Protocol
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from .clock import Duration, from_ms, milliseconds, moment_ms
from .errors import InvalidArgument, LimitExceeded
from .limits import LIMITS
from .message import OPERATION
from .tenant import check_name
from .topic import check_seconds, check_whole

SKIP, LATEST, ALL = "skip", "latest", "all"
MISSED = (SKIP, LATEST, ALL)
# A tick that is judged later than this was missed.
ON_TIME_MS = 60_000
JITTER_MS_MAX = 3_600_000
CRON_CHARS_MAX = 256
EVERY_MS_MIN, EVERY_MS_MAX = 1000, 366 * 86_400_000
# How many ticks are looked at when they are judged: of those beyond nobody wants to know how many they were.
_LOOK_MAX = 1000
LIMIT_MAX = _LOOK_MAX

_WORDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_EVERY = re.compile(r"@every +(?:(\d{1,6})d)?(?:(\d{1,7})h)?(?:(\d{1,8})m)?(?:(\d{1,10})s)?", re.ASCII)
_UNITS_S = (86_400, 3600, 60, 1)
_SECOND = timedelta(seconds=1)
_HOW = (
    "Write five fields (minute hour day month weekday), six with seconds first, @hourly, @daily, @weekly, @monthly, "
    "@yearly, or @every 90s."
)


class Ticks(Protocol):
    """The moments at which something ticks, in milliseconds since 1970."""

    def after(self, moment: int) -> Iterator[int]:
        """Those after a moment, in order."""
        ...

    def back_from(self, moment: int) -> Iterator[int]:
        """The last one at or before a moment, the one before it, and so on."""
        ...


def ticks_of(cron: str, zone: str, anchor_ms: int) -> Ticks:
    """The ticks of an expression; `@every` counts from `anchor_ms` on. Raises InvalidArgument."""
    text = _WORDS.get(cron.strip().lower(), cron.strip()) if isinstance(cron, str) else ""
    if not text or len(text) > CRON_CHARS_MAX or not text.isprintable():
        raise InvalidArgument(f"cron must be a text of 1 to {CRON_CHARS_MAX} characters. {_HOW}")
    found = zone_of(zone)
    if text.lower().startswith("@every"):
        return _Every(_period_ms(text.lower()), anchor_ms)
    if text.startswith("@"):
        raise InvalidArgument(f"There is no {text.split()[0]!r}. {_HOW}")
    return _Cron(_checked(text), found)


def zone_of(name: str) -> ZoneInfo:
    """The zone of that IANA name. Raises InvalidArgument."""
    if not isinstance(name, str):
        raise InvalidArgument(f"zone must be the name of a time zone, not {type(name).__name__}.")
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError) as error:
        raise InvalidArgument(f"There is no time zone {name!r}. Write one like Europe/Berlin, or UTC.") from error


def _period_ms(text: str) -> int:
    match = _EVERY.fullmatch(text)
    parts = () if match is None else match.groups()
    if not any(parts):
        raise InvalidArgument(f"{text!r} is no period. Write @every 90s, @every 5m or @every 1h30m.")
    period = 1000 * sum(int(part) * unit for part, unit in zip(parts, _UNITS_S, strict=True) if part)
    if not EVERY_MS_MIN <= period <= EVERY_MS_MAX:
        raise LimitExceeded(f"@every takes 1 second to {EVERY_MS_MAX // 86_400_000} days; got {text!r}.")
    return period


@lru_cache(maxsize=1024)
def _checked(text: str) -> str:
    """The expression, which ticks at some time. Raises InvalidArgument."""
    try:
        # A local time has no zone.
        found = CronSim(text, datetime(2000, 1, 1))  # noqa: DTZ001
    except (CronSimError, ValueError) as error:
        raise InvalidArgument(f"{text!r} is no cron expression: {error}. {_HOW}") from error
    # A day that no month has, such as the 30th of February: better said now than waited for.
    if next(found, None) is None:
        raise InvalidArgument(f"{text!r} never ticks: there is no such day. Correct the day, month or weekday.")
    return text


class _Every:
    """Ticks a period apart, the first one a period after the anchor."""

    def __init__(self, period_ms: int, anchor_ms: int) -> None:
        self._period = period_ms
        self._anchor = anchor_ms

    def after(self, moment: int) -> Iterator[int]:
        at = self._anchor + max(1, (moment - self._anchor) // self._period + 1) * self._period
        while True:
            yield at
            at += self._period

    def back_from(self, moment: int) -> Iterator[int]:
        at = self._anchor + (moment - self._anchor) // self._period * self._period
        while at > self._anchor:
            yield at
            at -= self._period


class _Cron:
    """Ticks at local times. What is enumerated are naive local times; where clocks change, they are mapped."""

    def __init__(self, text: str, zone: ZoneInfo) -> None:
        self._text = text
        self._zone = zone

    def after(self, moment: int) -> Iterator[int]:
        local, doubled_to = self._local(moment)
        # Where local times come a second time, those up to the end of that have ticked.
        start = local if doubled_to is None else doubled_to - _SECOND
        return self._walk(CronSim(self._text, start), last=moment, step=1)

    def back_from(self, moment: int) -> Iterator[int]:
        local, doubled_to = self._local(moment)
        start = local + _SECOND if doubled_to is None else doubled_to
        return self._walk(CronSim(self._text, start, reverse=True), last=moment + 1, step=-1)

    def _walk(self, times: CronSim, *, last: int, step: int) -> Iterator[int]:
        try:
            for local in times:
                tick, gap = self._moment(local)
                if (tick - last) * step > 0:
                    yield tick
                    last = tick
                if gap is not None:
                    # All others in the gap are the same tick, and so is what is at its end.
                    times.dt = gap[0] if step < 0 else gap[1]
        except OverflowError:
            # The calendar ends there.
            return

    def _local(self, moment: int) -> tuple[datetime, datetime | None]:
        """What clocks show at a moment, in whole seconds; and, if they show it for the second time, until when."""
        at = from_ms(moment).replace(microsecond=0)
        shown = at.astimezone(self._zone)
        local = shown.replace(tzinfo=None, fold=0)
        if not shown.fold:
            return local, None
        first = shown.replace(fold=0)
        changed = self._change(first.astimezone(UTC), at)
        return local, (changed + _offset(first)).replace(tzinfo=None)

    def _moment(self, local: datetime) -> tuple[int, tuple[datetime, datetime] | None]:
        """When clocks show a time first; of one that they skip the end of the gap, and the gap's local bounds."""
        shown = local.replace(tzinfo=self._zone)
        at = shown.astimezone(UTC)
        if at.astimezone(self._zone).replace(tzinfo=None) == local:
            return moment_ms(at, "tick"), None
        # By PEP 495 the first of the two readings of a skipped time has the offset of before the gap.
        before, behind = _offset(shown), _offset(shown.replace(fold=1))
        naive = local.replace(tzinfo=UTC)
        changed = self._change(naive - behind, naive - before)
        gap = tuple((changed + offset).replace(tzinfo=None) for offset in (before, behind))
        return moment_ms(changed, "tick"), (gap[0], gap[1])

    def _change(self, low: datetime, high: datetime) -> datetime:
        """The second, after `low` and not after `high`, from which on the offset is that of `high`."""
        wanted = high.astimezone(self._zone).utcoffset()
        ahead = (high - low) // _SECOND
        behind = 0
        while ahead - behind > 1:
            middle = (ahead + behind) // 2
            if (low + middle * _SECOND).astimezone(self._zone).utcoffset() == wanted:
                ahead = middle
            else:
                behind = middle
        return low + ahead * _SECOND


def _offset(shown: datetime) -> timedelta:
    offset = shown.utcoffset()
    assert offset is not None
    return offset


class Verdict(NamedTuple):
    """What becomes of the ticks that are due: which are published, how many were passed over (`more`: at least), and
    the tick that is next; None: there is none any more.
    """

    publish: tuple[int, ...]
    passed: int
    more: bool
    next_at: int | None


def judge(ticks: Ticks, *, since: int, now: int, missed: str, limit: int) -> Verdict:
    """Judges the ticks from `since` to `now`. It costs the same however many there are."""
    due: list[int] = []
    for tick in ticks.back_from(now):
        if tick < since or len(due) > _LOOK_MAX:
            break
        due.append(tick)
    due.reverse()
    more = len(due) > _LOOK_MAX
    if missed == ALL:
        publish = due[-limit:]
    elif missed == LATEST or (due and now - due[-1] <= ON_TIME_MS):
        publish = due[-1:]
    else:
        publish = []
    return Verdict(tuple(publish), len(due) - len(publish), more, next(ticks.after(max(now, since - 1)), None))


def spread_ms(tenant: str, name: str, tick: int, jitter_ms: int) -> int:
    """How much later than its tick a message is due: the same whoever asks."""
    drawn = blake2b(f"{tenant}\0{name}\0{tick}".encode(), digest_size=8).digest()
    return int.from_bytes(drawn, "big") % (jitter_ms + 1)


def tick_id(name: str, tick: int) -> str:
    """The id of a tick's message: by it that is found, moved and cancelled."""
    return f"schedule@{name}@{tick}"


class Run(NamedTuple):
    """What is said of a tick in its message: its number among those published, and the tick published before it."""

    schedule: str
    tick: int
    previous: int | None
    number: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """What a schedule publishes, where and when. Give `payload`, or a `template` in which ${tick}, ${tick_ms},
    ${date}, ${previous}, ${run} and ${schedule} are filled in.

    `missed` says what becomes of ticks that nobody was there for: "latest", "skip", or "all" up to `limit`. `jitter`
    moves each message up to so much later than its tick, always the same for the same tick. `ttl` counts from then on.
    """

    topic: str
    cron: str
    zone: str = "UTC"
    payload: bytes = b""
    template: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    priority: int | None = None
    lane: str | None = None
    ttl: Duration | None = None
    missed: str = LATEST
    limit: int = 100
    jitter: Duration = 0.0

    def __post_init__(self) -> None:
        check_name(self.topic, "topic name")
        ticks_of(self.cron, self.zone, 0)
        _check_content(self)
        check_whole(self, "priority", low=0, high=LIMITS.priority_max)
        if self.lane is not None:
            check_name(self.lane, "lane")
        check_seconds(self, "ttl", low_ms=1, high_ms=LIMITS.ttl_ms_max)
        if self.missed not in MISSED:
            raise InvalidArgument(f"missed must be one of {', '.join(MISSED)}; got {self.missed!r}.")
        check_whole(self, "limit", low=1, high=LIMIT_MAX, optional=False)
        check_seconds(self, "jitter", low_ms=0, high_ms=JITTER_MS_MAX, optional=False)

    @property
    def ttl_ms(self) -> int | None:
        """`ttl` in milliseconds."""
        return None if self.ttl is None else milliseconds(self.ttl, "ttl")

    @property
    def jitter_ms(self) -> int:
        """`jitter` in milliseconds."""
        return milliseconds(self.jitter, "jitter")

    def ticks(self, anchor_ms: int) -> Ticks:
        """When it ticks; `@every` counts from there."""
        return ticks_of(self.cron, self.zone, anchor_ms)

    def changed(self, changes: Mapping[str, Any]) -> Schedule:
        """The same with some settings changed: a template takes the place of a payload, and the other way round."""
        given = dict(check_given(changes))
        if given.get("template") is not None:
            given.setdefault("payload", b"")
        elif "payload" in given:
            given.setdefault("template", None)
        if given.get("topic", self.topic) != self.topic:
            raise InvalidArgument("A schedule keeps its topic. Delete it and make another.")
        return replace(self, **given)

    def content(self, run: Run) -> bytes:
        """The payload of a tick's message."""
        if self.template is None:
            return self.payload
        zone = zone_of(self.zone)
        return (
            Template(self.template)
            .substitute(
                tick=_shown(run.tick, zone),
                tick_ms=run.tick,
                date=from_ms(run.tick).astimezone(zone).date().isoformat(),
                previous="" if run.previous is None else _shown(run.previous, zone),
                run=run.number,
                schedule=run.schedule,
            )
            .encode()
        )


NAMES = tuple(entry.name for entry in fields(Schedule))
_VARIABLES = ("tick", "tick_ms", "date", "previous", "run", "schedule")


def check_given(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Refuses what is no setting of schedules."""
    for name in given:
        if name not in NAMES:
            raise InvalidArgument(f"There is no setting {name!r}. Settings: {', '.join(sorted(NAMES))}.")
    return given


def check_schedule_name(name: object) -> str:
    """A name that leaves room in the ids of its messages."""
    text = check_name(name, "schedule name")
    if len(tick_id(text, 10**15).encode()) > LIMITS.id_bytes_max:
        raise LimitExceeded("A schedule's name is part of its messages' ids: it has at most 480 bytes of UTF-8.")
    return text


def _shown(tick: int, zone: ZoneInfo) -> str:
    """A tick in its zone; to the millisecond where it has any, as those of `@every` may."""
    return from_ms(tick).astimezone(zone).isoformat(timespec="seconds" if tick % 1000 == 0 else "milliseconds")


def _check_content(given: Schedule) -> None:
    if not isinstance(given.payload, bytes):
        raise InvalidArgument("payload must be bytes: use text.encode(), or template= for a text with ${tick} in it.")
    if given.template is not None:
        _check_template(given.template)
        if given.payload:
            raise InvalidArgument("Give payload or template, not both.")
    size = len(given.payload if given.template is None else given.template.encode())
    if size > LIMITS.schedule_bytes_max:
        raise LimitExceeded(
            f"A schedule's payload has at most {LIMITS.schedule_bytes_max} bytes; got {size}. Send a reference."
        )
    if not isinstance(given.headers, Mapping) or not all(
        isinstance(text, str) for pair in given.headers.items() for text in pair
    ):
        raise InvalidArgument("headers must be a mapping of str to str.")
    if OPERATION in given.headers:
        raise InvalidArgument(f"Leave the header {OPERATION!r} out: each tick begins an operation of its own.")
    object.__setattr__(given, "headers", dict(given.headers))
    if given.key is not None and not isinstance(given.key, str):
        raise InvalidArgument(f"key must be a str, not {type(given.key).__name__}.")


def _check_template(text: object) -> None:
    if not isinstance(text, str):
        raise InvalidArgument(f"template must be a str, not {type(text).__name__}. For bytes use payload=.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument("template is not valid Unicode.") from error
    template = Template(text)
    if not template.is_valid():
        raise InvalidArgument("template has a $ that names nothing. Write $$ for a dollar sign.")
    unknown = sorted(set(template.get_identifiers()) - set(_VARIABLES))
    if unknown:
        raise InvalidArgument(
            f"template: there is no ${{{unknown[0]}}}. There are: {', '.join(_VARIABLES)}. Write $$ for a dollar sign."
        )


def first(ticks: Iterable[int], count: int) -> tuple[int, ...]:
    """The first so many ticks."""
    return tuple(islice(ticks, count))


def preview(cron: str, *, zone: str, count: int, after_ms: int) -> list[datetime]:
    """The next ticks after a moment, in their zone. Raises InvalidArgument."""
    ticks = ticks_of(cron, zone, after_ms)
    return [from_ms(tick).astimezone(zone_of(zone)) for tick in first(ticks.after(after_ms), count)]


@dataclass(frozen=True, slots=True)
class ScheduleRun:
    """A tick that was published: when, and as which message."""

    tick_ms: int
    published_at_ms: int
    id: str

    @property
    def tick(self) -> datetime:
        """The moment of the tick."""
        return from_ms(self.tick_ms)

    @property
    def late_ms(self) -> int:
        """How long after its tick it was published."""
        return self.published_at_ms - self.tick_ms


@dataclass(frozen=True, slots=True)
class ScheduleDescription:
    """A schedule as it stands: its settings, the ticks that come, the last runs (newest first).

    `published` and `missed` count ticks since it was made; missed ones are those that were passed over. `trouble` says
    why the next tick, whose time has come, could not be published so far.
    """

    name: str
    settings: Schedule
    paused: bool
    version: int
    created_at_ms: int
    next_ms: tuple[int, ...]
    runs: tuple[ScheduleRun, ...]
    published: int
    missed: int
    trouble: str | None

    @property
    def topic(self) -> str:
        """The queue that it publishes into."""
        return self.settings.topic

    @property
    def next(self) -> tuple[datetime, ...]:
        """The ticks that come, in the schedule's zone."""
        zone = zone_of(self.settings.zone)
        return tuple(from_ms(tick).astimezone(zone) for tick in self.next_ms)
