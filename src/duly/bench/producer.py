"""Single publishes through a producer: how many a second are on stable storage."""

from __future__ import annotations

import os

import duly
from duly.bench.brokers import own_topics
from duly.bench.threads import in_threads
from duly.clock import monotonic_s


def measure(client: duly.Client, *, messages: int, payload_bytes: int) -> dict[str, float]:
    """Publishes one by one, and waits until the last is stored."""
    payload = os.urandom(payload_bytes)
    with own_topics(client, "producer") as (topic,):
        client.create_topic(topic, kind="log")
        client.publish(topic, payload)
        took: list[float] = []

        def produce() -> None:
            began = monotonic_s()
            with client.producer() as producer:
                for _ in range(messages):
                    producer.publish(topic, payload)
            took.append(monotonic_s() - began)

        in_threads([produce])
        stored = client.describe_topic(topic).messages - 1
    return {"messages": messages, "stored": stored, "publish_per_s": round(messages / took[0])}
