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
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from ...engine.block import Place, decode, encode
from ...engine.bury import tell
from ...engine.columns import Columns
from ...engine.find import find_group, find_topic
from ...engine.incoming import Checked, check_columns
from ...engine.inquiry import Cancel, Move, cancel, move
from ...engine.lease import is_live, live_indexes
from ...engine.publish import Publish, publish
from ...engine.seal import Seal, bound_to
from ...engine.secrets import Shredded
from ...engine.settle import settle
from ...engine.verdict import Settle, Token, Verdicts
from ...errors import CorruptBlock, Error, InvalidArgument
from ...events import Event
from ..contract import LEASED, LeaseRow, TopicRow, Transaction
from .faults import LOCK_NOT_AVAILABLE
from .line import Refused
from .transaction import PostgresTransaction

PUBLISH, SQL, SETTLE, MOVE, CANCEL = "publish", "sql", "settle", "move", "cancel"
_MAILS_A_PAGE = 512

_verdict = msgspec.msgpack.Decoder(tuple[int, Settle])
_CHANGES: dict[str, tuple[Any, Callable[[Transaction, Any], Any]]] = {
    MOVE: (msgspec.msgpack.Decoder(Move), move),
    CANCEL: (msgspec.msgpack.Decoder(Cancel), cancel),
}
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


def sealed_mail(data: bytes, topic: TopicRow, kind: str, seal: Seal | None) -> bytes:
    """Mail as it is put into the inbox: nobody but its topic takes it in, for what it is."""
    return data if seal is None else seal.seal_value(data, bound_to("mail", topic.id, kind))


def batch_mail(batch: Checked, columns: Columns, publish_id: str) -> bytes:
    """A batch for the inbox, its times absolute."""
    partitions = None if batch.partitions is None else batch.partitions.tolist()
    return msgspec.msgpack.encode(_Batch(publish_id, partitions, encode(_PLACE, columns, 0, [])))


def verdict_mail(command: Settle, now_ms: int) -> bytes:
    """A verdict for the inbox, with the moment from which its delay counts."""
    return msgspec.msgpack.encode((now_ms, command))


def held_of(row: LeaseRow | None, token: Token, group: int, verdicts: Verdicts) -> Token | None:
    """What a token names that is held, and counted in the verdicts, as is what is not."""
    if row is None or row.state != LEASED or row.group != group:
        verdicts.lost.extend((token.lease_id, index) for index in token.indexes or (None,))
        return None
    wanted = live_indexes(row) if token.indexes is None else list(dict.fromkeys(token.indexes))
    live = [index for index in wanted if is_live(row, index)]
    verdicts.lost.extend((row.id, index) for index in wanted if not is_live(row, index))
    verdicts.done += len(live)
    return Token(row.id, tuple(live)) if live else None


def leave_verdict(tx: PostgresTransaction, command: Settle) -> Verdicts:
    """Leaves a verdict as mail: an application's open transaction has a share of the lease, and will let go of it."""
    topic = find_topic(tx, command.tenant, command.topic, suspended=True)
    group = find_group(tx, topic, command.group)
    verdicts = Verdicts()
    found = [held_of(tx.lease_looking(token.lease_id), token, group.id, verdicts) for token in command.tokens]
    held = tuple(token for token in found if token is not None)
    if command.verdict == "extend":
        # Whole leases, which keep their ids: whoever holds them would not hear of others.
        held = tuple(Token(token.lease_id) for token in held)
        lease_ms = command.delay_ms or group.settings.lease_ms or topic.settings.lease_ms
        verdicts.expires_at = tx.now_ms + lease_ms
    if held:
        leases = [token.lease_id for token in held]
        data = verdict_mail(replace(command, tokens=held), tx.now_ms)
        tx.mail_put(topic.id, SETTLE, sealed_mail(data, topic, SETTLE, tx.sealing(topic.tenant_id)), leases)
    return verdicts


