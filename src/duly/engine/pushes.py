"""Pushes: create, update, describe, list, delete, pause, resume, and rotate their secrets (push.py draws the states).

A push belongs to one group, and a group has one push at most: two would only take messages from each other. What it
says is kept in two parts. The settings are where it goes and how. The secrets are what its requests are signed with and
the values of their headers, which may be credentials: nobody is shown either again, and an update that names a header
with the value "…" leaves it as it is.

Who changes a push has its row until the commit, and what its topic is does not change. So these commands name no topic,
and need no topic's lock; but to create one, which looks at the group and may set a breaker there.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import msgspec

from ..errors import Conflict, InvalidArgument, LimitExceeded, PushExists, PushNotFound, StaleVersion
from ..grants import NOBODY, By
from ..push import (
    ACTIVE,
    DISABLED,
    HIDDEN,
    PAUSED,
    SECRET_BYTES,
    SECRETS_MAX,
    NewPush,
    Push,
    PushDescription,
    RunningPush,
    ToHttp,
    ToTopic,
    read_secret,
    secret_text,
)
from ..store.contract import GroupRow, PushRow, TopicRow, Transaction
from ..tenant import check_name
from ..topic import Breaker
from .audit import note_done
from .find import find_group, find_owner, find_topic
from .gates import mend_gate
from .groups import DescribeGroup, describe_group
from .push_ends import tell_push
from .push_secrets import (
    KeptSecret,
    audited,
    encode,
    first_secrets,
    kept_of,
    settings_of,
    shown_of,
    whole_of,
)


class CreatePush(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new push of a group, which goes to one of the two. A queue's group needs no name."""

    tenant: str
    topic: str
    group: str
    name: str
    to_http: ToHttp | None = None
    to_topic: ToTopic | None = None
    paused: bool = False
    # What its requests are signed with; None: one is made.
    secret: str | None = None
    by: By = NOBODY

    def __repr__(self) -> str:
        # Headers and the secret would stand in logs and tracebacks otherwise.
        return f"CreatePush({self.tenant!r}, {self.topic!r}, {self.name!r})"


class OfPush(msgspec.Struct, frozen=True):
    """A push by name. `of_topic`: only if it is a push of that topic, by which was decided; "": of any."""

    tenant: str
    name: str
    of_topic: str = ""


class DescribePush(OfPush, frozen=True):
    """Ask how a push stands."""


class TestPush(OfPush, frozen=True):
    """Send a request to try where a push goes, whether it is active or not; no message is touched."""


class PausePush(OfPush, frozen=True):
    """Send nothing until it is resumed."""

    by: By = NOBODY


class ResumePush(OfPush, frozen=True):
    """Go on, after a pause or whatever it was disabled for."""

    by: By = NOBODY


class DeletePush(OfPush, frozen=True):
    """Remove a push. Its group stays, with its messages."""

    by: By = NOBODY


class UpdatePush(OfPush, frozen=True):
    """Changes to where a push goes and how; `version` refuses to overwrite somebody else's change."""

    changes: Mapping[str, Any] = {}
    version: int | None = None
    by: By = NOBODY

    def __repr__(self) -> str:
        return f"UpdatePush({self.tenant!r}, {self.name!r}, {sorted(self.changes)})"


class RotatePushSecret(OfPush, frozen=True):
    """Sign with another secret from now on, and with the present one, too, for so long; 0: with no older one."""

    overlap_ms: int = 0
    secret: str | None = None
    by: By = NOBODY

    def __repr__(self) -> str:
        return f"RotatePushSecret({self.tenant!r}, {self.name!r})"


class ListPushes(msgspec.Struct, frozen=True):
    """A page of a tenant's pushes, by name."""

    tenant: str
    after: str
    limit: int


# What people see and do


