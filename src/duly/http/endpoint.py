"""One way into the API: what it takes, what it answers, and how a request becomes a call of it.

header ──▶ tenant ──▶ path ──▶ query ──▶ body ──▶ the operation ──▶ answer
   └─ each of them may be refused; what is refused is a problem (problems.py), and never a traceback
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec

from ..broker.authority import NOTHING, Shown, bearer
from ..broker.broker import Broker
from ..broker.entry import Entry
from ..client.client import Client
from ..errors import Denied, Unauthenticated
from ..limits import LIMITS
from ..tenant import check_name
from .body import Left, Receive, Share, UnderWay, has_body, read_body
from .crossing import Crossing
from .problems import Refused, invalid, problem_of
from .reply import JSON, Reply
from .threads import Threads

# The extension of a request's scope that says who its client is by certificate: {"names": (…)}, empty without one.
PEER = "duly.peer"
OCTETS = "application/octet-stream"

_WATCHERS = 16
# A body from here on is decoded in a thread, so that the loop has its turns.
_BIG_BYTES = 512 * 1024


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A method of a path. `does` names the operations of engine/operations.py that it offers."""

    run: Callable[[Call], Any]
    method: str
    path: str
    tag: str
    does: tuple[type, ...] = ()
    # Of one that does none of those: what it is called in RIGHTS (broker/authority.py).
    call: str | None = None
    # For anybody who gets here, without a key: it tells how the broker is, and nothing of the store.
    public: bool = False
    query: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    # Takes raw bytes too, described by these query parameters.
    octets: type[msgspec.Struct] | None = None
    body_optional: bool = False
    answer: Any = None
    # Of an answer that is not JSON.
    kind: str = JSON
    status: int = 200
    # Codes of errors that it may answer with, besides those that any may.
    refuses: tuple[str, ...] = ()
    # Request and answer headers, with what they mean.
    takes_headers: Mapping[str, str] = {}
    gives_headers: Mapping[str, str] = {}
    # Also when the broker is going down: what ends something, and what tells how it is.
    always: bool = False
    # What reads the body, where that is not simply its type.
    decoder: Any = None

    @property
    def name(self) -> str:
        """What it is called, in the description and in tests."""
        return self.run.__name__

    @property
    def waits(self) -> bool:
        """Whether it runs on the loop; others run in a thread."""
        return inspect.iscoroutinefunction(self.run)


def endpoint(method: str, path: str, **facts: Any) -> Callable[[Callable[[Call], Any]], Endpoint]:
    """Makes a function the way into an operation. One that is not async runs in a thread, where it may wait."""

    def made(run: Callable[[Call], Any]) -> Endpoint:
        body = facts.get("body")
        if body is not None:
            facts.setdefault("decoder", msgspec.json.Decoder(body))
        return Endpoint(run=run, method=method, path=path, **facts)

    return made


