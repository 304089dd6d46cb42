"""A topic's seat: the jobs that wait for it in this process, and what this process remembers of it.

Whoever works on a topic has its lock, for one transaction. All who remember something of a topic must know whether
anybody else wrote to it since: so the last turn at it is written down, once for each time that it changes hands.

    lock had ──▶ the last turn is mine  ──▶ what I remember is true
             └──▶ it is somebody else's ──▶ forgotten, but for definitions; the first that I write says it is mine now

A server that comes up anew may have forgotten claims, which do not wait for the disk, and with them numbers of its
transactions: nothing is trusted on a line that was opened after what is remembered was committed.

Definitions (settings, groups, pauses) are counted for the whole store; when the count moved, they are forgotten, too.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from ...engine.memory import Memory
from ..jobs import Job

# The locks of a store that belong to no topic.
DEFINITIONS, CHORES = 0, -1


class Seat:
    """One topic, or (without a name) the store as a whole."""

    __slots__ = (
        "began_s",
        "busy",
        "definitions",
        "jobs",
        "known_s",
        "mail_floor",
        "memory",
        "name",
        "tenant",
        "topic_id",
        "turn",
    )

    def __init__(self, tenant: str, name: str | None) -> None:
        self.tenant = tenant
        self.name = name
        self.jobs: deque[Job] = deque()
        # Whether somebody is at it; only that one touches what follows.
        self.busy = False
        self.topic_id: int | None = None
        self.memory = Memory()
        # The number of the turn that this process wrote last; -1: none that it could trust.
        self.turn = -1
        self.definitions: str | None = None
        # Below it nothing more can come into the inbox.
        self.mail_floor = 0
        # When the transaction under way began, and the last one that was committed.
        self.began_s = self.known_s = 0.0

    def doubt(self) -> None:
        """Nothing that is remembered can be trusted."""
        self.memory.clear()
        self.turn = -1
        self.topic_id = None
        self.definitions = None
        self.mail_floor = 0


def topic_of(command: Any) -> str | None:
    """The topic that a command is about; None: several, or the store."""
    name: str | None = getattr(command, "topic", None)
    if name is None:
        # A publisher that gave up (Remember) has the command that it gave.
        name = getattr(getattr(command, "command", None), "topic", None)
    return name
