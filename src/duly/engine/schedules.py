"""Schedules: made, changed, paused, deleted and looked at; and the verb that has them tick.

    next_at ──its time comes──▶ judged (schedule.py) ──▶ its messages published, next_at ahead: one transaction
       ▲                          └─ refused (a quota, a topic's limit): told once, tried again after a while, and
       │                             judged then: by then it may be missed
       └── resumed: the first tick after that
    paused: there is no next tick; what would have ticked meanwhile never does

Exactly once: the message and the move of `next_at` are stored together or not at all, and `next_at` only moves ahead.
Whoever has the store open wakes for a tick (client/ticker.py) and asks for it; who comes second finds nothing due. On
PostgreSQL ticks of a topic are had under the topic's lock, like all that is done to it, and rows are locked: changing a
schedule takes the same two in the same order, so of a tick and a pause one comes first, and the other sees it.

A message has an id that tells its tick, so it is found, moved and cancelled as any other; and whatever else should
fail, a queue takes no second one of that id.

Of a paused store, or a suspended tenant, nothing ticks; when that ends the missed policy says what is caught up with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from ..clock import from_ms
from ..errors import Error, InvalidArgument, ScheduleExists, ScheduleNotFound, StaleVersion, StoreError, TopicNotFound
from ..events import Event
from ..grants import NOBODY, By
from ..limits import MINUTE_MS
from ..message import Message
from ..schedule import (
    Run,
    Schedule,
    ScheduleDescription,
    ScheduleRun,
    check_schedule_name,
    first,
    judge,
    spread_ms,
    tick_id,
)
from ..store.contract import ScheduleRow, TopicRow, Transaction
from ..tenant import ACTIVE
from .audit import note_done
from .find import find_queue, find_topic
from .incoming import Checked, check_batch
from .pause import is_paused
from .publish import Publish, check_kind, check_sizes, make_publish_id, publish
from .record import record

# Judged by one transaction, and of one schedule published: others on the topic wait for its end.
_SCHEDULES_A_TRANSACTION = 100
_BYTES_A_TRANSACTION = 4 * 1024 * 1024
_AGAIN_MS, _AGAIN_MS_MAX = 1000, MINUTE_MS
_RUNS_KEPT = 20
_NEXT_SHOWN = 5
# In the year 2096: what is filled in for a tick has its usual length.
_SOME_TICK = 4_000_000_000_000


class State(msgspec.Struct, omit_defaults=True, frozen=True):
    """What is kept of a schedule beside its settings. `anchor`: what `@every` counts from; `judged`: up to when ticks
    were judged; `runs`: the last ticks that were published, newest first, and when; `tries` since there is `trouble`.
    """

    anchor: int
    judged: int = 0
    published: int = 0
    missed: int = 0
    runs: tuple[tuple[int, int], ...] = ()
    trouble: str | None = None
    tries: int = 0
    # Whose its messages are, for grants on one's own.
    publisher: str = ""


_settings = msgspec.json.Decoder(Schedule)
_state = msgspec.json.Decoder(State)
_encode = msgspec.json.Encoder().encode


class CreateSchedule(msgspec.Struct, frozen=True):
    """A new schedule."""

    tenant: str
    schedule: str
    topic: str
    settings: Schedule
    paused: bool
    exist_ok: bool
    by: By = NOBODY
    publisher: str = ""


class UpdateSchedule(msgspec.Struct, frozen=True):
    """Changes to a schedule; `version` refuses to overwrite somebody else's. `topic`: where a broker knows it to be."""

    tenant: str
    schedule: str
    changes: Mapping[str, Any]
    paused: bool | None = None
    version: int | None = None
    topic: str | None = None
    by: By = NOBODY


class DeleteSchedule(msgspec.Struct, frozen=True):
    """A schedule to delete. What it has published stays."""

    tenant: str
    schedule: str
    version: int | None = None
    topic: str | None = None
    by: By = NOBODY


class DescribeSchedule(msgspec.Struct, frozen=True):
    """Ask how a schedule stands, and for so many of its next ticks."""

    tenant: str
    schedule: str
    count: int = _NEXT_SHOWN
    topic: str | None = None


class ListSchedules(msgspec.Struct, frozen=True):
    """A page of schedules, by name, each with its next tick."""

    tenant: str
    after: str
    limit: int


class Tick(msgspec.Struct, frozen=True):
    """What is due of a topic's schedules. Nobody's to ask for but those who have the store open."""

    tenant: str
    topic: str


def topic_of_schedule(tx: Transaction, command: Any) -> str:
    """The topic of the schedule that a command names. Raises ScheduleNotFound."""
    return _present(tx, command).topic


