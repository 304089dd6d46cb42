"""What doing nothing costs: processor time of a process with many topics and waiting claims."""

from __future__ import annotations

import threading
import time

import duly
from duly.clock import monotonic_s


def measure(client: duly.Client, *, topics: int, claims: int, seconds: float) -> dict[str, float]:
    """Processor seconds a second, over a stretch in which nothing happens."""
    for number in range(topics):
        client.create_topic(f"idle-{number}", kind="log")
        client.create_group(f"idle-{number}", "g")
    waiting = [
        threading.Thread(
            target=lambda n: client.claim(f"idle-{n % topics}", group="g", wait=seconds + 3), args=(number,)
        )
        for number in range(claims)
    ]
    for thread in waiting:
        thread.start()
    pause = threading.Event()
    pause.wait(2)
    began, used = monotonic_s(), time.process_time()
    pause.wait(seconds)
    share = (time.process_time() - used) / (monotonic_s() - began)
    for thread in waiting:
        thread.join()
    return {"topics": topics, "claims": claims, "cpu_percent": round(share * 100, 3)}