def create_push(tx: Transaction, command: CreatePush) -> NewPush:
    """Makes a push; of a group without a breaker that goes to an endpoint the group gets one."""
    check_name(command.name, "push name")
    topic = find_topic(tx, command.tenant, command.topic)
    group = find_group(tx, topic, command.group)
    to = _one_of(command.to_http, command.to_topic)
    target = _target(tx, topic.tenant, topic.name, to)
    row = PushRow(
        topic.tenant_id,
        topic.tenant,
        command.name,
        topic.id,
        topic.name,
        group.id,
        group.name,
        settings_of(to),
        first_secrets(to, command.secret),
        PAUSED if command.paused else ACTIVE,
        "",
        1,
        tx.now_ms,
        target,
    )
    if not tx.push_insert(row):
        raise _taken(tx, row)
    if isinstance(to, ToHttp) and topic.settings.breaker is None and group.settings.breaker is None:
        _protect(tx, topic, group)
    tell_push(tx, row, "push_created", to=_kind_of(to))
    told = audited(asdict(to))
    bare = msgspec.structs.replace(command, to_http=None, to_topic=None, secret=None)
    note_done(tx, row.tenant_id, bare, group=group.name, to=told)
    return _new(tx, row)


def _one_of(to_http: ToHttp | None, to_topic: ToTopic | None) -> ToHttp | ToTopic:
    if to_http is not None and to_topic is None:
        if HIDDEN in to_http.headers.values():
            raise InvalidArgument(f"A header's value {HIDDEN!r} stands for one that is there. A new push has none.")
        return to_http
    if to_topic is not None and to_http is None:
        return to_topic
    raise InvalidArgument("A push goes to one place: an endpoint (duly.ToHttp) or a topic (duly.ToTopic).")


def _target(tx: Transaction, tenant: str, source: str, to: ToHttp | ToTopic) -> int | None:
    """The topic that it goes to. Refuses one that is not there, and the one that it comes from."""
    if isinstance(to, ToHttp):
        return None
    if to.topic == source:
        raise InvalidArgument(f"A push of {source!r} cannot go to {source!r}: each message would make another one.")
    topic = find_topic(tx, tenant, to.topic)
    if topic.settings.kind == "log" and (to.due, to.priority, to.lane) != (None, None, None):
        raise InvalidArgument(f"{to.topic!r} is a log: messages have no due time, priority or lane there.")
    return topic.id


def _taken(tx: Transaction, row: PushRow) -> PushExists:
    if tx.push(row.tenant_id, row.name) is not None:
        return PushExists(f"Push {row.name!r} exists. Use update_push, or another name.")
    held = next((one.name for one in tx.pushes_of_topic(row.topic_id) if one.group_id == row.group_id), "")
    return PushExists(
        f"Group {row.group!r} of topic {row.topic!r} has a push, {held!r}: two would take messages from each other. "
        "Update that one; or make another group, which gets a copy of its own."
    )


def _protect(tx: Transaction, topic: TopicRow, group: GroupRow) -> None:
    """An endpoint that fails is not to be hammered: the group gets a breaker, as if somebody had set it."""
    tx.group_update(group, group.settings.changed({"breaker": Breaker()}), group.paused)
    tx.remember(("group", topic.id, group.name), None)
    mend_gate(tx, topic, find_group(tx, topic, group.name))


def update_push(tx: Transaction, command: UpdatePush) -> Push:
    """Changes where it goes, or how. An endpoint stays an endpoint, and a topic a topic."""
    row = _claim(tx, command)
    if command.version is not None and command.version != row.version:
        raise StaleVersion(f"Push {row.name!r} is at version {row.version}, not {command.version}. Read it again.")
    before = whole_of(row)
    to = _changed(before, command.changes)
    if to == before:
        return _described(tx, row)
    kept = kept_of(row)
    if isinstance(to, ToHttp):
        kept = msgspec.structs.replace(kept, headers=dict(to.headers))
    row = msgspec.structs.replace(
        row,
        settings=settings_of(to),
        secrets=encode(kept) if isinstance(to, ToHttp) else None,
        target=_target(tx, row.tenant, row.topic, to),
        version=row.version + 1,
    )
    tx.push_put(row)
    tell_push(tx, row, "push_updated", changes=sorted(command.changes))
    _note(tx, row, msgspec.structs.replace(command, changes=audited(command.changes)))
    return _described(tx, row)


def _changed(before: ToHttp | ToTopic, changes: Mapping[str, Any]) -> ToHttp | ToTopic:
    known = before.__slots__
    for name in changes:
        if name not in known:
            raise InvalidArgument(
                f"A push to {_kind_of(before)} has no {name!r}. Settings: {', '.join(known)}. To have it go elsewhere, "
                "delete it and create another."
            )
    wanted = dict(changes)
    if isinstance(before, ToHttp) and isinstance(wanted.get("headers"), Mapping):
        wanted["headers"] = {name: _value(before, name, value) for name, value in wanted["headers"].items()}
    return replace(before, **wanted)


