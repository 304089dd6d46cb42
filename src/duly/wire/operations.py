"""Commands and answers as msgpack: the names of the operations, and a broker's check of what it is asked.

A command travels as a map of its fields. A client has checked what it sends; a broker checks it again, field by field,
because not everyone who sends is a client of ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, get_type_hints

import msgspec
from msgspec.structs import replace

from ..audit import AuditEntry
from ..causal import Operation
from ..engine.audit import ListAudit
from ..engine.budget import ListOperations, ResumeOperation, StopOperation
from ..engine.claimed import Claim, Claimed
from ..engine.dead import ListDead, PurgeDead, Redrive
from ..engine.event_log import ListEvents, Page
from ..engine.forecast import ListForecasts
from ..engine.groups import (
    CreateGroup,
    DeleteGroup,
    DescribeGroup,
    ListGroups,
    PurgeGroup,
    Seek,
    UpdateGroup,
)
from ..engine.inquiry import Browse, Cancel, Coming, Get, Move
from ..engine.pause import PauseStore
from ..engine.principals import (
    CreateKey,
    DeletePrincipal,
    ListKeys,
    ListPrincipals,
    PutPrincipal,
    RevokeKey,
    RotateKey,
)
from ..engine.publish import Publish
from ..engine.pushes import (
    CreatePush,
    DeletePush,
    DescribePush,
    ListPushes,
    PausePush,
    ResumePush,
    RotatePushSecret,
    TestPush,
    UpdatePush,
)
from ..engine.read import OffsetAt, Read
from ..engine.replay import Replay
from ..engine.schedules import CreateSchedule, DeleteSchedule, DescribeSchedule, ListSchedules, UpdateSchedule
from ..engine.settle import Held, ReleaseConsumer
from ..engine.stage import CommitStages, DropStages, Stage
from ..engine.tail import Tail, Tailed
from ..engine.tenants import (
    CreateTenant,
    DeleteTenant,
    DescribeTenant,
    ListTenants,
    ResumeTenant,
    SuspendTenant,
    UpdateTenant,
)
from ..engine.topics import (
    Archived,
    CreateTopic,
    DeleteTopic,
    DescribeTopic,
    ListTopics,
    PurgeTopic,
    UpdateTopic,
)
from ..engine.verdict import Settle, Verdicts
from ..engine.wellbeing import CheckHealth
from ..errors import Error, InvalidArgument
from ..forecast import Forecast
from ..grants import NOBODY
from ..health import GroupHealth
from ..keys import Key, NewKey, Principal
from ..message import Admitted, DeadLetter, QueuedMessage, Receipt, Replayed, StoredMessage
from ..push import NewPush, Push, PushAnswer, PushDescription, ToHttp, ToTopic
from ..schedule import Schedule, ScheduleDescription
from ..tenant import TenantDescription, TenantSettings
from ..topic import GroupDescription, GroupSettings, TopicDescription, TopicSettings
from .checks import CHECKS

# What each operation answers. Claims and what is held have a form of their own (claims.py).
ANSWERS: dict[type, Any] = {
    Publish: Receipt,
    Stage: int,
    CommitStages: Admitted,
    DropStages: None,
    Claim: Claimed,
    Held: list[Claimed],
    Settle: Verdicts,
    ReleaseConsumer: int,
    Move: dict[str, str],
    Cancel: dict[str, str],
    Redrive: int,
    Replay: Replayed,
    PurgeDead: int,
    CreateTopic: TopicDescription,
    UpdateTopic: TopicDescription,
    DeleteTopic: None,
    PurgeTopic: int,
    Archived: None,
    CreateGroup: None,
    UpdateGroup: None,
    DeleteGroup: None,
    PurgeGroup: int,
    Seek: dict[int, int],
    CreatePush: NewPush,
    UpdatePush: Push,
    PausePush: Push,
    ResumePush: Push,
    DeletePush: None,
    RotatePushSecret: NewPush,
    ListPushes: list[Push],
    DescribePush: PushDescription,
    TestPush: PushAnswer,
    PauseStore: None,
    CreateTenant: TenantDescription,
    UpdateTenant: TenantDescription,
    SuspendTenant: TenantDescription,
    ResumeTenant: TenantDescription,
    DeleteTenant: None,
    ResumeOperation: Operation,
    StopOperation: Operation,
    CreateSchedule: ScheduleDescription,
    UpdateSchedule: ScheduleDescription,
    DeleteSchedule: None,
    DescribeSchedule: ScheduleDescription,
    ListSchedules: list[ScheduleDescription],
    PutPrincipal: Principal,
    DeletePrincipal: None,
    CreateKey: NewKey,
    RotateKey: NewKey,
    RevokeKey: None,
    ListPrincipals: list[Principal],
    ListKeys: list[Key],
    Read: list[StoredMessage],
    Tail: Tailed,
    OffsetAt: dict[int, int],
    Get: QueuedMessage | None,
    Browse: list[QueuedMessage],
    Coming: list[tuple[int, int]],
    ListEvents: Page,
    ListDead: list[DeadLetter],
    ListTopics: list[str],
    DescribeTopic: TopicDescription,
    ListGroups: list[str],
    DescribeGroup: GroupDescription,
    CheckHealth: list[GroupHealth],
    ListForecasts: list[Forecast],
    ListOperations: list[Operation],
    ListAudit: list[AuditEntry],
    ListTenants: list[str],
    DescribeTenant: TenantDescription,
}


def name_of(command: type) -> str:
    """An operation's name: that of its command, in lower case."""
    return re.sub(r"(?<!^)([A-Z])", r"_\1", command.__name__).lower()


