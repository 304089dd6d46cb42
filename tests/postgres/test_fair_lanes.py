"""Lanes share turns also where several processes claim in turn: what each of them knows outlasts turns of others."""

from __future__ import annotations

from collections import Counter

import duly

from .conftest import Application

LANES, EACH, A_CLAIM = 40, 40, 10


def test_lanes_share_what_two_processes_claim_in_turn(app: Application) -> None:
    here, elsewhere = app.client(), app.elsewhere("w2")
    here.create_topic("jobs", kind="queue")
    for lane in range(LANES):
        here.publish("jobs", [duly.Message(b"%d" % lane, lane=f"lane-{lane}") for _ in range(EACH)])
    served: Counter[bytes] = Counter()
    for turn in range(LANES * EACH // A_CLAIM // 2):
        batch = (here, elsewhere)[turn % 2].claim("jobs", max_messages=A_CLAIM)
        served.update(batch.payloads)
        (here, elsewhere)[turn % 2].ack(batch)
    assert len(served) == LANES
    # A half each, and no more than a few turns more for anybody.
    assert max(served.values()) - min(served.values()) <= EACH // 5
