"""Duly: a durable message queue. Every message is delivered when it is due."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .audit import AuditEntry
from .backoff import RetryPolicy
from .causal import Operation, operation
from .clock import ClockReading, ManualClock, SystemClock
from .errors import (
    Busy,
    Closed,
    Conflict,
    ConsumeError,
    CorruptBackup,
    CorruptBlock,
    CorruptLake,
    Denied,
    Error,
    GroupExists,
    GroupNotFound,
    IncompatibleLake,
    IncompatibleStore,
    InvalidArgument,
    KeyNotFound,
    LakeError,
    LakeTaken,
    LeaseLost,
    LimitExceeded,
    MessageNotFound,
    NotFound,
    NotReady,
    OffsetTruncated,
    OperationExhausted,
    PrincipalNotFound,
    PublishError,
    PublishUnknown,
    PushExists,
    PushNotFound,
    QuotaExceeded,
    ScheduleExists,
    ScheduleNotFound,
    Sealed,
    StaleVersion,
    StoreError,
    StoreExists,
    StoreFull,
    TenantExists,
    TenantNotEmpty,
    TenantNotFound,
    TenantSuspended,
    TimeLimit,
    Timeout,
    TopicExists,
    TopicNotEmpty,
    TopicNotFound,
    Unauthenticated,
    Unavailable,
)
from .events import Event
from .forecast import Forecast, ForecastMinute
from .grants import Grant
from .health import Figures, Finding, GroupHealth, HealthReason
from .keys import Key, NewKey, Principal
from .limits import LIMITS, Limits
from .master import Master
from .member import Member
from .message import Admitted, DeadLetter, Failure, Message, QueuedMessage, Receipt, Replayed, Span, StoredMessage
from .push import LastAnswer, NewPush, Push, PushAnswer, PushDescription, ToHttp, ToTopic
from .schedule import Schedule, ScheduleDescription, ScheduleRun
from .tenant import TenantDescription, TenantSettings
from .topic import (
    Breaker,
    ConsumerDescription,
    GateDescription,
    GroupDescription,
    GroupSettings,
    Health,
    LaneBreaker,
    Lanes,
    PartitionDescription,
    Retention,
    TopicDescription,
    TopicSettings,
)

if TYPE_CHECKING:
    from . import aio
    from .client.batch import Batch, Delivery, Settled
    from .client.client import Client
    from .client.connect import connect, list_backups, migrate, restore, verify_backups
    from .client.consume import Consumption
    from .client.moving import Migration
    from .client.producer import Producer
    from .client.tls import Tls
    from .store.contract import Backup
    from .store.sqlite.application import Transaction
    from .workers.verdict import Bury, RetryLater
    from .workers.workers import Workers

__version__ = "0.9.0"

# Loaded when first used, so that `import duly` stays quick.
_LAZY = {
    "Backup": "duly.store.contract",
    "Batch": "duly.client.batch",
    "Bury": "duly.workers.verdict",
    "Client": "duly.client.client",
    "Consumption": "duly.client.consume",
    "Migration": "duly.client.moving",
    "Producer": "duly.client.producer",
    "Delivery": "duly.client.batch",
    "RetryLater": "duly.workers.verdict",
    "Settled": "duly.client.batch",
    "Tls": "duly.client.tls",
    "Transaction": "duly.store.sqlite.application",
    "Workers": "duly.workers.workers",
    "aio": "duly.aio",
    "connect": "duly.client.connect",
    "list_backups": "duly.client.connect",
    "migrate": "duly.client.connect",
    "restore": "duly.client.connect",
    "verify_backups": "duly.client.connect",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'duly' has no attribute {name!r}")
    from importlib import import_module

    if name == "aio":
        return import_module("duly.aio")
    return getattr(import_module(_LAZY[name]), name)


__all__ = [
    "LIMITS",
    "Admitted",
    "AuditEntry",
    "Backup",
    "Batch",
    "Breaker",
    "Bury",
    "Busy",
    "Client",
    "ClockReading",
    "Closed",
    "Conflict",
    "ConsumeError",
    "ConsumerDescription",
    "Consumption",
    "CorruptBackup",
    "CorruptBlock",
    "CorruptLake",
    "DeadLetter",
    "Delivery",
    "Denied",
    "Error",
    "Event",
    "Failure",
    "Figures",
    "Finding",
    "Forecast",
    "ForecastMinute",
    "GateDescription",
    "Grant",
    "GroupDescription",
    "GroupExists",
    "GroupHealth",
    "GroupNotFound",
    "GroupSettings",
    "Health",
    "HealthReason",
    "IncompatibleLake",
    "IncompatibleStore",
    "InvalidArgument",
    "Key",
    "KeyNotFound",
    "LakeError",
    "LakeTaken",
    "LaneBreaker",
    "Lanes",
    "LastAnswer",
    "LeaseLost",
    "LimitExceeded",
    "Limits",
    "ManualClock",
    "Master",
    "Member",
    "Message",
    "MessageNotFound",
    "Migration",
    "NewKey",
    "NewPush",
    "NotFound",
    "NotReady",
    "OffsetTruncated",
    "Operation",
    "OperationExhausted",
    "PartitionDescription",
    "Principal",
    "PrincipalNotFound",
    "Producer",
    "PublishError",
    "PublishUnknown",
    "Push",
    "PushAnswer",
    "PushDescription",
    "PushExists",
    "PushNotFound",
    "QueuedMessage",
    "QuotaExceeded",
    "Receipt",
    "Replayed",
    "Retention",
    "RetryLater",
    "RetryPolicy",
    "Schedule",
    "ScheduleDescription",
    "ScheduleExists",
    "ScheduleNotFound",
    "ScheduleRun",
    "Sealed",
    "Settled",
    "Span",
    "StaleVersion",
    "StoreError",
    "StoreExists",
    "StoreFull",
    "StoredMessage",
    "SystemClock",
    "TenantDescription",
    "TenantExists",
    "TenantNotEmpty",
    "TenantNotFound",
    "TenantSettings",
    "TenantSuspended",
    "TimeLimit",
    "Timeout",
    "Tls",
    "ToHttp",
    "ToTopic",
    "TopicDescription",
    "TopicExists",
    "TopicNotEmpty",
    "TopicNotFound",
    "TopicSettings",
    "Transaction",
    "Unauthenticated",
    "Unavailable",
    "Workers",
    "aio",
    "connect",
    "list_backups",
    "migrate",
    "operation",
    "restore",
    "verify_backups",
]
