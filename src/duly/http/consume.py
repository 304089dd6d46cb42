"""Claim and settle: deliveries with tokens, and verdicts on them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ..clock import monotonic_s
from ..engine.claimed import Claim, Claimed, Parcel
from ..engine.settle import Held, ReleaseConsumer
from ..engine.verdict import Settle, Verdicts
from ..errors import LeaseLost, Timeout
from ..limits import LIMITS
from ..message import made_id
from ..tenant import check_name
from .endpoint import Call, Endpoint, endpoint
from .fields import Bytes, Consumer, Delay, Lease, Name, Payload, Texts, Token, Wait
from .problems import invalid
from .tokens import read_tokens, token_of, token_of_all

_FOUND = ("topic_not_found", "group_not_found", "invalid_argument")
_COLUMNS = ("payload", "id", "key", "headers", "lane", "priority", "due_at")

_Reason = Annotated[str, Meta(max_length=LIMITS.reason_chars_max)]


class WantedClaim(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A wish for messages. A log's names its group; `lease_ms` null takes the group's."""

    group: Name | None = None
    max_messages: Annotated[int, Meta(ge=1, le=LIMITS.claim_messages_max)] = 100
    max_bytes: Bytes = LIMITS.http_bytes_default
    wait_ms: Wait = 0
    lease_ms: Lease | None = None
    consumer: Consumer | None = None


