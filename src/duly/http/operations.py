"""Operations: what they have published, and which are stopped; to stop one, and to let it go on."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from .. import causal
from ..engine.budget import ListOperations, ResumeOperation, StopOperation
from .endpoint import Call, endpoint
from .fields import WHOLE_MAX, Limit, Next
from .tokens import cursor, read_cursor

_REFUSES = ("invalid_argument", "tenant_not_found", "conflict")


class Operation(msgspec.Struct, kw_only=True):
    """What comes of one message, or was published under one name: how many messages it has published, and how many it
    may publish at once (less than 0: it owes). `stopped_at_ms`: since then it is held to its rate; `held`: by hand, to
    nothing, until it is resumed.
    """

    id: str
    published: int
    left: int
    stopped_at_ms: int | None
    held: bool

    @classmethod
    def of(cls, known: causal.Operation) -> Operation:
        return cls(**msgspec.structs.asdict(known))


class OperationPage(msgspec.Struct):
    """Operations in an order of their own. `next` leads to the next page; null: there is none."""

    operations: list[Operation]
    next: str | None


class OperationsQuery(msgspec.Struct, forbid_unknown_fields=True):
    stopped: Annotated[bool, Meta(description="Only those that are stopped.")] = False
    limit: Limit = 1000
    next: Next | None = None


class Resumed(msgspec.Struct, forbid_unknown_fields=True):
    """How many messages it may publish at once; null: as many as each may at first."""

    messages: Annotated[int, Meta(ge=1, le=WHOLE_MAX)] | None = None


@endpoint("GET", "/v1/operations", tag="tenants", does=(ListOperations,), query=OperationsQuery, answer=OperationPage)
def list_operations(call: Call) -> OperationPage:
    """List operations that have published lately, with what they have left."""
    asked: OperationsQuery = call.query
    after = "" if asked.next is None else read_cursor(asked.next, str)
    found = call.client.operations(stopped=asked.stopped, after=after, limit=asked.limit)
    return OperationPage(
        [Operation.of(one) for one in found], cursor(found[-1].id) if len(found) == asked.limit else None
    )


@endpoint(
    "POST",
    "/v1/operations/{operation}/resume",
    tag="tenants",
    does=(ResumeOperation,),
    body=Resumed,
    body_optional=True,
    answer=Operation,
    refuses=(*_REFUSES, "not_found"),
)
def resume_operation(call: Call) -> Operation:
    """Let a stopped operation go on."""
    return Operation.of(call.client.resume_operation(call.path["operation"], messages=call.body.messages))


@endpoint(
    "POST",
    "/v1/operations/{operation}/stop",
    tag="tenants",
    does=(StopOperation,),
    answer=Operation,
    refuses=_REFUSES,
)
def stop_operation(call: Call) -> Operation:
    """Let an operation publish nothing before it is resumed."""
    return Operation.of(call.client.stop_operation(call.path["operation"]))