def create_schedule(tx: Transaction, command: CreateSchedule) -> ScheduleDescription:
    """Makes a schedule. With `exist_ok` an equal one is left as it is."""
    name = check_schedule_name(command.schedule)
    settings = command.settings
    if settings.topic != command.topic:
        raise InvalidArgument("A schedule publishes into the topic that it is made for.")
    topic = _queue(tx, command.tenant, command.topic)
    _check_fits(topic, name, settings)
    next_at = None if command.paused else next(settings.ticks(tx.now_ms).after(tx.now_ms), None)
    state = State(tx.now_ms, judged=tx.now_ms, publisher=command.publisher)
    row = ScheduleRow(
        tenant_id=topic.tenant_id,
        name=name,
        topic_id=topic.id,
        topic=topic.name,
        settings=_encode(settings),
        paused=command.paused,
        version=1,
        created_at=tx.now_ms,
        next_at=next_at,
        look_at=next_at,
        state=_encode(state),
    )
    if not tx.schedule_insert(row):
        return _existing(tx, command)
    record(tx, topic, "schedule_created", facts={"schedule": name})
    _note(tx, topic, command, cron=settings.cron, zone=settings.zone)
    return describe(row)


def _existing(tx: Transaction, command: CreateSchedule) -> ScheduleDescription:
    # Of another topic, perhaps, which whoever asks may not see.
    row = _present(tx, replace(command, topic=None))
    if not command.exist_ok:
        raise ScheduleExists(f"Schedule {row.name!r} exists. Use update_schedule, or pass exist_ok=True.")
    there = settings_of(row)
    if there != command.settings:
        differ = [name for name in Schedule.__slots__ if getattr(there, name) != getattr(command.settings, name)]
        raise ScheduleExists(
            f"Schedule {row.name!r} exists with another {', '.join(differ)}. Use update_schedule, or another name."
        )
    return describe(row)


def _queue(tx: Transaction, tenant: str, topic: str) -> TopicRow:
    if find_topic(tx, tenant, topic).settings.kind == "log":
        raise InvalidArgument(
            f"{topic!r} is a log, and a schedule publishes into a queue: only there a message has an id that is stored "
            "once, a due time and a way to be cancelled. Make a queue for it."
        )
    return find_queue(tx, tenant, topic)


def _check_fits(topic: TopicRow, name: str, settings: Schedule) -> None:
    """Refuses what the topic would refuse with every tick."""
    batch = _batch(topic.tenant, name, settings, State(0), (_SOME_TICK,))
    check_kind(topic, batch)
    check_sizes(topic, batch.columns)


def update_schedule(tx: Transaction, command: UpdateSchedule) -> ScheduleDescription:
    """Changes settings, or pauses and resumes. The next tick is one that comes after now."""
    topic, row = _locked(tx, command)
    before, state = settings_of(row), _state_of(row)
    settings = before.changed(command.changes)
    if command.changes:
        _check_fits(topic, row.name, settings)
    paused = row.paused if command.paused is None else command.paused
    retimed = (settings.cron, settings.zone) != (before.cron, before.zone)
    if retimed:
        state = replace(state, anchor=tx.now_ms)
    next_at = row.next_at
    if paused:
        next_at = None
    elif retimed or row.paused:
        # Never one of before, should the clock have been set back since.
        state = replace(state, judged=max(tx.now_ms, state.judged))
        next_at = next(settings.ticks(state.anchor).after(state.judged), None)
    row = replace(
        row,
        settings=_encode(settings),
        paused=paused,
        version=row.version + 1,
        next_at=next_at,
        look_at=next_at,
        state=_encode(replace(state, trouble=None, tries=0)),
    )
    tx.schedule_put(row)
    if command.changes:
        facts = {"schedule": row.name, "changes": sorted(command.changes)}
        record(tx, topic, "schedule_updated", facts=facts)
    if command.paused is not None:
        record(tx, topic, "schedule_paused" if paused else "schedule_resumed", facts={"schedule": row.name})
    _note(tx, topic, command, changed=sorted(command.changes))
    return describe(row)


def delete_schedule(tx: Transaction, command: DeleteSchedule) -> None:
    """Removes a schedule. Messages that it has published stay."""
    topic, row = _locked(tx, command)
    tx.schedule_delete(row)
    record(tx, topic, "schedule_deleted", facts={"schedule": row.name})
    _note(tx, topic, command)


def describe_schedule(tx: Transaction, command: DescribeSchedule) -> ScheduleDescription:
    """A schedule as it stands."""
    return describe(_present(tx, command), command.count)


