"""Who is asking, and what each operation takes: the two things that a broker knows before it looks anything up.

    what was shown ──▶ verdict, remembered for two seconds ──▶ Identity, or Unauthenticated
                              └─ asked of the store: by key, or by the names in a client certificate

A store that never had a key is *open*: whoever reaches the broker may do everything but make keys, and names the
tenant. From the first key on it is *closed*, at every broker within two seconds, and stays so: that the last key
expires opens nothing. A broker may be told to be closed from the start.

What a verdict says is forgotten with it: a key that is revoked, or a grant that is taken away, has its effect within
two seconds wherever something is asked, and whoever waits is asked again every two (entry.py).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from ..client.embedded import Embedded
from ..clock import monotonic_s
from ..engine.audit import ListAudit
from ..engine.budget import ListOperations, ResumeOperation, StopOperation
from ..engine.claimed import Claim
from ..engine.dead import ListDead, PurgeDead, Redrive
from ..engine.event_log import ListEvents
from ..engine.forecast import ListForecasts
from ..engine.groups import CreateGroup, DeleteGroup, DescribeGroup, ListGroups, PurgeGroup, Seek, UpdateGroup
from ..engine.inquiry import Browse, Cancel, Coming, Get, Move
from ..engine.pause import PauseStore
from ..engine.principals import (
    CreateKey,
    DeletePrincipal,
    Known,
    ListKeys,
    ListPrincipals,
    PutPrincipal,
    RevokeKey,
    RotateKey,
    has_keys,
    know_certificate,
    know_key,
    note_used,
)
from ..engine.publish import Publish
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
from ..engine.read import OffsetAt, Read
from ..engine.replay import Replay
from ..engine.retain import Chores
from ..engine.schedules import CreateSchedule, DeleteSchedule, DescribeSchedule, ListSchedules, UpdateSchedule
from ..engine.settle import Held, ReleaseConsumer
from ..engine.stage import CommitStages, DropStages, Stage
from ..engine.stretch import Stretch
from ..engine.tail import Tail
from ..engine.tenants import (
    CreateTenant,
    DeleteTenant,
    DescribeTenant,
    ListTenants,
    ResumeTenant,
    SuspendTenant,
    UpdateTenant,
)
from ..engine.topics import (
    Archived,
    CreateTopic,
    DeleteTopic,
    DescribeTopic,
    ListTopics,
    PurgeTopic,
    UpdateTopic,
)
from ..engine.verdict import Settle
from ..engine.wellbeing import CheckHealth
from ..errors import Error, Unauthenticated
from ..events import log
from ..grants import Identity
from ..keys import id_in
from ..limits import MINUTE_MS

# How long a verdict is remembered; and how often whoever waits is asked again.
REMEMBERED_S = 2.0
_VERDICTS_MAX = 10_000
_USED_TENANT = "$keys"

# Besides the actions of grants.py: to see a topic takes any grant on it; and some things only take an identity.
SEE = "see"
ANYONE = "anyone"


class Right(NamedTuple):
    """What an operation takes. `about`: a "topic"; "topics", one or all of the tenant; "list", which is cut down to
    what one may see; a "push", whose topic is looked up; the "tenant"; or the "store". `also`: what else, of some
    commands; `beside`: what on another topic, by its name.
    """

    action: str
    about: str = "topic"
    also: Callable[[Any], str | None] = lambda _: None
    beside: Callable[[Any], tuple[str, str] | None] = lambda _: None


def _force(command: DeleteTopic) -> str | None:
    return "purge" if command.force else None


def _copies(command: Replay) -> str | None:
    # Copies bring content of their own.
    return "publish" if command.copies else None


def _publishes(command: CreateSchedule | UpdateSchedule) -> str | None:
    # To stop one takes no right to publish.
    return None if isinstance(command, UpdateSchedule) and command.paused and not command.changes else "publish"


def _acks(command: Claim) -> str | None:
    return "settle" if command.acks is not None else None


def _claims(_: CreatePush | UpdatePush | ResumePush) -> str | None:
    # Whoever says where messages go has them claimed.
    return "claim"


def _forwards(command: CreatePush) -> tuple[str, str] | None:
    return None if command.to_topic is None else ("publish", command.to_topic.topic)


def _forwards_anew(command: UpdatePush) -> tuple[str, str] | None:
    target = command.changes.get("topic")
    return ("publish", target) if isinstance(target, str) else None


def _of_operators(command: ListAudit) -> str | None:
    return "store" if command.operators else None


# The one table. A command that is not in it is refused to everybody (entry.py), and a test has it complete.
RIGHTS: dict[type | str, Right] = {
    Publish: Right("publish"),
    Stage: Right("publish"),
    CommitStages: Right("publish"),
    DropStages: Right("publish"),
    Claim: Right("claim", also=_acks),
    Held: Right("claim", "topics"),
    Settle: Right("settle"),
    ReleaseConsumer: Right("settle", "topics"),
    Read: Right("read"),
    Tail: Right("read"),
    OffsetAt: Right("read"),
    Stretch: Right("read"),
    Get: Right("browse"),
    Browse: Right("browse"),
    Coming: Right("browse"),
    ListDead: Right("browse"),
    ListEvents: Right("browse", "list"),
    Move: Right("move"),
    Cancel: Right("cancel"),
    Redrive: Right("redrive"),
    Replay: Right("redrive", also=_copies),
    PurgeDead: Right("purge"),
    PurgeTopic: Right("purge"),
    PurgeGroup: Right("purge"),
    CreateTopic: Right("configure"),
    UpdateTopic: Right("configure"),
    DeleteTopic: Right("configure", also=_force),
    Archived: Right("configure"),
    CreateGroup: Right("configure"),
    UpdateGroup: Right("configure"),
    DeleteGroup: Right("configure"),
    Seek: Right("configure"),
    # They are the tenant's and no topic's: who may see or do it, may so on every topic.
    ListOperations: Right("browse", "tenant"),
    ResumeOperation: Right("configure", "tenant"),
    StopOperation: Right("configure", "tenant"),
    # Of one that has been made the topic is looked up (named.py). Who changes one changes what is published.
    CreateSchedule: Right("configure", also=_publishes),
    UpdateSchedule: Right("configure", also=_publishes),
    DeleteSchedule: Right("configure"),
    DescribeSchedule: Right("browse"),
    ListSchedules: Right("browse", "list"),
    CreatePush: Right("configure", also=_claims, beside=_forwards),
    UpdatePush: Right("configure", "push", also=_claims, beside=_forwards_anew),
    ResumePush: Right("configure", "push", also=_claims),
    PausePush: Right("configure", "push"),
    DeletePush: Right("configure", "push"),
    RotatePushSecret: Right("configure", "push"),
    TestPush: Right("configure", "push"),
    DescribePush: Right(SEE, "push"),
    ListPushes: Right(SEE, "list"),
    DescribeTopic: Right(SEE),
    ListGroups: Right(SEE),
    DescribeGroup: Right(SEE),
    ListTopics: Right(SEE, "list"),
    CheckHealth: Right(SEE, "list"),
    # Counts, as describing tells them: what scales consumers needs no right to look at messages.
    ListForecasts: Right(SEE, "list"),
    PutPrincipal: Right("keys", "tenant"),
    DeletePrincipal: Right("keys", "tenant"),
    ListPrincipals: Right("keys", "tenant"),
    CreateKey: Right("keys", "tenant"),
    RotateKey: Right("keys", "tenant"),
    RevokeKey: Right("keys", "tenant"),
    ListKeys: Right("keys", "tenant"),
    ListAudit: Right("audit", "tenant", _of_operators),
    PauseStore: Right("store", "store"),
    CreateTenant: Right("tenants", "store"),
    UpdateTenant: Right("tenants", "store"),
    SuspendTenant: Right("tenants", "store"),
    ResumeTenant: Right("tenants", "store"),
    DeleteTenant: Right("tenants", "store"),
    ListTenants: Right("tenants", "store"),
    DescribeTenant: Right("tenants", "store"),
    Chores: Right("store", "store"),
    # What is no operation of engine/operations.py.
    "hello": Right(ANYONE, "store"),
    "clock": Right(ANYONE, "store"),
    "limits": Right(ANYONE, "store"),
    "preview": Right(ANYONE, "store"),
    "accept_clock": Right("store", "store"),
    "examine": Right("store", "store"),
    "cluster": Right("store", "store"),
}


class Shown(msgspec.Struct, frozen=True):
    """What somebody shows: a key, as a token; or the names in a client certificate that was verified."""

    token: str = ""
    names: tuple[str, ...] = ()

    def __repr__(self) -> str:
        # It would stand in logs and tracebacks otherwise.
        return f"Shown(token={'…' if self.token else ''!r}, names={self.names!r})"


NOTHING = Shown()


class Verdict:
    """Whose it is, for a moment. Without an identity: the broker is open. `allowed` remembers what was decided."""

    __slots__ = ("allowed", "error", "identity", "until")

    def __init__(self, identity: Identity | None, until: float, error: Unauthenticated | None = None) -> None:
        self.identity = identity
        self.until = until
        self.error = error
        self.allowed: dict[tuple[Any, ...], Any] = {}

    def is_fresh(self) -> bool:
        """Whether it may still be used."""
        return monotonic_s() < self.until


class Authority:
    """Knows who somebody is. Thread-safe."""

    def __init__(self, home: Embedded, *, require: bool = False) -> None:
        self._home = home
        self._closed = require
        self._lock = threading.Lock()
        self._verdicts: OrderedDict[Shown, Verdict] = OrderedDict()

    @property
    def closed(self) -> bool:
        """Whether everybody has to show something; as far as is known."""
        return self._closed

    def has_keys(self) -> bool:
        """Whether the store has, or had, a key: asked now."""
        self._closed = self._closed or self._home.look(has_keys, None)
        return self._closed

    def remembered(self, shown: Shown) -> Verdict | None:
        """A verdict that is fresh; None when the store must be asked, which may take a moment."""
        verdict = self._verdicts.get(shown)
        return verdict if verdict is not None and verdict.is_fresh() else None

    def verdict(self, shown: Shown) -> Verdict:
        """Whose this is. Raises Unauthenticated."""
        verdict = self.remembered(shown) or self._ask(shown)
        if verdict.error is not None:
            # One of its own for everybody who gets it: an error that is raised twice keeps what it went through.
            raise Unauthenticated(str(verdict.error))
        return verdict

    def _ask(self, shown: Shown) -> Verdict:
        if shown.token and id_in(shown.token) is None:
            # Nor is it remembered: strangers may send long ones, and many.
            raise Unauthenticated(_NO_KEY)
        # Before the store is asked: what is found is as old as that.
        until = monotonic_s() + REMEMBERED_S
        verdict = self._judged(shown, until)
        with self._lock:
            self._verdicts[shown] = verdict
            self._verdicts.move_to_end(shown)
            while len(self._verdicts) > _VERDICTS_MAX:
                self._verdicts.popitem(last=False)
        return verdict

    def _judged(self, shown: Shown, until: float) -> Verdict:
        if shown.token:
            known = self._home.look(know_key, shown.token)
        elif shown.names and self.has_keys():
            known = self._home.look(know_certificate, shown.names)
        elif self.has_keys():
            return Verdict(None, until, Unauthenticated(_NOTHING_SHOWN))
        else:
            return Verdict(None, until)
        if known is None:
            return Verdict(None, until, Unauthenticated())
        self._closed = True
        return self._of(known, until)

    def _of(self, known: Known, until: float) -> Verdict:
        now_ms = self._home.now_ms()
        if known.expires_at is not None:
            until = min(until, monotonic_s() + (known.expires_at - now_ms) / 1000)
        if known.identity.key and (known.used_at is None or known.used_at <= now_ms - MINUTE_MS):
            self._note_used(known.identity.key)
        return Verdict(known.identity, until)

    def _note_used(self, key_id: str) -> None:
        """Has the store note it, without waiting. Whoever asks again before that is done has it noted once more."""
        try:
            self._home.store.submit(note_used, key_id, tenant=_USED_TENANT, cost=0, then=_note_failure)
        except Error as error:
            _note_failure(error)


# Said before anything is looked up, so it says nothing of what there is.
_NO_KEY = "What was shown is no key of Duly's, or not the whole of it. Call with Authorization: Bearer duly_…"
_NOTHING_SHOWN = "This broker wants to see a key. Call with Authorization: Bearer duly_…, or connect(…, token=…)."


def _note_failure(answer: Any) -> None:
    if isinstance(answer, Exception):
        log.debug("it could not be noted that a key was used: %s", answer)


def bearer(header: str | bytes | None) -> str:
    """The token in an Authorization header; "" of none. Raises Unauthenticated for another way of showing something."""
    if header is None:
        return ""
    text = header.decode("latin-1") if isinstance(header, bytes) else header
    scheme, _, token = text.strip().partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated(_NO_KEY)
    return token.strip()
