"""A caller's way into the broker: everything that anybody asks, over whichever surface, is authorised here.

    command ──▶ whose? (authority.py) ──▶ the tenant, from the key ──▶ RIGHTS, grants ──▶ the broker
                   Unauthenticated             Denied             Denied, TopicNotFound

Nothing is looked up before that: not the topic, not a group, not an id; but of a push the topic that it belongs to,
by which is decided, and a push of a topic that one may not see is not there. Who it is, is asked anew for each command,
of memory; whoever waits is asked again while it does. What the command says of itself (`by`, `publisher`, `own`,
`of_topic`) is overwritten with what is known.

An Entry is a Port, so that the Python API runs on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from msgspec.structs import replace

from ..client.client import Client
from ..client.port import Watch
from ..clock import ClockReading, monotonic_s
from ..engine.claimed import Acks, Claim, Claimed
from ..engine.event_log import ListEvents, Page
from ..engine.forecast import ListForecasts
from ..engine.principals import PutPrincipal
from ..engine.pushes import ListPushes, PushPlace, no_push, push_place
from ..engine.schedules import ListSchedules
from ..engine.stretch import Piece, Stretch, read_piece
from ..engine.tail import Tail, Tailed
from ..engine.tenants import check_tenant_is
from ..engine.topics import CreateTopic, ListTopics
from ..engine.wellbeing import CheckHealth
from ..errors import Denied, Error, Timeout, Unauthenticated
from ..grants import (
    OPERATORS,
    TOPIC_ACTIONS,
    By,
    Identity,
    authorise,
    is_allowed,
    is_allowed_somewhere,
    is_own_only,
    is_visible,
    publisher,
    see,
)
from ..health import Finding
from ..keys import id_in
from ..member import Member
from ..push import Push
from ..store.contract import Backup
from ..tenant import DEFAULT_TENANT
from .authority import ANYONE, NOTHING, RIGHTS, SEE, Right, Shown, Verdict
from .broker import LOOK_S, Broker
from .desk import Answered, Waiter
from .meters import Meter
from .named import NAMED, visible_schedules, with_topic

_ALLOWED_MAX = 10_000
# With these a tenant comes into being, where nobody has keys.
_MAKES_TENANTS = frozenset({CreateTopic, PutPrincipal})
_CALL_S = 30.0
_OPEN_MAKES_NO_KEYS = (
    "A broker that is open to everyone makes no keys. Make the first where the store is: "
    "duly keys create --operator --store PATH."
)


class Entry:
    """One caller's way in."""

    def __init__(self, broker: Broker, shown: Shown = NOTHING, address: str = "") -> None:
        self.broker = broker
        self._shown = shown
        self.address = address
        # Of one request on an event loop: to ask again may take a moment.
        self._pinned: Verdict | None = None
        # Where it counts as open, and whose it is.
        self._counted: tuple[str, Meter | None] | None = None

    def client(self, tenant: str) -> Client:
        """The Python API for this caller. Its calls wait: not for an event loop's thread."""
        return Client(self, tenant=tenant, consumer=None, timeout=_CALL_S)

    def leave_broker(self) -> None:
        """The call is over: it counts no more among those that its tenant has open."""
        counted, self._counted = self._counted, None
        if counted is not None:
            self.broker.meters.disconnect(counted[1])

    def enter(self) -> None:
        """A stream begins, on which nothing need ever be asked: it counts from now on, as that of whose key it shows.

        Raises Unauthenticated, QuotaExceeded.
        """
        identity = self.verdict().identity
        if identity is not None:
            self._count(identity.tenant)

    def _count(self, tenant: str) -> None:
        """Counts it as open, as its tenant's. Raises QuotaExceeded."""
        if self._counted is None or self._counted[0] != tenant:
            self.leave_broker()
            self._counted = tenant, self.broker.meters.connect(tenant)

    # Who, and whether

    def whose(self, given: str) -> str:
        """The tenant that what it takes of the broker is counted to: its key's; of who has none, the one it names.

        Raises Unauthenticated.
        """
        identity = self.verdict().identity
        if identity is None or identity.is_operator:
            return given or DEFAULT_TENANT
        return identity.tenant

    def known_tenant(self) -> str | None:
        """The one that its key says it is of; None: it has none. Raises Unauthenticated."""
        identity = self.verdict().identity
        return None if identity is None else identity.tenant

    def verdict(self) -> Verdict:
        """Who it is. Raises Unauthenticated."""
        if self._pinned is not None:
            return self._pinned
        try:
            return self.broker.authority.verdict(self._shown)
        except Unauthenticated as error:
            by = By("", id_in(self._shown.token) or "", self.address)
            self.broker.on_denied(by, "authenticate", "", None, error)
            raise

    def is_known(self) -> bool:
        """Whether the verdict is at hand; otherwise the store must be asked."""
        return self.broker.authority.remembered(self._shown) is not None

    def pin(self) -> None:
        """Keeps to what the verdict is now, until the next `pin`. Raises Unauthenticated."""
        self._pinned = None
        self._pinned = self.verdict()

    def is_current(self) -> bool:
        """Whether it is asked anew for each command, or was asked a moment ago."""
        return self._pinned is None or self._pinned.is_fresh()

    def renew(self) -> None:
        """Pins it anew if it is pinned and no longer fresh: for a request that lasts, and may wait for that."""
        if not self.is_current():
            self.pin()

    def check(self, call: str) -> None:
        """Returns if the caller may have something done that is no operation: by its name in RIGHTS."""
        with self._telling(call, None, OPERATORS):
            identity = self.verdict().identity
            if identity is not None and RIGHTS[call].action != ANYONE:
                authorise(identity, RIGHTS[call].action, tenant=OPERATORS)

    def foresee(self, kinds: tuple[type, ...], tenant: str, topic: str | None) -> None:
        """Refuses early what commands of these kinds will be refused for, before they are made."""
        identity = self.verdict().identity
        for kind in kinds:
            right = RIGHTS[kind]
            with self._telling(right.action, topic, tenant):
                whose = _tenant(identity, tenant)
                # Which topic they are about, or that it is all, the commands say themselves where the path does not.
                if right.about == "push":
                    # Whose it is, the command says: it is looked up then.
                    continue
                if identity is not None and (right.about not in ("topic", "topics") or topic is not None):
                    _decide(identity, right, right.action, whose, topic, hidden=kind is not CreateTopic)

    def admit(self, command: Any) -> Any:
        """The command as it may be run, with the tenant and who asks filled in. Raises Denied, TopicNotFound."""
        verdict, kind = self.verdict(), type(command)
        topic: str | None = getattr(command, "topic", None)
        if kind not in RIGHTS:
            raise Denied()
        right = RIGHTS[kind]
        if right.about == "push" and verdict.identity is not None:
            return self._admit_to_push(command, verdict.identity, right)
        with self._telling(right.action, topic, command.tenant) as telling:
            tenant = _meant(verdict.identity, command)
            if kind in NAMED and verdict.identity is not None:
                command = with_topic(self.broker.look, command, verdict.identity, tenant)
                telling.topic = topic = command.topic
            key = (kind, tenant, topic, right.also(command), right.beside(command))
            own = verdict.allowed.get(key, _UNDECIDED)
            if own is _UNDECIDED:
                own = _allowed(verdict.identity, right, tenant, topic, command)
                if len(verdict.allowed) < _ALLOWED_MAX:
                    verdict.allowed[key] = own
        if kind in _MAKES_TENANTS and verdict.identity is not None and tenant != OPERATORS:
            # With keys in use a tenant does not come into being by itself.
            self.broker.look(check_tenant_is, tenant)
        self._count(tenant)
        return self._filled(command, verdict.identity, tenant, own)

    def _admit_to_push(self, command: Any, identity: Identity, right: Right) -> Any:
        """Decides by the topic that the push belongs to: one that may not be seen is not there."""
        with self._telling(right.action, None, command.tenant):
            tenant = _meant(identity, command)
            topic = self.broker.look(push_place, PushPlace(tenant, command.name))
            if topic is None or not is_visible(identity, topic, tenant=tenant):
                raise no_push(command.name)
        with self._telling(right.action, topic, tenant):
            _allowed(identity, right, tenant, topic, command)
        self._count(tenant)
        return replace(self._filled(command, identity, tenant, None), of_topic=topic)

    def _filled(self, command: Any, identity: Identity | None, tenant: str, own: str | None) -> Any:
        known: dict[str, Any] = {}
        fields = command.__struct_fields__
        if command.tenant != tenant:
            known["tenant"] = tenant
        if "by" in fields:
            known["by"] = self._by(identity)
        if "publisher" in fields:
            known["publisher"] = "" if identity is None else publisher(identity)
        if "own" in fields:
            known["own"] = own
        return replace(command, **known) if known else command

    def _by(self, identity: Identity | None) -> By:
        if identity is None:
            return By("anyone", "", self.address)
        return By(identity.principal, identity.key, self.address, identity.tenant)

    def _telling(self, action: str, topic: str | None, tenant: str) -> _Telling:
        return _Telling(self, action, topic, tenant)

    def _telling_of(self, command: Any) -> _Telling:
        """Around what was admitted: what the store itself denies, as to one who is suspended."""
        topic: str | None = getattr(command, "topic", None)
        return _Telling(self, RIGHTS[type(command)].action, topic, command.tenant, Denied)

    def _told(self, command: Any, by: By, then: Callable[[Any], None], answer: Any) -> None:
        """The same, of what is answered later."""
        if isinstance(answer, Denied):
            topic: str | None = getattr(command, "topic", None)
            self.broker.on_denied(by, RIGHTS[type(command)].action, command.tenant, topic, answer)
        then(answer)

    def _is_out(self, command: Claim) -> bool:
        """Whether one who waits may not have it any more."""
        try:
            self.renew()
            self.admit(command)
        except Error:
            return True
        return False

    # Without waiting

    def submit(
        self, command: Any, *, cost: int = 0, publish_id: str = "", then: Callable[[Any | Exception], None]
    ) -> None:
        command = self.admit(command)
        told = partial(self._told, command, self._by(self.verdict().identity), then)
        self.broker.submit(command, cost=cost, publish_id=publish_id, then=told)

    def submit_claim(self, command: Claim, *, wait_until: float | None, then: Answered) -> Waiter:
        command = self.admit(command)
        told = partial(self._told, command, self._by(self.verdict().identity), then)
        return self.broker.submit_claim(command, wait_until=wait_until, then=told)

    def leave(self, waiter: Waiter) -> bool:
        return self.broker.leave(waiter)

    def release(self, command: Claim, claimed: Claimed) -> None:
        """Gives back what came of a command that was admitted, and cannot be delivered."""
        self.broker.release(command, claimed)

    # A Port

    def do(self, command: Any, *, deadline: float | None, cost: int = 0, publish_id: str = "", tx: Any = None) -> Any:
        # It may have stood in line for a thread.
        self.renew()
        admitted = self.admit(command)
        do = partial(self.broker.do, deadline=deadline)
        identity = self.verdict().identity
        with self._telling_of(admitted):
            if identity is None or RIGHTS[type(command)].about != "list" or getattr(admitted, "topic", None):
                return self.broker.do(admitted, deadline=deadline, cost=cost, publish_id=publish_id, tx=tx)
            return _LISTS[type(command)](do, admitted, identity)

    def when_undone(self, tx: Any, act: Callable[[], None]) -> bool:
        return self.broker.when_undone(tx, act)

    def claim(
        self,
        command: Claim,
        *,
        wait_until: float | None,
        deadline: float | None,
        is_gone: Callable[[], bool] = lambda: False,
    ) -> Claimed:
        admitted = self.admit(command)
        try:
            with self._telling_of(admitted):
                return self.broker.claim(
                    admitted,
                    wait_until=wait_until,
                    deadline=deadline,
                    is_gone=lambda: is_gone() or self._is_out(admitted),
                )
        except Timeout:
            # It may be that it was put out: then this says why.
            self.admit(command)
            raise

    def tail(self, command: Tail, *, wait_until: float) -> Tailed:
        while True:
            self.renew()
            admitted = self.admit(command)
            with self._telling_of(admitted):
                tailed = self.broker.tail(admitted, wait_until=min(wait_until, monotonic_s() + LOOK_S))
            if tailed.grown or monotonic_s() >= wait_until:
                return tailed
            self.broker.check_open()

    def piece(self, stretch: Stretch) -> Piece:
        """A piece of a stretch of a log."""
        admitted = self.admit(stretch)
        with self._telling_of(admitted):
            return self.broker.look(read_piece, admitted)

    def batches(self, stretch: Stretch, *, patience_s: float) -> Iterator[Any]:
        return self.broker.batches(self.admit(stretch), patience_s=patience_s)

    def watch(self, command: Claim) -> Watch:
        """A watch on a command that was admitted; each look through it is to be admitted again by whoever has it."""
        admitted = self.admit(command)
        return _ToldWatch(self.broker.watch(admitted), partial(self._telling_of, admitted))

    def wake(self) -> None:
        """Nobody else's waits are a caller's to end."""

    def transaction(self, patience_s: float) -> Any:
        return self.broker.transaction(patience_s)

    def examine(self) -> Iterator[Finding]:
        self.check("examine")
        return self.broker.examine()

    def back_up(self, folder: str, **how: Any) -> Backup:  # noqa: ARG002
        # It writes where the caller says on the broker's machine: nobody may, whatever the grants.
        raise Denied()

    def now_ms(self) -> int:
        return self.broker.now_ms()

    def make_publish_id(self) -> str:
        return self.broker.make_publish_id()

    def clock(self) -> ClockReading:
        self.check("clock")
        return self.broker.clock()

    def accept_clock(self, *, deadline: float | None) -> None:
        self.check("accept_clock")
        self.broker.accept_clock(deadline=deadline, by=self._by(self.verdict().identity))

    def members(self, *, deadline: float | None) -> list[Member]:
        self.check("cluster")
        return self.broker.members(deadline=deadline)

    def own_tenant(self) -> str:
        identity = self.verdict().identity
        return DEFAULT_TENANT if identity is None else identity.tenant

    def check_leaving(self) -> None:
        """It can always be let go of: the broker stays."""

    def close(self) -> None:
        """The broker stays."""


