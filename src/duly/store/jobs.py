"""Commands on their way through a store's writer, whichever it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from ..engine.claim import claim
from ..engine.claimed import Claim
from ..engine.publish import Remember, remember_publish
from ..errors import PublishUnknown
from .contract import Transaction, Verb

GIVEN, QUEUED, RUNNING, FINISHED = range(4)
# What a claimed message costs a transaction, in bytes published: about as much (ARCHITECTURE.md has the figures).
_CLAIMED_COST = 64


class Job:
    """One command on its way through the writer."""

    __slots__ = (
        "abandoned",
        "answer",
        "caller",
        "command",
        "cost",
        "done",
        "follower",
        "give_up_at",
        "price",
        "publish_id",
        "stage",
        "tenant",
        "then",
        "verb",
    )

    def __init__(self, verb: Verb[Any, Any], command: Any, tenant: str, publish_id: str, cost: int = 0) -> None:
        self.verb = verb
        self.command = command
        self.tenant = tenant
        # What it holds in memory while it waits, and by what its tenant's turn is measured: a claim's work is to come.
        self.cost = cost
        self.price = cost + (command.max_messages * _CLAIMED_COST if isinstance(command, Claim) else 0)
        self.publish_id = publish_id
        # Who waits for the answer; nobody does for the writer's own.
        self.caller: threading.Thread | None = threading.current_thread()
        # Told the answer instead of a caller who waits.
        self.then: Callable[[Any], None] | None = None
        self.answer: Any = None
        # Of one that nobody waits for: until when it may wait for a store that is away.
        self.give_up_at = 0.0
        # All three under the writer's lock: how far it has come, whether its caller gave up, and whom that
        # caller wakes when it has been woken itself.
        self.stage = GIVEN
        self.abandoned = False
        self.follower: Job | None = None
        self.done = threading.Lock()
        self.done.acquire()


def remembering(job: Job) -> Job:
    """A job of the writer's own: keeps what a publisher that gave up was not told."""
    own = Job(remember_publish, Remember(job.command, job.answer), job.tenant, "")
    own.caller = None
    return own


def by_verb(jobs: Iterable[Job]) -> list[list[Job]]:
    """Jobs as groups that run as one call each, claims last: they get what the others publish and give back.

    Whoever waits for an answer is at work on the same transaction as the others, so none of them comes before another;
    of one verb they stay in order.
    """
    groups: dict[Verb[Any, Any], list[Job]] = {}
    for job in jobs:
        groups.setdefault(job.verb, []).append(job)
    claims = groups.pop(claim, None)
    return [*groups.values()] if claims is None else [*groups.values(), claims]


def run_together(tx: Transaction, jobs: list[Job]) -> None:
    """Runs jobs of one verb as one call."""
    answers = jobs[0].verb(tx, [job.command for job in jobs])
    for job, answer in zip(jobs, answers, strict=True):
        job.answer = answer


def answer_of(job: Job) -> Any:
    """The answer; one that is an error is raised."""
    if isinstance(job.answer, Exception):
        raise job.answer
    return job.answer


def unknown(job: Job) -> PublishUnknown:
    """What a publisher is told whose commit is in doubt."""
    return PublishUnknown(
        f"It is unknown whether the batch was stored. Publish it again with publish_id={job.publish_id!r}: "
        "it is stored once, whatever happened.",
        publish_id=job.publish_id,
    )