def list_schedules(tx: Transaction, command: ListSchedules) -> list[ScheduleDescription]:
    """Schedules after a name, in order."""
    tenant_id = tx.tenant_id(command.tenant)
    if tenant_id is None:
        return []
    return [describe(row, 1) for row in tx.schedule_page(tenant_id, command.after, command.limit)]


def _present(tx: Transaction, command: Any) -> ScheduleRow:
    tenant_id = tx.tenant_id(command.tenant)
    row = None if tenant_id is None else tx.schedule(tenant_id, command.schedule)
    if row is None or command.topic not in (None, row.topic):
        raise no_schedule(command.schedule)
    return row


def no_schedule(name: str) -> ScheduleNotFound:
    """What is said of one that is not there, or not to be seen."""
    return ScheduleNotFound(f"There is no schedule {name!r}. Call schedules to see which there are.")


def _locked(tx: Transaction, command: UpdateSchedule | DeleteSchedule) -> tuple[TopicRow, ScheduleRow]:
    """A schedule that is to be changed. First its topic is had, then its row: in this order, whoever it is."""
    found = _present(tx, command)
    topic = find_topic(tx, command.tenant, found.topic, shredded=isinstance(command, DeleteSchedule))
    row = tx.schedule(topic.tenant_id, found.name, lock=True)
    if row is None or row.topic_id != topic.id:
        raise no_schedule(command.schedule)
    if command.version not in (None, row.version):
        raise StaleVersion(f"Schedule {row.name!r} is at version {row.version}, not {command.version}. Read it again.")
    return topic, row


def _note(tx: Transaction, topic: TopicRow, command: Any, **facts: Any) -> None:
    """Adds to the audit who did it; not what the messages say."""
    hidden = {name: None for name in ("settings", "changes", "publisher") if name in command.__struct_fields__}
    note_done(tx, topic.tenant_id, replace(command, topic=topic.name, **hidden), **facts)
    tx.aftermath.rings.add(0)


def settings_of(row: ScheduleRow) -> Schedule:
    """A schedule's settings. Raises StoreError where they cannot be read."""
    try:
        return _settings.decode(row.settings or b"")
    except (msgspec.MsgspecError, Error) as error:
        raise StoreError(f"The settings of schedule {row.name!r} cannot be read. Run `duly doctor`.") from error


def _state_of(row: ScheduleRow) -> State:
    try:
        return _state.decode(row.state)
    except msgspec.MsgspecError as error:
        raise StoreError(f"The state of schedule {row.name!r} cannot be read. Run `duly doctor`.") from error


def describe(row: ScheduleRow, count: int = _NEXT_SHOWN) -> ScheduleDescription:
    """A schedule with its next ticks."""
    settings, state = settings_of(row), _state_of(row)
    ahead: tuple[int, ...] = ()
    if row.next_at is not None:
        ahead = (row.next_at, *first(settings.ticks(state.anchor).after(row.next_at), count - 1))
    return ScheduleDescription(
        name=row.name,
        settings=settings,
        paused=row.paused,
        version=row.version,
        created_at_ms=row.created_at,
        next_ms=ahead,
        runs=tuple(ScheduleRun(tick, at, tick_id(row.name, tick)) for tick, at in state.runs),
        published=state.published,
        missed=state.missed,
        trouble=state.trouble,
    )


# Ticking


class _Plan(NamedTuple):
    """What a schedule wants done: ticks to publish, those passed over (`more`: at least), and what comes then."""

    row: ScheduleRow
    state: State
    ticks: tuple[int, ...]
    passed: int
    more: bool
    next_at: int | None
    command: Publish | None


def tick(tx: Transaction, commands: Sequence[Tick]) -> list[int]:
    """A verb: judges the schedules of a topic whose time has come. Answers how many it looked at."""
    return [_tick(tx, command) for command in commands]


def _tick(tx: Transaction, command: Tick) -> int:
    if is_paused(tx):
        return 0
    try:
        topic = find_topic(tx, command.tenant, command.topic, suspended=True, shredded=True)
    except TopicNotFound:
        # Deleted just now, and its schedules with it.
        return 0
    if topic.tenant_state != ACTIVE or topic.shredded:
        return tx.schedules_put_off(topic, tx.now_ms + _AGAIN_MS_MAX)
    rows = tx.schedules_due(topic, _SCHEDULES_A_TRANSACTION)
    plans: list[_Plan] = []
    for row in rows:
        try:
            plans.append(_plan(tx, topic, row))
        except Error as error:
            _refused(tx, topic, row, error)
    publishing = [plan for plan in plans if plan.command is not None]
    answers = publish(tx, [plan.command for plan in publishing if plan.command is not None])
    refused = {
        plan.row.name: answer for plan, answer in zip(publishing, answers, strict=True) if isinstance(answer, Exception)
    }
    for plan in plans:
        if plan.row.name in refused:
            _refused(tx, topic, plan.row, refused[plan.row.name])
        else:
            _done(tx, topic, plan)
    return len(rows)