class _Telling:
    """Around a decision: what is refused, by an error of that kind, is told to whoever listens (Broker.on_denied)."""

    __slots__ = ("_action", "_entry", "_kind", "_tenant", "topic")

    def __init__(self, entry: Entry, action: str, topic: str | None, tenant: str, kind: type[Error] = Error) -> None:
        self._entry = entry
        self._kind = kind
        self._action = action
        self.topic = topic
        self._tenant = tenant

    def __enter__(self) -> _Telling:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, self._kind) and not isinstance(error, Unauthenticated):
            by = self._entry._by(self._entry.verdict().identity)
            self._entry.broker.on_denied(by, self._action, self._tenant, self.topic, error)


class _ToldWatch:
    """A watch; what is denied to its claims is told."""

    def __init__(self, watch: Watch, telling: Callable[[], _Telling]) -> None:
        self._watch = watch
        self._telling = telling

    def claim(self, max_messages: int, *, deadline: float | None, acks: Acks | None = None) -> Claimed:
        with self._telling():
            return self._watch.claim(max_messages, deadline=deadline, acks=acks)

    def wait(self, deadline: float) -> None:
        self._watch.wait(deadline)


_UNDECIDED = object()


def _tenant(identity: Identity | None, given: str) -> str:
    """The tenant that is meant. It comes from the key; only operators, who have none, and open brokers are told it."""
    if identity is None:
        return given or DEFAULT_TENANT
    if identity.is_operator:
        return given
    if given not in ("", identity.tenant):
        raise Denied()
    return identity.tenant


