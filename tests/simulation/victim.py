"""A process that publishes, claims and settles until it is killed, and journals what it was told.

The journal is written with plain write(2): it survives kill -9, and is never ahead of the truth.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

import duly


def main(folder: Path, seed: int, store: str) -> None:
    draw = random.Random(seed)
    journal = os.open(folder / "journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(what: str, numbers: list[int], publish_id: str = "") -> None:
        os.write(journal, b"\n" + json.dumps({"what": what, "id": publish_id, "numbers": numbers}).encode())

    q = duly.connect(store, consumer="victim")
    q.create_topic("t", kind="log", exist_ok=True, retry=duly.RetryPolicy(max_attempts=10_000))
    q.create_group("t", "g", exist_ok=True)
    q.held()
    number = seed * 1_000_000 % 2**40
    turn = 0
    while True:
        turn += 1
        numbers = list(range(number, number + draw.choice([1, 5, 70, 1500])))
        number = numbers[-1] + 1
        publish_id = f"{seed}-{turn}-{os.getpid()}"
        note("publish", numbers, publish_id)
        q.publish("t", [each.to_bytes(8) for each in numbers], publish_id=publish_id)
        batch = q.claim("t", group="g", max_messages=draw.choice([1, 10, 2000]), lease=600)
        part = draw.sample(list(batch), draw.randint(0, len(batch)))
        chosen = [int.from_bytes(delivery.payload) for delivery in part]
        note("acking", chosen)
        assert q.ack(part).lost == ()
        note("acked", chosen)
        if draw.random() < 0.3:
            q.release(batch)
        elif draw.random() < 0.5:
            q.nack(batch, delay=0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
