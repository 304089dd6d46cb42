"""How exactly deliveries keep to a rate: a group's, lanes', and a group's whose consumers share nothing but a store.

Consumers are processes of their own that claim for some seconds from a backlog that does not end meanwhile, and stamp
what comes by the machine's monotonic clock, which all of them read. Every stretch of so many seconds between the first
delivery and the last is looked at, from each delivery on: how far the number in it is from what the rate says, as a
share of that. Too many is what a destination suffers from; too few may also be a machine that had other things to do,
as tokens are not saved up for long. A burst is the most that came in a tenth of a second, by the same measure: 1 is
perfectly spread.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np

import duly
from duly.bench.brokers import own_topics
from duly.clock import monotonic_s

_LEASE_S = 600
_PATIENCE_S = 1
_MOST = 1000
_BATCH = 10_000
_BURST_S = 0.1
_LANES = ("a", "b")


@dataclass(frozen=True, slots=True)
class Pace:
    """Messages a second, for how many seconds, and the stretch of time that is looked at."""

    rate: float
    seconds: float
    window_s: float

    @property
    def messages(self) -> int:
        """How many are more than can be delivered."""
        return round(self.rate * self.seconds * 1.5) + _MOST


def measure(places: Sequence[str], pace: Pace) -> dict[str, float]:
    """The deviation of a group's rate, of two lanes' and of a group's that is consumed at all places at once."""
    with duly.connect(places[0]) as client, own_topics(client, "group", "lanes", "shared") as (group, lanes, shared):
        client.create_topic(group, kind="log", rate=pace.rate, lease=_LEASE_S)
        client.create_group(group, "bench")
        client.create_topic(lanes, kind="queue", lanes=duly.Lanes(rate=pace.rate), lease=_LEASE_S)
        client.create_topic(shared, kind="queue", rate=pace.rate, lease=_LEASE_S)
        of_group = _consumed(client, places[:1], group, "bench", ("",), pace)
        of_lanes = _consumed(client, places[:1], lanes, "", _LANES, pace)
        of_shared = _consumed(client, places, shared, "", ("",), pace)
    came = {
        "group": list(of_group.values()),
        "lane": list(of_lanes.values()),
        "shared": list(of_shared.values()),
    }
    off = {name: _worst(stamps, pace) for name, stamps in came.items()}
    over, under = max(over for over, _ in off.values()), max(under for _, under in off.values())
    every = [stamps for some in came.values() for stamps in some]
    return {
        "rate": pace.rate,
        "messages": sum(map(len, every)),
        "rate_error": max(over, under),
        "rate_over": over,
        "rate_under": under,
        **{f"{name}_rate_error": max(both) for name, both in off.items()},
        "burst": max(burst(stamps, pace.rate) for stamps in every),
    }


def _worst(came: Sequence[Sequence[float]], pace: Pace) -> tuple[float, float]:
    over, under = zip(*(deviation(stamps, pace.rate, pace.window_s) for stamps in came), strict=True)
    return max(over), max(under)


def deviation(stamps: Sequence[float], rate: float, window_s: float) -> tuple[float, float]:
    """By how much there are too many in any window between the first and the last, and too few, as a share of what
    there should be.
    """
    at = np.sort(np.asarray(stamps))
    if not len(at) or at[-1] - at[0] < window_s:
        raise duly.Error(f"{len(at)} messages came in less than {window_s} seconds: there is no window to look at.")
    starts = at[at + window_s <= at[-1]]
    # From a delivery on, with it, a window has the most; just after it, the fewest.
    most = np.searchsorted(at, starts + window_s) - np.searchsorted(at, starts)
    fewest = np.searchsorted(at, starts + window_s) - np.searchsorted(at, starts, side="right")
    wanted = rate * window_s
    return round(max(0.0, float(most.max() / wanted - 1)), 4), round(max(0.0, float(1 - fewest.min() / wanted)), 4)


def burst(stamps: Sequence[float], rate: float) -> float:
    """The most that came in a tenth of a second, of what the rate lets through in one; of one message at least."""
    at = np.sort(np.asarray(stamps))
    most = (np.searchsorted(at, at + _BURST_S) - np.arange(len(at))).max()
    return round(float(most) / max(1.0, rate * _BURST_S), 2)


def _consumed(
    client: duly.Client, places: Sequence[str], topic: str, group: str, lanes: Sequence[str], pace: Pace
) -> dict[str, list[float]]:
    """When messages came, by lane."""
    for lane in lanes:
        for first in range(0, pace.messages, _BATCH):
            count = min(_BATCH, pace.messages - first)
            client.publish(topic, [duly.Message(b"x", lane=lane or None)] * count)
    came: dict[str, list[float]] = {lane: [] for lane in lanes}
    with ExitStack() as stack:
        consumers = [stack.enter_context(_consumer(place, topic, group, pace.seconds)) for place in places]
        for consumer in consumers:
            _hear(consumer)
        for consumer in consumers:
            assert consumer.stdin is not None
            consumer.stdin.write(b"go\n")
            consumer.stdin.flush()
        for consumer in consumers:
            for lane, stamps in _hear(consumer).items():
                came[lane] += stamps
    return came


@contextmanager
def _consumer(place: str, topic: str, group: str, seconds: float) -> Iterator[subprocess.Popen[bytes]]:
    code = f"from duly.bench.throttle import consume; consume({place!r}, {topic!r}, {group!r}, {seconds!r})"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def _hear(consumer: subprocess.Popen[bytes]) -> dict[str, list[float]]:
    assert consumer.stdout is not None
    line = consumer.stdout.readline()
    if not line:
        raise duly.Error("A consumer ended before its time.")
    told: dict[str, list[float]] = json.loads(line)
    return told


def consume(place: str, topic: str, group: str, seconds: float) -> None:
    """The other process: says when it is ready, and by lane when messages came."""
    came: dict[str, list[float]] = {}
    with duly.connect(place) as client:
        client.clock()
        print("{}", flush=True)
        sys.stdin.readline()
        until = monotonic_s() + seconds
        held = client.claim(topic, group=group or None, max_messages=_MOST, wait=_PATIENCE_S)
        while (now := monotonic_s()) < until:
            for delivery in held:
                came.setdefault(delivery.lane or "", []).append(now)
            held = client.claim(topic, group=group or None, max_messages=_MOST, wait=_PATIENCE_S, acks=held)
        client.release(held)
    print(json.dumps(came), flush=True)
