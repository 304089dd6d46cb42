"""A process that works on a queue with others: publishes numbers, claims, acks, nacks; prints what it did, a line each.

python -m tests.simulation.queue_worker FILE NAME SEED ROUNDS
"""

from __future__ import annotations

import json
import random
import sys

import duly


def main(path: str, name: str, seed: int, rounds: int) -> None:
    draw = random.Random(seed)
    number = 0
    published: list[str] = []
    acked: list[str] = []
    with duly.connect(path, consumer=name, timeout=120) as q:
        for _ in range(rounds):
            many = draw.choice([1, 3, 40, 900])
            bodies = [f"{name}-{number + at}" for at in range(many)]
            number += many
            q.publish("jobs", [message(body, draw) for body in bodies])
            published += bodies
            for _ in range(draw.randrange(4)):
                batch = q.claim("jobs", max_messages=draw.choice([1, 20, 500]))
                priorities = [d.priority for d in batch]
                assert priorities == sorted(priorities)
                failed = [d for d in batch if draw.random() < 0.05]
                q.nack(failed, delay=draw.choice([0, 0.01]))
                done = [d for d in batch if not d.settled]
                assert q.ack(done).done == len(done)
                acked += [d.payload.decode() for d in done]
    json.dump({"published": published, "acked": acked}, sys.stdout)


def message(body: str, draw: random.Random) -> duly.Message:
    return duly.Message(
        body.encode(),
        priority=draw.randrange(5),
        due=draw.choice([None, None, 0.02, 0.2]),
        lane=draw.choice([None, None, "a", "b"]),
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
