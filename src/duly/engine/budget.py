"""What operations may publish (causal.py): so many messages at once, and so many a second from there on.

A handler that publishes to a topic which leads back to it is a loop, and doubles what it is given each time round. All
that comes of one message has the name of one operation, so the loop is told from honest work by what it publishes:

    at rest ──publish──▶ counted ──more than is left──▶ stopped: held to the rate, told once
       ▲                    │                              │
       └────── full again ──┴──────────────────────────────┤
       └────── resumed: full, or whatever it is given ─────┤
                                          held: by hand ◀──┘  nothing until it is resumed

It is a bucket of tokens, a row an operation. A batch is taken whole or refused whole: by what is left, or by a full
bucket, however big the batch is; then it owes, and what follows waits until that is made good. An operation at rest is
as if it had never been, so its row is forgotten, and nobody need look whether it was.

It is counted in the transaction of the publish, behind everything else that might refuse it. A batch without the header
costs nothing, not a statement. Who is refused is told a moment of his own: a thousand deliveries that the same
operation keeps from publishing come back one after the other, as its messages may be published, and not all at once.

Operations are their tenant's and not a topic's: on PostgreSQL transactions of several topics want the same rows. Each
asks for all that it will want at once, when it has its topic and before it does anything (`expect`), in one order: so
none waits for another that waits for it. What an application has committed already (mail, which nobody may refuse) is
noted first and counted with the rest at the end (`write_owed`): it may leave the operation owing.

What is staged or replayed is a job's doing, which an operator has begun: it is not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import ceil, floor
from typing import Any

import msgspec
from msgspec.structs import replace

from ..causal import Operation, check_operation, is_operation
from ..errors import Conflict, Error, InvalidArgument, NotFound, OperationExhausted, TopicNotFound
from ..events import Event
from ..grants import NOBODY, By
from ..limits import MINUTE_MS
from ..message import OPERATION
from ..store.contract import OperationRow, TopicRow, Transaction
from ..tenant import Budget
from .agenda import FORGET, schedule_store
from .audit import note_done
from .find import find_topic
from .incoming import Checked
from .tenants import find_tenant

# What somebody may give an operation at once: any number that JSON can say.
MESSAGES_MAX = 2**53 - 1
# What is lost when thirds of a message are added up.
_ROUNDED = 1e-6
# A second look at one that somebody has stopped; and the longest that anybody is told to wait, be his turn later.
_HELD_AGAIN_MS = MINUTE_MS
_WAIT_MS_MAX = 10 * MINUTE_MS
# Rows at rest are swept so much later, many at once.
_SWEEP_AFTER_MS = MINUTE_MS


# The bucket, pure


def left_at(row: OperationRow, budget: Budget, now_ms: int) -> float:
    """How many messages it may publish now. One that was given more than the budget keeps that until it is spent."""
    if row.left >= budget.messages:
        return row.left
    return min(budget.messages, row.left + max(0, now_ms - row.at) * budget.per_s / 1000)


def is_at_rest(row: OperationRow, budget: Budget, now_ms: int) -> bool:
    """Whether it is as if it had never been."""
    return not row.held and row.left <= budget.messages and left_at(row, budget, now_ms) >= budget.messages


def has_room(row: OperationRow, budget: Budget, now_ms: int, count: int) -> bool:
    """Whether it may publish so many messages now."""
    left = left_at(row, budget, now_ms)
    return not row.held and (count <= left + _ROUNDED or left >= budget.messages)


def spent(row: OperationRow, budget: Budget, now_ms: int, count: int) -> OperationRow:
    """It has published so many messages, whether it might or not."""
    if is_at_rest(row, budget, now_ms):
        row = OperationRow(row.name, budget.messages, now_ms)
    left = left_at(row, budget, now_ms) - count
    return _resting(replace(row, left=left, at=now_ms, published=row.published + count), budget)


def _resting(row: OperationRow, budget: Budget) -> OperationRow:
    """The same, with the moment from which it is at rest; None: it is not by itself."""
    if row.held or row.left > budget.messages:
        return replace(row, expires_at=None)
    return replace(row, expires_at=row.at + ceil((budget.messages - row.left) * 1000 / budget.per_s))


# Publishing


class Ledger:
    """What one call of publish takes from operations: each is looked up once and written once."""

    def __init__(self, tx: Transaction, batches: Iterable[tuple[str, Checked]]) -> None:
        """`batches` is what will be taken, each with the name of its tenant."""
        self._tx = tx
        self._batches = batches
        self._rows: dict[tuple[int, str], OperationRow] = {}
        self._changed: dict[tuple[int, str], None] = {}

    def take(self, topic: TopicRow, batch: Checked) -> None:
        """Takes what a batch needs, all of it or nothing. Raises OperationExhausted, which is told once."""
        budget = self._checked(topic, batch)
        if budget is not None:
            for name, count in batch.operations.items():
                row = spent(self._row(topic, budget, name), budget, self._tx.now_ms, count)
                self._put(topic.tenant_id, row)

    def check(self, topic: TopicRow, batch: Checked) -> None:
        """Raises OperationExhausted as `take` does, and takes nothing."""
        self._checked(topic, batch)

    def write(self) -> None:
        """Puts down what was changed."""
        for key in self._changed:
            put(self._tx, key[0], self._rows[key])

    def _checked(self, topic: TopicRow, batch: Checked) -> Budget | None:
        """What holds for the batch's operations; None: they are not counted, or there are none."""
        budget = topic.budget
        if budget is None or not batch.operations:
            return None
        for name in batch.operations:
            if not is_operation(name):
                raise InvalidArgument(f"The header {OPERATION!r} names no operation: 1 to 256 printable characters.")
        for name, count in batch.operations.items():
            row = self._row(topic, budget, name)
            if not has_room(row, budget, self._tx.now_ms, count):
                raise self._refused(topic, budget, row, count)
        return budget

    def _row(self, topic: TopicRow, budget: Budget, name: str) -> OperationRow:
        if (topic.tenant_id, name) not in self._rows:
            # All that this call will want of the tenant's, in one look.
            wanted = {
                found
                for tenant, batch in self._batches
                if tenant == topic.tenant
                for found in batch.operations
                if is_operation(found)
            }
            for row in self._tx.operations(topic.tenant_id, wanted | {name}, budget.messages).values():
                self._rows.setdefault((topic.tenant_id, row.name), row)
        return self._rows[topic.tenant_id, name]

    def _put(self, tenant_id: int, row: OperationRow) -> None:
        self._rows[tenant_id, row.name] = row
        self._changed[tenant_id, row.name] = None

    def _refused(self, topic: TopicRow, budget: Budget, row: OperationRow, count: int) -> OperationExhausted:
        if row.stopped_at is None:
            row = stopped(self._tx, topic, row)
            self._put(topic.tenant_id, row)
        return OperationExhausted(
            f"Operation {row.name!r} was stopped by hand. Call resume_operation when it may go on."
            if row.held
            else f"Operation {row.name!r} has published {row.published} messages, and may publish {budget.per_s} a "
            "second from here on. If it is no loop, call resume_operation, or have operation_messages raised.",
            operation=row.name,
            retry_after_ms=_wait_ms(self._tx, topic.tenant_id, row, budget, count),
        )


