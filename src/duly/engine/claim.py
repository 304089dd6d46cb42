"""claim: take due messages under a lease, from logs (log_claim.py) and from queues (queue_claim.py).

A consumer that works batch by batch acks the last one with the next claim: one call and one commit instead of two. A
claim that is refused acks nothing. One that fails after its acks (a corrupt block) got nothing, and says what became of
them; whoever claims again is told of the failure.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ..errors import Error, LimitExceeded
from ..limits import LIMITS
from ..store.contract import GroupRow, TopicRow, Transaction
from .agenda import FORGET, schedule_store
from .claimed import Claim, Claimed
from .find import find_group, find_topic
from .gates import Passage, passage
from .log_claim import LogClaiming
from .pause import is_paused, refuse_if_moved
from .queue_claim import claim_queue
from .settle import settle
from .verdict import Verdicts


def claim(tx: Transaction, commands: Sequence[Claim]) -> list[Claimed | Exception]:
    """Serves every claim in turn."""
    answers: list[Claimed | Exception | None] = [None] * len(commands)
    on_queues: dict[int, tuple[TopicRow, GroupRow, list[int]]] = {}
    on_logs: list[tuple[int, TopicRow, GroupRow]] = []
    settled: dict[int, Verdicts] = {}
    # Those who claim together mostly claim the same.
    found: dict[tuple[str, str, str], tuple[TopicRow, GroupRow]] = {}
    for at, command in enumerate(commands):
        try:
            names = (command.tenant, command.topic, command.group)
            if names not in found:
                found[names] = _find(tx, *names)
            topic, group = found[names]
            _admit_consumer(tx, topic, group, command.consumer)
            if command.acks is not None:
                settled[at] = _ack(tx, command)
        except Error as error:
            answers[at] = error
        else:
            if topic.settings.kind == "log":
                on_logs.append((at, topic, group))
            else:
                on_queues.setdefault(topic.id, (topic, group, []))[2].append(at)
    # Behind the acks: those may have opened one, or shut it.
    passages: dict[int, Passage | None] = {}
    for at, topic, group in on_logs:
        if group.id not in passages:
            passages[group.id] = passage(tx, topic, group)
        answers[at] = LogClaiming(tx, commands[at], topic, group, passages[group.id]).run()
    for topic, group, which in on_queues.values():
        served = claim_queue(tx, topic, group, [commands[at] for at in which], passage(tx, topic, group))
        for at, answer in zip(which, served, strict=True):
            answers[at] = answer
    for at, verdicts in settled.items():
        answers[at] = _after_acks(tx, commands[at], answers[at], verdicts)
    return [answer for answer in answers if answer is not None]


def _ack(tx: Transaction, command: Claim) -> Verdicts:
    verdicts = settle(tx, [command.settle])[0]
    if isinstance(verdicts, Exception):
        raise verdicts
    return verdicts


def _after_acks(tx: Transaction, command: Claim, answer: Claimed | Exception | None, verdicts: Verdicts) -> Claimed:
    if not isinstance(answer, Claimed):
        answer = Claimed(command.topic, command.group, tx.incarnation, command.lease_ms or 0, 0)
    answer.settled = verdicts
    return answer


def _find(tx: Transaction, tenant: str, name: str, group: str) -> tuple[TopicRow, GroupRow]:
    topic = find_topic(tx, tenant, name)
    found = find_group(tx, topic, group)
    refuse_if_moved(tx)
    return replace(topic, paused=True) if is_paused(tx) else topic, found


def _admit_consumer(tx: Transaction, topic: TopicRow, group: GroupRow, consumer: str) -> None:
    """Raises LimitExceeded if the topic has as many consumers as it may, and this is another one."""
    if tx.recall(("seen", group.id, consumer)) is not None:
        return
    known: int = tx.recall(("consumers", topic.id)) or tx.consumer_count(topic.tenant_id, topic.id)
    if not tx.has_consumer(topic.tenant_id, group.id, consumer):
        if known >= LIMITS.consumers_per_topic_max:
            # Some may have been forgotten since they were counted.
            known = tx.consumer_count(topic.tenant_id, topic.id)
        if known >= LIMITS.consumers_per_topic_max:
            raise LimitExceeded(
                f"Topic {topic.name!r} has {known} consumers, which is as many as it may. Give consumers names that "
                "last, instead of a new one for every claim; those not seen for 8 days are forgotten."
            )
        schedule_store(tx, FORGET, tx.now_ms + LIMITS.consumer_forget_ms)
        known += 1
    tx.remember(("consumers", topic.id), known)
