"""claim: take due messages under a lease, from logs (log_claim.py) and from queues (queue_claim.py)."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ..errors import Error
from ..store.contract import GroupRow, TopicRow, Transaction
from .claimed import Claim, Claimed
from .find import find_group, find_topic
from .log_claim import LogClaiming
from .pause import is_paused
from .queue_claim import claim_queue


def claim(tx: Transaction, commands: Sequence[Claim]) -> list[Claimed | Exception]:
    """Serves every claim in turn."""
    answers: list[Claimed | Exception | None] = [None] * len(commands)
    on_queues: dict[int, tuple[TopicRow, GroupRow, list[int]]] = {}
    for at, command in enumerate(commands):
        try:
            topic = find_topic(tx, command.tenant, command.topic)
            group = find_group(tx, topic, command.group)
            if is_paused(tx):
                topic = replace(topic, paused=True)
        except Error as error:
            answers[at] = error
        else:
            if topic.settings.kind == "log":
                answers[at] = LogClaiming(tx, command, topic, group).run()
            else:
                on_queues.setdefault(topic.id, (topic, group, []))[2].append(at)
    for topic, group, which in on_queues.values():
        served = claim_queue(tx, topic, group, [commands[at] for at in which])
        for at, answer in zip(which, served, strict=True):
            answers[at] = answer
    return [answer for answer in answers if answer is not None]