def put_off_ticks(tx: Transaction, commands: Sequence[Tick]) -> list[int]:
    """A verb: a topic's schedules that cannot be read here are looked at a minute later; others are not held up."""
    topics = [find_topic(tx, command.tenant, command.topic, suspended=True, shredded=True) for command in commands]
    return [tx.schedules_put_off(topic, tx.now_ms + _AGAIN_MS_MAX) for topic in topics]


def _plan(tx: Transaction, topic: TopicRow, row: ScheduleRow) -> _Plan:
    settings, state = settings_of(row), _state_of(row)
    assert row.next_at is not None
    verdict = judge(
        settings.ticks(state.anchor), since=row.next_at, now=tx.now_ms, missed=settings.missed, limit=settings.limit
    )
    size = len(settings.payload if settings.template is None else settings.template)
    ticks = verdict.publish[: max(1, _BYTES_A_TRANSACTION // max(1, size))]
    # Those that are too many for one transaction are next: they are due, and judged by the same policy.
    next_at = verdict.publish[len(ticks)] if len(ticks) < len(verdict.publish) else verdict.next_at
    command = None
    if ticks:
        batch = _batch(topic.tenant, row.name, settings, state, ticks)
        command = Publish(topic.tenant, topic.name, batch, make_publish_id(tx.now_ms), publisher=state.publisher)
    return _Plan(row, state, ticks, verdict.passed, verdict.more, next_at, command)


def _batch(tenant: str, name: str, settings: Schedule, state: State, ticks: Sequence[int]) -> Checked:
    """The messages of some ticks."""
    messages = []
    previous = state.runs[0][0] if state.runs else None
    for number, at in enumerate(ticks, start=state.published + 1):
        due_at = at + spread_ms(tenant, name, at, settings.jitter_ms)
        message = Message(
            settings.content(Run(name, at, previous, number)),
            id=tick_id(name, at),
            key=settings.key,
            headers=settings.headers or None,
            expires_at=None if settings.ttl_ms is None else from_ms(due_at + settings.ttl_ms),
            due=from_ms(due_at),
            priority=settings.priority,
            lane=settings.lane,
        )
        messages.append(message)
        previous = at
    return check_batch(messages)


def _done(tx: Transaction, topic: TopicRow, plan: _Plan) -> None:
    """Its messages are published: it is the next tick's turn."""
    state = plan.state
    runs = (*((at, tx.now_ms) for at in reversed(plan.ticks)), *state.runs)[:_RUNS_KEPT]
    # What waits for the next transaction is not judged yet.
    judged = tx.now_ms if plan.next_at is None else min(tx.now_ms, plan.next_at - 1)
    state = replace(
        state,
        judged=max(state.judged, judged),
        published=state.published + len(plan.ticks),
        missed=state.missed + plan.passed,
        runs=runs,
        trouble=None,
        tries=0,
    )
    tx.schedule_judged(replace(plan.row, next_at=plan.next_at, look_at=plan.next_at, state=_encode(state)))
    tx.aftermath.rings.add(0)
    if plan.passed:
        facts = {"schedule": plan.row.name, "missed": plan.passed, **({"more": True} if plan.more else {})}
        record(tx, topic, "tick_missed", facts=facts)


def _refused(tx: Transaction, topic: TopicRow, row: ScheduleRow, error: Exception) -> None:
    """Its message could not be published: it is tried again. A person hears of it once."""
    try:
        state = _state_of(row)
    except StoreError:
        # Nothing can be kept of it; the doctor tells.
        tx.schedule_judged(replace(row, look_at=tx.now_ms + _AGAIN_MS_MAX))
        return
    if state.trouble is None:
        facts: dict[str, object] = {"schedule": row.name, "tick": row.next_at, "code": getattr(error, "code", "error")}
        event = Event("tick_failed", tx.now_ms, topic.tenant, topic.name, facts={**facts, "reason": str(error)})
        tx.aftermath.records.append((topic.tenant_id, event))
        tx.aftermath.events.append(event)
    again = tx.now_ms + min(_AGAIN_MS << min(state.tries, 10), _AGAIN_MS_MAX)
    state = replace(state, trouble=str(error), tries=state.tries + 1)
    tx.schedule_judged(replace(row, look_at=again, state=_encode(state)))
