"""A topic's seat: the jobs that wait for it in this process, and what this process remembers of it.

Whoever works on a topic has its lock, for one transaction. All who remember something of a topic must know whether
anybody else wrote to it since: so the last turn at it is written down, once for each time that it changes hands.

    lock had ──▶ the last turn is mine  ──▶ what I remember is true
             └──▶ it is somebody else's ──▶ forgotten, but for definitions and leases; the first that I write says it is
                                            mine now

A server that went down may have lost claims, which are not waited for: then what is remembered of them never was. It
took all lines with it. So on a line that was opened after the last turn, nothing remembered is trusted.

Definitions (settings, groups, pauses) are counted for the whole store; when the count moved, they are forgotten, too.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any

from ...engine.fair_queue import QUANTUM, FairQueue
from ...engine.memory import Memory
from ...tenant import Weights
from ..jobs import Job

_epochs = itertools.count(1)


def new_epoch() -> int:
    """A number that nothing was remembered under yet."""
    return next(_epochs)


# The locks of a store that belong to no topic.
DEFINITIONS, CHORES, SWEEPING = 0, -1, -2


class Seat:
    """One topic, or (without a name) the store as a whole."""

    __slots__ = (
        "begun_at",
        "busy",
        "careful_until",
        "definitions",
        "event_floor",
        "jobs",
        "kept_until",
        "lease_epoch",
        "lingers",
        "mail_floor",
        "memory",
        "memory_at",
        "name",
        "next_id",
        "tenant",
        "topic_id",
        "turn",
        "turns",
    )

    def __init__(self, tenant: str, name: str | None, weights: Weights) -> None:
        self.tenant = tenant
        self.name = name
        self.jobs: deque[Job] = deque()
        # The store's own is everybody's: there a job is a turn of its tenant's.
        self.turns: FairQueue[Job] | None = FairQueue(weights, each=QUANTUM) if name is None else None
        # Whether somebody is at it; only that one touches what follows.
        self.busy = False
        self.topic_id: int | None = None
        # Of the agenda only what has come is ever taken off: what is to come is still there, whoever had a turn.
        self.memory = Memory(lasting=("agenda",))
        # The number of the turn that this process wrote last; -1: none that it could trust.
        self.turn = -1
        self.definitions: str | None = None
        # When the transaction under way began, and when the last one did that was committed.
        self.begun_at = 0.0
        self.memory_at = 0.0
        # Where ids of runs go on, at that turn.
        self.next_id = 0
        # Below it nothing more can come into the inbox.
        self.mail_floor = 0
        # Of the store's own seat: below it no events are left to be packed.
        self.event_floor = 0
        # What is remembered of leases outlasts others' turns: whoever changes one says how it was, and is refused if it
        # is not so any more. Then they are forgotten, all of them, by a new number.
        self.lease_epoch = new_epoch()
        # Until then it looks how things stand before it computes anything (monotonic seconds).
        self.careful_until = 0.0
        # Until then its lock is kept between transactions; 0: it is not.
        self.kept_until = 0.0
        # Whoever keeps it waits for the next job.
        self.lingers = False

    def come(self, job: Job) -> None:
        """One more waits."""
        self.jobs.append(job)
        if self.turns is not None:
            self.turns.put(job.tenant, 0, job)

    def come_back(self, job: Job) -> None:
        """One waits again, as the first."""
        self.jobs.appendleft(job)
        if self.turns is not None:
            self.turns.put(job.tenant, 0, job)

    def next(self) -> Job:
        """The one whose turn it is waits no longer."""
        if self.turns is None:
            return self.jobs.popleft()
        (job,) = self.turns.take(1, QUANTUM)
        self.jobs.remove(job)
        return job

    def leave(self, job: Job) -> None:
        """One does not wait any longer."""
        self.jobs.remove(job)
        if self.turns is not None:
            self.turns.remove(job.tenant, job)

    def forget(self, *, definitions: bool) -> None:
        """Somebody else wrote."""
        if definitions:
            self.lease_epoch = new_epoch()
            self.memory.clear()
        else:
            self.memory.pass_over()

    def doubt(self) -> None:
        """Nothing that is remembered can be trusted."""
        self.forget(definitions=True)
        self.turn = -1
        self.topic_id = None
        self.definitions = None
        self.lingers = False
        self.mail_floor = self.event_floor = 0


def topic_of(command: Any) -> str | None:
    """The topic that a command is about; None: several, or the store."""
    name: str | None = getattr(command, "topic", None)
    if name is None:
        # A publisher that gave up (Remember) has the command that it gave.
        name = getattr(getattr(command, "command", None), "topic", None)
    return name
