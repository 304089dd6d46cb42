"""Pushes: a group's messages go to an HTTP endpoint or to another topic, without a consumer of one's own.

    active ──pause──▶ paused ──resume──▶ active
       └── the endpoint answers 410, or the topic that it goes to is gone ──▶ disabled ──resume──▶ active

Values only, checked here once for every surface. How a push is kept is engine/pushes.py; who runs it, broker/pushes.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import urlsplit

import msgspec

from .clock import Duration, from_ms, milliseconds
from .errors import InvalidArgument, LimitExceeded
from .expression import check_expression
from .tenant import check_name
from .topic import GateDescription, check_seconds, check_whole

ACTIVE, PAUSED, DISABLED = "active", "paused", "disabled"
METHODS = ("POST", "PUT", "PATCH")
URL_CHARACTERS_MAX = 2_048
HEADERS_MAX = 32
HEADERS_CHARACTERS_MAX = 8_192
# They say where a request begins and ends, what is signed, and who it is for.
HEADERS_KEPT = frozenset(
    {
        *("host", "content-length", "transfer-encoding", "te", "trailer"),
        *("connection", "keep-alive", "upgrade", "expect", "accept-encoding"),
    }
)
_PREFIXES_KEPT = ("webhook-", "duly-", "proxy-")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
TIMEOUT_MS_MAX = 120_000
CONCURRENCY_MAX = 256
BATCH_MAX = 1_000
# What is shown of a header's value, which may be a credential; given in an update it means the one that is there.
HIDDEN = "…"
SECRET_PREFIX = "whsec_"
# Standard Webhooks asks for so many.
SECRET_BYTES_MIN, SECRET_BYTES_MAX, SECRET_BYTES = 24, 64, 32
# How many secrets may sign at once: each is a signature in every request.
SECRETS_MAX = 5


@dataclass(frozen=True, slots=True)
class ToHttp:
    """An endpoint that gets a group's messages, signed (Standard Webhooks).

    2xx acks, 410 disables the push, Retry-After is honoured, everything else is retried with the group's back-off.
    `batch` above 1 sends up to so many messages in one request, as JSON. `concurrency`: requests at once.
    """

    url: str
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: Duration = 10.0
    concurrency: int = 16
    batch: int = 1

    def __post_init__(self) -> None:
        _check_url(self.url)
        if self.method not in METHODS:
            raise InvalidArgument(f"method must be one of {', '.join(METHODS)}; got {self.method!r}.")
        _check_headers(self.headers)
        object.__setattr__(self, "headers", dict(self.headers))
        check_seconds(self, "timeout", low_ms=100, high_ms=TIMEOUT_MS_MAX, optional=False)
        check_whole(self, "concurrency", low=1, high=CONCURRENCY_MAX, optional=False)
        check_whole(self, "batch", low=1, high=BATCH_MAX, optional=False)

    @property
    def timeout_ms(self) -> int:
        """How long an answer may take."""
        return milliseconds(self.timeout, "timeout")


@dataclass(frozen=True, slots=True)
class ToTopic:
    """A topic of the same tenant that gets a group's messages: published there and acked here in one transaction.

    `due`, `priority` and `lane` say by an expression (docs/push.md) what a message of a queue gets: a constant, or
    something of the message with an offset, as in `json.at + 30s`. None: nothing is set, but for a message that comes
    from a queue its own.
    """

    topic: str
    due: str | None = None
    priority: str | None = None
    lane: str | None = None

    def __post_init__(self) -> None:
        if check_name(self.topic, "topic name").startswith("$"):
            raise InvalidArgument(f"{self.topic!r} is Duly's own: nothing is pushed to it.")
        for name in ("due", "priority", "lane"):
            if getattr(self, name) is not None:
                check_expression(getattr(self, name), name)


def _check_url(url: object) -> None:
    if not isinstance(url, str) or not url.isprintable() or any(c.isspace() for c in url):
        raise InvalidArgument(f"url must be a text like https://example.com/hook; got {url!r}.")
    if len(url) > URL_CHARACTERS_MAX:
        raise LimitExceeded(f"url must have at most {URL_CHARACTERS_MAX} characters; got {len(url)}.")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidArgument(f"{url!r} is no address: {error}.") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise InvalidArgument(f"url must begin with https:// or http:// and name a host; got {url!r}.")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise InvalidArgument("url must have no user, password or fragment. Put credentials into headers.")


def _check_headers(headers: Mapping[str, str]) -> None:
    if not isinstance(headers, Mapping):
        raise InvalidArgument("headers must be a mapping of names to texts.")
    if len(headers) > HEADERS_MAX:
        raise LimitExceeded(f"A push has at most {HEADERS_MAX} headers; got {len(headers)}.")
    for name, value in headers.items():
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise InvalidArgument(f"A header's name is letters, digits and -; got {name!r}.")
        if name.lower() in HEADERS_KEPT or name.lower().startswith(_PREFIXES_KEPT):
            raise InvalidArgument(f"The header {name} is not yours to set: a request's own say who it is for and from.")
        # Not shown: it may be a credential.
        is_text = isinstance(value, str) and (value == HIDDEN or (value.isascii() and value.isprintable()))
        if not is_text:
            raise InvalidArgument(f"The header {name} must be printable ASCII.")
    if sum(len(name) + len(value) for name, value in headers.items()) > HEADERS_CHARACTERS_MAX:
        raise LimitExceeded(f"The headers of a push have at most {HEADERS_CHARACTERS_MAX} characters in all.")
    if len({name.lower() for name in headers}) < len(headers):
        raise InvalidArgument("A header is given twice: upper and lower case are the same.")


# What is told of a push


@dataclass(frozen=True, slots=True)
class Push:
    """A push as it is set. `state` is active, paused or disabled, the last with a `reason`.

    `holder` is the broker that runs it, by its name in `cluster()`; None: none does at the moment. Of headers the
    names are shown and not the values. `older_secrets_until_ms`: until then older secrets sign, too.
    """

    name: str
    topic: str
    group: str
    to_http: ToHttp | None
    to_topic: ToTopic | None
    state: str
    reason: str
    version: int
    created_at_ms: int
    holder: str | None = None
    older_secrets_until_ms: int | None = None

    @property
    def to(self) -> ToHttp | ToTopic | None:
        """Where it goes. None: that cannot be read any more, as the tenant's data keys were shredded."""
        return self.to_http or self.to_topic

    @property
    def created_at(self) -> datetime:
        """When it was made, by the store's clock."""
        return from_ms(self.created_at_ms)


