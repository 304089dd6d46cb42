"""The messages of a queue by id: look at them, move them, cancel them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ..clock import from_ms
from ..engine.inquiry import Browse, Cancel, Coming, Get, Move
from ..errors import MessageNotFound
from ..limits import LIMITS
from ..message import Failure, QueuedMessage
from .endpoint import OCTETS, Call, endpoint
from .fields import Delay, Limit, MessageId, Moment, Name, Next, Payload, Priority, Texts
from .pages import within_bytes
from .problems import invalid
from .reply import Reply
from .tokens import cursor, read_cursor

_PATH = "/v1/topics/{topic}/messages/{id}"
_FOUND = ("topic_not_found", "message_not_found", "invalid_argument")
_State = Literal["ready", "waiting", "retrying", "leased", "dead"]


class QueueMessage(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A message of a queue as it stands; of one that is `finished` nothing is left but that it was there."""

    id: str
    state: Literal["ready", "waiting", "retrying", "leased", "dead", "finished"]
    partition: int
    offset: int
    payload_base64: Payload | None = None
    key: str | None = None
    headers: Texts = {}
    lane: str | None = None
    priority: int = 0
    due_at_ms: int | None = None
    expires_at_ms: int | None = None
    published_at_ms: int | None = None
    attempts: int = 0
    consumer: str | None = None
    lease_expires_at_ms: int | None = None
    cancelled: bool = False
    history: tuple[Failure, ...] = ()

    @classmethod
    def of(cls, known: QueuedMessage) -> QueueMessage:
        facts: dict[str, Any] = {name: getattr(known, name) for name in QueuedMessage.__struct_fields__}
        facts["payload_base64"] = facts.pop("payload")
        return cls(**facts)


class MessagePage(msgspec.Struct):
    """Some of a queue's messages. `next` leads to the next page; null: there is none."""

    messages: list[QueueMessage]
    next: str | None


class BrowseQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    state: _State | None = None
    lane: Name | None = None
    priority_min: Priority | None = None
    priority_max: Priority | None = None
    due_from_ms: Moment | None = None
    due_before_ms: Moment | None = None
    key: Annotated[str, Meta(min_length=1)] | None = None
    limit: Limit = 100
    next: Next | None = None


