"""Joining the application's own transaction: publish, settle, move and cancel that commit with its rows, or not at all.

    with connection.transaction():                      # psycopg 3; SQLAlchemy's and Django's alike (guest.py)
        connection.execute("INSERT INTO orders …")
        q.publish("emails", b"…", tx=connection)
        q.ack(delivery, tx=connection)

Nothing here takes a topic's lock, so two applications' transactions never wait for each other, nor brokers for them:
each leaves mail (inbox.py). What is asked is checked at once, by what is committed so far; what the same transaction
left before does not count yet.

Publish answers ids; offsets are given when the mail is taken in. An id that is in use by then is left out then, too.

Settle first makes sure that the lease is held, and that it stays so: the transaction takes a share of the lease's row,
which others may share, and whoever would take the lease over passes it by until the transaction has ended. So what was
committed as done is done once. (A take-over looks once more whether the mail speaks of it when it has the row: the
commit may have come between; see PostgresTransaction.leases_due.) Verdicts and renewals that come meanwhile for other
messages of the lease are left as mail, too, beside it.

A transaction that sees the database as it was when it began (REPEATABLE READ, SERIALIZABLE) can settle only what was
claimed before.

Move and cancel are tried first, in a transaction of ours that is undone: what they answer is what would happen now.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import msgspec

from ...engine.budget import CheckOperations, check_operations
from ...engine.find import QUEUE_GROUP
from ...engine.inquiry import Cancel, Move, cancel, move
from ...engine.publish import MADE_PUBLISH_ID_MARK, Publish, check_due, check_kind, check_sizes, check_stored, route
from ...engine.seal import bound_to, is_sealed, open_value
from ...engine.verdict import Settle, Token, Verdicts
from ...errors import GroupNotFound, InvalidArgument, TenantSuspended
from ...grants import no_topic
from ...message import MADE_ID_MARK, Receipt
from ...tenant import DELETING, SUSPENDED
from ...topic import TopicSettings
from ..contract import LeaseRow, TopicRow, Transaction, Verb
from ..sql.transaction import lease_of, parse_settings, parse_tenant
from .guest import Guest
from .inbox import CANCEL, MOVE, PUBLISH, SETTLE, batch_mail, held_of, sealed_mail, verdict_mail
from .transaction import PostgresTransaction

C = TypeVar("C")
R = TypeVar("R")

_TOPIC = """
SELECT m.value, topic.id, topic.tenant, topic.settings, topic.paused, topic.version, topic.created_at_ms, tenant.state,
       tenant.settings, part.id, EXISTS (SELECT 1 FROM {schema}.secret AS s WHERE s.tenant = tenant.id),
       (extract(epoch FROM clock_timestamp()) * 1000)::BIGINT
  FROM {schema}.meta AS m
  LEFT JOIN {schema}.tenant AS tenant ON tenant.name = :tenant
  LEFT JOIN {schema}.topic AS topic ON topic.tenant = tenant.id AND topic.name = :topic
  LEFT JOIN {schema}.part AS part ON part.topic = topic.id
 WHERE m.key = 'incarnation'
 ORDER BY part.number
"""
_RECEIPT = "SELECT receipt FROM {schema}.receipt WHERE topic = :topic AND publish_id = :publish_id"
_MAIL = """
INSERT INTO {schema}.inbox (topic, kind, data, leases)
VALUES (:topic, :kind, :data, CAST(:leases AS BIGINT[]))
"""
_GROUP = "SELECT id FROM {schema}.grp WHERE topic = :topic AND name = :name"
_LEASE = """
SELECT lease.id, tenant, partition, grp, due_at_ms, state, consumer, claimed_at_ms, base, count, live, attempts,
       alone, suspect, offsets, settled, history, keys, marked
  FROM {schema}.lease AS lease
 WHERE partition = :partition
   AND id = :id
   FOR SHARE
