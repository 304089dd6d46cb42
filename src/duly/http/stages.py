"""Stages: messages put down piece by piece, by many, and published together, all of them or none."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ..engine.stage import STAGES_MAX, CommitStages, DropStages, Stage
from ..limits import LIMITS
from ..message import Admitted
from .endpoint import Call, endpoint
from .fields import Whole
from .publish import Batch, NewMessages, messages_of

_Label = Annotated[str, Meta(min_length=1, max_length=LIMITS.publish_id_chars_max)]
_FOUND = ("topic_not_found", "not_found", "invalid_argument", "limit_exceeded", "store_full")


class StageSize(msgspec.Struct):
    """How many messages a stage has."""

    messages: int


class Stages(msgspec.Struct, forbid_unknown_fields=True):
    """The stages that a job publishes, by name, each with how many messages it must have."""

    stages: Annotated[dict[_Label, Whole], Meta(max_length=STAGES_MAX)]


@endpoint(
    "PUT",
    "/v1/topics/{topic}/stages/{stage}/{number}",
    tag="messages",
    does=(Stage,),
    body=NewMessages,
    decoder=Batch,
    answer=StageSize,
    refuses=(*_FOUND, "not_ready"),
)
def stage(call: Call) -> StageSize:
    """Add messages to a stage: nobody sees them before they are committed.

    `number` counts the calls of the stage, from 0; one that is repeated stores nothing twice. A stage that nobody adds
    to or commits for a day is dropped.
    """
    name, number = call.path["stage"], call.number("number")
    return StageSize(call.client.stage(call.topic, messages_of(call.body), stage=name, number=number))


@endpoint("DELETE", "/v1/topics/{topic}/stages/{stage}", tag="messages", does=(DropStages,), status=204, refuses=_FOUND)
def drop_stage(call: Call) -> None:
    """Give a stage up."""
    call.client.drop_stages(call.topic, [call.path["stage"]])


@endpoint(
    "PUT",
    "/v1/topics/{topic}/jobs/{job}/{version}",
    tag="messages",
    does=(CommitStages,),
    body=Stages,
    answer=Admitted,
    refuses=(*_FOUND, "busy", "not_ready"),
)
def commit_stages(call: Call) -> Admitted:
    """Publish stages, all of them or none, as a version of a job.

    A version that is not above the job's newest was published before: nothing is stored, and it is a `duplicate`.
    """
    return call.client.commit_stages(call.topic, call.body.stages, job=call.path["job"], version=call.number("version"))
