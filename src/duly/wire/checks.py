"""What a broker accepts in the fields of commands: one check a name, the same wherever that name stands."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..causal import check_operation
from ..engine.budget import MESSAGES_MAX
from ..engine.incoming import check_priority
from ..engine.replay import check_copies
from ..engine.stage import STAGES_MAX, check_label
from ..errors import InvalidArgument, LimitExceeded
from ..grants import GRANTS_MAX, check_principal
from ..keys import check_key_id
from ..limits import LIMITS
from ..push import read_secret
from ..tenant import check_name

_WHOLE_MAX = 2**62


def _free(_value: Any, _name: str) -> None:
    """Its type says all."""


def _named(value: str | None, name: str) -> None:
    if value is not None:
        check_name(value, f"{name} name")


def _named_if_given(value: str | None, name: str) -> None:
    """A queue's one group needs no name; a tenant is named by the key."""
    if value:
        check_name(value, f"{name} name")


def _principal_if_given(value: str | None, _name: str) -> None:
    if value is not None:
        check_principal(value)


def _key_id(value: str, _name: str) -> None:
    check_key_id(value)


def _secret(value: str | None, _name: str) -> None:
    if value is not None:
        read_secret(value)


def _text(chars_max: int) -> Callable[[str | None, str], None]:
    def check(value: str | None, name: str) -> None:
        if value is not None and len(value) > chars_max:
            raise LimitExceeded(f"{name} has at most {chars_max} characters; this one has {len(value)}.")

    return check


def _from_to(low: float, high: float) -> Callable[[float | None, str], None]:
    def check(value: float | None, name: str) -> None:
        if value is not None and not low <= value <= high:
            raise LimitExceeded(f"{name} must be {low} to {high}; got {value}.")

    return check


def _operation(value: str, _name: str) -> None:
    check_operation(value)


def _some(many: int, each: Callable[[Any, str], None]) -> Callable[[Iterable[Any] | None, str], None]:
    def check(values: Iterable[Any] | None, name: str) -> None:
        given = list(values or ())
        if len(given) > many:
            raise LimitExceeded(f"{name}: at most {many} at a time; got {len(given)}.")
        for value in given:
            each(value, name)

    return check


def _place(value: tuple[int, ...] | str, name: str) -> None:
    if isinstance(value, str):
        _text(LIMITS.name_chars_max)(value, name)
        return
    for part in value:
        _from_to(-1, _WHOLE_MAX)(part, name)


def _priorities(value: tuple[int, int] | None, _name: str) -> None:
    for priority in value or ():
        check_priority(priority)


def _priority(value: int | None, _name: str) -> None:
    if value is not None:
        check_priority(value)


def _due(value: int | None, name: str) -> None:
    # Negative: so many milliseconds from now on, less one.
    _from_to(-1 - LIMITS.due_ms_ahead_max, _WHOLE_MAX)(value, name)


def _verdict(value: str, _name: str) -> None:
    if value not in ("ack", "nack", "release", "bury", "extend"):
        raise InvalidArgument(f"A verdict is ack, nack, release, bury or extend; got {value!r}.")


def _token(token: Any, name: str) -> None:
    _from_to(0, _WHOLE_MAX)(token.lease_id, name)
    _some(LIMITS.claim_messages_max, _from_to(0, _WHOLE_MAX))(token.indexes, name)


def _acks(acks: Any, _name: str) -> None:
    if acks is not None:
        _text(64)(acks.incarnation, "incarnation")
        _some(LIMITS.claim_messages_max, _token)(acks.tokens, "tokens")


def _pairs(pair: tuple[Any, int], name: str) -> None:
    _from_to(0, _WHOLE_MAX)(pair[1], name)


def _label(value: str, name: str) -> None:
    check_label(value, name)


def _stage(stage: str | tuple[str, int], name: str) -> None:
    """By name, or with the number of its messages."""
    if not isinstance(stage, str):
        _from_to(0, _WHOLE_MAX)(stage[1], name)
        stage = stage[0]
    _label(stage, "stage")


