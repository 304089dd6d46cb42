"""Every operation of Duly, once: the command a caller makes, and the verb that answers it.

Each surface (embedded, Flight, REST) offers exactly these; a test compares them with this list.
A verb takes a list of commands, so that the writer can run neighbours together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..store.contract import Transaction, Verb
from .audit import ListAudit, list_audit
from .budget import (
    ListOperations,
    ResumeOperation,
    StopOperation,
    list_operations,
    resume_operation,
    stop_operation,
)
from .claim import claim
from .claimed import Claim
from .dead import ListDead, PurgeDead, Redrive, list_dead, purge_dead, redrive
from .event_log import ListEvents, list_events
from .forecast import ListForecasts, list_forecasts
from .groups import (
    CreateGroup,
    DeleteGroup,
    DescribeGroup,
    ListGroups,
    PurgeGroup,
    Seek,
    UpdateGroup,
    create_group,
    delete_group,
    describe_group,
    list_groups,
    purge_group,
    seek,
    update_group,
)
from .inquiry import Browse, Cancel, Coming, Get, Move, browse, cancel, coming, get, move
from .pause import PauseStore, pause_store
from .principals import (
    CreateKey,
    DeletePrincipal,
    ListKeys,
    ListPrincipals,
    PutPrincipal,
    RevokeKey,
    RotateKey,
    create_key,
    delete_principal,
    list_keys,
    list_principals,
    put_principal,
    revoke_key,
    rotate_key,
)
from .publish import Publish, publish
from .pushes import (
    CreatePush,
    DeletePush,
    DescribePush,
    ListPushes,
    PausePush,
    ResumePush,
    RotatePushSecret,
    TestPush,
    UpdatePush,
    create_push,
    delete_push,
    describe_push,
    list_pushes,
    pause_push,
    resume_push,
    rotate_push_secret,
    test_push,
    update_push,
)
from .read import OffsetAt, Read, offsets_at, read
from .replay import Replay, replay
from .retain import Chores, run_chores
from .schedules import (
    CreateSchedule,
    DeleteSchedule,
    DescribeSchedule,
    ListSchedules,
    UpdateSchedule,
    create_schedule,
    delete_schedule,
    describe_schedule,
    list_schedules,
    update_schedule,
)
from .settle import Held, ReleaseConsumer, held, release_consumer, settle
from .stage import CommitStages, DropStages, Stage, commit_stages, drop_stages, stage
from .tail import Tail, tail
from .tenants import (
    CreateTenant,
    DeleteTenant,
    DescribeTenant,
    ListTenants,
    ResumeTenant,
    SuspendTenant,
    UpdateTenant,
    create_tenant,
    delete_tenant,
    describe_tenant,
    list_tenants,
    resume_tenant,
    suspend_tenant,
    update_tenant,
)
from .topics import (
    Archived,
    CreateTopic,
    DeleteTopic,
    DescribeTopic,
    ListTopics,
    PurgeTopic,
    UpdateTopic,
    archived,
    create_topic,
    delete_topic,
    describe_topic,
    list_topics,
    purge_topic,
    update_topic,
)
from .verdict import Settle
from .wellbeing import CheckHealth, check_health


def _each(one: Callable[[Transaction, Any], Any]) -> Verb[Any, Any]:
    """A verb that takes its commands one by one."""

    def verb(tx: Transaction, commands: Sequence[Any]) -> list[Any]:
        return [one(tx, command) for command in commands]

    return verb


WRITES: dict[type, Verb[Any, Any]] = {
    Publish: publish,
    Stage: stage,
    CommitStages: _each(commit_stages),
    DropStages: _each(drop_stages),
    Claim: claim,
    Settle: settle,
    Held: _each(held),
    ReleaseConsumer: _each(release_consumer),
    Move: _each(move),
    Cancel: _each(cancel),
    Redrive: _each(redrive),
    Replay: _each(replay),
    PurgeDead: _each(purge_dead),
    CreateTopic: _each(create_topic),
    UpdateTopic: _each(update_topic),
    DeleteTopic: _each(delete_topic),
    PurgeTopic: _each(purge_topic),
    Archived: _each(archived),
    CreateGroup: _each(create_group),
    UpdateGroup: _each(update_group),
    DeleteGroup: _each(delete_group),
    PurgeGroup: _each(purge_group),
    Seek: _each(seek),
    CreatePush: _each(create_push),
    UpdatePush: _each(update_push),
    PausePush: _each(pause_push),
    ResumePush: _each(resume_push),
    DeletePush: _each(delete_push),
    RotatePushSecret: _each(rotate_push_secret),
    PauseStore: _each(pause_store),
    CreateTenant: _each(create_tenant),
    UpdateTenant: _each(update_tenant),
    SuspendTenant: _each(suspend_tenant),
    ResumeTenant: _each(resume_tenant),
    DeleteTenant: _each(delete_tenant),
    ResumeOperation: _each(resume_operation),
    StopOperation: _each(stop_operation),
    CreateSchedule: _each(create_schedule),
    UpdateSchedule: _each(update_schedule),
    DeleteSchedule: _each(delete_schedule),
    PutPrincipal: _each(put_principal),
    DeletePrincipal: _each(delete_principal),
    CreateKey: _each(create_key),
    RotateKey: _each(rotate_key),
    RevokeKey: _each(revoke_key),
    Chores: run_chores,
}

READS: dict[type, Callable[[Transaction, Any], Any]] = {
    Read: read,
    Tail: tail,
    OffsetAt: offsets_at,
    Get: get,
    Browse: browse,
    Coming: coming,
    ListEvents: list_events,
    ListDead: list_dead,
    ListTopics: list_topics,
    DescribeTopic: describe_topic,
    ListGroups: list_groups,
    DescribeGroup: describe_group,
    ListPushes: list_pushes,
    DescribePush: describe_push,
    TestPush: test_push,
    CheckHealth: check_health,
    ListForecasts: list_forecasts,
    ListOperations: list_operations,
    DescribeSchedule: describe_schedule,
    ListSchedules: list_schedules,
    ListAudit: list_audit,
    ListTenants: list_tenants,
    DescribeTenant: describe_tenant,
    ListPrincipals: list_principals,
    ListKeys: list_keys,
}