class Call:
    """One request, understood."""

    __slots__ = ("body", "entry", "headers", "home", "octets", "path", "query", "receive", "scope", "tenant", "whose")

    def __init__(
        self, home: Home, entry: Entry, scope: Mapping[str, Any], receive: Receive, headers: Mapping[bytes, bytes]
    ) -> None:
        self.home = home
        self.entry = entry
        self.scope = scope
        self.receive = receive
        self.headers = headers
        # As the client names it; and whose it is, that what it takes is counted to.
        self.tenant = _tenant(headers)
        self.whose = ""
        self.path: dict[str, str] = _path(scope)
        self.query: Any = None
        self.body: Any = None
        # The body, where it came as raw bytes.
        self.octets: bytes | None = None

    @property
    def broker(self) -> Broker:
        """For how it is; what is asked of it goes by the entry."""
        return self.home.broker

    @property
    def client(self) -> Client:
        """The Python API for this request's caller."""
        return self.entry.client(self.tenant)

    async def do(self, command: Any, *, cost: int = 0, publish_id: str = "") -> Any:
        """Has one writing operation done, without a thread."""
        return await self.home.crossing.do(self.entry, command, cost=cost, publish_id=publish_id)

    async def in_thread(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Runs something that waits, or takes its time, in a thread, in its tenant's turn."""
        return await self.home.threads.run(self.whose, call, *arguments)

    @property
    def topic(self) -> str:
        return self.path["topic"]

    def number(self, name: str) -> int:
        """A whole number in the path."""
        text = self.path[name]
        if not text.isascii() or not text.isdigit() or len(text) > 16:
            raise Refused("malformed_request", f"The {name} in the path must be a whole number; got {text!r}.")
        return int(text)

    def header(self, name: bytes) -> str | None:
        """A header of the request as text."""
        return _text(self.headers[name], name) if name in self.headers else None


class Home:
    """What all calls share: the broker, the threads for those that wait, and what is under way."""

    def __init__(self, broker: Broker, bytes_max: int = LIMITS.requests_bytes_max) -> None:
        self.broker = broker
        self.crossing = Crossing(self.renew)
        self.under_way = UnderWay(bytes_max)
        self.threads = Threads(LIMITS.calls_at_once_max, "duly-http", broker.weights)
        # For those who wait at the end of a log: they must not take the threads of others.
        self.watchers = Threads(_WATCHERS, "duly-http-tail", broker.weights)

    async def enter(self, scope: Mapping[str, Any], headers: Mapping[bytes, bytes]) -> Entry:
        """The caller, let in. Raises Unauthenticated."""
        entry = Entry(self.broker, _shown(scope, headers), (scope.get("client") or ("",))[0])
        await self._pinned(entry)
        return entry

    async def renew(self, entry: Entry) -> None:
        """Asks anew who it is, if that was a while ago. Raises Unauthenticated."""
        if not entry.is_current():
            await self._pinned(entry)

    async def _pinned(self, entry: Entry) -> None:
        # To ask the store may take a moment, in which the loop has other things to do.
        if entry.is_known():
            entry.pin()
        else:
            # Whose it is, is to be found out: strangers at one address are kept from those at others by that alone.
            await self.threads.run(f"@{entry.address}", entry.pin)

    def close(self) -> None:
        """Lets the threads go."""
        self.threads.close()
        self.watchers.close()


class Resource:
    """A path with its methods: an ASGI application."""

    def __init__(self, home: Home, endpoints: list[Endpoint]) -> None:
        self._home = home
        self._methods = {one.method: one for one in endpoints}
        if "GET" in self._methods:
            self._methods["HEAD"] = self._methods["GET"]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        share = self._home.under_way.share()
        try:
            reply = await self._reply(scope, receive, share)
            share.add(len(reply.body))
            await reply.send(send)
        except Left:
            return
        finally:
            share.give_back()

    async def _reply(self, scope: Any, receive: Receive, share: Share) -> Reply:
        call: Call | None = None
        try:
            one = self._methods.get(scope["method"])
            if one is None:
                raise Refused("method_not_allowed", "See Allow for the methods.", allow=", ".join(self._methods))
            if not one.always:
                self._home.broker.check_open()
            call = await self._understood(one, scope, receive, share)
            _authorise(one, call)
            answer = await (one.run(call) if one.waits else call.in_thread(one.run, call))
            return answer if isinstance(answer, Reply) else Reply.of(answer, one.status)
        except Left:
            raise
        except Exception as error:
            # The last resort: whatever it is, the client gets a problem, and what nobody foresaw is logged.
            return problem_of(error, unread=isinstance(error, Unauthenticated) and has_body(dict(scope["headers"])))
        finally:
            if call is not None:
                call.entry.leave_broker()

    async def _understood(self, one: Endpoint, scope: Any, receive: Receive, share: Share) -> Call:
        headers = dict(scope["headers"])
        entry = Entry(self._home.broker) if one.public else await self._home.enter(scope, headers)
        call = Call(self._home, entry, scope, receive, headers)
        share.tenant = call.whose = "" if one.public else entry.whose(call.tenant)
        kind = _kind(one, headers)
        call.query = _query(one.octets or one.query, scope["query_string"])
        if one.octets is not None and kind == JSON and scope["query_string"]:
            raise invalid("Query parameters describe a message sent as raw bytes. In JSON they are in the body.")
        if kind:
            body = await read_body(headers, receive, share)
            if kind == OCTETS:
                call.octets = body
            else:
                call.body = await _decoded(one, call, body)
            # A body may take minutes, in which its key may have ended.
            await self._home.renew(entry)
        elif one.body is not None:
            call.body = one.body()
        return call


async def _decoded(one: Endpoint, call: Call, body: bytes) -> Any:
    if len(body) < _BIG_BYTES:
        return one.decoder.decode(body)
    return await call.in_thread(one.decoder.decode, body)


def _authorise(one: Endpoint, call: Call) -> None:
    """Refuses what the operations of an endpoint would be refused for, before any of them is begun.

    After the body: a topic that is not there, and one that is not theirs, are told alike whatever was sent.
    """
    if one.public:
        return
    if one.call is not None:
        call.entry.check(one.call)
    elif not one.does:
        raise Denied()
    call.entry.foresee(one.does, call.tenant, call.path.get("topic"))


def _kind(one: Endpoint, headers: Mapping[bytes, bytes]) -> str:
    """The type of the body, one that is taken here; "" where there is none and none is needed."""
    given = headers.get(b"content-type", b"").split(b";")[0].strip().lower().decode("latin-1")
    if one.body is None:
        if has_body(headers):
            raise Refused("malformed_request", "This takes no body.", connection="close")
        return ""
    if one.body_optional and not has_body(headers):
        return ""
    if given == JSON or (given == OCTETS and one.octets is not None):
        return given
    taken = JSON if one.octets is None else f"{JSON} or {OCTETS}"
    raise Refused("unsupported_media_type", f"Send a body with Content-Type: {taken}.", connection="close")


def _query(kind: type[msgspec.Struct] | None, text: bytes) -> Any:
    pairs = _pairs(text) if text else []
    given = dict(pairs)
    if len(given) < len(pairs):
        raise Refused("malformed_request", "A query parameter is given twice.")
    if kind is None:
        if given:
            raise Refused("malformed_request", f"This takes no query parameters; got {next(iter(given))!r}.")
        return None
    asked = msgspec.convert(given, kind, strict=False)
    for name in given:
        # The converter takes the word for nothing at all; what is not asked for is left out.
        if getattr(asked, name) is None:
            raise Refused("malformed_request", f"The query parameter {name} cannot be {given[name]!r}.")
    return asked


def _pairs(text: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(text.decode(), keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError as error:
        raise Refused("malformed_request", f"The query cannot be read: {error}.") from error


def _shown(scope: Mapping[str, Any], headers: Mapping[bytes, bytes]) -> Shown:
    """What a request shows: a token, or else the certificate of its connection."""
    if b"authorization" in headers:
        several = sum(name == b"authorization" for name, _ in scope["headers"]) > 1
        return Shown(bearer(b"" if several else headers[b"authorization"]))
    names = (scope.get("extensions") or {}).get(PEER, {}).get("names", ())
    return Shown(names=tuple(names)) if names else NOTHING


def _tenant(headers: Mapping[bytes, bytes]) -> str:
    if b"duly-tenant" not in headers:
        return ""
    return check_name(_text(headers[b"duly-tenant"], b"duly-tenant"), "tenant name")


def _text(value: bytes, name: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise Refused("malformed_request", f"The header {name.decode()} is not UTF-8.") from error


def _path(scope: Mapping[str, Any]) -> dict[str, str]:
    """The names in the path. They were matched as they came, so that a name may have a slash in it (%2F)."""
    try:
        return {name: unquote(text, errors="strict") for name, text in scope["path_params"].items()}
    except UnicodeDecodeError as error:
        raise Refused("malformed_request", "A name in the path is not UTF-8.") from error