class Moved(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Another due time (a moment or a wait), or another priority, or both."""

    due_in_ms: Delay | None = None
    due_at_ms: Moment | None = None
    priority: Priority | None = None


class MoveMessages(Moved, forbid_unknown_fields=True, kw_only=True):
    """Messages to be moved."""

    ids: Annotated[list[MessageId], Meta(max_length=LIMITS.batch_messages_max)]


class CancelMessages(msgspec.Struct, forbid_unknown_fields=True):
    """Messages to be cancelled."""

    ids: Annotated[list[MessageId], Meta(max_length=LIMITS.batch_messages_max)]


class Answers(msgspec.Struct):
    """What became of each id: moved or cancelled, leased (a consumer has it), finished, or not_found."""

    answers: dict[str, Literal["moved", "cancelled", "leased", "finished", "not_found"]]


class OneAnswer(msgspec.Struct):
    """What became of a message: moved or cancelled, leased (a consumer has it), or finished."""

    answer: Literal["moved", "cancelled", "leased", "finished"]


class ComingQuery(msgspec.Struct, forbid_unknown_fields=True):
    minutes: Annotated[int, Meta(ge=1, le=LIMITS.page_max)] = 60


class Minute(msgspec.Struct):
    """How many messages fall due in the minute that begins then."""

    at_ms: int
    messages: int


class ComingMinutes(msgspec.Struct):
    """What falls due, minute by minute."""

    minutes: list[Minute]


@endpoint(
    "GET",
    "/v1/topics/{topic}/messages",
    tag="messages",
    does=(Browse,),
    query=BrowseQuery,
    answer=MessagePage,
    refuses=("topic_not_found", "invalid_argument", "limit_exceeded", "corrupt_block"),
)
def browse(call: Call) -> MessagePage:
    """Look at a queue's unsettled messages, by partition and offset, without claiming them."""
    wanted: BrowseQuery = call.query
    client, after = call.client, (0, -1)
    if wanted.next is not None:
        after = read_cursor(wanted.next, tuple[int, int])

    def page(after: tuple[int, int], limit: int) -> list[QueuedMessage]:
        return client.browse(
            call.topic,
            state=wanted.state,
            lane=wanted.lane,
            priority=_priorities(wanted),
            due_from=None if wanted.due_from_ms is None else from_ms(wanted.due_from_ms),
            due_before=None if wanted.due_before_ms is None else from_ms(wanted.due_before_ms),
            key=wanted.key,
            after=after,
            limit=limit,
        )

    found, more = within_bytes(client, call.topic, page, lambda message: message.place, after, wanted.limit)
    following = cursor(found[-1].place) if more else None
    return MessagePage([QueueMessage.of(message) for message in found], following)


def _priorities(wanted: BrowseQuery) -> tuple[int, int] | None:
    if wanted.priority_min is None and wanted.priority_max is None:
        return None
    return wanted.priority_min or 0, LIMITS.priority_max if wanted.priority_max is None else wanted.priority_max


@endpoint("GET", _PATH, tag="messages", does=(Get,), answer=QueueMessage, refuses=(*_FOUND, "corrupt_block"))
def get_message(call: Call) -> QueueMessage:
    """Look at one message of a queue, with its state and history."""
    return QueueMessage.of(_get(call))


@endpoint("GET", _PATH + "/payload", tag="messages", does=(Get,), kind=OCTETS, refuses=(*_FOUND, "corrupt_block"))
def get_payload(call: Call) -> Reply:
    """The payload of one message of a queue, as raw bytes."""
    return raw(_get(call).payload)


def _get(call: Call) -> QueuedMessage:
    found = call.client.get(call.topic, call.path["id"])
    if found is None:
        raise MessageNotFound()
    return found


def raw(payload: bytes | None) -> Reply:
    """A payload as it is. A browser that is led here must not take it for a page of ours."""
    if payload is None:
        raise MessageNotFound("Of this message nothing is left but that it was there.")
    return Reply(payload, 200, OCTETS, {"content-security-policy": "sandbox", "content-disposition": "attachment"})


@endpoint(
    "POST",
    "/v1/topics/{topic}/move",
    tag="messages",
    does=(Move,),
    body=MoveMessages,
    answer=Answers,
    refuses=("topic_not_found", "invalid_argument", "limit_exceeded"),
)
def move_messages(call: Call) -> Answers:
    """Give queued messages another due time or priority."""
    return Answers(_move(call, call.body.ids))


@endpoint(
    "PATCH",
    _PATH,
    tag="messages",
    does=(Move,),
    body=Moved,
    answer=OneAnswer,
    refuses=(*_FOUND, "limit_exceeded"),
)
def move_message(call: Call) -> OneAnswer:
    """Give one queued message another due time or priority."""
    return _one(_move(call, [call.path["id"]]))


def _move(call: Call, ids: list[str]) -> Any:
    wanted: Moved = call.body
    if wanted.due_in_ms is not None and wanted.due_at_ms is not None:
        raise invalid("Give due_in_ms or due_at_ms, not both.")
    wait = None if wanted.due_in_ms is None else wanted.due_in_ms / 1000
    due = wait if wanted.due_at_ms is None else from_ms(wanted.due_at_ms)
    return call.client.move(call.topic, ids, due=due, priority=wanted.priority)


def _one(answers: dict[str, Any]) -> OneAnswer:
    (answer,) = answers.values()
    if answer == "not_found":
        raise MessageNotFound()
    return OneAnswer(answer)


@endpoint(
    "POST",
    "/v1/topics/{topic}/cancel",
    tag="messages",
    does=(Cancel,),
    body=CancelMessages,
    answer=Answers,
    refuses=("topic_not_found", "invalid_argument", "limit_exceeded"),
)
def cancel_messages(call: Call) -> Answers:
    """Remove queued messages. One that is leased is done if its consumer acks it, and otherwise gone."""
    answers: Any = call.client.cancel(call.topic, call.body.ids)
    return Answers(answers)


@endpoint("DELETE", _PATH, tag="messages", does=(Cancel,), answer=OneAnswer, refuses=(*_FOUND, "limit_exceeded"))
def cancel_message(call: Call) -> OneAnswer:
    """Remove one queued message."""
    return _one(call.client.cancel(call.topic, [call.path["id"]]))


@endpoint(
    "GET",
    "/v1/topics/{topic}/coming",
    tag="messages",
    does=(Coming,),
    query=ComingQuery,
    answer=ComingMinutes,
    refuses=("topic_not_found", "invalid_argument"),
)
def coming(call: Call) -> ComingMinutes:
    """How many messages of a queue fall due in each of the next minutes."""
    found = call.client.coming(call.topic, minutes=call.query.minutes)
    return ComingMinutes([Minute(round(at.timestamp() * 1000), many) for at, many in found])
