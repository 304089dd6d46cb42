"""forecast: the coming load per minute, and the consumers that it takes. Nothing is kept for it, nothing is written.

What comes. A queue's timeline knows what falls due in each minute. What will be published is not known: it is taken
that as much comes as of late, by the `published` events of the last ten minutes, less what was published for later (a
minute or more ahead): that stands on the timeline already, and would count twice.

How fast a consumer is. It is *busy* while it holds a lease. Of each lease the events tell when it was claimed, how many
of it were acked, and when last; a lease of which nothing was settled tells nothing. By consumer these stretches are
laid over each other, so that several leases at once do not count twice, and the service rate is

    messages acked ÷ seconds busy, of all consumers of the group together

A retry takes time and finishes nothing: it makes the rate smaller, as it should. A consumer is whoever claims under one
name: a process of workers with all its slots. One whose slots are half empty finishes less than it could; so the
forecast asks rather for too many. Only the last transactions of the tenant are looked at (_LOOK_BACK), however old: a
group that was scaled down to nothing is known by what it did before. Where they tell nothing no number is made up.

How many it takes. A message keeps one consumer for 1 ÷ rate seconds. If that is a minute or less, then a minute takes

    consumers = ⌈ messages to begin in it ÷ (60 × rate) ⌉

and one that takes longer keeps one consumer in each of the minutes that it lasts, and never more than one. What is
begun in the first minute is all of the backlog too; where settings let through no more than so many a second, or have
no more than so many in flight, the rest waits for the next minute. While a breaker is open it takes one, for the probe.
Rounded up, without a reserve: how busy consumers should be is for whoever scales them to say. The first minute is what
is left of this one, but it is counted as whole, or the number would grow without bound as its end comes near.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from itertools import accumulate

import msgspec

from ..errors import CorruptBlock, InvalidArgument, LimitExceeded
from ..forecast import Forecast, ForecastMinute
from ..health import ACTIVE_MS
from ..limits import MINUTE_MS
from ..store.contract import LEASED, GroupRow, TopicRow, Transaction
from .event_log import Brief, late_events
from .find import find_group, find_topic
from .gate import OPEN, STATES, Terms
from .gates import terms_of
from .groups import DescribeGroup, describe_group
from .inquiry import count_coming
from .pause import is_paused

_LOOK_BACK = 10_000
_LOOK_BACK_EVENTS = 50_000
_LATE_MS = 10 * MINUTE_MS
# A message that takes eleven days.
_RATE_MIN = 1e-6
# Of all groups together: an answer is in memory whole.
_MINUTES_MAX = 500_000


class ListForecasts(msgspec.Struct, frozen=True):
    """A topic's forecasts, of one of its groups or of all; or those of a page of topics after a name.

    `rate_per_s`: how fast a consumer is, where the caller knows better than the events.
    """

    tenant: str
    topic: str | None
    group: str
    after: str
    limit: int
    minutes: int
    rate_per_s: float | None = None


def list_forecasts(tx: Transaction, command: ListForecasts) -> list[Forecast]:
    """Every group of the topics asked for, by topic. A log without groups has one without a name: nobody consumes it,
    and how much of it comes is told all the same.
    """
    if command.rate_per_s is not None and command.rate_per_s < _RATE_MIN:
        raise InvalidArgument(f"rate must be at least {_RATE_MIN} a second; got {command.rate_per_s}.")
    if command.topic is not None:
        names = [command.topic]
    else:
        names = tx.topic_list(command.tenant, command.after, command.limit)
    topics = [find_topic(tx, command.tenant, name, suspended=True) for name in names]
    groups = [(topic, group) for topic in topics for group in _groups(tx, topic, command.group)]
    if len(groups) * command.minutes > _MINUTES_MAX:
        raise LimitExceeded(
            f"{len(groups)} groups for {command.minutes} minutes are too many for one answer: ask for fewer minutes, "
            "for one topic or for one group."
        )
    of_late = OfLate(topics, tx.now_ms)
    damage = ""
    try:
        of_late.note(*late_events(tx, command.tenant, _LOOK_BACK, _LOOK_BACK_EVENTS))
    except CorruptBlock as error:
        damage = f"What happened cannot be read, and so neither how fast consumers are: {error}"
    return [_forecast(tx, topic, group, command, of_late, damage) for topic, group in groups]


def _groups(tx: Transaction, topic: TopicRow, name: str) -> Sequence[GroupRow | None]:
    if name:
        return [find_group(tx, topic, name)]
    return tx.group_list(topic.id) or [None]


class _Lease(msgspec.Struct):
    consumer: str
    start: int
    end: int = 0


class OfLate:
    """What events tell of some topics: how much was published lately, and how fast consumers were."""

    def __init__(self, topics: Sequence[TopicRow], now_ms: int) -> None:
        self._made = {topic.name: topic.created_at for topic in topics}
        self._now_ms = now_ms
        # Before this nothing is known.
        self._since = 0
        self._published: Counter[str] = Counter()
        self._acked: Counter[tuple[str, str]] = Counter()
        self._leases: dict[tuple[str, str], dict[int, _Lease]] = defaultdict(dict)

    def note(self, transactions: Sequence[Sequence[Brief]], whole: bool) -> None:
        """Takes in what happened, in order; `whole`: nothing is left out."""
        if transactions and transactions[0] and not whole:
            self._since = transactions[0][0].at
        for events in transactions:
            for event in events:
                # Another topic may have had the name.
                if event.at >= self._made.get(event.topic, self._now_ms + 1):
                    self._note(event)

    def _note(self, event: Brief) -> None:
        key = event.topic, event.group
        if event.kind == "published":
            if event.at > self._now_ms - _LATE_MS:
                later = event.facts.get("later", 0)
                self._published[event.topic] += event.count - (later if isinstance(later, int) else 0)
        elif event.kind in ("claimed", "extended"):
            self._leases[key][event.lease] = _Lease(event.consumer, event.at)
        elif event.kind in ("acked", "nacked") and (lease := self._leases[key].get(event.lease)) is not None:
            lease.consumer, lease.end = event.consumer, event.at
            if event.kind == "acked":
                self._acked[key] += event.count

    def arrival_rate(self, topic: TopicRow) -> float:
        """Messages a second, of ten minutes; of fewer where the topic is younger or the events do not reach back so
        far, but of one at least.
        """
        since = max(self._now_ms - _LATE_MS, topic.created_at, self._since)
        return self._published[topic.name] * 1000 / max(MINUTE_MS, self._now_ms - since)

    def service_rate(self, topic: str, group: str) -> tuple[float | None, int]:
        """Messages a second that one busy consumer finishes, and of how many that was told; None: nobody knows."""
        acked = self._acked[topic, group]
        if not acked:
            return None, 0
        stretches: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for lease in self._leases[topic, group].values():
            if lease.end:
                # Events are told to the millisecond: what began and ended in the same one took some of it.
                stretches[lease.consumer].append((lease.start, max(lease.end, lease.start + 1)))
        return acked * 1000 / sum(_covered(some) for some in stretches.values()), acked


def _covered(stretches: list[tuple[int, int]]) -> int:
    """How long at least one of them lasts."""
    covered = until = 0
    for start, end in sorted(stretches):
        covered += max(0, end - max(start, until))
        until = max(until, end)
    return covered


def _forecast(
    tx: Transaction, topic: TopicRow, group: GroupRow | None, command: ListForecasts, of_late: OfLate, damage: str
) -> Forecast:
    name = "" if group is None else group.name
    observed_rate, observed = of_late.service_rate(topic.name, name)
    rate = observed_rate
    terms = Terms() if group is None else terms_of(topic, group) or Terms()
    if command.rate_per_s is not None:
        rate, observed = command.rate_per_s, 0
    arrival_rate = of_late.arrival_rate(topic)
    paused = topic.paused or is_paused(tx) or (group is not None and group.paused)
    notes = [damage] if damage else []
    try:
        stands = _stands(tx, topic, group)
    except CorruptBlock as error:
        # One that cannot be read must not hide what is ahead of the others.
        stands, rate = _Stands(), None
        notes.append(f"What stands in it cannot be read: {error}")
    first = tx.now_ms // MINUTE_MS
    timed = [stands.coming[minute] for minute in range(first, first + command.minutes)]
    loads = [messages + 60 * arrival_rate for messages in timed]
    needed: Sequence[int | None]
    if group is None or paused:
        needed = [0] * command.minutes
    elif stands.broken:
        # For the probe.
        needed = [int(work > 0) for work in accumulate(loads, initial=stands.ready + stands.leased)][1:]
    elif rate is None:
        # Where there is nothing to do it takes nobody, however fast they are.
        needed = [None if work else 0 for work in accumulate(loads, initial=stands.ready + stands.leased)][1:]
    else:
        needed = consumers_needed(loads, stands.ready + stands.leased, rate, _most(terms, rate))
    return Forecast(
        topic=topic.name,
        group=name,
        at_ms=tx.now_ms,
        paused=paused,
        ready=stands.ready,
        leased=stands.leased,
        active=stands.active,
        arrival_rate=round(arrival_rate, 4),
        service_rate=None if rate is None else float(f"{rate:.4g}"),
        observed=observed,
        rate_max=terms.rate,
        minutes=tuple(
            ForecastMinute((first + at) * MINUTE_MS, timed[at], _expected(arrival_rate, at), needed[at])
            for at in range(command.minutes)
        ),
        notes=(*notes, *_notes(topic, group, terms, rate, paused=paused, broken=stands.broken, unknown=None in needed)),
    )


def _most(terms: Terms, rate: float) -> float | None:
    """How many messages a second the settings let through. A message keeps its slot for as long as its consumer."""
    of_slots = None if terms.max_in_flight is None else terms.max_in_flight * rate
    return min((most for most in (terms.rate, of_slots) if most is not None), default=None)


def _expected(rate: float, minute: int) -> int:
    # The sum over minutes is right, though a minute by itself would be rounded to nothing.
    return round(60 * rate * (minute + 1)) - round(60 * rate * minute)


class _Stands(msgspec.Struct):
    """What stands now, and what is timed, by minute."""

    ready: int = 0
    leased: int = 0
    active: int = 0
    # Its breaker is open.
    broken: bool = False
    coming: Counter[int] = msgspec.field(default_factory=Counter)


def _stands(tx: Transaction, topic: TopicRow, group: GroupRow | None) -> _Stands:
    if group is None:
        return _Stands()
    known = describe_group(tx, DescribeGroup(topic.tenant, topic.name, group.name))
    coming = count_coming(tx, topic) if topic.settings.kind == "queue" else _retries(tx, topic, group)
    active = sum(one.idle_ms < ACTIVE_MS or one.messages > 0 for one in known.consumers)
    ready = known.lag + known.retrying - sum(coming.values())
    broken = known.gate is not None and known.gate.breaker == STATES[OPEN]
    return _Stands(max(0, ready), known.leased, active, broken, coming)


def _retries(tx: Transaction, topic: TopicRow, group: GroupRow) -> Counter[int]:
    """A log's timeline: messages that failed, by the minute of their next attempt."""
    counts: Counter[int] = Counter()
    for partition in topic.partitions:
        for row in tx.leases(topic.tenant_id, partition, group.id):
            if row.state != LEASED and row.due_at > tx.now_ms:
                counts[row.due_at // MINUTE_MS] += row.live
    return counts


def consumers_needed(loads: Sequence[float], backlog: float, rate: float, rate_max: float | None) -> list[int]:
    """For each minute: how many consumers it takes, if each finishes `rate` a second and as much as `loads` comes."""
    lasts = math.ceil(1 / rate / 60)
    # Of a consumer's minute.
    share = min(1.0, 1 / rate / 60)
    underway: deque[float] = deque()
    waiting, busy = backlog, 0.0
    needed: list[int] = []
    for load in loads:
        waiting += load
        begun = waiting if rate_max is None else min(waiting, rate_max * 60)
        waiting -= begun
        underway.append(begun)
        busy += begun
        if len(underway) > lasts:
            busy -= underway.popleft()
        # What adding and taking away leaves of nothing takes nobody.
        needed.append(math.ceil(busy * share - 1e-6))
    return needed


def _notes(
    topic: TopicRow,
    group: GroupRow | None,
    terms: Terms,
    rate: float | None,
    *,
    paused: bool,
    broken: bool,
    unknown: bool,
) -> list[str]:
    notes = []
    if group is None:
        return ["It has no group: nobody consumes it."]
    if paused:
        notes.append("Paused: nothing is delivered, so no consumer has anything to do until it is resumed.")
    if broken:
        notes.append("Its breaker is open: probes alone are delivered, one at a time, until one succeeds.")
    if unknown:
        notes.append(
            "How fast a consumer is is not known: none has acked anything of late. Give a rate, or let one work."
        )
    if terms.rate is not None:
        most = "" if rate is None else f": more than {math.ceil(terms.rate / rate):,} consumers have nothing to do"
        notes.append(f"It delivers at most {terms.rate:,.15g} messages a second{most}.")
    if terms.max_in_flight is not None:
        notes.append(f"It has {terms.max_in_flight:,} messages in flight at most: nor can more consumers have any.")
    lanes = topic.settings.lanes
    if lanes is not None and (lanes.max_in_flight is not None or lanes.rate is not None):
        notes.append("Its lanes have limits: where few lanes have messages, fewer consumers have something to do.")
    return notes