class Delivery(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A message under a lease, and the token to settle it with. `attempt` counts deliveries, from 1 on."""

    token: Token
    id: str
    partition: int
    offset: int
    attempt: int
    published_at_ms: int
    payload_base64: Payload
    key: str | None = None
    headers: Texts = {}
    lane: str | None = None
    priority: int = 0
    due_at_ms: int | None = None


class Deliveries(msgspec.Struct, kw_only=True):
    """What a claim got, yours until `lease_expires_at_ms`. `token` is for all of it; null when it got nothing."""

    topic: str
    group: str
    token: Token | None
    lease_ms: int
    lease_expires_at_ms: int
    deliveries: list[Delivery]


class HeldDeliveries(msgspec.Struct):
    """What a consumer holds, a batch a group, under new tokens."""

    held: list[Deliveries]


class Tokens(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What to settle: one `token` (then a lost lease is an error), or `tokens`. A log's group is named too."""

    token: Token | None = None
    tokens: Annotated[list[Token], Meta(max_length=LIMITS.claim_messages_max)] | None = None
    group: Name | None = None


class NackedTokens(Tokens, forbid_unknown_fields=True, kw_only=True):
    """What to give back, after a wait (or as the retry policy says), and why."""

    delay_ms: Delay | None = None
    reason: _Reason = ""


class ReleasedTokens(Tokens, forbid_unknown_fields=True, kw_only=True):
    """What to give back, at once or after a wait."""

    delay_ms: Delay | None = None


class ExtendedTokens(Tokens, forbid_unknown_fields=True, kw_only=True):
    """What to hold for longer: for `lease_ms` from now on, or as the group says."""

    lease_ms: Lease | None = None


class BuriedTokens(Tokens, forbid_unknown_fields=True, kw_only=True):
    """What to give up, and why."""

    reason: _Reason = ""


class Settled(msgspec.Struct):
    """How many were settled, and the tokens whose lease was lost: of those nothing changed."""

    done: int
    lost: list[str]


class Extended(msgspec.Struct):
    """How many are held for longer, until when, and the tokens whose lease was lost.

    `renewed`: part of a lease that is extended gets another, so here are new tokens by old ones. `cancelled`: they were
    cancelled meanwhile; ack them if the work is done, otherwise they are gone.
    """

    done: int
    lost: list[str]
    lease_expires_at_ms: int
    renewed: dict[str, str]
    cancelled: list[str]


class OfConsumer(msgspec.Struct, forbid_unknown_fields=True):
    """In one topic, or in one group; without them in all that it was seen in."""

    topic: Name | None = None
    group: Name | None = None


class Released(msgspec.Struct):
    """How many messages were given back."""

    done: int


# Claim


@endpoint(
    "POST",
    "/v1/topics/{topic}/claim",
    tag="consume",
    does=(Claim,),
    body=WantedClaim,
    body_optional=True,
    answer=Deliveries,
    refuses=(*_FOUND, "corrupt_block", "not_ready"),
)
async def claim(call: Call) -> Deliveries:
    """Take due messages under a lease, waiting up to `wait_ms` for the first. Who waits is served in turn."""
    wanted: WantedClaim = call.body
    command = Claim(
        call.tenant,
        check_name(call.topic, "name"),
        _group(wanted.group),
        _consumer(call, wanted.consumer),
        wanted.max_messages,
        wanted.max_bytes,
        wanted.lease_ms,
    )
    wait_until = monotonic_s() + wanted.wait_ms / 1000 if wanted.wait_ms else None
    return delivered(await call.home.crossing.claim(call.entry, command, wait_until=wait_until, receive=call.receive))


def _group(group: str | None) -> str:
    # A queue has one; of a log the engine will want to know which.
    return "" if group is None else check_name(group, "group name")


def _consumer(call: Call, name: str | None) -> str:
    if name is not None:
        return check_name(name, "consumer name", LIMITS.consumer_chars_max)
    return f"http-{(call.scope.get('client') or ('unknown',))[0]}"


def delivered(claimed: Claimed) -> Deliveries:
    """What was claimed, as the client gets it."""
    leases = [parcel.lease_id for parcel in claimed.parcels]
    return Deliveries(
        topic=claimed.topic,
        group=claimed.group,
        token=token_of_all(claimed.incarnation, leases),
        lease_ms=claimed.lease_ms,
        lease_expires_at_ms=claimed.expires_at,
        deliveries=[one for parcel in claimed.parcels for one in _unpacked(parcel, claimed.incarnation)],
    )


def _unpacked(parcel: Parcel, incarnation: str) -> Iterator[Delivery]:
    for part in parcel.slices:
        columns, none = part.block.columns, [None] * (part.stop - part.start)
        base = part.block.base
        offsets = columns.values("offset", part.start, part.stop) or range(base + part.start, base + part.stop)
        moments = columns.values("published_at", part.start, part.stop) or [part.block.published_at] * len(none)
        others = (columns.values(name, part.start, part.stop) or none for name in _COLUMNS)
        rows = zip(offsets, moments, *others, strict=True)
        for index, row in enumerate(rows, part.first_index):
            yield _delivery(parcel, token_of(incarnation, parcel.lease_id, index), index, row)


def _delivery(parcel: Parcel, token: str, index: int, row: tuple[Any, ...]) -> Delivery:
    offset, published_at, payload, given_id, key, headers, lane, priority, due_at = row
    return Delivery(
        token=token,
        id=given_id or made_id(parcel.partition_id, offset),
        partition=parcel.partition,
        offset=offset,
        attempt=parcel.attempt if parcel.attempts is None else parcel.attempts[index],
        published_at_ms=published_at,
        payload_base64=payload,
        key=key,
        headers=headers or {},
        lane=lane,
        priority=priority or 0,
        due_at_ms=due_at,
    )


# Settle


def _verb(name: str, body: type[Tokens], answer: type, run: Any) -> Endpoint:
    facts: Any = {"refuses": (*_FOUND, "lease_lost"), "tag": "consume", "does": (Settle,), "always": True}
    return endpoint("POST", f"/v1/topics/{{topic}}/{name}", body=body, answer=answer, **facts)(run)


async def _ack(call: Call) -> Settled:
    """Finish deliveries."""
    return _settled(call, await _settle(call, "ack"))


async def _nack(call: Call) -> Settled:
    """Give deliveries back to be tried again: after a delay, or as the retry policy says. An attempt is counted."""
    return _settled(call, await _settle(call, "nack", call.body.delay_ms, call.body.reason))


async def _release(call: Call) -> Settled:
    """Give deliveries back, at once or after a delay. No attempt is counted."""
    return _settled(call, await _settle(call, "release", call.body.delay_ms))


async def _bury(call: Call) -> Settled:
    """Move deliveries to the dead letters now."""
    return _settled(call, await _settle(call, "bury", reason=call.body.reason))


async def _extend(call: Call) -> Extended:
    """Hold deliveries for longer."""
    answers = await _settle(call, "extend", call.body.lease_ms)
    settled = _settled(call, answers)
    return Extended(
        settled.done,
        settled.lost,
        max((verdicts.expires_at for _, verdicts in answers), default=0),
        {token_of(own, *old): token_of(own, *new) for own, v in answers for old, new in v.renewed.items()},
        [token_of(own, *v.renewed.get(pair, pair)) for own, v in answers for pair in v.cancelled],
    )


ack = _verb("ack", Tokens, Settled, _ack)
nack = _verb("nack", NackedTokens, Settled, _nack)
release = _verb("release", ReleasedTokens, Settled, _release)
bury = _verb("bury", BuriedTokens, Settled, _bury)
extend = _verb("extend", ExtendedTokens, Extended, _extend)


async def _settle(
    call: Call, verdict: str, delay_ms: int | None = None, reason: str = ""
) -> list[tuple[str, Verdicts]]:
    """The verdicts, by the incarnation that gave the tokens: there is one, but for clients that outlived a restore."""
    topic, group = check_name(call.topic, "name"), _group(call.body.group)
    wanted = read_tokens(_texts(call.body))
    commands = [Settle(call.tenant, own, topic, group, verdict, some, delay_ms, reason) for own, some in wanted.items()]
    try:
        answers = await asyncio.gather(*(call.do(command) for command in commands))
    except TimeoutError:
        raise Timeout(
            "It is unknown whether this was done. Repeat it; what was done is then answered as lost."
        ) from None
    return list(zip(wanted, answers, strict=True))


def _texts(body: Tokens) -> Iterable[str]:
    if (body.token is None) == (body.tokens is None):
        raise invalid("Give token, or tokens.")
    return [body.token] if body.token is not None else body.tokens or ()


def _settled(call: Call, answers: list[tuple[str, Verdicts]]) -> Settled:
    lost = [token_of(own, *pair) for own, verdicts in answers for pair in verdicts.lost]
    if lost and call.body.token is not None:
        raise LeaseLost(lost=lost)
    return Settled(sum(verdicts.done for _, verdicts in answers), lost)


# A consumer that hangs, or that came back


@endpoint(
    "POST",
    "/v1/consumers/{consumer}/release",
    tag="consume",
    does=(ReleaseConsumer,),
    body=OfConsumer,
    body_optional=True,
    answer=Released,
    refuses=_FOUND,
)
def release_consumer(call: Call) -> Released:
    """Give back at once all that a (hung) consumer holds."""
    name, wanted = call.path["consumer"], call.body
    return Released(call.client.release(consumer=name, topic=wanted.topic, group=wanted.group).done)


@endpoint(
    "POST",
    "/v1/consumers/{consumer}/held",
    tag="consume",
    does=(Held,),
    body=OfConsumer,
    body_optional=True,
    answer=HeldDeliveries,
    refuses=(*_FOUND, "corrupt_block"),
)
def held(call: Call) -> HeldDeliveries:
    """Give a restarted consumer its unexpired leases back, and fence its former self off."""
    name = check_name(call.path["consumer"], "consumer name", LIMITS.consumer_chars_max)
    command = Held(call.tenant, name, call.body.topic, call.body.group)
    found: list[Claimed] = call.entry.do(command, deadline=monotonic_s() + 30)
    return HeldDeliveries([delivered(claimed) for claimed in found])
