"""What programs get: topics, groups, messages and dead letters as JSON documents.

Times are ISO 8601 in UTC, durations seconds, sizes bytes. A payload that is UTF-8 is `payload`,
any other is `payload_base64`.
"""

from __future__ import annotations

import base64
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..message import DeadLetter, StoredMessage
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
    expires_at = message.expires_at_ms
    return {**_message(message), "expires_at": None if expires_at is None else iso(expires_at)}


def delivery_document(delivery: Delivery, verdict: str) -> dict[str, Any]:
    """A claimed message and how it is settled."""
    return {
        **_message(delivery),
        "attempt": delivery.attempt,
        "lease_expires_at": iso_of(delivery.lease_expires_at),
        "verdict": verdict,
    }


def dead_document(letter: DeadLetter) -> dict[str, Any]:
    """A dead letter with its history."""
    return {
        **message_document(letter.message),
        "attempts": letter.attempts,
        "reason": letter.reason,
        "buried_at": iso(letter.buried_at_ms),
        "history": [
            {
                "attempt": failure.attempt,
                "at": iso(failure.at_ms),
                "what": failure.what,
                "reason": failure.reason,
                "consumer": failure.consumer,
            }
            for failure in letter.history
        ],
    }


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
