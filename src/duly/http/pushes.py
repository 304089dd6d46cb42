"""Pushes: a group's messages go to an endpoint, or to another topic, without a consumer of one's own."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Meta, UnsetType

from .. import push
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
from ..expression import EXPRESSION_CHARS_MAX
from ..limits import DAY_MS
from .endpoint import Call, endpoint
from .fields import Delay, Limit, Name, Next
from .groups import Gate
from .problems import invalid
from .reply import Reply
from .tokens import cursor, read_cursor
from .topics import version_of

_PATH = "/v1/pushes/{push}"
_FOUND = ("push_not_found", "invalid_argument", "tenant_not_found")
_ETAG = {"ETag": "The push's version: send it back as If-Match to change only what you have seen."}

_Url = Annotated[str, Meta(min_length=1, max_length=push.URL_CHARACTERS_MAX)]
_Headers = Annotated[dict[str, str], Meta(max_length=push.HEADERS_MAX)]
_Timeout = Annotated[int, Meta(ge=100, le=push.TIMEOUT_MS_MAX)]
_Concurrency = Annotated[int, Meta(ge=1, le=push.CONCURRENCY_MAX)]
_Batch = Annotated[int, Meta(ge=1, le=push.BATCH_MAX)]
_Method = Literal["POST", "PUT", "PATCH"]
_Expression = Annotated[str, Meta(max_length=EXPRESSION_CHARS_MAX)]
_Secret = Annotated[
    str, Meta(max_length=128, description="`whsec_` and base64 of 24 to 64 bytes.", extra_json_schema={"minLength": 1})
]


class ToHttp(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """An endpoint. Of headers the values are never shown: "…" stands for one, and in an update leaves it as it is."""

    url: _Url
    method: _Method = "POST"
    headers: _Headers = {}
    timeout_ms: _Timeout = 10_000
    concurrency: _Concurrency = 16
    batch: _Batch = 1

    @classmethod
    def of(cls, to: push.ToHttp | None) -> ToHttp | None:
        if to is None:
            return None
        method: Any = to.method
        return cls(
            url=to.url,
            method=method,
            headers=dict(to.headers),
            timeout_ms=to.timeout_ms,
            concurrency=to.concurrency,
            batch=to.batch,
        )

    def value(self) -> push.ToHttp:
        return push.ToHttp(
            self.url, self.method, self.headers, self.timeout_ms / 1000, concurrency=self.concurrency, batch=self.batch
        )


class ToTopic(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A topic of the same tenant. `due`, `priority` and `lane` are expressions (docs/push.md)."""

    topic: Name
    due: _Expression | None = None
    priority: _Expression | None = None
    lane: _Expression | None = None

    @classmethod
    def of(cls, to: push.ToTopic | None) -> ToTopic | None:
        return None if to is None else cls(topic=to.topic, due=to.due, priority=to.priority, lane=to.lane)

    def value(self) -> push.ToTopic:
        return push.ToTopic(self.topic, self.due, self.priority, self.lane)


