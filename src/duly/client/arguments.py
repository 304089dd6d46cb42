"""The arguments that callers give, checked: each function returns what it was given, or says what is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from ..clock import Duration, milliseconds, moment_ms
from ..engine.groups import Start, start_from
from ..engine.incoming import check_priority
from ..engine.stretch import check_columns
from ..errors import InvalidArgument, LimitExceeded
from ..limits import LIMITS
from ..tenant import check_name
from ..topic import TopicSettings


def topic_settings(kind: str, settings: Mapping[str, Any]) -> TopicSettings:
    known = TopicSettings.__slots__
    for name in settings:
        if name not in known:
            raise InvalidArgument(f"There is no setting {name!r}. Settings: {', '.join(sorted(known))}.")
    return TopicSettings(kind=kind, **settings)


def named(name: object) -> str:
    return check_name(name, "name")


def group_named(group: object) -> str:
    if group is None:
        # A queue has one; of a log the engine will want to know which.
        return ""
    return check_name(group, "group name")


def start_at(start: object, name: str = "start") -> Start:
    if isinstance(start, datetime):
        return Start(at_ms=moment_ms(start, name))
    return start_from(start)


def whole(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidArgument(f"{name} must be a whole number from 0 on; got {value!r}.")
    return value


def flag(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidArgument(f"{name} must be True or False; got {value!r}.")
    return value


def count(value: object, name: str, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidArgument(f"{name} must be 1 to {most}; got {value!r}.")
    return value


def byte_budget(value: int | None) -> int:
    return LIMITS.claim_bytes_default if value is None else count(value, "max_bytes", LIMITS.batch_bytes_max)


def page_size(limit: int | None) -> int:
    return 2**62 if limit is None else count(limit, "limit", 2**62)


def timeout_s(timeout: Duration) -> float:
    ms = milliseconds(timeout, "timeout")
    if not 0 < ms <= 3_600_000:
        raise InvalidArgument("timeout must be more than 0 and at most an hour.")
    return ms / 1000


def lease_ms(lease: Duration) -> int:
    ms = milliseconds(lease, "lease")
    if not LIMITS.lease_ms_min <= ms <= LIMITS.lease_ms_max:
        raise LimitExceeded(f"lease must be {LIMITS.lease_ms_min} to {LIMITS.lease_ms_max} milliseconds.")
    return ms


def wait_ms(wait: Duration) -> int:
    ms = milliseconds(wait, "wait")
    if not 0 <= ms <= LIMITS.wait_ms_max:
        raise LimitExceeded(f"wait must be 0 to {LIMITS.wait_ms_max // 1000} seconds. Claim again to wait longer.")
    return ms


def delay_ms(delay: Duration) -> int:
    ms = milliseconds(delay, "delay")
    if not 0 <= ms <= LIMITS.due_ms_ahead_max:
        raise LimitExceeded(f"delay must be 0 to {LIMITS.due_ms_ahead_max // 1000} seconds.")
    return ms


def after_name(after: object) -> str:
    """The name after which a page begins."""
    if not isinstance(after, str):
        raise InvalidArgument(f"after must be a topic name, not {type(after).__name__}.")
    return after


def place_after(after: object) -> tuple[int, int]:
    if (
        not isinstance(after, tuple)
        or len(after) != 2
        or any(isinstance(part, bool) or not isinstance(part, int) or not -1 <= part < 2**62 for part in after)
        or after[0] < 0
    ):
        raise InvalidArgument(f"after is a place: (partition, offset); got {after!r}.")
    return after[0], after[1]


def column_names(columns: object) -> tuple[str, ...]:
    """The columns that are wanted; none stands for all."""
    if columns is None:
        return ()
    if isinstance(columns, (str, bytes)) or not isinstance(columns, Iterable):
        raise InvalidArgument("columns is a list of names: pass [name].")
    names = tuple(dict.fromkeys(columns))
    if not names:
        raise InvalidArgument("columns names none. Leave it out to read all.")
    check_columns(names)
    return names


def message_ids(ids: object) -> frozenset[str]:
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
        raise InvalidArgument("ids is a list of message ids: pass [id].")
    given = list(ids)
    for entry in given:
        if not isinstance(entry, str):
            raise InvalidArgument(f"A message id is a str, not {type(entry).__name__}.")
    return frozenset(given)


def queue_ids(ids: object) -> tuple[str, ...]:
    """One id, or some; each once, in the order given."""
    if not isinstance(ids, str) and (isinstance(ids, bytes) or not isinstance(ids, Iterable)):
        raise InvalidArgument(f"ids is a message id, or a list of them; not {type(ids).__name__}.")
    given = [ids] if isinstance(ids, str) else list(ids)
    if len(given) > LIMITS.batch_messages_max:
        raise LimitExceeded(f"At most {LIMITS.batch_messages_max} ids at a time; got {len(given)}.")
    return tuple(dict.fromkeys(message_id(text) for text in given))


def message_id(text: object) -> str:
    """One message id."""
    if not isinstance(text, str):
        raise InvalidArgument(f"A message id is a str, not {type(text).__name__}.")
    return _encodable(text, "A message id")


def filter_text(text: object, name: str) -> str | None:
    """What a text must be equal to; None: anything."""
    if text is None:
        return None
    if not isinstance(text, str):
        raise InvalidArgument(f"{name} must be a str, not {type(text).__name__}.")
    return _encodable(text, name)


def _encodable(text: str, name: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{name} is not valid Unicode.") from error
    if not text:
        raise InvalidArgument(f"{name} must not be empty.")
    return text


def priority_span(given: object) -> tuple[int, int] | None:
    """One priority, or (lowest, highest); None: any."""
    if given is None:
        return None
    low, high = given if isinstance(given, tuple) and len(given) == 2 else (given, given)
    if isinstance(given, tuple) and len(given) != 2:
        raise InvalidArgument(f"priority is a number, or a pair (lowest, highest); got {given!r}.")
    span = check_priority(low), check_priority(high)
    if span[0] > span[1]:
        raise InvalidArgument(f"priority: the lowest must not be above the highest; got {given!r}.")
    return span


def folder_path(folder: object) -> str:
    if not isinstance(folder, (str, os.PathLike)):
        raise InvalidArgument(f"The folder of backups must be a path, not {type(folder).__name__}.")
    path = os.fspath(folder)
    if not isinstance(path, str) or not path or "\0" in path:
        raise InvalidArgument("The folder of backups must be the path of a folder.")
    return os.path.abspath(_encodable(path, "The folder of backups"))


def per_second(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= LIMITS.rate_per_s_max:
        raise InvalidArgument(f"{name} must be more than 0 and at most {LIMITS.rate_per_s_max} a second.")
    return float(value)


def bytes_a_second(rate: object) -> float:
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 1 <= rate < 1e18:
        raise InvalidArgument(f"rate must be bytes a second, from 1 on; got {rate!r}.")
    return rate


def reason_text(reason: object) -> str:
    """Why a message failed: cut to a length that can be listed."""
    if not isinstance(reason, str):
        raise InvalidArgument(f"reason must be a str, not {type(reason).__name__}.")
    return reason[: LIMITS.reason_chars_max].encode(errors="replace").decode()
