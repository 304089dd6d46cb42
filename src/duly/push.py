"""Pushes: a group's messages go to an HTTP endpoint or to another topic, without a consumer of one's own.

    active ──pause──▶ paused ──resume──▶ active
       └── the endpoint answers 410, or the topic that it goes to is gone ──▶ disabled ──resume──▶ active

Values only, checked here once for every surface. How a push is kept is engine/pushes.py; who runs it, broker/push.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import msgspec

from .clock import Duration, milliseconds
from .errors import InvalidArgument, LimitExceeded
from .expression import check_expression
from .tenant import check_name
from .topic import check_seconds, check_whole

ACTIVE, PAUSED, DISABLED = "active", "paused", "disabled"
METHODS = ("POST", "PUT", "PATCH")
URL_CHARACTERS_MAX = 2_048
HEADERS_MAX = 32
TIMEOUT_MS_MAX = 120_000
CONCURRENCY_MAX = 256
BATCH_MAX = 1_000


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


class RunningPush(msgspec.Struct, frozen=True):
    """A push as whoever runs it is given it. `secrets` are what its requests are signed with, the newest first."""

    tenant: str
    name: str
    topic: str
    group: str
    to: ToHttp | ToTopic
    secrets: tuple[bytes, ...] = ()
    version: int = 1


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
