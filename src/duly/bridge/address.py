"""What a bridge's FROM and TO name.

    duly:TOPIC                                  a topic of the store or broker that the command is for
    redis://[user:password@]host:port/DB/STREAM the stream whose key is STREAM; rediss:// with TLS
    nats://[user:password@]host:port[,host…]/STREAM[/SUBJECT]    nats+tls:// with TLS; a lone user is a token

Names are percent-decoded; a stream's key may have slashes and colons as they are. A password is never shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from ..errors import InvalidArgument
from ..tenant import check_name

_FORMS = "Write duly:TOPIC, redis://host:6379/0/STREAM or nats://host:4222/STREAM/SUBJECT."
_REDIS, _NATS = ("redis", "rediss"), ("nats", "nats+tls")


@dataclass(frozen=True, slots=True)
class DulyPlace:
    """A topic."""

    topic: str

    @property
    def shown(self) -> str:
        """How it is spoken of."""
        return f"duly:{self.topic}"


@dataclass(frozen=True, slots=True)
class RedisPlace:
    """A stream of a Redis."""

    host: str
    port: int
    db: int
    stream: str
    user: str | None = None
    password: str | None = None
    tls: bool = False

    @property
    def shown(self) -> str:
        """How it is spoken of."""
        return f"redis{'s' if self.tls else ''}://{self.host}:{self.port}/{self.db}/{self.stream}"

    def __repr__(self) -> str:
        return f"<{self.shown}>"


@dataclass(frozen=True, slots=True)
class NatsPlace:
    """A stream of NATS JetStream, and a subject in it: what is taken, or where to."""

    servers: tuple[str, ...]
    stream: str
    subject: str | None = None
    user: str | None = None
    password: str | None = None
    tls: bool = False

    @property
    def shown(self) -> str:
        """How it is spoken of."""
        subject = "" if self.subject is None else f"/{self.subject}"
        return f"nats{'+tls' if self.tls else ''}://{','.join(self.servers)}/{self.stream}{subject}"

    def __repr__(self) -> str:
        return f"<{self.shown}>"


Place = DulyPlace | RedisPlace | NatsPlace


def place_of(text: str) -> Place:
    """Reads an address. Raises InvalidArgument, which does not repeat what may be a password."""
    if text.startswith("duly:") and not text.startswith("duly://"):
        return DulyPlace(check_name(unquote(text.removeprefix("duly:")), "topic name"))
    scheme = text.partition("://")[0]
    if scheme in _REDIS:
        return _redis(_split(text, scheme))
    if scheme in _NATS:
        return _nats(_split(text, scheme))
    raise InvalidArgument(f"An address begins with duly:, redis:// or nats://. {_FORMS}")


def _split(text: str, scheme: str) -> SplitResult:
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise InvalidArgument(f"That is no address of {scheme}. {_FORMS}") from error
    if parts.query or parts.fragment:
        raise InvalidArgument(f"An address of {scheme} has no ? and no #: write them as %3F and %23. {_FORMS}")
    return parts


def _redis(parts: SplitResult) -> RedisPlace:
    db, _, stream = parts.path.removeprefix("/").partition("/")
    try:
        port = parts.port or 6379
    except ValueError as error:
        raise InvalidArgument("The port of an address is a number from 1 to 65535.") from error
    if not parts.hostname or not db.isdigit() or not stream:
        raise InvalidArgument("Redis is named as redis://host:6379/0/STREAM: the number of the database, then the key.")
    user, password = _credentials(parts)
    return RedisPlace(
        parts.hostname, port, int(db), unquote(stream), user or None, password, tls=parts.scheme == "rediss"
    )


def _nats(parts: SplitResult) -> NatsPlace:
    stream, _, subject = parts.path.removeprefix("/").partition("/")
    servers = tuple(parts.netloc.rpartition("@")[2].split(","))
    stream, subject = unquote(stream), unquote(subject)
    if not all(servers) or not stream:
        raise InvalidArgument("JetStream is named as nats://host:4222/STREAM/SUBJECT.")
    if any(character in stream for character in ".*> \t/\\") or any(c.isspace() for c in subject):
        raise InvalidArgument("The name of a stream has no dots, stars or spaces, and a subject no spaces.")
    user, password = _credentials(parts)
    return NatsPlace(servers, stream, subject or None, user, password, tls=parts.scheme == "nats+tls")


def _credentials(parts: SplitResult) -> tuple[str | None, str | None]:
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    return (unquote(user) if user else None), (unquote(password) if password else None)
