"""schedule: rows onto a queue, each due at its time; or moves and cancels of a list of ids.

    rows ──as messages──▶ write.format("duly") ──▶ staged by the tasks, published as version 0 of job schedule/<name>

All rows are published, or none; and once: the store remembers the job for 30 days, whoever was killed meanwhile. Rows
with ids are told from those on the queue besides.

Moves and cancels go to the store from the tasks, rows of one due time and priority together. They are no transaction:
killed, or tried again by Spark, they are simply done again, and what was cancelled before is then answered as finished.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import groupby, islice, repeat
from operator import itemgetter
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame

import duly

from ...clock import from_ms
from ...errors import InvalidArgument
from ...tenant import DEFAULT_TENANT
from ..causes import explained
from ..faults import briefly
from ..messages import NAMED, as_messages, converted, with_expressions
from ..options import Home, home_of
from ..writing import to_messages
from .versions import published

_VERSION = 0
_IDS_A_CALL = 10_000
_CALLS_AT_ONCE = 8
_MOVED = ("due_at", "priority")
_PATIENCE_S = 600
_ANSWERS = pa.schema([("answer", pa.string()), ("messages", pa.int64())])


class Scheduled(msgspec.Struct, frozen=True):
    """What is on the queue because of a job: messages, and how many it had already under their ids.

    `before`: all of it was stored by an earlier run, nothing by this one.
    """

    messages: int
    duplicates: int
    before: bool


def schedule(
    rows: DataFrame,
    url: str,
    topic: str,
    *,
    name: str,
    tenant: str = DEFAULT_TENANT,
    payload: str | None = None,
    due: str | None = None,
) -> Scheduled:
    """Puts rows onto a queue, all or none, and once for each `name`. `payload` and `due` are SQL expressions.

    Raises InvalidArgument for rows that are no messages, and what publishing raises.
    """
    home, job = home_of({"url": url, "tenant": tenant}), f"schedule/{name}"
    if (before := done_before(home, topic, name)) is not None:
        return before
    messages = as_messages(rows, payload=payload, due=due)
    options = {"url": url, "tenant": tenant, "topic": json.dumps([topic]), "job": job, "version": str(_VERSION)}
    try:
        messages.write.format("duly").mode("append").options(**options).save()
    except Exception as error:
        raise explained(error) from error
    with home.connect() as q:
        done = published(q, topic, job, _VERSION)
    assert done is not None
    return Scheduled(done.messages, done.duplicates, before=False)


def done_before(home: Home, topic: str, name: str) -> Scheduled | None:
    """What an earlier run under that name stored; None: there was none. Raises InvalidArgument if it is no queue."""
    with home.connect() as q:
        if q.describe_topic(topic).kind != "queue":
            raise InvalidArgument(f"{topic!r} is a log: what is due at a time belongs on a queue.")
        done = published(q, topic, f"schedule/{name}", _VERSION)
    return None if done is None else Scheduled(done.messages, done.duplicates, before=True)


def move(
    rows: DataFrame, url: str, topic: str, *, tenant: str = DEFAULT_TENANT, due: str | None = None
) -> Counter[str]:
    """Gives messages, by `id`, another `due` time or `priority`; how many were moved, leased, finished, not_found."""
    given = with_expressions(rows, due=due)
    names = [name for name in ("due", "priority") if name in given.columns]
    if not names:
        raise InvalidArgument("A move takes another due time or priority: the rows have neither.")
    # Neighbours of one due time and priority go in one call.
    wanted = converted(given, ["id", *names]).sort(*(NAMED.get(name, name) for name in names))
    return _answered(wanted, Errand(home_of({"url": url, "tenant": tenant}), topic, "move"))


def cancel(rows: DataFrame, url: str, topic: str, *, tenant: str = DEFAULT_TENANT) -> Counter[str]:
    """Removes messages by `id`; how many were cancelled, leased, finished, not_found."""
    return _answered(converted(rows, ["id"]), Errand(home_of({"url": url, "tenant": tenant}), topic, "cancel"))


# Moves and cancels


class Some(msgspec.Struct, frozen=True):
    """Ids that go in one call, and what they get."""

    ids: list[str]
    due_ms: int | None
    priority: int | None


class Errand(msgspec.Struct, frozen=True):
    """What tasks do with ids, and where. Pickled: no connection on it."""

    home: Home
    topic: str
    verb: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Answers how many ids got which answer."""
        answers: Counter[str] = Counter()
        # Several at once share a commit: where every message has a due time of its own, each is a call.
        with briefly(), self.home.connect() as q, ThreadPoolExecutor(_CALLS_AT_ONCE) as pool:
            for answered in pool.map(partial(self._do, q), _together(batches)):
                answers.update(answered.values())
        yield pa.RecordBatch.from_pylist(
            [{"answer": answer, "messages": many} for answer, many in answers.items()], _ANSWERS
        )

    def _do(self, q: duly.Client, some: Some) -> dict[str, str]:
        if self.verb == "cancel":
            return q.cancel(self.topic, some.ids, timeout=_PATIENCE_S)
        due = None if some.due_ms is None else from_ms(some.due_ms)
        return q.move(self.topic, some.ids, due=due, priority=some.priority, timeout=_PATIENCE_S)


def _answered(rows: DataFrame, errand: Errand) -> Counter[str]:
    with errand.home.connect() as q:
        if q.describe_topic(errand.topic).kind != "queue":
            raise InvalidArgument(f"{errand.topic!r} is a log: only what is on a queue is moved or cancelled.")
    try:
        found = rows.mapInArrow(errand, "answer string, messages bigint").collect()
    except Exception as error:
        raise explained(error) from error
    total: Counter[str] = Counter()
    for answer, messages in found:
        total[answer] += messages
    return total


def _together(batches: Iterator[pa.RecordBatch]) -> Iterator[Some]:
    """Neighbouring ids that share due time and priority, as many as a call takes."""
    for shared, rows in groupby(_rows(batches), key=itemgetter(1, 2)):
        while ids := [id for id, *_ in islice(rows, _IDS_A_CALL)]:
            yield Some(ids, *shared)


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        table = to_messages(batch)
        columns = [table.column(name).to_pylist() if name in table.column_names else repeat(None) for name in _MOVED]
        yield from zip(table.column("id").to_pylist(), *columns, strict=False)
