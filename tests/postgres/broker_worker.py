"""A client of brokers that are killed under it: works on a queue at random, and notes what it did in a file.

python -m tests.postgres.broker_worker URL NOTES NAME SECONDS SEED

The same as tests/crash/queue_worker.py, but that a call may fail: whether it was done is unknown, and it says so.
"""

from __future__ import annotations

import logging
import signal
import sys

import duly
from tests.crash.queue_worker import Worker, connect
from tests.crash.worker import Notes


class Client(Worker):
    """Goes on after a call that failed."""

    failures = 0

    def work(self, seconds: float) -> None:
        until = self.notes.now_ms() + seconds * 1000
        verbs = ["publish", "claim", "claim", "claim", "move", "cancel", "redrive"]
        while self.notes.now_ms() < until:
            verb = self.draw.choice(verbs)
            try:
                getattr(self, verb)()
            except (duly.Unavailable, duly.PublishUnknown, duly.StoreError) as error:
                self.failures += 1
                self.notes.write("failed", verb=verb, why=repr(error))


if __name__ == "__main__":
    logging.disable()
    url, log, name, seconds, seed = sys.argv[1:]
    signal.alarm(int(float(seconds)) + 120)
    own_notes = Notes(log)
    with connect(url, name) as q:
        own_notes.write("ready")
        Client(q, own_notes, name, int(seed)).work(float(seconds))
    own_notes.write("finished")
