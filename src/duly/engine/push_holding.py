"""Which broker runs which push: rows that say it, and one decision that all brokers come to alike.

    nobody's ──a broker below its share takes it──▶ its ──above its share: given back──▶ nobody's
       ▲                                             │
       └── its broker left, or was not seen for seven seconds (member.py), or is not ready ◀┘

A row names its holder by its name among members, which differs from start to start. So a broker that was killed holds
nothing any more as soon as it is no member; nobody has to notice, and nothing is written before somebody takes over.

Every broker has the same share, but for one push: whoever holds most already keeps the odd ones. What each may hold is
told by the rows and the members alone, so nobody has to agree with anybody; who takes does so in a transaction that
has the rows to itself.

Two may believe that they hold one: a process that was paused goes on, and finds out at its next look. That does no
harm. Each claims under leases, and of a lease that was taken over nothing can be settled: what it sends then is sent
twice, as after any crash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from ..store.contract import HeldRow, Transaction
from .pause import is_paused
from .push_ends import disable

# Pushes that one transaction takes, or gives back: others wait meanwhile.
SLICE = 500


class Glance(msgspec.Struct, frozen=True):
    """All on which it depends who runs what, told by little: as long as it is the same nothing has changed."""

    pulse: tuple[int, int]
    brokers: tuple[str, ...]
    paused: bool


class Share(msgspec.Struct, frozen=True):
    """What is a broker's: the pushes that it holds, those that it may take, and how many of its own are too many."""

    mine: tuple[HeldRow, ...]
    to_take: tuple[HeldRow, ...]
    too_many: int


class HoldPushes(msgspec.Struct, frozen=True):
    """Take what a broker may take."""

    tenant: str
    holder: str


class LetGoPushes(msgspec.Struct, frozen=True):
    """Give back what a broker holds: some, by tenant and name, or (None) all of it."""

    tenant: str
    holder: str
    pushes: tuple[tuple[str, str], ...] | None


class DisablePush(msgspec.Struct, frozen=True):
    """Stop a push for good, as its runner found out that it cannot go on. `version`: only if it is still that one."""

    tenant: str
    name: str
    version: int
    reason: str


def glance(tx: Transaction, _: None) -> Glance:
    """A look that is cheap, whatever there is."""
    pulse = tx.push_pulse()
    # Where there are none nobody has to know who could run them.
    return Glance(pulse, _ready(tx) if pulse[0] else (), is_paused(tx))


def _ready(tx: Transaction) -> tuple[str, ...]:
    return tuple(member.name for member in tx.members_seen() if member.ready)


def look_at_share(tx: Transaction, holder: str) -> Share:
    """What is a broker's as things stand."""
    return share_of(holder, tx.pushes_active(), _ready(tx))


def share_of(holder: str, pushes: Sequence[HeldRow], brokers: Sequence[str]) -> Share:
    """Decides what is a broker's. One that is not among `brokers` may take nothing, and keeps what nobody took yet."""
    mine = tuple(row for row in pushes if row.holder == holder)
    if holder not in brokers:
        return Share(mine, (), 0)
    held = Counter(row.holder for row in pushes if row.holder in brokers)
    each, odd = divmod(len(pushes), len(brokers))
    first = sorted(brokers, key=lambda name: (-held[name], name))[:odd]
    most = each + (holder in first)
    free = [row for row in pushes if row.holder not in brokers]
    return Share(mine, tuple(free[: max(0, most - len(mine))]), max(0, len(mine) - most))


def hold_pushes(tx: Transaction, commands: Sequence[HoldPushes]) -> list[int]:
    """A verb of brokers': takes what they may; answers how many."""
    taken = []
    for command in commands:
        share = look_at_share(tx, command.holder)
        for row in share.to_take[:SLICE]:
            tx.push_hold(row.tenant_id, row.name, command.holder)
        taken.append(len(share.to_take[:SLICE]))
    return taken


def let_go_pushes(tx: Transaction, commands: Sequence[LetGoPushes]) -> list[None]:
    """A verb of brokers': gives back what they hold. What somebody else has taken since is left alone."""
    for command in commands:
        wanted = None if command.pushes is None else set(command.pushes)
        for row in tx.pushes_active():
            if row.holder == command.holder and (wanted is None or (row.tenant, row.name) in wanted):
                tx.push_hold(row.tenant_id, row.name, None)
    return [None] * len(commands)


def disable_pushes(tx: Transaction, commands: Sequence[DisablePush]) -> list[None]:
    """A verb of brokers': disables pushes that nobody has changed meanwhile."""
    for command in commands:
        owner = tx.tenant_find(command.tenant)
        row = None if owner is None else tx.push_claim(owner.id, command.name)
        if row is not None and row.version == command.version:
            disable(tx, row, command.reason, target=row.target)
    return [None] * len(commands)