def _value(before: ToHttp, name: str, value: Any) -> Any:
    """A header's value as it is wanted: what is shown of one stands for itself."""
    if value != HIDDEN:
        return value
    known = {have.lower(): kept for have, kept in before.headers.items()}
    if not isinstance(name, str) or name.lower() not in known:
        raise InvalidArgument(f"There is no header {name!r} whose value could stay: {HIDDEN!r} stands for that.")
    return known[name.lower()]


def pause_push(tx: Transaction, command: PausePush) -> Push:
    """Stops it. Twice is no error; one that is disabled stays so."""
    row = _claim(tx, command)
    if row.state == DISABLED:
        raise Conflict(f"Push {row.name!r} is disabled, and nothing is sent until it is resumed: {row.reason}")
    return _turn(tx, row, command, PAUSED, "push_paused")


def resume_push(tx: Transaction, command: ResumePush) -> Push:
    """Starts it again. Raises TopicNotFound, where the topic that it goes to is still gone."""
    row = _claim(tx, command)
    return _turn(tx, row, command, ACTIVE, "push_resumed")


def _turn(tx: Transaction, row: PushRow, command: PausePush | ResumePush, state: str, kind: str) -> Push:
    if row.state != state:
        target = row.target
        if state == ACTIVE:
            target = _target(tx, row.tenant, row.topic, whole_of(row))
        row = msgspec.structs.replace(row, state=state, reason="", version=row.version + 1, target=target)
        tx.push_state(row)
        tell_push(tx, row, kind)
        _note(tx, row, command)
    return _described(tx, row)


def delete_push(tx: Transaction, command: DeletePush) -> None:
    """Removes it. What it has claimed is finished, or due again when its lease ends."""
    row = _claim(tx, command)
    tx.push_delete(row)
    tell_push(tx, row, "push_deleted")
    _note(tx, row, command)


def rotate_push_secret(tx: Transaction, command: RotatePushSecret) -> NewPush:
    """Signs with a new secret, and for a while with those of before, too."""
    row = _claim(tx, command)
    if not isinstance(whole_of(row), ToHttp):
        raise InvalidArgument(f"Push {row.name!r} goes to a topic: nothing is signed on the way.")
    made = secrets.token_bytes(SECRET_BYTES) if command.secret is None else read_secret(command.secret)
    kept, until = kept_of(row), tx.now_ms + command.overlap_ms
    older = [one if one.until_ms is not None else KeptSecret(one.key, until) for one in kept.valid(tx.now_ms)]
    # Without an overlap none of them is to be trusted any more, whatever it was promised.
    signing = (KeptSecret(made), *(older if command.overlap_ms else ()))
    if len(signing) > SECRETS_MAX:
        raise LimitExceeded(
            f"At most {SECRETS_MAX} secrets of a push sign at once. Wait until the older ones end, or rotate with "
            "overlap=0, which ends them now."
        )
    row = msgspec.structs.replace(
        row, secrets=encode(msgspec.structs.replace(kept, signing=signing)), version=row.version + 1
    )
    tx.push_put(row)
    tell_push(tx, row, "push_secret_rotated", overlap_ms=command.overlap_ms)
    _note(tx, row, msgspec.structs.replace(command, secret=None))
    return _new(tx, row)


def describe_push(tx: Transaction, command: DescribePush) -> PushDescription:
    """How a push and its group stand."""
    owner = tx.tenant_find(command.tenant)
    row = _is_of(None if owner is None else tx.push(owner.id, command.name), command)
    group = describe_group(tx, DescribeGroup(row.tenant, row.topic, row.group))
    return PushDescription(
        **_facts(tx, row),
        lag=group.lag,
        leased=group.leased,
        retrying=group.retrying,
        dead=group.dead,
        gate=group.gate,
    )


def list_pushes(tx: Transaction, command: ListPushes) -> list[Push]:
    """A page of them, by name."""
    owner = tx.tenant_find(command.tenant)
    if owner is None:
        return []
    seen = _seen(tx)
    return [Push(**_facts(tx, row, seen)) for row in tx.push_page(owner.id, command.after, command.limit)]