def stopped(tx: Transaction, topic: TopicRow, row: OperationRow) -> OperationRow:
    """It is stopped from now on, and a person hears of it."""
    facts: dict[str, object] = {"operation": row.name, "published": row.published}
    event = Event("operation_stopped", tx.now_ms, topic.tenant, topic.name, facts=facts)
    tx.aftermath.records.append((topic.tenant_id, event))
    tx.aftermath.events.append(event)
    return replace(row, stopped_at=tx.now_ms)


def _wait_ms(tx: Transaction, tenant_id: int, row: OperationRow, budget: Budget, count: int) -> int:
    """When to come back: each who is refused has a turn, as far apart as messages may be published."""
    a_message_ms = 1000 / budget.per_s
    missing = min(count, budget.messages) - left_at(row, budget, tx.now_ms)
    soonest = tx.now_ms + (_HELD_AGAIN_MS if row.held else missing * a_message_ms)
    key = ("operation turn", tenant_id, row.name)
    turn = max(soonest, tx.recall(key) or 0.0)
    tx.remember(key, turn + count * a_message_ms)
    return min(ceil(turn) - tx.now_ms, _WAIT_MS_MAX)


def put(tx: Transaction, tenant_id: int, row: OperationRow) -> None:
    """Writes a row, and sees to it that it is swept."""
    tx.operation_put(tenant_id, row)
    if row.expires_at is not None:
        schedule_store(tx, FORGET, row.expires_at + _SWEEP_AFTER_MS)


class CheckOperations(msgspec.Struct, frozen=True):
    """A batch that an application's transaction is about to leave as mail."""

    tenant: str
    topic: str
    batch: Checked


def check_operations(tx: Transaction, commands: Sequence[CheckOperations]) -> list[OperationExhausted | None]:
    """A verb: whether operations may publish what is about to be committed."""
    answers: list[Any] = []
    ledger = Ledger(tx, [(command.tenant, command.batch) for command in commands])
    for command in commands:
        try:
            ledger.check(find_topic(tx, command.tenant, command.topic), command.batch)
            answers.append(None)
        except Error as error:
            answers.append(error)
    ledger.write()
    return answers


# What a store with many writers asks for before, and notes behind