class NewPush(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A push to be made, of a group that has none; it goes to one of the two. A queue has one group: leave it out.

    `secret` is what its requests are signed with; null: one is made.
    """

    name: Name
    topic: Name
    group: Name | None = None
    to_http: ToHttp | None = None
    to_topic: ToTopic | None = None
    paused: bool = False
    secret: _Secret | None = None

    def to(self) -> push.ToHttp | push.ToTopic:
        """Where it is to go. Raises when that is not exactly one place."""
        given = [to for to in (self.to_http, self.to_topic) if to is not None]
        if len(given) != 1:
            raise invalid("A push goes to one place: give to_http or to_topic.")
        return given[0].value()


class ToHttpChanges(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What changes of where it goes; what is left out stays. `headers` are replaced whole, but for those with "…"."""

    url: _Url | UnsetType = UNSET
    method: _Method | UnsetType = UNSET
    headers: _Headers | UnsetType = UNSET
    timeout_ms: _Timeout | UnsetType = UNSET
    concurrency: _Concurrency | UnsetType = UNSET
    batch: _Batch | UnsetType = UNSET


class ToTopicChanges(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What changes of where it goes; what is left out stays, and null is nothing set."""

    topic: Name | UnsetType = UNSET
    due: _Expression | UnsetType | None = UNSET
    priority: _Expression | UnsetType | None = UNSET
    lane: _Expression | UnsetType | None = UNSET


class PushChanges(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Changes to a push: one of the two, as it was made with."""

    to_http: ToHttpChanges | None = None
    to_topic: ToTopicChanges | None = None

    def given(self) -> dict[str, Any]:
        """What was given, as the keyword arguments of the Python API."""
        parts: list[Any] = [part for part in (self.to_http, self.to_topic) if part is not None]
        if len(parts) != 1:
            raise invalid("A push goes to one place: give changes of to_http or of to_topic.")
        named = {name: getattr(parts[0], name) for name in parts[0].__struct_fields__}
        found = {name: value for name, value in named.items() if value is not UNSET}
        if "timeout_ms" in found:
            found["request_timeout"] = found.pop("timeout_ms") / 1000
        return found


class Push(msgspec.Struct, kw_only=True):
    """A push as it is set. `holder` is the broker that runs it, as /v1/cluster names it; null: none does just now.

    `reason` says why it is disabled. `older_secrets_until_ms`: until then older secrets sign, too.
    """

    name: str
    topic: str
    group: str
    to_http: ToHttp | None
    to_topic: ToTopic | None
    state: Literal["active", "paused", "disabled"]
    reason: str
    version: int
    created_at_ms: int
    holder: str | None
    older_secrets_until_ms: int | None


class MadePush(Push, kw_only=True):
    """A push with its new secret, which is told this once; null: nothing is signed."""

    secret: str | None


class LastAnswer(msgspec.Struct):
    """The last answer that a push had."""

    status: int | None
    ms: int
    at_ms: int


class PushStanding(Push, kw_only=True):
    """A push as it stands, with its group. `last` is known to the broker that runs it alone."""

    lag: int
    leased: int
    retrying: int
    dead: int
    gate: Gate | None
    last: LastAnswer | None


class PushPage(msgspec.Struct):
    """Pushes by name. `next` leads to the next page; null: there is none."""

    pushes: list[Push]
    next: str | None


class PushesQuery(msgspec.Struct, forbid_unknown_fields=True):
    limit: Limit = 100
    next: Next | None = None


class PushRotation(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """For how long the present secret signs beside the new one; `secret`: that one, null: one is made."""

    overlap_ms: Delay = DAY_MS
    secret: _Secret | None = None


class PushAnswer(msgspec.Struct):
    """What an endpoint answered to a request, and in how many milliseconds; or the `error` for which none came."""

    status: int | None
    ms: int
    body: str
    error: str


def _facts(known: push.Push) -> dict[str, Any]:
    facts = {name: getattr(known, name) for name in Push.__struct_fields__}
    return facts | {"to_http": ToHttp.of(known.to_http), "to_topic": ToTopic.of(known.to_topic)}


def _shown(known: push.Push) -> Reply:
    return Reply.of(Push(**_facts(known)), 200, _etag(known))


def _made(known: push.NewPush, status: int, **headers: str) -> Reply:
    return Reply.of(MadePush(**_facts(known), secret=known.secret), status, {**_etag(known), **headers})


def _etag(known: push.Push) -> dict[str, str]:
    return {"etag": f'"{known.version}"'}


@endpoint(
    "POST",
    "/v1/pushes",
    tag="pushes",
    does=(CreatePush,),
    body=NewPush,
    answer=MadePush,
    status=201,
    refuses=("topic_not_found", "group_not_found", "invalid_argument", "limit_exceeded", "push_exists"),
    gives_headers={**_ETAG, "Location": "The push's path."},
)
def create_push(call: Call) -> Reply:
    """Have a group's messages go to an endpoint, or to another topic. Its `secret` is told this once."""
    wanted: NewPush = call.body
    made = call.client.create_push(
        wanted.name,
        topic=wanted.topic,
        group=wanted.group,
        to=wanted.to(),
        paused=wanted.paused,
        secret=wanted.secret,
    )
    return _made(made, 201, location=f"/v1/pushes/{quote(made.name, safe='')}")


@endpoint("GET", "/v1/pushes", tag="pushes", does=(ListPushes,), query=PushesQuery, answer=PushPage)
def pushes(call: Call) -> PushPage:
    """List pushes by name."""
    asked: PushesQuery = call.query
    after = "" if asked.next is None else read_cursor(asked.next, str)
    found = call.client.pushes(after=after, limit=asked.limit)
    return PushPage(
        [Push(**_facts(one)) for one in found], cursor(found[-1].name) if len(found) == asked.limit else None
    )


@endpoint("GET", _PATH, tag="pushes", does=(DescribePush,), answer=PushStanding, refuses=_FOUND, gives_headers=_ETAG)
def describe_push(call: Call) -> Reply:
    """Describe a push: where it goes, who runs it, and what waits in its group."""
    known = call.client.describe_push(call.path["push"])
    last = None if known.last is None else LastAnswer(known.last.status, known.last.ms, known.last.at_ms)
    standing = PushStanding(
        **_facts(known),
        lag=known.lag,
        leased=known.leased,
        retrying=known.retrying,
        dead=known.dead,
        gate=Gate.of(known.gate),
        last=last,
    )
    return Reply.of(standing, 200, _etag(known))


@endpoint(
    "PATCH",
    _PATH,
    tag="pushes",
    does=(UpdatePush,),
    body=PushChanges,
    answer=Push,
    refuses=(*_FOUND, "limit_exceeded", "stale_version", "topic_not_found"),
    takes_headers={"If-Match": "The ETag of the version to change; another one is refused with 412."},
    gives_headers=_ETAG,
)
def update_push(call: Call) -> Reply:
    """Change where a push goes, or how. An endpoint stays one, and a topic, too."""
    changes = call.body.given()
    return _shown(call.client.update_push(call.path["push"], version=version_of(call), **changes))


@endpoint("DELETE", _PATH, tag="pushes", does=(DeletePush,), status=204, refuses=_FOUND)
def delete_push(call: Call) -> None:
    """Remove a push. Its group stays, with its messages."""
    call.client.delete_push(call.path["push"])


@endpoint(
    "POST",
    _PATH + "/pause",
    tag="pushes",
    does=(PausePush,),
    answer=Push,
    refuses=(*_FOUND, "conflict"),
    gives_headers=_ETAG,
)
def pause_push(call: Call) -> Reply:
    """Send nothing more until it is resumed."""
    return _shown(call.client.pause_push(call.path["push"]))


@endpoint(
    "POST",
    _PATH + "/resume",
    tag="pushes",
    does=(ResumePush,),
    answer=Push,
    refuses=(*_FOUND, "topic_not_found"),
    gives_headers=_ETAG,
)
def resume_push(call: Call) -> Reply:
    """Go on, after a pause, or after whatever it was disabled for."""
    return _shown(call.client.resume_push(call.path["push"]))


@endpoint(
    "POST",
    _PATH + "/rotate",
    tag="pushes",
    does=(RotatePushSecret,),
    body=PushRotation,
    body_optional=True,
    answer=MadePush,
    refuses=(*_FOUND, "limit_exceeded"),
    gives_headers=_ETAG,
)
def rotate_push_secret(call: Call) -> Reply:
    """Sign with another secret, which the answer tells this once, and for `overlap_ms` with those of before, too."""
    wanted: PushRotation = call.body
    overlap = wanted.overlap_ms / 1000
    return _made(call.client.rotate_push_secret(call.path["push"], overlap=overlap, secret=wanted.secret), 200)


@endpoint("POST", _PATH + "/test", tag="pushes", does=(TestPush,), answer=PushAnswer, refuses=(*_FOUND, "not_ready"))
def test_push(call: Call) -> PushAnswer:
    """Send a request that says it is a test, and tell what came back; no message is touched."""
    known = call.client.test_push(call.path["push"])
    return PushAnswer(known.status, known.ms, known.body, known.error)