"""


class _Checked(msgspec.Struct):
    """What checks of the engine need of a transaction."""

    now_ms: int

    def recall(self, _: Any) -> None:
        """Nothing is remembered here."""

    def remember(self, *_: Any) -> None:
        """Nor will be."""


class Joining:
    """One command in an application's transaction."""

    def __init__(
        self,
        tx: object,
        *,
        schema: str,
        incarnation: str,
        now_ms: Callable[[], int] | None,
        has_mail: Callable[[str, str], bool],
        write: Callable[[Verb[Any, Any], Any], Any],
        take_in: Callable[[str, str], None],
        read: Callable[[], AbstractContextManager[PostgresTransaction]],
    ) -> None:
        self._guest = Guest(tx, schema)
        self._schema = schema
        self._read = read
        self._incarnation = incarnation
        self._now_ms = now_ms
        self._has_mail = has_mail
        self._take_in = take_in
        self._write = write
        # Whether the tenant has data keys.
        self._has_keys = False

    def run(self, command: Any) -> Any:
        """Does it. Raises InvalidArgument for what cannot join."""
        if isinstance(command, Publish):
            return self._publish(command)
        if isinstance(command, Settle):
            return self._settle(command)
        if isinstance(command, Move):
            return self._tried(command, move, MOVE)
        if isinstance(command, Cancel):
            return self._tried(command, cancel, CANCEL)
        raise InvalidArgument("Only publish, ack, nack, release, bury, move and cancel join a transaction.")

    def _rows(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        return self._guest.execute(sql.format(schema=self._schema), values)

    def _find(self, tenant: str, name: str) -> tuple[TopicRow, int]:
        """The topic, and the time."""
        rows = self._rows(_TOPIC, tenant=tenant, topic=name)
        if not rows or rows[0][0] != self._incarnation:
            raise InvalidArgument("The transaction is on another database than this store: connect both to the same.")
        _, topic_id, tenant_id, settings, paused, version, created_at, state, owner, _, self._has_keys, now_ms = rows[0]
        if topic_id is None or state == DELETING:
            raise no_topic(name)
        if name[0] == "$":
            raise InvalidArgument(f"{name!r} is Duly's own: read it, or claim from it.")
        parsed: TopicSettings = parse_settings(settings)
        settings_of = parse_tenant(owner)
        topic = TopicRow(
            topic_id,
            tenant_id,
            tenant,
            name,
            parsed,
            bool(paused),
            version,
            created_at,
            tuple(row[-3] for row in rows),
            state,
            settings_of.stored_bytes,
            budget=settings_of.budget,
        )
        return topic, now_ms if self._now_ms is None else self._now_ms()

    def _find_active(self, tenant: str, name: str) -> tuple[TopicRow, int]:
        topic, now_ms = self._find(tenant, name)
        if topic.tenant_state == SUSPENDED:
            raise TenantSuspended()
        return topic, now_ms

    def _check_stored(self, topic: TopicRow, size: int) -> None:
        """By what is known in this process of what the tenant stores; mail that is not taken in yet is not counted."""
        if topic.stored_bytes_max is not None:
            with self._read() as tx:
                check_stored(tx, topic, size)

    def _mail(self, topic: TopicRow, kind: str, data: bytes, leases: list[int] | None = None) -> None:
        sealed = sealed_mail(data, topic, kind, self._sealing(topic))
        self._rows(_MAIL, topic=topic.id, kind=kind, data=sealed, leases=leases)

    def _opened(self, topic: TopicRow, receipt: bytes, publish_id: str) -> bytes:
        if not is_sealed(receipt):
            return receipt
        with self._read() as tx:
            place = bound_to("receipt", topic.id, publish_id)
            opened: bytes = open_value(receipt, topic.tenant_id, place, tx.unseal)
        return opened

    def _sealing(self, topic: TopicRow) -> Any:
        """What seals the tenant's mail; it is looked for where the tenant has keys alone."""
        if not self._has_keys:
            return None
        with self._read() as tx:
            return tx.sealing(topic.tenant_id)

    def _publish(self, command: Publish) -> Receipt:
        topic, now_ms = self._find_active(command.tenant, command.topic)
        batch = command.batch
        if not command.publish_id.startswith(MADE_PUBLISH_ID_MARK):
            known = self._rows(_RECEIPT, topic=topic.id, publish_id=command.publish_id)
            if known:
                stored = self._opened(topic, bytes(known[0][0]), command.publish_id)
                receipt = msgspec.msgpack.decode(stored, type=Receipt)
                return msgspec.structs.replace(receipt, duplicate=True)
        if batch.bytes > topic.settings.payload_bytes_max:
            check_sizes(topic, batch.columns)
        check_kind(topic, batch)
        self._check_stored(topic, batch.bytes)
        checked: Any = _Checked(now_ms)
        times = batch.relative or topic.settings.ttl_ms is not None
        columns = batch.columns.at_times(now_ms, topic.settings.ttl_ms) if times else batch.columns
        check_due(checked, columns)
        route(checked, topic, batch)
        if topic.budget is not None and batch.operations:
            # It is counted when it is taken in: the operation's row is not to be kept from others until then.
            self._write(check_operations, CheckOperations(command.tenant, command.topic, batch))
        made = f"{MADE_ID_MARK}t{secrets.token_hex(8)}"
        given = columns.values("id") or [None] * columns.count
        ids = [text if text is not None else f"{made}-{index}" for index, text in enumerate(given)]
        columns = columns.having(id=ids)
        self._mail(topic, PUBLISH, batch_mail(batch, columns, command.publish_id))
        return Receipt(command.publish_id, columns.count, (), given_ids=tuple(ids))

    def _settle(self, command: Settle) -> Verdicts:
        topic, now_ms = self._find(command.tenant, command.topic)
        if self._has_mail(command.tenant, command.topic):
            self._take_in(command.tenant, command.topic)
        group = self._rows(_GROUP, topic=topic.id, name=command.group or QUEUE_GROUP)
        if not group:
            raise GroupNotFound(f"Topic {topic.name!r} has no group {command.group!r}. Call create_group first.")
        verdicts = Verdicts()
        held: list[Token] = []
        for token in command.tokens:
            row = None
            if command.incarnation == self._incarnation:
                row = self._lease(topic, token.lease_id)
                if row is None:
                    self._check_sight(command, token.lease_id)
            found = held_of(row, token, group[0][0], verdicts)
            if found is not None:
                held.append(found)
        if held:
            settled = msgspec.structs.replace(command, tokens=tuple(held))
            self._mail(topic, SETTLE, verdict_mail(settled, now_ms), [token.lease_id for token in held])
        return verdicts

    def _check_sight(self, command: Settle, lease_id: int) -> None:
        """A lease that the transaction does not see may be there all the same."""
        if self._rows("SELECT current_setting('transaction_isolation')")[0][0] == "read committed":
            return
        with self._read() as tx:
            there = tx.topic_find(command.tenant, command.topic) and tx.lease_looking(lease_id)
        if there:
            raise InvalidArgument(
                "Your transaction sees the database as it was when it began, and this was claimed after that. Claim "
                "before the transaction begins, or use READ COMMITTED."
            )

    def _lease(self, topic: TopicRow, lease_id: int) -> LeaseRow | None:
        for partition in topic.partitions:
            rows = self._rows(_LEASE, partition=partition, id=lease_id)
            if rows:
                return lease_of([bytes(value) if isinstance(value, memoryview) else value for value in rows[0]])
        return None

    def _tried(self, command: Any, one: Callable[[Transaction, Any], Any], kind: str) -> Any:
        """What would happen now, answered; it happens when the mail is taken in."""
        topic, now_ms = self._find_active(command.tenant, command.topic)
        if isinstance(command, Move) and command.due is not None and command.due < 0:
            # From now on, and not from when it is taken in.
            command = msgspec.structs.replace(command, due=now_ms - 1 - command.due)
        answer = self._write(tried(one), command)
        self._mail(topic, kind, msgspec.msgpack.encode(command))
        return answer


def tried(one: Callable[[Transaction, Any], Any]) -> Verb[Any, Any]:
    """A verb that is undone as soon as its answer is known."""

    def verb(tx: Any, commands: Sequence[Any]) -> list[Any]:
        answers = []
        for command in commands:
            mark = tx.mark()
            answers.append(one(tx, command))
            tx.back_to(mark)
        return answers

    return verb
