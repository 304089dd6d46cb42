"""Who may do what: grants, identities, and the one function that decides. Pure.

    a key or a certificate ──▶ Identity (tenant, principal, its grants) ──▶ authorise(identity, action, topic)

What no grant allows is denied. A grant that denies wins over all that allow, whatever their order. Nothing is looked up
here: whether a topic exists is nobody's business who may not see its name.

The operators of the store belong to no tenant: theirs is "". A grant of theirs says for which tenants it holds; one
that says nothing holds for the store as a whole and for the operators themselves, and for nobody's topics.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from .errors import Denied, InvalidArgument, TopicNotFound
from .events import EVENTS
from .tenant import check_name

# Whose principals are the operators of the store.
OPERATORS = ""

# What is done to a topic, by a tenant's principals or an operator who has a grant for that tenant.
TOPIC_ACTIONS = (
    "publish",
    "claim",
    "settle",
    "read",
    "browse",
    "move",
    "cancel",
    "redrive",
    "purge",
    "configure",
)
# What is done to a tenant as a whole (of operators: also to the operators themselves).
TENANT_ACTIONS = ("keys", "audit")
# What is done to the store as a whole, by operators alone.
STORE_ACTIONS = ("tenants", "store")
ACTIONS = (*TOPIC_ACTIONS, *TENANT_ACTIONS, *STORE_ACTIONS)
EVERY = "*"

# What may be restricted to messages that the same principal published.
OWN_ACTIONS = ("move", "cancel")

GRANTS_MAX = 256
# Also what a name is made of that stands in a block beside the messages: no colon, see `publisher`.
_PRINCIPAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@/+-]{0,127}")


# A word that is misspelt must not be passed over: what it was to narrow, or to deny, would be allowed.
class Grant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of what a principal may do: on topics whose name fits a pattern, in which `*` stands for any text.

    `action` may be `*`: every one. `effect` is "allow" or "deny". `own`: only messages that the same principal
    published. `tenants` is for operators: a pattern of the tenants that it holds for; "" is the store as a whole.
    """

    action: str
    topics: str = EVERY
    effect: str = "allow"
    own: bool = False
    tenants: str = ""

    def __post_init__(self) -> None:
        if self.action not in (*ACTIONS, EVERY):
            raise InvalidArgument(f"There is no action {self.action!r}. Actions: {', '.join((*ACTIONS, EVERY))}.")
        if self.effect not in ("allow", "deny"):
            raise InvalidArgument(f"The effect of a grant is allow or deny; got {self.effect!r}.")
        check_name(self.topics, "pattern of topics")
        if self.tenants:
            check_name(self.tenants, "pattern of tenants")
        if self.own and (self.action not in OWN_ACTIONS or self.effect != "allow"):
            raise InvalidArgument(f"Only {' and '.join(OWN_ACTIONS)} may be allowed for one's own messages alone.")
        if self.topics != EVERY and self.action in (*TENANT_ACTIONS, *STORE_ACTIONS):
            raise InvalidArgument(f"{self.action!r} has nothing to do with topics: leave the pattern out.")
        if self.tenants and self.action in STORE_ACTIONS:
            raise InvalidArgument(f"{self.action!r} is about the store as a whole: leave tenants out.")

    def is_for(self, action: str, topic: str | None, *, deny: bool = False) -> bool:
        """Whether it speaks of an action on a topic; None: on all there may be, where one denied is too many."""
        if self.action not in (action, EVERY):
            return False
        if action not in TOPIC_ACTIONS:
            return self.topics == EVERY
        if topic == EVENTS and deny and self.effect == "deny":
            # They tell of every topic: of one that is denied, too.
            return True
        if topic is None:
            return (self.topics == EVERY and not self.own) or (deny and self.effect == "deny")
        return matches(self.topics, topic)


class Identity(msgspec.Struct, frozen=True):
    """Who somebody has shown to be. `tenant` is "" of an operator, `key` is "" where a certificate was shown."""

    tenant: str
    principal: str
    grants: tuple[Grant, ...]
    key: str = ""

    @property
    def is_operator(self) -> bool:
        """Whether it is one of those who run the store."""
        return self.tenant == OPERATORS


class By(msgspec.Struct, frozen=True):
    """Who did something, as the audit says it. Filled in by a broker or an embedded client, never taken from outside.

    `tenant` is the principal's: "" of an operator, and of whoever has the store itself open ("embedded:NAME").
    """

    principal: str = ""
    key: str = ""
    address: str = ""
    tenant: str = OPERATORS


# What stands in a command before anybody has filled it in.
NOBODY = By()


def authorise(identity: Identity, action: str, topic: str | None = None, *, tenant: str | None = None) -> None:
    """Returns if the identity may do this; raises Denied, or TopicNotFound for a topic that it may not even see.

    `topic` None is all topics of the tenant. `tenant` None is the identity's own.
    """
    if _allows(identity, action, topic, tenant):
        return
    if topic is not None and action in TOPIC_ACTIONS:
        see(identity, topic, tenant=tenant)
    raise Denied()