def _copies(copies: tuple[Any, ...], name: str) -> None:
    _some(LIMITS.replay_messages_max, _free)(copies, name)
    for copy in copies:
        _from_to(0, _WHOLE_MAX)(copy.offset, "offset")
        _from_to(0, _WHOLE_MAX)(copy.published_at_ms, "published_at_ms")
    check_copies(copies)


def _start(start: Any, name: str) -> None:
    given = [value for value in (start.word, start.at_ms, start.offsets or None) if value is not None]
    if len(given) != 1 or start.word not in (None, "earliest", "latest"):
        raise InvalidArgument("A group starts at 'earliest', 'latest', a time, or offsets by partition: give one.")
    _from_to(0, _WHOLE_MAX)(start.at_ms, name)
    for pair in start.offsets.items():
        _place(pair, name)
        if min(pair) < 0:
            raise InvalidArgument(f"Offsets are whole numbers from 0 on, by partition; got {pair}.")


CHECKS: dict[str, Callable[[Any, str], None]] = {
    "tenant": _named_if_given,
    "name": _named,
    "topic": _named,
    "group": _named_if_given,
    "consumer": _named,
    "principal": _principal_if_given,
    "grants": _some(GRANTS_MAX, _free),
    "certificates": _some(64, _text(512)),
    "note": _text(LIMITS.name_chars_max),
    "ttl_ms": _from_to(1, LIMITS.due_ms_ahead_max),
    "overlap_ms": _from_to(0, LIMITS.due_ms_ahead_max),
    "key_id": _key_id,
    "by": _free,
    "to_http": _free,
    "to_topic": _free,
    "of_topic": _named_if_given,
    "secret": _secret,
    "operators": _free,
    "operation": _operation,
    "schedule": _named,
    "publisher": _text(2 * LIMITS.name_chars_max),
    "count": _from_to(1, LIMITS.schedule_ticks_max),
    "messages": _from_to(1, MESSAGES_MAX),
    "stopped": _free,
    "above": _from_to(0, _WHOLE_MAX),
    "own": _free,
    "settings": _free,
    "changes": _free,
    "exist_ok": _free,
    "force": _free,
    "paused": _free,
    "start": _start,
    "version": _from_to(0, _WHOLE_MAX),
    "partition": _from_to(0, LIMITS.partitions_max),
    "partition_id": _from_to(0, _WHOLE_MAX),
    "offset": _from_to(0, _WHOLE_MAX),
    "max_messages": _from_to(1, LIMITS.claim_messages_max),
    "max_bytes": _from_to(1, LIMITS.batch_bytes_max),
    "lease_ms": _from_to(LIMITS.lease_ms_min, LIMITS.lease_ms_max),
    "delay_ms": _from_to(0, LIMITS.due_ms_ahead_max),
    "reason": _text(LIMITS.reason_chars_max),
    "incarnation": _text(64),
    "verdict": _verdict,
    "acks": _acks,
    "tokens": _some(LIMITS.claim_messages_max, _token),
    "ids": _some(LIMITS.batch_messages_max, _free),
    "id": _free,
    "message": _free,
    "due": _due,
    "priority": _priority,
    "priorities": _priorities,
    "due_from": _from_to(0, _WHOLE_MAX),
    "due_before": _from_to(0, _WHOLE_MAX),
    "state": _text(16),
    "lane": _text(LIMITS.name_chars_max),
    "key": _text(LIMITS.key_bytes_max),
    "after": _place,
    "limit": _from_to(1, LIMITS.page_max),
    "since": _from_to(0, _WHOLE_MAX),
    "leases": _some(LIMITS.page_max, _pairs),
    "places": _some(LIMITS.partitions_max, _place),
    "at_ms": _from_to(0, _WHOLE_MAX),
    "minutes": _from_to(1, LIMITS.due_ms_ahead_max // 60_000),
    "rate_per_s": _from_to(0, LIMITS.rate_per_s_max),
    "job": _label,
    "offsets": _some(LIMITS.replay_messages_max, _from_to(0, _WHOLE_MAX)),
    "copies": _copies,
    "stages": _some(STAGES_MAX, _stage),
}
