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
from itertools import repeat
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame

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


class Errand(msgspec.Struct, frozen=True):
    """What tasks do with ids, and where. Pickled: no connection on it."""

    home: Home
    topic: str
    verb: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Answers how many ids got which answer."""
        answers: Counter[str] = Counter()
        with briefly(), self.home.connect() as q:
            for ids, due_ms, priority in _together(batches):
                if self.verb == "cancel":
                    answered = q.cancel(self.topic, ids, timeout=_PATIENCE_S)
                else:
                    due = None if due_ms is None else from_ms(due_ms)
                    answered = q.move(self.topic, ids, due=due, priority=priority, timeout=_PATIENCE_S)
                answers.update(answered.values())
        yield pa.RecordBatch.from_pylist(
            [{"answer": answer, "messages": many} for answer, many in answers.items()], _ANSWERS
        )


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


def _together(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[list[str], int | None, int | None]]:
    """Neighbouring ids that share due time and priority, as many as a call takes."""
    ids: list[str] = []
    shared: tuple[Any, Any] = (None, None)
    for batch in batches:
        table = to_messages(batch)
        columns = [table.column(name).to_pylist() if name in table.column_names else repeat(None) for name in _MOVED]
        for id, due_ms, priority in zip(table.column("id").to_pylist(), *columns, strict=False):
            if ids and ((due_ms, priority) != shared or len(ids) == _IDS_A_CALL):
                yield ids, *shared
                ids = []
            shared = (due_ms, priority)
            ids.append(id)
    if ids:
        yield ids, *shared
