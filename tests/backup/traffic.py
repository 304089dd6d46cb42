"""Processes that publish, claim, settle and keep books, each noting what it is about to do and what it has done.

A journal is lines of JSON, appended with one write each, before and after every call. Everything a process does it
does in sequence: whatever moment is cut out of a run, its part in it must be a beginning of its journal.

python -m tests.backup.traffic publish|consume|books STORE JOURNAL NAME SEED
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import sys
from typing import Any

import apsw

import duly

GROUP = "billing"


class Journal:
    """Lines that are there as soon as they are written."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, **what: Any) -> None:
        os.write(self._file, json.dumps(what).encode() + b"\n")


def prepare(path: str) -> None:
    """The topics, and a table of the application's own."""
    with duly.connect(path) as q:
        q.create_topic("log", kind="log")
        q.create_group("log", GROUP)
        q.create_topic("queue", kind="queue", lease=60, retry=duly.RetryPolicy(max_attempts=50, base=0.01, cap=0.01))
        q.create_topic("sales", kind="log")
    application = apsw.Connection(path)
    application.execute("CREATE TABLE account (number INTEGER PRIMARY KEY, balance INTEGER NOT NULL)")
    application.execute("INSERT INTO account VALUES (1, 0), (2, 0)")
    application.execute("CREATE TABLE sale (number INTEGER PRIMARY KEY)")
    application.close()


def publish(path: str, journal: Journal, name: str, dice: random.Random) -> None:
    """Batches for the queue, and after each the same for the log."""
    with duly.connect(path) as q:
        for batch in itertools.count():
            size = dice.choice((1, 3, 20))
            journal.note(begin=batch, size=size)
            bodies = [f"{name}-{batch}-{n}" for n in range(size)]
            q.publish("queue", [duly.Message(body.encode(), id=body, priority=dice.randrange(3)) for body in bodies])
            q.publish("log", [body.encode() for body in bodies])
            journal.note(done=batch)


def consume(path: str, journal: Journal, name: str, dice: random.Random) -> None:
    """Acks most, buries some, gives the rest back."""
    with duly.connect(path, consumer=name) as q:
        while True:
            for delivery in q.claim("queue", max_messages=dice.choice((1, 5, 20)), wait=1):
                verdict = dice.choices(("ack", "bury", "nack"), (7, 1, 2))[0]
                journal.note(begin=verdict, id=delivery.id)
                getattr(delivery, verdict)()
                journal.note(done=verdict, id=delivery.id)
            q.ack(q.claim("log", group=GROUP, max_messages=50))


def books(path: str, journal: Journal, name: str, _dice: random.Random) -> None:
    """A program of its own: moves money between two rows in one transaction, notes the sale, then publishes it."""
    connection = apsw.Connection(path)
    connection.set_busy_timeout(60_000)
    with duly.connect(path) as q:
        for number in itertools.count():
            journal.note(begin=number)
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("UPDATE account SET balance = balance - 1 WHERE number = 1")
            connection.execute("UPDATE account SET balance = balance + 1 WHERE number = 2")
            connection.execute("INSERT INTO sale VALUES (?)", (number,))
            connection.execute("COMMIT")
            q.publish("sales", b"%d" % number)
            journal.note(done=number)


if __name__ == "__main__":
    logging.getLogger("duly").addHandler(logging.NullHandler())
    what, path, journal, name, seed = sys.argv[1:]
    {"publish": publish, "consume": consume, "books": books}[what](path, Journal(journal), name, random.Random(seed))
