"""The inbox: what applications' own transactions leave for whoever has the topic's turn next.

An application's transaction may be open for seconds and may yet be undone. It must not hold a topic's lock, nor give
offsets. So it only writes a row here, and whoever works on the topic next takes in what has been committed by then,
before anything else:

    application ──insert──▶ a row nobody sees ──commit──▶ mail ──the next turn──▶ stored, settled, moved, cancelled
                                   └──rollback──▶ nothing ever was

Mail is found by being visible, never by a number that is counted up: a slow transaction's row has a small number and is
seen late (DESIGN.md §5, rule 4). Below the oldest transaction that is still under way nothing more can come; from there
on is looked.

What is taken in was checked when it was written. Should it be refused all the same, because the topic's settings
changed meanwhile, it is kept in `refused` with the reason, and told: nothing that was committed is lost in silence.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from ...engine.block import Place, decode, encode
from ...engine.bury import tell
from ...engine.columns import Columns
from ...engine.find import find_group, find_topic
from ...engine.incoming import Checked
from ...engine.inquiry import Cancel, Move, cancel, move
from ...engine.publish import Publish, publish
from ...engine.settle import settle
from ...engine.settling import Settle
from ...errors import Error
from ...events import Event
from ..contract import Transaction
from .transaction import PostgresTransaction

PUBLISH, SQL, SETTLE, MOVE, CANCEL = "publish", "sql", "settle", "move", "cancel"
_MAILS_A_TURN = 512

_COMMANDS: dict[str, Any] = {SETTLE: Settle, MOVE: Move, CANCEL: Cancel}
_PLACE = Place(0, 0, 0)


class TakeIn(msgspec.Struct, frozen=True):
    """Take in a topic's mail, and nothing else."""

    tenant: str
    topic: str


class _Batch(msgspec.Struct, array_like=True):
    """A batch as it lies in the inbox."""

    publish_id: str
    partitions: list[int] | None
    block: bytes


class _Row(msgspec.Struct):
    """One message that was published in SQL; times in milliseconds."""

    id: str
    publish_id: str
    key: str | None = None
    headers: dict[str, str] | None = None
    lane: str | None = None
    priority: int | None = None
    due_at: int | None = None
    expires_at: int | None = None
    partition: int | None = None


_row = msgspec.json.Decoder(_Row)
_batch = msgspec.msgpack.Decoder(_Batch)


def take_in_mail(tx: Transaction, commands: Sequence[TakeIn]) -> list[None]:  # noqa: ARG001
    """A verb: whoever begins a transaction takes in the mail; nothing is left to do."""
    return [None] * len(commands)


def batch_mail(batch: Checked, columns: Columns, publish_id: str) -> bytes:
    """A batch for the inbox, its times absolute."""
    partitions = None if batch.partitions is None else batch.partitions.tolist()
    return msgspec.msgpack.encode(_Batch(publish_id, partitions, encode(_PLACE, columns, 0, [])))


def take_in(tx: PostgresTransaction, tenant: str, topic: str, topic_id: int, floor: int) -> int:
    """Does what a topic's mail says. Answers below which transaction nothing more can come."""
    while True:
        rows = tx.mail(topic_id, floor, _MAILS_A_TURN)
        for kind, some in itertools.groupby(rows, key=lambda row: row[2] in (PUBLISH, SQL)):
            mails = list(some)
            if kind:
                _publish(tx, tenant, topic, topic_id, mails)
            else:
                for mail in mails:
                    _command(tx, topic_id, mail)
        for xid, number, *_ in rows:
            tx.mail_delete(topic_id, xid, number)
        if len(rows) < _MAILS_A_TURN:
            oldest: int = rows[0][5] if rows else floor
            return oldest


def _publish(tx: PostgresTransaction, tenant: str, topic: str, topic_id: int, mails: list[Any]) -> None:
    commands = [_of_mail(tenant, topic, mail) for mail in mails]
    for mail, answer in zip(mails, publish(tx, commands), strict=True):
        if isinstance(answer, Exception):
            _refuse(tx, tenant, topic, topic_id, mail, answer)


def _of_mail(tenant: str, topic: str, mail: Any) -> Publish:
    _, _, kind, data, payload, _ = mail
    if kind == SQL:
        return _of_row(tenant, topic, _row.decode(data), payload)
    batch = _batch.decode(data)
    columns = decode(_PLACE, batch.block).columns
    partitions = None if batch.partitions is None else np.array(batch.partitions, np.int64)
    return Publish(tenant, topic, Checked(columns, columns.bytes, partitions), batch.publish_id)


def _of_row(tenant: str, topic: str, row: _Row, payload: bytes) -> Publish:
    lists: dict[str, list[Any]] = {"payload": [payload], "id": [row.id]}
    for name in ("key", "headers", "lane", "priority", "due_at", "expires_at"):
        value = getattr(row, name)
        if value is not None:
            lists[name] = [value]
    partitions = None if row.partition is None else np.array([row.partition], np.int64)
    return Publish(tenant, topic, Checked(Columns(1, lists=lists), len(payload), partitions), row.publish_id)


def _command(tx: PostgresTransaction, topic_id: int, mail: Any) -> None:
    kind, data = mail[2], mail[3]
    command = msgspec.msgpack.decode(data, type=_COMMANDS[kind])
    try:
        if kind == SETTLE:
            (answer,) = settle(tx, [command])
            if isinstance(answer, Exception):
                raise answer
            if answer.lost:
                _tell_lost(tx, command, len(answer.lost))
        else:
            (move if kind == MOVE else cancel)(tx, command)
    except Error as error:
        _refuse(tx, command.tenant, command.topic, topic_id, mail, error)


def _tell_lost(tx: PostgresTransaction, command: Settle, count: int) -> None:
    """A verdict that an application committed came too late: it held the message no longer."""
    topic = find_topic(tx, command.tenant, command.topic)
    group = find_group(tx, topic, command.group)
    facts: dict[str, object] = {"verdict": command.verdict, "messages": count}
    tell(tx, topic, group, "verdict_too_late", partition=topic.partitions[0], offset=0, count=0, facts=facts)


def _refuse(tx: PostgresTransaction, tenant: str, topic: str, topic_id: int, mail: Any, error: Exception) -> None:
    _, _, kind, data, payload, _ = mail
    tx.mail_refuse(topic_id, kind, data, payload, str(error))
    facts: dict[str, object] = {"what": kind, "why": str(error)}
    tx.aftermath.events.append(Event("mail_refused", tx.now_ms, tenant, topic, facts=facts))
