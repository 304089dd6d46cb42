"""Topics: make, list, describe, change, pause, empty and delete them."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ..engine.topics import Archived, CreateTopic, DeleteTopic, DescribeTopic, ListTopics, PurgeTopic, UpdateTopic
from ..errors import StaleVersion
from ..limits import LIMITS
from ..topic import PartitionDescription, TopicDescription
from .endpoint import Call, endpoint
from .fields import Limit, Name, Next, Whole
from .problems import Refused
from .reply import Reply
from .settings import TopicSettings
from .tokens import cursor, read_cursor

_FOUND = ("topic_not_found", "invalid_argument")
_ETAG = {"ETag": "The topic's version: send it back as If-Match to change only what you have seen."}


class Topic(msgspec.Struct, kw_only=True):
    """A topic as it stands. `messages` are those that a log holds, or those of a queue that are not settled.

    Offsets belong to its partitions, by id, in this `incarnation` of the store, which a restore changes.
    """

    incarnation: str
    name: str
    kind: Literal["log", "queue"]
    settings: TopicSettings
    paused: bool
    version: int
    created_at_ms: int
    groups: tuple[str, ...]
    partitions: tuple[PartitionDescription, ...]
    messages: int
    bytes: int

    @classmethod
    def of(cls, known: TopicDescription) -> Topic:
        kind: Any = known.kind
        return cls(
            incarnation=known.incarnation,
            name=known.name,
            kind=kind,
            settings=TopicSettings.of(known.settings),
            paused=known.paused,
            version=known.version,
            created_at_ms=known.created_at_ms,
            groups=known.groups,
            partitions=known.partitions,
            messages=known.messages,
            bytes=known.bytes,
        )


class NewTopic(TopicSettings, forbid_unknown_fields=True, kw_only=True):
    """A topic to be made. With `exist_ok` an equal one is left as it is."""

    name: Name
    kind: Literal["log", "queue"]
    partitions: Annotated[int, Meta(ge=1, le=LIMITS.partitions_max)] | UnsetType = UNSET
    exist_ok: bool = False


class TopicPage(msgspec.Struct):
    """Names of topics, in order. `next` leads to the next page; null: there is none."""

    topics: list[str]
    next: str | None


class PageQuery(msgspec.Struct, forbid_unknown_fields=True):
    limit: Limit = 100
    next: Next | None = None


class DeleteQuery(msgspec.Struct, forbid_unknown_fields=True):
    force: Annotated[bool, Meta(description="Delete it with its messages.")] = False


class ArchivedTo(msgspec.Struct, forbid_unknown_fields=True):
    """Up to where a partition is in the archive."""

    offset: Whole


class Dropped(msgspec.Struct):
    """How many messages were dropped."""

    dropped: int


def _described(known: TopicDescription, status: int = 200, **headers: str) -> Reply:
    return Reply.of(Topic.of(known), status, {"etag": f'"{known.version}"', **headers})


@endpoint(
    "POST",
    "/v1/topics",
    tag="topics",
    does=(CreateTopic,),
    body=NewTopic,
    answer=Topic,
    status=201,
    refuses=("topic_exists", "tenant_not_found", "invalid_argument", "limit_exceeded"),
    gives_headers={**_ETAG, "Location": "The topic's path."},
)
def create_topic(call: Call) -> Reply:
    """Make a topic: a `log` or a `queue`."""
    wanted: NewTopic = call.body
    more = {} if wanted.partitions is UNSET else {"partitions": wanted.partitions}
    made = call.client.create_topic(wanted.name, kind=wanted.kind, exist_ok=wanted.exist_ok, **more, **wanted.given())
    return _described(made, 201, location=f"/v1/topics/{quote(made.name, safe='')}")


@endpoint("GET", "/v1/topics", tag="topics", does=(ListTopics,), query=PageQuery, answer=TopicPage)
def list_topics(call: Call) -> TopicPage:
    """List topics by name."""
    after = "" if call.query.next is None else read_cursor(call.query.next, str)
    found = call.client.list_topics(after=after, limit=call.query.limit)
    return TopicPage(found, cursor(found[-1]) if len(found) == call.query.limit else None)


@endpoint(
    "GET",
    "/v1/topics/{topic}",
    tag="topics",
    does=(DescribeTopic,),
    answer=Topic,
    refuses=_FOUND,
    gives_headers=_ETAG,
)
def describe_topic(call: Call) -> Reply:
    """Describe a topic: its settings, and how much it holds."""
    return _described(call.client.describe_topic(call.topic))


@endpoint(
    "PATCH",
    "/v1/topics/{topic}",
    tag="topics",
    does=(UpdateTopic,),
    body=TopicSettings,
    answer=Topic,
    refuses=(*_FOUND, "limit_exceeded", "stale_version"),
    takes_headers={"If-Match": "The ETag of the version to change; another one is refused with 412."},
    gives_headers=_ETAG,
)
def update_topic(call: Call) -> Reply:
    """Change a topic's settings. What is left out stays; a part such as `retry` is replaced whole."""
    changes = call.body.given()
    return _described(call.client.update_topic(call.topic, version=version_of(call), **changes))


def version_of(call: Call) -> int | None:
    """The version that a request wants to change; None: whichever is there."""
    wanted = call.header(b"if-match")
    if wanted is None or wanted.strip() == "*":
        return None
    if not wanted.strip():
        raise Refused("malformed_request", "If-Match is an ETag, or *.")
    number = wanted.strip().removeprefix('"').removesuffix('"')
    if not number.isascii() or not number.isdigit() or len(number) > 16:
        # Not a version of ours, so not the present one.
        raise StaleVersion()
    return int(number)


@endpoint(
    "DELETE",
    "/v1/topics/{topic}",
    tag="topics",
    does=(DeleteTopic,),
    query=DeleteQuery,
    status=204,
    refuses=(*_FOUND, "topic_not_empty"),
)
def delete_topic(call: Call) -> None:
    """Delete a topic with its groups. One that has messages is refused, unless `force`."""
    call.client.delete_topic(call.topic, force=call.query.force)


@endpoint("POST", "/v1/topics/{topic}/pause", tag="topics", does=(UpdateTopic,), status=204, refuses=_FOUND)
def pause_topic(call: Call) -> None:
    """Stop deliveries of a topic. Publishing and settling go on."""
    call.client.pause(call.topic)


@endpoint("POST", "/v1/topics/{topic}/resume", tag="topics", does=(UpdateTopic,), status=204, refuses=_FOUND)
def resume_topic(call: Call) -> None:
    """Start deliveries of a topic again."""
    call.client.resume(call.topic)


@endpoint("POST", "/v1/topics/{topic}/purge", tag="topics", does=(PurgeTopic,), answer=Dropped, refuses=_FOUND)
def purge_topic(call: Call) -> Dropped:
    """Drop a topic's messages."""
    return Dropped(call.client.purge(call.topic))


@endpoint(
    "PUT",
    "/v1/topics/{topic}/partitions/{partition}/archived",
    tag="topics",
    does=(Archived,),
    body=ArchivedTo,
    status=204,
    refuses=_FOUND,
)
def set_archived(call: Call) -> None:
    """Say that a partition is in the archive up to an offset: truncation may go so far."""
    call.client.archived(call.topic, partition=call.number("partition"), offset=call.body.offset)
