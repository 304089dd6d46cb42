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
    Timeout,
    TopicExists,
    TopicNotEmpty,
    TopicNotFound,
    Unavailable,
)
from .events import Event
from .health import Figures, Finding, GroupHealth, HealthReason
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
    from . import aio
    from .client.batch import Batch, Delivery, Settled
    from .client.client import Client
    from .client.connect import connect

__version__ = "0.2.0"

# Loaded when first used, so that `import duly` stays quick.
_LAZY = {
    "Batch": "duly.client.batch",
    "Client": "duly.client.client",
    "Delivery": "duly.client.batch",
    "Settled": "duly.client.batch",
    "aio": "duly.aio",
    "connect": "duly.client.connect",
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
    "Batch",
    "Busy",
    "Client",
    "Closed",
    "Conflict",
    "ConsumeError",
    "ConsumerDescription",
    "CorruptBlock",
    "DeadLetter",
    "Delivery",
    "Denied",
    "Error",
    "Event",
    "Failure",
    "Figures",
    "Finding",
    "GroupDescription",
    "GroupExists",
    "GroupHealth",
    "GroupNotFound",
    "GroupSettings",
    "Health",
    "HealthReason",
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
    "RetryPolicy",
    "Settled",
    "Span",
    "StaleVersion",
    "StoreError",
    "StoreFull",
    "StoredMessage",
    "SystemClock",
    "Timeout",
    "TopicDescription",
    "TopicExists",
    "TopicNotEmpty",
    "TopicNotFound",
    "TopicSettings",
    "Unavailable",
    "aio",
    "connect",
]