def spoken_of(tx: PostgresTransaction, topic_id: int) -> set[int]:
    """The leases on which there are verdicts that were not taken in yet."""
    found: set[int] = set()
    for data in tx.verdicts(topic_id):
        # What makes no sense is refused when it is taken in.
        with suppress(msgspec.MsgspecError, CorruptBlock):
            opened = tx.mail_opened(topic_id, SETTLE, data)
            found.update(token.lease_id for token in _verdict.decode(opened)[1].tokens)
    return found


def take_in(tx: PostgresTransaction, tenant: str, topic: str, topic_id: int, floor: int) -> int:
    """Does what a topic's mail says. Answers below which transaction nothing more can come, nor is left."""
    return _TakingIn(tx, tenant, topic, topic_id, floor).run()


class _TakingIn:
    """One taking in.

    What cannot be done yet, because an open transaction of an application has a share of the lease in question, is left
    where it is, and done when that has ended. Nobody can have taken the lease over by then: whoever would, looks once
    more whether the mail speaks of it when it has the lease's row.
    """

    def __init__(self, tx: PostgresTransaction, tenant: str, topic: str, topic_id: int, floor: int) -> None:
        self.tx = tx
        self.tenant = tenant
        self.topic = topic
        self.topic_id = topic_id
        self.floor = floor
        # The first that had to be left.
        self.left_from: int | None = None

    def run(self) -> int:
        if find_topic(self.tx, self.tenant, self.topic, suspended=True, shredded=True).tenant_state:
            # What was committed before its tenant was suspended waits for the end of that: it would be refused.
            return self.floor
        oldest: int | None = None
        for rows in self._pages():
            if oldest is None:
                # Of the first page: what comes to light below its end while the next is read is found next time.
                oldest = rows[0][5]
            for kind, mails in itertools.groupby(rows, key=_way):
                _WAYS[kind](self, list(mails))
        if oldest is None:
            return self.floor
        return oldest if self.left_from is None else min(oldest, self.left_from)

    def _pages(self) -> Iterator[list[Any]]:
        after = (self.floor, 0)
        while rows := self.tx.mail(self.topic_id, after, _MAILS_A_PAGE):
            yield rows
            if len(rows) < _MAILS_A_PAGE:
                return
            after = rows[-1][:2]

    def publish(self, mails: list[Any]) -> None:
        commands: list[Publish] = []
        given: list[Any] = []
        for mail in mails:
            self._done(mail)
            try:
                opened = self.tx.mail_opened(self.topic_id, mail[2], mail[3])
                commands.append(_of_mail(self.tenant, self.topic, mail, opened))
                given.append(mail)
            except (Error, msgspec.MsgspecError) as error:
                self._refuse(mail, error)
        for mail, answer in zip(given, publish(self.tx, commands), strict=True):
            if isinstance(answer, Exception):
                self._refuse(mail, answer)

    def settle(self, mails: list[Any]) -> None:
        read = [(mail, verdict) for mail in mails if (verdict := self._read(mail, _verdict)) is not None]
        if not read:
            return
        # Of which the topic's partitions are known from here on.
        find_topic(self.tx, self.tenant, self.topic, suspended=True, shredded=True)
        shared = self.tx.leases_shared({token.lease_id for _, (_, command) in read for token in command.tokens})
        for mail, (at_ms, command) in read:
            if any(token.lease_id in shared for token in command.tokens):
                self._leave(mail)
                continue
            self._done(mail)
            (answer,) = settle(self.tx, [self._from_now(command, at_ms)])
            if isinstance(answer, Exception):
                self._refuse(mail, answer)
            elif answer.lost and command.verdict != "extend":
                _tell_lost(self.tx, command, len(answer.lost))

    def _from_now(self, command: Settle, at_ms: int) -> Settle:
        if command.delay_ms is None:
            return command
        left_ms = command.delay_ms - max(0, self.tx.now_ms - at_ms)
        return replace(command, delay_ms=max(left_ms, 1 if command.verdict == "extend" else 0))

    def change(self, mails: list[Any]) -> None:
        """Moves and cancels."""
        for mail in mails:
            kind, verb = _CHANGES[mail[2]]
            command = self._read(mail, kind)
            if command is None:
                continue
            mark = self.tx.mark()
            try:
                verb(self.tx, command)
                self.tx.release()
                self._done(mail)
            except Error as error:
                self.tx.back_to(mark)
                self._done(mail)
                self._refuse(mail, error)
            except Refused as error:
                if error.state != LOCK_NOT_AVAILABLE:
                    raise
                self.tx.back_to(mark)
                self._leave(mail)

    def refuse(self, mails: list[Any]) -> None:
        for mail in mails:
            self._done(mail)
            self._refuse(mail, InvalidArgument(f"Mail of an unknown kind: {mail[2]!r}. Use a newer Duly."))

    def _read(self, mail: Any, decoder: Any) -> Any:
        """What a mail says; None: nothing that makes sense."""
        try:
            return decoder.decode(self.tx.mail_opened(self.topic_id, mail[2], mail[3]))
        except (msgspec.MsgspecError, CorruptBlock, Shredded) as error:
            self._done(mail)
            self._refuse(mail, error)
            return None

    def _done(self, mail: Any) -> None:
        self.tx.mail_delete(self.topic_id, *mail[:2])

    def _leave(self, mail: Any) -> None:
        self.left_from = mail[0] if self.left_from is None else min(self.left_from, mail[0])

    def _refuse(self, mail: Any, error: Exception) -> None:
        _, _, kind, data, payload, _ = mail
        self.tx.mail_refuse(self.topic_id, kind, data, payload, str(error))
        facts: dict[str, object] = {"what": kind, "why": str(error)}
        event = Event("mail_refused", self.tx.now_ms, self.tenant, self.topic, facts=facts)
        self.tx.aftermath.events.append(event)