@dataclass(frozen=True, slots=True)
class NewPush(Push):
    """A push that was made, or whose secret was rotated. `secret` is told this once; None: nothing is signed."""

    secret: str | None = None


@dataclass(frozen=True, slots=True)
class PushAnswer:
    """What an endpoint answered to a request, and in how many milliseconds; or the `error` for which none came."""

    status: int | None
    ms: int
    body: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class LastAnswer:
    """The last answer that a push had, and when."""

    status: int | None
    ms: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class PushDescription(Push):
    """A push as it stands, with its group: what waits there (`lag` was never claimed), and what holds it back.

    `last` is known to the broker that runs it alone: None, where another one is asked.
    """

    lag: int = 0
    leased: int = 0
    retrying: int = 0
    dead: int = 0
    gate: GateDescription | None = None
    last: LastAnswer | None = None


class RunningPush(msgspec.Struct, frozen=True):
    """A push as whoever runs it needs it. `secrets`: what requests are signed with, the newest first."""

    tenant: str
    name: str
    topic: str
    group: str
    to: ToHttp | ToTopic
    secrets: tuple[bytes, ...] = ()
    version: int = 1

    def __repr__(self) -> str:
        # Headers and secrets would stand in logs and tracebacks otherwise.
        return f"RunningPush({self.tenant!r}, {self.name!r}, version={self.version})"


def secret_text(secret: bytes) -> str:
    """A secret as people and the libraries of Standard Webhooks have it."""
    return SECRET_PREFIX + base64.b64encode(secret).decode()


def read_secret(text: object) -> bytes:
    """The bytes of a secret. Raises InvalidArgument, which does not repeat it."""
    if not isinstance(text, str) or not text.startswith(SECRET_PREFIX):
        raise InvalidArgument(f"A secret is a text: {SECRET_PREFIX} and base64 of its bytes.")
    try:
        secret = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidArgument(f"A secret is {SECRET_PREFIX} and base64 of its bytes; this is no base64.") from error
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        raise LimitExceeded(f"A secret has {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes; this one has {len(secret)}.")
    return secret
