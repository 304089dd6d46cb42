"""The data source's options, parsed and checked once.

Spark gives options as text, their names in any case. An unknown one is refused: one that is misspelt would else be
obeyed by nobody.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

import duly

from ..client.addresses import is_broker
from ..errors import InvalidArgument, NotFound
from ..tenant import check_name
from .columns import COLUMNS, DEFAULT_COLUMNS

ROWS_PER_PARTITION = 500_000
_WHOLE_MAX = 2**62

NAMES = (
    "url",
    "token",
    "tenant",
    "topic",
    "startingOffsets",
    "endingOffsets",
    "startingTime",
    "endingTime",
    "rowsPerPartition",
    "columns",
    "failOnDataLoss",
    "maxRowsPerBatch",
    "pushdown",
)

# By topic, by partition.
Offsets = dict[str, dict[int, int]]


class Place(msgspec.Struct, frozen=True):
    """Where reading begins or ends: "earliest", "latest", a time in milliseconds, or offsets."""

    word: str = ""
    time_ms: int | None = None
    offsets: Offsets | None = None


EARLIEST, LATEST = Place("earliest"), Place("latest")


class Home(msgspec.Struct, frozen=True):
    """The store or broker that is meant, and whose topics. What is shown of it never shows the token."""

    url: str
    # "" is whose the key is, else the one that is used when nothing is said.
    tenant: str = ""
    token: str | None = None

    def __repr__(self) -> str:
        hidden = None if self.token is None else "***"
        return f"Home(url={self.url!r}, tenant={self.tenant!r}, token={hidden!r})"

    def connect(self, timeout: float = 30) -> duly.Client:
        """A client there. Raises NotFound if it is a file that is not there: one that reads makes none."""
        if not is_broker(self.url) and not os.path.isfile(self.url):
            raise NotFound(
                f"There is no store at {self.url!r} on this machine. Give its absolute path, or the url of a broker "
                "(duly://host:port), which every machine of a cluster can read from."
            )
        token = self.token if is_broker(self.url) else None
        return duly.connect(self.url, tenant=self.tenant or None, token=token, timeout=timeout)


class ReadOptions(msgspec.Struct, frozen=True):
    """What is to be read."""

    home: Home
    topics: tuple[str, ...]
    start: Place
    end: Place
    rows_per_partition: int
    columns: tuple[str, ...]
    fail_on_data_loss: bool
    max_rows_per_batch: int | None
    pushdown: bool = False


def home_of(options: Mapping[str, str]) -> Home:
    """Where the topics are. Raises InvalidArgument."""
    given = {name.lower(): value for name, value in options.items()}
    url = given.get("url")
    if not url:
        raise InvalidArgument('Say which store: .option("url", …), the path of a file or duly://host:port.')
    if not is_broker(url) and "://" in url:
        raise InvalidArgument(f"The option url is the path of a file or duly://host:port, not {url!r}.")
    tenant = check_name(given["tenant"], "tenant name") if "tenant" in given else ""
    return Home(url, tenant, given.get("token"))


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """The options of a read. Raises InvalidArgument, which says what is wrong and what would be right."""
    given = checked_names(options, NAMES)
    topics = topic_names(given)
    return ReadOptions(
        home=home_of(given),
        topics=topics,
        start=_place(given, "starting", topics, EARLIEST),
        end=_place(given, "ending", topics, LATEST),
        rows_per_partition=_count(given, "rowsPerPartition") or ROWS_PER_PARTITION,
        columns=_columns(given.get("columns")),
        fail_on_data_loss=_flag(given, "failOnDataLoss", True),
        max_rows_per_batch=_count(given, "maxRowsPerBatch"),
        pushdown=_flag(given, "pushdown", False),
    )


def checked_names(options: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """The options by their right names. Raises InvalidArgument for one that there is not."""
    known = {name.lower(): name for name in names}
    found: dict[str, str] = {}
    for name, value in options.items():
        if name.lower() not in known:
            near = difflib.get_close_matches(name.lower(), known, 1, 0.6)
            hint = f" Did you mean {known[near[0]]}?" if near else f" There are {', '.join(names)}."
            hint = ' Give .option("url", …) and .option("topic", …) instead.' if name.lower() == "path" else hint
            raise InvalidArgument(f"There is no option {name!r}.{hint}")
        found[known[name.lower()]] = value
    return found


def topic_names(given: Mapping[str, str]) -> tuple[str, ...]:
    """The topics that are meant, one or several."""
    text = given.get("topic", "")
    names = _listed(text) or [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InvalidArgument('Say which topic: .option("topic", "orders"); of several, "orders,emails".')
    return tuple(check_name(name, "topic name") for name in dict.fromkeys(names))


def _listed(text: str) -> list[str]:
    """Names as a JSON list: they may have commas, and spaces at their ends."""
    try:
        found = json.loads(text)
    except ValueError:
        return []
    return found if isinstance(found, list) and all(isinstance(name, str) for name in found) else []


def _columns(given: str | None) -> tuple[str, ...]:
    if given is None:
        return DEFAULT_COLUMNS
    names = {name.strip() for name in given.split(",") if name.strip()}
    if not names:
        raise InvalidArgument("The option columns names none. Leave it out to read all.")
    for name in sorted(names):
        if name not in COLUMNS:
            raise InvalidArgument(f"There is no column {name!r} to read. There are {', '.join(COLUMNS)}.")
    return tuple(name for name in COLUMNS if name in names)


def _place(given: Mapping[str, str], which: str, topics: tuple[str, ...], default: Place) -> Place:
    offsets, time = given.get(f"{which}Offsets"), given.get(f"{which}Time")
    if offsets is not None and time is not None:
        raise InvalidArgument(f"Give {which}Offsets or {which}Time, not both.")
    if time is not None:
        return Place(time_ms=_moment(time, f"{which}Time"))
    if offsets is None:
        return default
    if offsets.strip().lower() in ("earliest", "latest"):
        return Place(offsets.strip().lower())
    return Place(offsets=_offsets(offsets, f"{which}Offsets", topics))


def _moment(text: str, name: str) -> int:
    if text.strip().lstrip("-").isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidArgument(
            f"The option {name} is a time with its zone, like 2026-01-31T09:00:00Z, or milliseconds since 1970; "
            f"got {text!r}."
        )
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _offsets(text: str, name: str, topics: tuple[str, ...]) -> Offsets:
    wrong = InvalidArgument(
        f'The option {name} is "earliest", "latest", or JSON: {{"0": 12}} by partition, or of several topics '
        f'{{"orders": {{"0": 12}}}}; got {text!r}.'
    )
    try:
        found = json.loads(text)
    except ValueError:
        raise wrong from None
    if not isinstance(found, dict):
        raise wrong
    if len(topics) == 1 and not any(isinstance(value, dict) for value in found.values()):
        found = {topics[0]: found}
    for topic, parts in found.items():
        if topic not in topics:
            raise InvalidArgument(f"The option {name} speaks of {topic!r}, which is not among {', '.join(topics)}.")
        if not isinstance(parts, dict) or not all(_is_offset(*part) for part in parts.items()):
            raise wrong
    return {topic: {int(number): offset for number, offset in parts.items()} for topic, parts in found.items()}


def _is_offset(number: str, offset: Any) -> bool:
    return number.isdecimal() and type(offset) is int and 0 <= offset < _WHOLE_MAX


def _count(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not text.strip().isdecimal() or not 0 < int(text) < _WHOLE_MAX:
        raise InvalidArgument(f"The option {name} is a whole number from 1 on; got {text!r}.")
    return int(text)


def _flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name)
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise InvalidArgument(f"The option {name} is true or false; got {text!r}.")
    return text.strip().lower() == "true"