def _way(mail: Any) -> str:
    kind: str = mail[2]
    return {SQL: PUBLISH, MOVE: CANCEL}.get(kind, kind if kind in (PUBLISH, SETTLE, CANCEL) else "")


_WAYS: dict[str, Callable[[_TakingIn, list[Any]], None]] = {
    PUBLISH: _TakingIn.publish,
    SETTLE: _TakingIn.settle,
    CANCEL: _TakingIn.change,
    "": _TakingIn.refuse,
}


def _of_mail(tenant: str, topic: str, mail: Any, data: bytes) -> Publish:
    kind, payload = mail[2], mail[4]
    if kind == SQL:
        return _of_row(tenant, topic, _row.decode(data), payload)
    batch = _batch.decode(data)
    columns = decode(_PLACE, batch.block, unseal=None).columns
    partitions = None if batch.partitions is None else np.array(batch.partitions, np.int64)
    return Publish(tenant, topic, Checked(columns, columns.bytes, partitions), batch.publish_id, taken=True)


def _of_row(tenant: str, topic: str, row: _Row, payload: bytes) -> Publish:
    lists: dict[str, list[Any]] = {"payload": [payload], "id": [row.id]}
    for name in ("key", "headers", "lane", "priority", "due_at", "expires_at"):
        value = getattr(row, name)
        if value is not None:
            lists[name] = [value]
    partitions = None if row.partition is None else [row.partition]
    # All but the id, which Duly may have made, as if it came from a stranger.
    checked = check_columns(
        {name: column for name, column in lists.items() if name != "id"}, partitions, relative=False
    )
    batch = Checked(Columns(1, lists=lists), len(payload), checked.partitions)
    return Publish(tenant, topic, batch, row.publish_id, taken=True)


def _tell_lost(tx: PostgresTransaction, command: Settle, count: int) -> None:
    """A verdict that an application committed came too late: it held the message no longer."""
    topic = find_topic(tx, command.tenant, command.topic)
    group = find_group(tx, topic, command.group)
    facts: dict[str, object] = {"verdict": command.verdict, "messages": count}
    tell(tx, topic, group, "verdict_too_late", partition=topic.partitions[0], offset=0, count=0, facts=facts)