# They bring messages, and have a form of their own (batches.py).
WITH_BATCH = (Publish, Stage)
COMMANDS: dict[str, type] = {name_of(command): command for command in ANSWERS}
NAMES: dict[type, str] = {command: name for name, command in COMMANDS.items()}

# What an update may change is named by it, and typed by what is changed.
_CHANGES: dict[type, dict[str, Any]] = {
    UpdateTopic: get_type_hints(TopicSettings),
    UpdateGroup: get_type_hints(GroupSettings),
    UpdateTenant: get_type_hints(TenantSettings),
    UpdateSchedule: get_type_hints(Schedule),
    UpdatePush: {**get_type_hints(ToTopic), **get_type_hints(ToHttp)},
}

# Administrative: who did it is noted.
_BY = frozenset(kind for kind in ANSWERS if any(field.name == "by" for field in msgspec.structs.fields(kind)))

encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
_commands: dict[type, msgspec.msgpack.Decoder[Any]] = {
    command: msgspec.msgpack.Decoder(command) for command in ANSWERS if command not in WITH_BATCH
}
_answers: dict[type, msgspec.msgpack.Decoder[Any]] = {
    command: msgspec.msgpack.Decoder(answer) for command, answer in ANSWERS.items() if command not in (Claim, Held)
}


# Looked up once: to ask a struct for its fields takes longer than to check them.
_checks = {
    command: [(field.name, CHECKS[field.name]) for field in msgspec.structs.fields(command)] for command in _commands
}


def decode_command(name: str, body: bytes | memoryview) -> Any:
    """A command that a broker may run. Raises InvalidArgument."""
    kind = COMMANDS.get(name)
    if kind is None or kind in WITH_BATCH:
        raise InvalidArgument(f"There is no operation {name[:64]!r}. Operations: {', '.join(sorted(COMMANDS))}.")
    with unpacking(name):
        command = _commands[kind].decode(body)
        if kind in _CHANGES:
            command = replace(command, changes=_typed(command.changes, _CHANGES[kind]))
    if kind in _BY:
        # Who does it is known by what was shown, and never said.
        command = replace(command, by=NOBODY)
    for name, check in _checks[kind]:
        check(getattr(command, name), name)
    return command


@contextmanager
def unpacking(what: str) -> Iterator[None]:
    """Around the decoding of what a stranger sent: whatever is wrong with it is an InvalidArgument."""
    try:
        yield
    except msgspec.ValidationError as error:
        # One of ours, raised by a value that checks itself.
        if isinstance(error.__cause__, Error):
            raise error.__cause__ from None
        raise InvalidArgument(f"{what}: {error}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{what}: this is no msgpack: {error}.") from None
    except RecursionError:
        raise InvalidArgument(f"{what}: it is nested too deeply.") from None


def _typed(changes: Mapping[str, Any], types: Mapping[str, Any]) -> dict[str, Any]:
    return {name: msgspec.convert(value, types.get(name, Any)) for name, value in changes.items()}


def decode_answer(command: type, body: bytes | memoryview) -> Any:
    """What a broker answered."""
    return _answers[command].decode(body)