def _meant(identity: Identity | None, command: Any) -> str:
    """The tenant that a command is about; of what an operator asks of the operators, none, whichever is named."""
    tenant = _tenant(identity, command.tenant)
    if identity is not None and identity.is_operator and getattr(command, "operators", False):
        return OPERATORS
    return tenant


def _allowed(identity: Identity | None, right: Right, tenant: str, topic: str | None, command: Any) -> str | None:
    """Returns if it is allowed; whose messages alone, or None: everybody's."""
    also, beside = right.also(command), right.beside(command)
    if identity is None:
        if right.action == "keys":
            raise Denied(_OPEN_MAKES_NO_KEYS)
        return None
    for action in (right.action, also):
        if action is not None:
            _decide(identity, right, action, tenant, topic, hidden=type(command) is not CreateTopic)
    if beside is not None:
        authorise(identity, *beside, tenant=tenant)
    own_only = right.about == "topic" and right.action != SEE and topic is not None
    if own_only and is_own_only(identity, right.action, topic or "", tenant=tenant):
        return publisher(identity)
    return None


def _decide(identity: Identity, right: Right, action: str, tenant: str, topic: str | None, *, hidden: bool) -> None:
    """Raises Denied, or TopicNotFound; not for a topic that is to be made, if not `hidden`."""
    if right.about == "store":
        if action != ANYONE:
            authorise(identity, action, tenant=OPERATORS)
    elif right.about == "tenant":
        authorise(identity, action, tenant=tenant)
    elif topic is None and right.about == "list":
        wanted = TOPIC_ACTIONS if action == SEE else (action,)
        if not any(is_allowed_somewhere(identity, one, tenant=tenant) for one in wanted):
            raise Denied()
    elif topic is not None and action == SEE:
        see(identity, topic, tenant=tenant)
    elif topic is not None and not hidden and not is_allowed(identity, action, topic, tenant=tenant):
        raise Denied()
    else:
        authorise(identity, action, topic, tenant=tenant)


