"""Every error Duly raises, in one tree.

    Error
    ├── InvalidArgument          what was asked cannot be done as written
    │   └── LimitExceeded        … because a published limit is passed
    ├── NotFound
    │   ├── TopicNotFound
    │   ├── GroupNotFound
    │   ├── MessageNotFound
    │   ├── TenantNotFound
    │   ├── PushNotFound
    │   ├── PrincipalNotFound
    │   ├── KeyNotFound
    │   └── ScheduleNotFound
    ├── Conflict
    │   ├── TopicExists
    │   ├── GroupExists
    │   ├── PushExists
    │   ├── TopicNotEmpty
    │   ├── TenantExists
    │   ├── TenantNotEmpty
    │   ├── ScheduleExists
    │   ├── StaleVersion
    │   └── StoreExists
    ├── PublishError
    │   └── PublishUnknown       carries the publish id to repeat it with
    ├── ConsumeError
    │   ├── LeaseLost
    │   ├── OffsetTruncated
    │   └── TimeLimit            raised inside a handler
    ├── Unavailable              try again later; nothing was done
    │   ├── Busy
    │   ├── Timeout              also a TimeoutError
    │   ├── StoreFull
    │   ├── NotReady             of one broker: others may do it
    │   └── Closed
    ├── StoreError
    │   ├── CorruptBackup
    │   ├── CorruptBlock
    │   ├── IncompatibleStore
    │   └── Sealed
    ├── LakeError                the archive and the store; no watermark was moved
    │   ├── LakeTaken
    │   ├── CorruptLake
    │   └── IncompatibleLake
    ├── Unauthenticated
    ├── Denied
    │   └── TenantSuspended
    └── QuotaExceeded            of a rate: carries when to try again
        └── OperationExhausted   of an operation: names it

A class's docstring says what to do next and is its default message; its `code` is stable
and is what REST and Flight answer with.
"""

from __future__ import annotations

from typing import Any, ClassVar


