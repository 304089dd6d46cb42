"""What programs get: topics, groups, messages, queued messages and dead letters as JSON documents.

Times are ISO 8601 in UTC, durations seconds, sizes bytes. A payload that is UTF-8 is `payload`,
any other is `payload_base64`.
"""

from __future__ import annotations

import base64
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..message import DeadLetter, Failure, QueuedMessage, StoredMessage
from ..topic import ConsumerDescription, GroupDescription, TopicDescription
from .text import iso, iso_of

if TYPE_CHECKING:
    from ..client.batch import Delivery


def topic_document(topic: TopicDescription) -> dict[str, Any]:
    """A topic with its settings and partitions."""
    return {
        "tenant": topic.tenant,
        "topic": topic.name,
        "kind": topic.kind,
        "paused": topic.paused,
        "version": topic.version,
        "created_at": iso(topic.created_at_ms),
        "messages": topic.messages,
        "bytes": topic.bytes,
        "groups": list(topic.groups),
        "settings": asdict(topic.settings),
        "partitions": [asdict(partition) for partition in topic.partitions],
    }


def group_document(group: GroupDescription) -> dict[str, Any]:
    """A group with where it stands and who works for it."""
    return {
        "topic": group.topic,
        "group": group.name,
        "paused": group.paused,
        "lag": group.lag,
        "leased": group.leased,
        "retrying": group.retrying,
        "dead": group.dead,
        "settings": asdict(group.settings),
        "partitions": [
            {
                "partition": number,
                "first_offset": group.first_offsets[number],
                "cursor": cursor,
                "next_offset": group.next_offsets[number],
            }
            for number, cursor in group.cursors.items()
        ],
        "consumers": [consumer_document(consumer) for consumer in group.consumers],
        "gate": None if group.gate is None else asdict(group.gate),
    }


def consumer_document(consumer: ConsumerDescription) -> dict[str, Any]:
    """A consumer and what it holds."""
    return {
        "consumer": consumer.name,
        "idle_ms": consumer.idle_ms,
        "leases": consumer.leases,
        "messages": consumer.messages,
    }


def message_document(message: StoredMessage) -> dict[str, Any]:
    """A message of a log."""
    return {**_message(message), "expires_at": _iso_or_none(message.expires_at_ms)}


def delivery_document(delivery: Delivery, verdict: str) -> dict[str, Any]:
    """A claimed message and how it is settled."""
    return {
        **_message(delivery),
        "attempt": delivery.attempt,
        "lease_expires_at": iso_of(delivery.lease_expires_at),
        "verdict": verdict,
    }


def queue_delivery_document(delivery: Delivery, verdict: str) -> dict[str, Any]:
    """A message claimed from a queue and how it is settled."""
    return {
        **delivery_document(delivery, verdict),
        "lane": delivery.lane,
        "priority": delivery.priority,
        "due": None if delivery.due is None else iso_of(delivery.due),
    }


def queued_document(message: QueuedMessage) -> dict[str, Any]:
    """A message of a queue as it stands."""
    return {
        "id": message.id,
        "state": message.state,
        "partition": message.partition,
        "offset": message.offset,
        "key": message.key,
        "headers": dict(message.headers),
        "lane": message.lane,
        "priority": message.priority,
        "due": _iso_or_none(message.due_at_ms),
        "expires_at": _iso_or_none(message.expires_at_ms),
        "published_at": _iso_or_none(message.published_at_ms),
        "attempts": message.attempts,
        "consumer": message.consumer,
        "lease_expires_at": _iso_or_none(message.lease_expires_at_ms),
        "cancelled": message.cancelled,
        "history": [_failure(failure) for failure in message.history],
        **({} if message.payload is None else _payload(message.payload)),
    }


def dead_document(letter: DeadLetter) -> dict[str, Any]:
    """A dead letter with its history."""
    return {
        **message_document(letter.message),
        "attempts": letter.attempts,
        "reason": letter.reason,
        "buried_at": iso(letter.buried_at_ms),
        "history": [_failure(failure) for failure in letter.history],
    }


def _failure(failure: Failure) -> dict[str, Any]:
    return {
        "attempt": failure.attempt,
        "at": iso(failure.at_ms),
        "what": failure.what,
        "reason": failure.reason,
        "consumer": failure.consumer,
    }


def _iso_or_none(at_ms: int | None) -> str | None:
    return None if at_ms is None else iso(at_ms)


def _message(message: StoredMessage | Delivery) -> dict[str, Any]:
    return {
        "partition": message.partition,
        "offset": message.offset,
        "id": message.id,
        "key": message.key,
        "headers": dict(message.headers),
        "published_at": iso(message.published_at_ms),
        **_payload(message.payload),
    }


def _payload(payload: bytes) -> dict[str, str]:
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}