# Lists, without what one may not see

Do = Callable[[Any], Any]


def _list_topics(do: Do, command: ListTopics, identity: Identity) -> list[str]:
    found: list[str] = []
    after = command.after
    while len(found) < command.limit:
        page: list[str] = do(replace(command, after=after))
        found += [name for name in page if is_visible(identity, name, tenant=command.tenant)]
        if len(page) < command.limit:
            break
        after = page[-1]
    return found[: command.limit]


def _of_topics(do: Do, command: CheckHealth | ListForecasts, identity: Identity) -> list[Any]:
    """Up to `limit` topics that one may see, each with all its groups."""
    found: dict[str, list[Any]] = {}
    after = command.after
    while len(found) < command.limit:
        page = do(replace(command, after=after))
        for one in page:
            if is_visible(identity, one.topic, tenant=command.tenant) and (
                one.topic in found or len(found) < command.limit
            ):
                found.setdefault(one.topic, []).append(one)
        if len({one.topic for one in page}) < command.limit:
            break
        after = page[-1].topic
    return [one for some in found.values() for one in some]


def _list_pushes(do: Do, command: ListPushes, identity: Identity) -> list[Push]:
    found: list[Push] = []
    after = command.after
    while len(found) < command.limit:
        page: list[Push] = do(replace(command, after=after))
        found += [push for push in page if is_visible(identity, push.topic, tenant=command.tenant)]
        if len(page) < command.limit:
            break
        after = page[-1].name
    return found[: command.limit]


def _list_events(do: Do, command: ListEvents, identity: Identity) -> Page:
    page: Page = do(command)
    everything = is_allowed(identity, "browse", tenant=command.tenant)

    def is_for_it(topic: str | None) -> bool:
        return everything if not topic else is_allowed(identity, "browse", topic, tenant=command.tenant)

    return replace(page, events=tuple(event for event in page.events if is_for_it(event.topic)))


_LISTS: dict[type, Callable[[Do, Any, Identity], Any]] = {
    ListTopics: _list_topics,
    ListPushes: _list_pushes,
    CheckHealth: _of_topics,
    ListForecasts: _of_topics,
    ListEvents: _list_events,
    ListSchedules: visible_schedules,
}