class Error(Exception):
    """Something went wrong in Duly."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str | None = None, **facts: Any) -> None:
        """`facts` are the machine-readable particulars; each becomes an attribute."""
        super().__init__(message or (self.__doc__ or "").strip())
        self.facts = facts
        for name, value in facts.items():
            setattr(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self), self.facts)


def _rebuild(kind: type[Error], message: str, facts: dict[str, Any]) -> Error:
    return kind(message, **facts)


class InvalidArgument(Error, ValueError):
    """An argument is not acceptable. Correct it and call again; nothing was changed."""

    code = "invalid_argument"


class LimitExceeded(InvalidArgument):
    """A published limit is exceeded. See duly.limits; nothing was changed."""

    code = "limit_exceeded"


class NotFound(Error, LookupError):
    """There is nothing of that name here."""

    code = "not_found"


class TopicNotFound(NotFound):
    """No such topic. Topics are never created by themselves: call create_topic first."""

    code = "topic_not_found"


class GroupNotFound(NotFound):
    """No such group on this topic. Call create_group first."""

    code = "group_not_found"


class MessageNotFound(NotFound):
    """No such message: it was never there, or it is settled and gone."""

    code = "message_not_found"


class TenantNotFound(NotFound):
    """No such tenant. With keys in use an operator makes it: call create_tenant first."""

    code = "tenant_not_found"


class PushNotFound(NotFound):
    """There is no such push. List them with pushes(), or call create_push first."""

    code = "push_not_found"


class PrincipalNotFound(NotFound):
    """No such principal. Call list_principals to see who there is, or put_principal to make one."""

    code = "principal_not_found"


class KeyNotFound(NotFound):
    """No such key. Call list_keys to see which there are."""

    code = "key_not_found"


class ScheduleNotFound(NotFound):
    """No such schedule. Call schedules to see which there are, or create_schedule to make one."""

    code = "schedule_not_found"


class Conflict(Error):
    """The present state does not allow it."""

    code = "conflict"


class TopicExists(Conflict):
    """A topic of that name exists with other settings. Use update_topic, or another name."""

    code = "topic_exists"


class GroupExists(Conflict):
    """A group of that name exists with other settings. Use update_group, or another name."""

    code = "group_exists"


class PushExists(Conflict):
    """A push with this name exists, or the group has one. Use update_push, or another name."""

    code = "push_exists"


class TopicNotEmpty(Conflict):
    """The topic still has messages. Purge it first, or delete it with force=True."""

    code = "topic_not_empty"


class TenantExists(Conflict):
    """A tenant of that name exists with other settings. Use update_tenant, or another name."""

    code = "tenant_exists"


class TenantNotEmpty(Conflict):
    """The tenant still has topics. Call delete_topic for each, or delete it with force=True."""

    code = "tenant_not_empty"


class ScheduleExists(Conflict):
    """A schedule of that name exists with other settings. Use update_schedule, or another name."""

    code = "schedule_exists"


class StaleVersion(Conflict):
    """Somebody changed it since you read it. Read it again and repeat the change."""

    code = "stale_version"


class StoreExists(Conflict):
    """There is a file at that path already. Use another path, or restore with force=True to replace it."""

    code = "store_exists"


class PublishError(Error):
    """The batch was not published."""

    code = "publish_error"


class PublishUnknown(PublishError):
    """It is unknown whether the batch was stored. Publish it again with the same publish_id."""

    code = "publish_unknown"
    publish_id: str


class ConsumeError(Error):
    """The delivery or the read could not go on."""

    code = "consume_error"


class LeaseLost(ConsumeError):
    """The lease expired or was taken over. Claim again; do not ack."""

    code = "lease_lost"


class OffsetTruncated(ConsumeError):
    """The log no longer has that offset. Read from `first_offset`, or from the archive."""

    code = "offset_truncated"
    first_offset: int


class TimeLimit(ConsumeError):
    """The handler ran into its time limit. Clean up and end; if it needs longer, call on() with a larger time_limit."""

    code = "time_limit"


class Unavailable(Error):
    """The store cannot do it now. Nothing was done; try again later."""

    code = "unavailable"


class Busy(Unavailable):
    """Too much is waiting already. Nothing was done; back off and try again."""

    code = "busy"


class Timeout(Unavailable, TimeoutError):
    """The time allowed ran out before the work began. Nothing was done; try again."""

    code = "timeout"


class StoreFull(Unavailable):
    """The device has no room left. Nothing was stored; free space, then try again. Reads still work."""

    code = "store_full"


class NotReady(Unavailable):
    """This broker takes neither publishes nor claims now. Nothing was done; ask another, or try again later."""

    code = "not_ready"


class Closed(Unavailable):
    """This client is closed. Connect again."""

    code = "closed"


class StoreError(Error):
    """The store answered with a fault. Run `duly doctor`."""

    code = "store_error"


class CorruptBackup(StoreError):
    """A backup fails its checksums; nothing was restored. Restore another, and run `duly backup --verify`."""

    code = "corrupt_backup"


class CorruptBlock(StoreError):
    """A stored block fails its checksum and is not served. Run `duly doctor`; restore, or seek past it."""

    code = "corrupt_block"


class IncompatibleStore(StoreError):
    """The file is not a Duly store, or a newer Duly wrote it. Use the Duly that made it, or another path."""

    code = "incompatible_store"


class Sealed(StoreError):
    """What is asked for is sealed, and the data key is not here or was shredded. See docs/security.md."""

    code = "sealed"


class LakeError(Error):
    """The lake and the store do not fit. The watermark stayed where it was; see the message."""

    code = "lake_error"


class LakeTaken(LakeError):
    """Somebody else archives the same topics into this lake. One is enough: wait for it to end, then run again."""

    code = "lake_taken"


class CorruptLake(LakeError):
    """The lake lacks messages, has some twice, or one fails its checksum. Restore it, or use another lake."""

    code = "corrupt_lake"


class IncompatibleLake(LakeError):
    """There is something else than a lake of Duly's, or a newer Duly wrote it. Use another path."""

    code = "incompatible_lake"


class Unauthenticated(Error, PermissionError):
    """The key shown is not valid here: unknown, expired or revoked. Ask whoever runs the tenant for another one."""

    code = "unauthenticated"


class Denied(Error, PermissionError):
    """The key has no grant for this. Ask the tenant's owner for one."""

    code = "denied"


class TenantSuspended(Denied):
    """The tenant is suspended: nothing is published, delivered or read. Ask the store's operators."""

    code = "tenant_suspended"


class QuotaExceeded(Error):
    """The tenant's quota is used up. Wait, or have it raised."""

    code = "quota_exceeded"
    # Where waiting helps: for how long.
    retry_after_ms: int | None = None


class OperationExhausted(QuotaExceeded):
    """The operation has published all that it may for now. Wait; if it is no loop, call resume_operation."""

    code = "operation_exhausted"
    operation: str


def every_error() -> list[type[Error]]:
    """The whole tree, for the tables that map codes to statuses."""
    found: list[type[Error]] = [Error]
    for kind in found:
        found.extend(kind.__subclasses__())
    return found