def test_push(tx: Transaction, command: TestPush) -> RunningPush:
    """What it takes to send a request, which a store does not do: a broker does (broker.py). Raises Sealed."""
    owner = find_owner(tx, command.tenant)
    row = _is_of(None if owner is None else tx.push(owner.id, command.name), command)
    to = whole_of(row)
    if not isinstance(to, ToHttp):
        raise InvalidArgument(f"Push {row.name!r} goes to a topic: publish a message into {row.topic!r} to try it.")
    return _runnable(tx, row, to).push


class PushPlace(msgspec.Struct, frozen=True):
    """Ask to which topic a push belongs."""

    tenant: str
    name: str


def push_place(tx: Transaction, asked: PushPlace) -> str | None:
    """The topic that a push belongs to; None: there is no such push."""
    owner = tx.tenant_find(asked.tenant)
    row = None if owner is None else tx.push(owner.id, asked.name)
    return None if row is None else row.topic


def no_push(name: str) -> PushNotFound:
    """The error for a push that is not there, or that one may not see."""
    return PushNotFound(f"There is no push {name!r}. Call create_push first.")


class Runnable(msgspec.Struct, frozen=True):
    """A push to be run, and until when it stays as it is if nobody changes it: then a secret ends."""

    push: RunningPush
    until_ms: int | None


def runnable_push(tx: Transaction, asked: PushPlace) -> Runnable | None:
    """A push as whoever runs it needs it; None: it is not there, or not active. Raises Sealed."""
    owner = tx.tenant_find(asked.tenant)
    row = None if owner is None else tx.push(owner.id, asked.name)
    if row is None or row.state != ACTIVE:
        return None
    return _runnable(tx, row, whole_of(row))


def _runnable(tx: Transaction, row: PushRow, to: ToHttp | ToTopic) -> Runnable:
    valid = kept_of(row).valid(tx.now_ms)
    keys = tuple(one.key for one in valid)
    push = RunningPush(row.tenant, row.name, row.topic, row.group, to, keys, row.version)
    return Runnable(push, min((one.until_ms for one in valid if one.until_ms is not None), default=None))


def _claim(tx: Transaction, command: OfPush) -> PushRow:
    """The push, which nobody else changes until the commit. Raises PushNotFound, TenantSuspended."""
    owner = find_owner(tx, command.tenant)
    return _is_of(None if owner is None else tx.push_claim(owner.id, command.name), command)


def _is_of(row: PushRow | None, command: OfPush) -> PushRow:
    if row is None or command.of_topic not in ("", row.topic):
        raise no_push(command.name)
    return row


def _note(tx: Transaction, row: PushRow, command: Any) -> None:
    note_done(tx, row.tenant_id, command, on=row.topic)


def _kind_of(to: ToHttp | ToTopic) -> str:
    return "an endpoint" if isinstance(to, ToHttp) else "a topic"


def _seen(tx: Transaction) -> set[str]:
    return {member.name for member in tx.members_seen()}


def _facts(tx: Transaction, row: PushRow, seen: set[str] | None = None) -> dict[str, Any]:
    """What is told of every push. One whose holder is gone is run by nobody."""
    shown, valid = shown_of(row), kept_of(row).valid(tx.now_ms)
    alive = _seen(tx) if seen is None else seen
    return {
        "name": row.name,
        "topic": row.topic,
        "group": row.group,
        "to_http": shown.to_http,
        "to_topic": shown.to_topic,
        "state": row.state,
        "reason": row.reason,
        "version": row.version,
        "created_at_ms": row.created_at,
        "holder": row.holder if row.state == ACTIVE and row.holder in alive else None,
        "older_secrets_until_ms": max((one.until_ms for one in valid if one.until_ms is not None), default=None),
    }


def _described(tx: Transaction, row: PushRow) -> Push:
    return Push(**_facts(tx, row))


def _new(tx: Transaction, row: PushRow) -> NewPush:
    signing = kept_of(row).signing
    return NewPush(**_facts(tx, row), secret=secret_text(signing[0].key) if signing else None)


def changes_to(to: ToHttp | ToTopic) -> dict[str, Any]:
    """Everything that a target says, as changes to a push."""
    return asdict(to)
