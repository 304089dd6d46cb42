"""Producers and consumers of a broker that is killed again and again; each writes down what it was told.

`python -m tests.broker_flight.traffic produce|consume URL NAME JOURNAL OVER` goes on until there is a file OVER. Its
journal has lines of JSON:

    {"tried": batch, "topic": topic}    about to be published
    {"acked": batch, "at": s}           publish returned
    {"doubt": batch}                    PublishUnknown
    {"refused": batch}                  Unavailable: nothing was done
    {"got": [[body, id, at_ms], …]}     claimed; then acked

Batches go to the log and to the queue in turn. A body says whose it is: batch/index/size of the batch/due time.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duly

SIZES = (1, 3, 100)


class Journal:
    def __init__(self, path: Path) -> None:
        self._file = path.open("a")

    def note(self, **what: Any) -> None:
        self._file.write(json.dumps(what) + "\n")
        self._file.flush()


def produce(q: duly.Client, name: str, journal: Journal, over: Path) -> None:
    number = 0
    while not over.exists():
        batch = f"{name}-{number}"
        size = SIZES[number % len(SIZES)]
        topic = ("orders", "jobs")[number // len(SIZES) % 2]
        due = datetime.now(UTC) + timedelta(seconds=0.5) if topic == "jobs" and number % 2 else None
        due_ms = int(due.timestamp() * 1000) if due else 0
        messages = [duly.Message(f"{batch}/{at}/{size}/{due_ms}".encode(), due=due) for at in range(size)]
        journal.note(tried=batch, topic=topic)
        try:
            q.publish(topic, messages)
            journal.note(acked=batch, at=time.monotonic())
        except duly.PublishUnknown:
            journal.note(doubt=batch)
        except duly.Unavailable:
            journal.note(refused=batch)
        number += 1
        time.sleep(0.002)


def consume(q: duly.Client, name: str, journal: Journal, over: Path) -> None:
    topics = (("jobs", None), ("orders", "billing"))
    turn = 0
    while not over.exists():
        topic, group = topics[turn % 2]
        turn += 1
        try:
            batch = q.claim(topic, group=group, max_messages=200, wait=0.2, lease=2)
            got = [[d.payload.decode(), d.id, time.time() * 1000] for d in batch]
            if got:
                journal.note(got=got)
                q.ack(batch)
        except duly.Unavailable:
            continue


def main() -> None:
    what, url, name, journal, over = sys.argv[1:]
    with duly.connect(url, consumer=name, timeout=20) as q:
        (produce if what == "produce" else consume)(q, name, Journal(Path(journal)), Path(over))


if __name__ == "__main__":
    main()