def see(identity: Identity, topic: str, *, tenant: str | None = None) -> None:
    """Returns if the identity may do anything at all with that topic. Raises TopicNotFound, or Denied of a tenant."""
    if is_visible(identity, topic, tenant=tenant):
        return
    if _is_at_home(identity, tenant):
        raise no_topic(topic)
    raise Denied()


def is_visible(identity: Identity, topic: str, *, tenant: str | None = None) -> bool:
    """Whether the identity may do anything at all with that topic."""
    return any(_allows(identity, action, topic, tenant) for action in TOPIC_ACTIONS)


def is_allowed(identity: Identity, action: str, topic: str | None = None, *, tenant: str | None = None) -> bool:
    """The same as `authorise`, as a word."""
    return _allows(identity, action, topic, tenant)


def is_allowed_somewhere(identity: Identity, action: str, *, tenant: str | None = None) -> bool:
    """Whether there is any topic that a grant allows this for; others may still be denied."""
    if action in TOPIC_ACTIONS and identity.is_operator and not tenant:
        return False
    speaking = [grant for grant in _here(identity, tenant) if grant.action in (action, EVERY)]
    if any(grant.effect == "deny" and grant.topics == EVERY for grant in speaking):
        return False
    return any(grant.effect == "allow" for grant in speaking)


def is_own_only(identity: Identity, action: str, topic: str, *, tenant: str | None = None) -> bool:
    """Of what is allowed: whether only for messages that the identity published itself."""
    fitting = [grant for grant in _here(identity, tenant) if grant.is_for(action, topic) and grant.effect == "allow"]
    return all(grant.own for grant in fitting)


def publisher(identity: Identity) -> str:
    """The name that stands beside what an identity publishes. An operator is not a tenant's principal of that name."""
    return f":{identity.principal}" if identity.is_operator else identity.principal


def no_topic(topic: str) -> TopicNotFound:
    """What is said of a topic that is not there, or not there for whoever asks."""
    return TopicNotFound(
        f"There is no topic {topic!r}. Topics are never created by themselves: call create_topic first."
    )


def matches(pattern: str, name: str) -> bool:
    """Whether a name fits a pattern, in which `*` stands for any text, none included. Linear in the name's length."""
    first, *rest = pattern.split("*")
    if not rest:
        return pattern == name
    *middle, last = rest
    at, end = len(first), len(name) - len(last)
    if at > end or not name.startswith(first) or not name.endswith(last):
        return False
    for part in middle:
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def check_principal(name: object) -> str:
    """A principal's name."""
    if not isinstance(name, str) or _PRINCIPAL.fullmatch(name) is None:
        raise InvalidArgument(
            f"A principal's name has 1 to 128 letters, digits and . _ @ / + -, beginning with a letter or digit; "
            f"got {name!r}."
        )
    return name


def check_grants(grants: Sequence[Grant], tenant: str) -> tuple[Grant, ...]:
    """Grants for a principal of a tenant, or for an operator (tenant "")."""
    if len(grants) > GRANTS_MAX:
        raise InvalidArgument(f"A principal has at most {GRANTS_MAX} grants; got {len(grants)}. Use patterns.")
    for grant in grants:
        if tenant != OPERATORS and grant.tenants:
            raise InvalidArgument("Only an operator's grant is for other tenants: leave tenants out.")
        if tenant != OPERATORS and grant.action in STORE_ACTIONS:
            raise InvalidArgument(f"{grant.action!r} is for operators of the store: make the principal one of them.")
        if tenant == OPERATORS and not grant.tenants and grant.action in TOPIC_ACTIONS:
            raise InvalidArgument("Topics belong to tenants: say whose, as in tenants='*'.")
    return tuple(grants)


def _allows(identity: Identity, action: str, topic: str | None, tenant: str | None) -> bool:
    if action in TOPIC_ACTIONS and identity.is_operator and not tenant:
        # The store as a whole has no topics.
        return False
    fitting = [
        grant for grant in _here(identity, tenant, action in STORE_ACTIONS) if grant.is_for(action, topic, deny=True)
    ]
    if any(grant.effect == "deny" for grant in fitting):
        return False
    return any(grant.is_for(action, topic) for grant in fitting)


def _is_at_home(identity: Identity, tenant: str | None) -> bool:
    """Whether the identity has to do with a tenant's topics at all."""
    if identity.is_operator:
        return next(_here(identity, tenant), None) is not None
    return tenant in (None, identity.tenant)


def _here(identity: Identity, tenant: str | None, store: bool = False) -> Iterator[Grant]:
    """The grants that hold in a tenant, or for the store as a whole."""
    if not identity.is_operator:
        if not store and tenant in (None, identity.tenant):
            yield from identity.grants
        return
    for grant in identity.grants:
        if not tenant or store:
            if not grant.tenants:
                yield grant
        elif grant.tenants and matches(grant.tenants, tenant):
            yield grant
