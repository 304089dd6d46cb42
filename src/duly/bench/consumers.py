"""Many consumers that take few messages at a time from one queue, through brokers that share a store.

The messages are there before. A process for each broker runs its consumers, each a thread with a client of its own; all
begin at a word, and the clock stops with the last ack. Each batch is acked with the claim of the next, as q.consume
does. Every message has to come exactly once.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import duly
from duly.bench.brokers import own_topics, share
from duly.bench.queues import stand
from duly.bench.threads import in_threads
from duly.clock import monotonic_s

_LEASE_S = 600
# A consumer that got nothing for so long has finished.
_PATIENCE_S = 2


def measure(urls: Sequence[str], *, messages: int, consumers: int, most: int) -> dict[str, float]:
    """Messages a second that they claim and ack together, `most` a claim."""
    with duly.connect(urls[0]) as client, own_topics(client, "consumers") as (topic,), ExitStack() as stack:
        client.create_topic(topic, kind="queue", lease=_LEASE_S)
        stand(client, topic, messages)
        crews = [
            stack.enter_context(_crew(url, topic, len(share(consumers, number, len(urls))), most))
            for number, url in enumerate(urls)
        ]
        for crew in crews:
            _hear(crew)
        began = monotonic_s()
        for crew in crews:
            _tell(crew)
        done = [_hear(crew) for crew in crews]
    taken = sum(count for count, _ in done)
    if taken != messages:
        raise duly.Error(f"{taken} messages were consumed, of {messages}.")
    return {"messages": messages, "per_s": round(messages / (max(ended for _, ended in done) - began))}


@contextmanager
def _crew(url: str, topic: str, consumers: int, most: int) -> Iterator[subprocess.Popen[bytes]]:
    code = f"from duly.bench.consumers import consume; consume({url!r}, {topic!r}, {consumers}, {most})"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def _hear(crew: subprocess.Popen[bytes]) -> tuple[int, float]:
    assert crew.stdout is not None
    line = crew.stdout.readline()
    if not line:
        raise duly.Error("The consumers ended before their time.")
    count, at = json.loads(line)
    return int(count), float(at)


def _tell(crew: subprocess.Popen[bytes]) -> None:
    assert crew.stdin is not None
    crew.stdin.write(b"go\n")
    crew.stdin.flush()


def consume(url: str, topic: str, consumers: int, most: int) -> None:
    """The other process: says when it is ready, and how many messages its consumers had acked, and when."""
    with ExitStack() as stack:
        clients = [stack.enter_context(duly.connect(url, consumer=f"consumer-{n}")) for n in range(consumers)]
        for client in clients:
            client.clock()
        print(json.dumps((0, monotonic_s())), flush=True)
        sys.stdin.readline()
        done: list[tuple[int, float]] = []
        in_threads([partial(_empty, client, topic, most, done) for client in clients])
    print(json.dumps((sum(count for count, _ in done), max(ended for _, ended in done))), flush=True)


def _empty(client: duly.Client, topic: str, most: int, done: list[tuple[int, float]]) -> None:
    count, ended = 0, 0.0
    batch = client.claim(topic, max_messages=most, wait=_PATIENCE_S)
    while batch:
        batch = client.claim(topic, max_messages=most, acks=batch)
        assert batch.acked is not None
        count += batch.acked.done
        ended = monotonic_s()
        batch = batch or client.claim(topic, max_messages=most, wait=_PATIENCE_S)
    done.append((count, ended))
