"""A downstream that is dead for ten minutes with very many messages waiting for it, and then is back: simulated.

The store is a real one; time is a manual clock that goes in steps of 50 ms, so ten minutes take some seconds. A program
with 200 slots claims for the slots that are free, and holds a message for as long as the call to its destination takes:
one step, or a second's timeout if that is dead. Once the dead destination is a lane of a queue beside others, once it
is a log with a group beside a queue for the others, and each has half of the slots, as handlers have.

    calm ──▶ dead ──▶ back
     │         │        └ the backlog drains at the configured rate, others go on
     │         └ the backlog is published; the breaker opens, and calls are probes alone
     └ others alone: how long they wait from publish to claim is what the rest is compared with

A call belongs to when its message was claimed. What was in a slot when the breaker opened was claimed before. Probes
that a breaker allows while all of them fail: one after `probe`, each next one after twice as long, up to `probe_max`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa

import duly
from duly.bench.threads import in_a_thread
from duly.clock import monotonic_s

T = TypeVar("T")

_STEP_MS = 50
# Slots are four times what it takes for the rate, and so many at least: too few would keep to any rate.
_SLOTS_MIN = 100
_TIMEOUT_MS = 1_000
_CALM_MS = 10_000
_AFTER_MS = 10_000
_WINDOW_MS = 1_000
_BATCH = 10_000
_OTHERS = tuple(f"other-{number}" for number in range(10))
_DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Storm:
    """How many messages wait for it, how long it is dead, and the rate that is configured for it."""

    messages: int
    dead_s: float
    rate: float
    others_per_s: float = 40

    @property
    def slots(self) -> int:
        """How many messages the program holds at once."""
        return max(_SLOTS_MIN, round(4 * self.rate * _STEP_MS / 1000))


def measure(place: str, storm: Storm) -> dict[str, float]:
    """Figures of both, the worse of each; and each by itself. The store is a fresh one: its clock is ours."""
    clock = duly.ManualClock()
    runs: dict[str, type[_Run]] = {"lane": _Lane, "group": _Group}
    found = {name: in_a_thread(partial(_figures, run, place, clock, storm)) for name, run in runs.items()}
    together = {
        "messages": 2 * storm.messages,
        "rate": storm.rate,
        "calls_while_dead": sum(one["calls_while_dead"] for one in found.values()),
        "probes_allowed": sum(one["probes_allowed"] for one in found.values()),
        "calls_until_open": sum(one["calls_until_open"] for one in found.values()),
        "peak_ratio": max(one["peak_ratio"] for one in found.values()),
        "lost": sum(one["lost"] for one in found.values()),
        "buried": sum(one["buried"] for one in found.values()),
        "others_p99_ratio": max(one["others_p99_ratio"] for one in found.values()),
        "recovery_s": max(one["recovery_s"] for one in found.values()),
        "pause_ms_max": max(one["pause_ms_max"] for one in found.values()),
    }
    return together | {f"{name}_{label}": value for name, one in found.items() for label, value in one.items()}


def _figures(run: type[_Run], place: str, clock: duly.ManualClock, storm: Storm) -> dict[str, float]:
    return run(place, clock, storm).figures()


def probes_allowed(breaker: duly.Breaker, dead_ms: float) -> int:
    """How many probes fit into the time that it is dead."""
    wait_ms, at_ms, probes = float(breaker.probe_ms), float(breaker.probe_ms), 0
    while at_ms <= dead_ms:
        probes += 1
        wait_ms = min(2 * wait_ms, breaker.probe_max_ms)
        at_ms += wait_ms
    return probes


@dataclass(slots=True)
class _Call:
    """A message in a slot, until when, and whether its destination answers."""

    delivery: duly.Delivery
    until_ms: int
    fails: bool


@dataclass(slots=True)
class _Seen:
    """What is measured."""

    called: Counter[int] = field(default_factory=Counter)
    acked: set[int] = field(default_factory=set)
    until_open: int = 0
    while_dead: int = 0
    opened: int = 0
    waits: dict[str, list[int]] = field(default_factory=lambda: {"calm": [], "dead": [], "back": []})
    pause_s: float = 0.0


class _Run:
    """A store on a manual clock, the program, and its destinations."""

    # Where the others' messages are.
    others = "others"

    def __init__(self, place: str, clock: duly.ManualClock, storm: Storm) -> None:
        self._storm = storm
        self._clock = clock
        self._seen = _Seen()
        self.breaker = duly.Breaker()
        self._phase = "calm"
        self._calls: list[_Call] = []
        self._back_at = 0
        self._client = duly.connect(place, clock=clock, on_event=self._note)
        with self._client:
            self.make(self._client)
            self._run()
            self._buried = sum(self._client.describe_group(*place).dead for place in self.groups())

    def make(self, client: duly.Client) -> None:
        """Makes the topics."""
        raise NotImplementedError

    def groups(self) -> Sequence[tuple[str, str]]:
        """Topics and groups that the program claims from."""
        raise NotImplementedError

    def dead_topic(self) -> str:
        """Where the messages of the destination that dies are."""
        raise NotImplementedError

    def figures(self) -> dict[str, float]:
        """What was seen."""
        seen, storm = self._seen, self._storm
        calm = _p99(seen.waits["calm"])
        storming = max(_p99(seen.waits["dead"]), _p99(seen.waits["back"]))
        return {
            "calls_while_dead": seen.while_dead,
            "probes_allowed": probes_allowed(self.breaker, storm.dead_s * 1000),
            "calls_until_open": seen.until_open,
            "opened": seen.opened,
            "peak_ratio": round(self._peak() / (storm.rate * _WINDOW_MS / 1000), 3),
            "lost": storm.messages - len(seen.acked),
            "buried": self._buried,
            # Waits are told to a step, which is what a wait of none may have been.
            "others_p99_ratio": round((storming + _STEP_MS) / (calm + _STEP_MS), 3),
            "others_p99_ms": storming,
            "recovery_s": round((self._clock.now_ms() - _AFTER_MS - self._back_at) / 1000, 1),
            "pause_ms_max": round(seen.pause_s * 1000, 1),
        }

    def _peak(self) -> int:
        """The most calls in any second, once it was back."""
        calls = sorted(at for at, count in self._seen.called.items() for _ in range(count) if at >= self._back_at)
        at = np.asarray(calls)
        return int((np.searchsorted(at, at + _WINDOW_MS) - np.arange(len(at))).max()) if len(at) else 0

    def _run(self) -> None:
        storm = self._storm
        self._go(_CALM_MS)
        self._phase = "dead"
        self._publish_backlog()
        self._go(round(storm.dead_s * 1000))
        self._phase, self._back_at = "back", self._clock.now_ms()
        # At its rate it would take half so long; and two minutes for the next probe and to come up to it.
        give_up_at = self._back_at + round(2000 * storm.messages / storm.rate) + 120_000
        while len(self._seen.acked) < storm.messages and self._clock.now_ms() < give_up_at:
            self._step()
        self._go(_AFTER_MS)

    def _go(self, duration_ms: int) -> None:
        for _ in range(0, duration_ms, _STEP_MS):
            self._step()

    def _step(self) -> None:
        now = self._clock.now_ms()
        self._publish_others(now)
        ended = [call for call in self._calls if call.until_ms <= now]
        self._calls = [call for call in self._calls if call.until_ms > now]
        for topic, _ in self.groups():
            ours = [call for call in ended if call.delivery.topic == topic]
            self._settle(self._client.ack, [call.delivery for call in ours if not call.fails])
            self._settle(self._client.nack, [call.delivery for call in ours if call.fails])
        for topic, group in self.groups():
            taken = sum(call.delivery.topic == topic for call in self._calls)
            if free := self._storm.slots // len(self.groups()) - taken:
                for delivery in self._timed(lambda t=topic, g=group, n=free: self._claim(t, g, n)):  # type: ignore[misc]
                    self._calls.append(self._begun(delivery, now))
        self._clock.advance(_STEP_MS / 1000)

    def _claim(self, topic: str, group: str, most: int) -> list[duly.Delivery]:
        return list(self._client.claim(topic, group=group, max_messages=most))

    def _settle(self, verdict: Callable[[list[duly.Delivery]], duly.Settled], some: list[duly.Delivery]) -> None:
        if not some:
            return
        self._timed(lambda: verdict(some))
        if verdict == self._client.ack:
            self._seen.acked.update(number for d in some if (number := _number(d)) >= 0)

    def _begun(self, delivery: duly.Delivery, now: int) -> _Call:
        number, seen = _number(delivery), self._seen
        if number < 0:
            seen.waits[self._phase].append(now + number + 1)
            return _Call(delivery, now + _STEP_MS, fails=False)
        seen.called[now] += 1
        dead = self._phase == "dead"
        if dead and seen.opened:
            seen.while_dead += 1
        elif dead:
            seen.until_open += 1
        return _Call(delivery, now + (_TIMEOUT_MS if dead else _STEP_MS), fails=dead)

    def _timed(self, call: Callable[[], T]) -> T:
        began = monotonic_s()
        answer = call()
        self._seen.pause_s = max(self._seen.pause_s, monotonic_s() - began)
        return answer

    def _publish_backlog(self) -> None:
        for table in _tables(self._storm.messages, self.lane()):
            self._client.publish(self.dead_topic(), table)

    def lane(self) -> str | None:
        """The lane of the messages of the destination that dies."""
        return None

    def _publish_others(self, now: int) -> None:
        """As many as have come since the step before, each with its time."""
        per_s = self._storm.others_per_s
        before, by_now = round((now - _STEP_MS) * per_s / 1000), round(now * per_s / 1000)
        payload = (-1 - now).to_bytes(8, "little", signed=True)
        if by_now > before:
            lanes = [_OTHERS[number % len(_OTHERS)] for number in range(before, by_now)]
            self._client.publish(self.others, [duly.Message(payload, lane=lane) for lane in lanes])

    def _note(self, event: duly.Event) -> None:
        if event.kind == "breaker_opened":
            self._seen.opened += 1


class _Lane(_Run):
    """The destination is a lane of a queue, and so are the others."""

    others = "lanes"

    def make(self, client: duly.Client) -> None:
        lanes = duly.Lanes(rate=self._storm.rate, breaker=self.breaker)
        client.create_topic("lanes", kind="queue", lanes=lanes)

    def groups(self) -> Sequence[tuple[str, str]]:
        return [("lanes", "queue")]

    def dead_topic(self) -> str:
        return "lanes"

    def lane(self) -> str | None:
        return _DEAD


class _Group(_Run):
    """The destination is a log, with a group; the others are a queue."""

    def make(self, client: duly.Client) -> None:
        client.create_topic(self.others, kind="queue")
        client.create_topic(_DEAD, kind="log", rate=self._storm.rate, breaker=self.breaker)
        client.create_group(_DEAD, "bench")

    def groups(self) -> Sequence[tuple[str, str]]:
        return [(_DEAD, "bench"), (self.others, "queue")]

    def dead_topic(self) -> str:
        return _DEAD


def _tables(messages: int, lane: str | None) -> Iterator[pa.Table]:
    for first in range(0, messages, _BATCH):
        numbers = np.arange(first, min(first + _BATCH, messages), dtype="<i8")
        offsets = np.arange(len(numbers) + 1, dtype=np.int32) * 8
        payload = pa.Array.from_buffers(
            pa.binary(), len(numbers), [None, pa.py_buffer(offsets), pa.py_buffer(numbers.tobytes())]
        )
        columns = {"payload": payload}
        if lane is not None:
            columns["lane"] = pa.array([lane] * len(numbers))
        yield pa.table(columns)


def _number(delivery: duly.Delivery) -> int:
    """Which of the backlog it is; of others, -1 less the moment of its publish."""
    return int.from_bytes(delivery.payload, "little", signed=True)


def _p99(waits: list[int]) -> int:
    return sorted(waits)[int(len(waits) * 0.99)] if waits else 0
