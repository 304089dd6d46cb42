"""Duly: a durable message queue. Every message is delivered when it is due."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .backoff import RetryPolicy
from .clock import ManualClock, SystemClock
from .errors import (
    Busy,
    Closed,
    Conflict,
    ConsumeError,
    CorruptBlock,
    Denied,
    Error,
    GroupExists,
    GroupNotFound,
    IncompatibleStore,
    InvalidArgument,
    LeaseLost,
    LimitExceeded,
    MessageNotFound,
    NotFound,
    OffsetTruncated,
    PublishError,
    PublishUnknown,
    QuotaExceeded,
    StaleVersion,
    StoreError,
    StoreFull,
    TimeLimit,
    Timeout,
    TopicExists,
    TopicNotEmpty,
    TopicNotFound,
    Unavailable,
)
from .events import Event
from .health import Finding
from .limits import LIMITS, Limits
from .message import DeadLetter, Failure, Message, QueuedMessage, Receipt, Span, StoredMessage
from .topic import (
    ConsumerDescription,
    GroupDescription,
    GroupSettings,
    Health,
    Lanes,
    PartitionDescription,
    Retention,
    TopicDescription,
    TopicSettings,
)

if TYPE_CHECKING:
    from .client.batch import Batch, Delivery, Settled
    from .client.client import Client
    from .client.connect import connect
    from .client.consume import Consumption
    from .workers.verdict import Bury, RetryLater
    from .workers.workers import Workers

__version__ = "0.2.0"

# Loaded when first used, so that `import duly` stays quick.
_LAZY = {
    "Batch": "duly.client.batch",
    "Bury": "duly.workers.verdict",
    "Client": "duly.client.client",
    "Consumption": "duly.client.consume",
    "Delivery": "duly.client.batch",
    "RetryLater": "duly.workers.verdict",
    "Settled": "duly.client.batch",
    "Workers": "duly.workers.workers",
    "connect": "duly.client.connect",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'duly' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)


__all__ = [
    "LIMITS",
    "Batch",
    "Bury",
    "Busy",
    "Client",
    "Closed",
    "Conflict",
    "ConsumeError",
    "ConsumerDescription",
    "Consumption",
    "CorruptBlock",
    "DeadLetter",
    "Delivery",
    "Denied",
    "Error",
    "Event",
    "Failure",
    "Finding",
    "GroupDescription",
    "GroupExists",
    "GroupNotFound",
    "GroupSettings",
    "Health",
    "IncompatibleStore",
    "InvalidArgument",
    "Lanes",
    "LeaseLost",
    "LimitExceeded",
    "Limits",
    "ManualClock",
    "Message",
    "MessageNotFound",
    "NotFound",
    "OffsetTruncated",
    "PartitionDescription",
    "PublishError",
    "PublishUnknown",
    "QueuedMessage",
    "QuotaExceeded",
    "Receipt",
    "Retention",
    "RetryLater",
    "RetryPolicy",
    "Settled",
    "Span",
    "StaleVersion",
    "StoreError",
    "StoreFull",
    "StoredMessage",
    "SystemClock",
    "TimeLimit",
    "Timeout",
    "TopicDescription",
    "TopicExists",
    "TopicNotEmpty",
    "TopicNotFound",
    "TopicSettings",
    "Unavailable",
    "Workers",
    "connect",
]