def expect(tx: Transaction, topic: tuple[str, str], batches: Iterable[Checked]) -> None:
    """Asks at once for all operations that a transaction on a topic will want, those that owe among them."""
    names: dict[str, None] = {}
    for batch in batches:
        names.update(dict.fromkeys(filter(is_operation, batch.operations)))
    if not names and not tx.aftermath.owed:
        return
    row = find_topic(tx, *topic)
    names.update(dict.fromkeys(tx.aftermath.owed.get(row.tenant_id, ())))
    if row.budget is not None:
        tx.operations(row.tenant_id, names, row.budget.messages)


def owe(tx: Transaction, topic: TopicRow, batch: Checked) -> None:
    """Notes what was committed already; a name that is none counts for nothing."""
    if topic.budget is not None and batch.operations:
        owed = tx.aftermath.owed.setdefault(topic.tenant_id, Counter())
        for name, count in batch.operations.items():
            if is_operation(name):
                owed[name] = owed.get(name, 0) + count


def write_owed(tx: Transaction, topic: tuple[str, str]) -> None:
    """Counts it: one that owes from then on is stopped."""
    owed, tx.aftermath.owed = tx.aftermath.owed, {}
    if not owed:
        return
    try:
        row = find_topic(tx, *topic, suspended=True, shredded=True)
    except TopicNotFound:
        # Deleted in this very transaction, and with it what was published.
        return
    budget = row.budget
    if budget is None:
        return
    counts: Mapping[str, int] = owed[row.tenant_id]
    for name, known in tx.operations(row.tenant_id, counts, budget.messages).items():
        after = spent(known, budget, tx.now_ms, counts[name])
        if after.left < 0 and after.stopped_at is None:
            after = stopped(tx, row, after)
        put(tx, row.tenant_id, after)


# What people see and do


class ListOperations(msgspec.Struct, frozen=True):
    """A page of a tenant's operations that are not at rest; `stopped`: of those that are stopped."""

    tenant: str
    after: str
    limit: int
    stopped: bool = False


class ResumeOperation(msgspec.Struct, frozen=True):
    """Let an operation publish so many messages from now on, or as many as it has at first."""

    tenant: str
    operation: str
    messages: int | None = None
    by: By = NOBODY


class StopOperation(msgspec.Struct, frozen=True):
    """Let an operation publish nothing before it is resumed."""

    tenant: str
    operation: str
    by: By = NOBODY


def list_operations(tx: Transaction, command: ListOperations) -> list[Operation]:
    """A page of them, in an order of their own."""
    owner = tx.tenant_find(command.tenant)
    budget = None if owner is None else owner.settings.budget
    if owner is None or budget is None:
        return []
    rows = tx.operation_page(owner.id, command.after, command.limit, stopped=command.stopped)
    return [_described(row, budget, tx.now_ms) for row in rows]


def resume_operation(tx: Transaction, command: ResumeOperation) -> Operation:
    """Gives it messages. Raises NotFound for one that is at rest."""
    tenant_id, budget = _budget_of(tx, command.tenant)
    row = tx.operation(tenant_id, check_operation(command.operation))
    if row is None or is_at_rest(row, budget, tx.now_ms):
        raise NotFound(f"Operation {command.operation!r} is not stopped, and nothing is counted of it.")
    wanted = budget.messages if command.messages is None else command.messages
    left = max(left_at(row, budget, tx.now_ms), wanted)
    resumed = replace(row, left=left, at=tx.now_ms, stopped_at=None, held=False)
    return _done(tx, tenant_id, budget, _resting(resumed, budget), command)


def stop_operation(tx: Transaction, command: StopOperation) -> Operation:
    """Stops it, though nothing be known of it yet."""
    tenant_id, budget = _budget_of(tx, command.tenant)
    name = check_operation(command.operation)
    row = tx.operations(tenant_id, [name], budget.messages)[name]
    if is_at_rest(row, budget, tx.now_ms):
        row = OperationRow(name, budget.messages, tx.now_ms)
    since = tx.now_ms if row.stopped_at is None else row.stopped_at
    held = replace(row, stopped_at=since, held=True)
    return _done(tx, tenant_id, budget, _resting(held, budget), command)


def _budget_of(tx: Transaction, tenant: str) -> tuple[int, Budget]:
    owner = find_tenant(tx, tenant)
    if owner.settings.budget is None:
        raise Conflict("The tenant's operations are not counted. Give it operation_messages and operation_per_s first.")
    return owner.id, owner.settings.budget


def _done(
    tx: Transaction, tenant_id: int, budget: Budget, row: OperationRow, command: ResumeOperation | StopOperation
) -> Operation:
    put(tx, tenant_id, row)
    # Whoever is refused from now on is not behind those who were before.
    tx.remember(("operation turn", tenant_id, row.name), None)
    note_done(tx, tenant_id, command)
    return _described(row, budget, tx.now_ms)


def _described(row: OperationRow, budget: Budget, now_ms: int) -> Operation:
    left = left_at(row, budget, now_ms)
    return Operation(row.name, row.published, floor(left), row.stopped_at, row.held)
