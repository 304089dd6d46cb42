"""One tenant floods beside many quiet ones: what that does to them, twice.

    lanes    tenants as lanes of one queue, with claimers for all of it
    topics   tenants with their own topics and claimers, who share brokers

A *window* is a load that is sent at its times, however late it is served: the quiet ones' single messages, and batches
of the one that sends a thousand times as much as any of them. The same window, its messages spread evenly over all of
them, is what it is held against: the same sizes at the same moments, and another owner. Single messages are measured,
from the moment at which they should have been sent to their claim's return. Flood and evenness take turns, and the
median of their pairs is told, so that what else the machine does falls on both.

*Overtakes* of a quiet message are the messages of others that were handed out between its publish's return and its
claim's, with as much standing before as anybody likes. Those that were on their way when it was published count, too:
hence claimers × batch in the bound.
"""

from __future__ import annotations

import statistics
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import duly
from duly.bench.brokers import own_topics
from duly.bench.threads import in_threads
from duly.clock import monotonic_s

Figures = dict[str, float]

TIMES = 1000
_FLOOD = 0
_LEASE_S = 600
_BATCH = 100
_LANE_CLAIMERS = 4
_FLOOD_CLAIMERS = 4
_PUBLISHERS = 4
# A claimer of the quiet waits for so long, and then looks whether it is over.
_WAIT_S = 2.0
_GIVE_UP_S = 60
_payload = struct.Struct("<II")


@dataclass(frozen=True, slots=True)
class Load:
    """How much is sent: `per_s` single messages by each quiet tenant, for so many seconds a window."""

    quiet: int = 100
    per_s: float = 2.0
    seconds: float = 3.0
    pairs: int = 5
    backlog: int = 40_000

    @property
    def tenants(self) -> int:
        """All of them: the one that floods is the first."""
        return self.quiet + 1


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tenant's messages go, or where one claims."""

    client: duly.Client
    topic: str


class Side:
    """A way of telling tenants apart: each has a place to publish to, and on a queue that they share, a lane."""

    def __init__(self, places: Sequence[Place], claimers: Sequence[Place], *, lanes: bool = False) -> None:
        self._places = places
        self._lanes = lanes
        self.claimers = claimers

    def publish(self, tenant: int, payloads: list[bytes]) -> None:
        """Publishes for one of them."""
        place = self._places[tenant]
        lane = f"tenant-{tenant}" if self._lanes else None
        place.client.publish(place.topic, [duly.Message(payload, lane=lane) for payload in payloads])

    def purge(self) -> None:
        """Drops what is left."""
        for place in {place.topic: place for place in self._places}.values() if self._lanes else self._places:
            place.client.purge(place.topic)


class Served:
    """What was handed out, in order."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.count = 0
        self.by_tenant: Counter[int] = Counter()
        # Of messages that are watched: how many had been handed out before it, and when it was.
        self.places: dict[int, int] = {}
        self.moments: dict[int, float] = {}
        self.over = False
        # So many are enough.
        self.most: float = float("inf")

    def came(self, payloads: Sequence[bytes]) -> None:
        """A claim returned."""
        now = monotonic_s()
        with self.changed:
            for place, (tenant, number) in enumerate(map(_payload.unpack, payloads), self.count):
                self.by_tenant[tenant] += 1
                if number:
                    self.places[number] = place
                    self.moments[number] = now
            self.count += len(payloads)
            self.over = self.over or self.count >= self.most
            self.changed.notify_all()

    def wait(self, ready: Callable[[], bool]) -> None:
        """Waits until something is so. Raises when messages do not come."""
        with self.changed:
            if not self.changed.wait_for(ready, timeout=_GIVE_UP_S):
                raise duly.Error(f"Messages did not come: {self.count} did.")


@contextmanager
def _crew(side: Side, most: int) -> Iterator[Served]:
    """Every claimer at work, `most` messages a claim, until the end."""
    served = Served()
    errors: list[BaseException] = []
    crew = threading.Thread(target=_at_work, args=(side, served, most, errors))
    crew.start()
    try:
        yield served
    finally:
        with served.changed:
            served.over = True
        crew.join()
    if errors:
        raise errors[0]


def _at_work(side: Side, served: Served, most: int, errors: list[BaseException]) -> None:
    try:
        in_threads([partial(_claim, place, served, most) for place in side.claimers])
    except BaseException as error:
        errors.append(error)


def _claim(place: Place, served: Served, most: int) -> None:
    while not served.over:
        batch = place.client.claim(place.topic, max_messages=most, wait=_WAIT_S)
        while batch and not served.over:
            served.came(batch.payloads)
            batch = place.client.claim(place.topic, max_messages=most, acks=batch)
        if batch:
            place.client.ack(batch)


# Windows


def _window(side: Side, load: Load, served: Served, *, evenly: bool) -> list[float]:
    """Sends a load at its times; how long each single message took."""
    singles = round(load.quiet * load.per_s * load.seconds)
    batches = round(load.per_s * TIMES * load.seconds / _BATCH)
    began = monotonic_s() + 0.1
    before = served.count
    due = {number: began + number * load.seconds / singles for number in range(1, singles + 1)}

    def send_single(number: int) -> None:
        _wait_until(due[number])
        tenant = number % load.tenants if evenly else 1 + number % load.quiet
        side.publish(tenant, [_payload.pack(tenant, number)])

    def send_batch(number: int) -> None:
        _wait_until(began + number * load.seconds / batches)
        tenant = number % load.tenants if evenly else _FLOOD
        side.publish(tenant, [_payload.pack(tenant, 0)] * _BATCH)

    served.moments.clear()
    in_threads(
        [partial(_each, send_single, range(1 + nth, singles + 1, _PUBLISHERS)) for nth in range(_PUBLISHERS)]
        + [partial(_each, send_batch, range(nth, batches, _PUBLISHERS)) for nth in range(_PUBLISHERS)]
    )
    served.wait(lambda: served.count - before >= singles + batches * _BATCH)
    return [served.moments[number] - moment for number, moment in due.items()]


def _each(send: Callable[[int], None], numbers: Sequence[int]) -> None:
    for number in numbers:
        send(number)


def _wait_until(moment: float) -> None:
    left_s = moment - monotonic_s()
    if left_s > 0:
        threading.Event().wait(left_s)


def _p99(took: Sequence[float]) -> float:
    return sorted(took)[min(len(took) - 1, len(took) * 99 // 100)]


def quiet_p99(side: Side, load: Load) -> Figures:
    """The quiet ones' p99 beside a flood, and beside the same load spread evenly."""
    pairs: list[tuple[float, float]] = []
    with _crew(side, _BATCH) as served:
        _window(side, load, served, evenly=True)
        for _ in range(load.pairs):
            spread = _p99(_window(side, load, served, evenly=True))
            pairs.append((_p99(_window(side, load, served, evenly=False)), spread))
    return {
        "quiet_p99_ratio": round(statistics.median(flood / spread for flood, spread in pairs), 3),
        "quiet_p99_flood_ms": round(statistics.median(flood for flood, _ in pairs) * 1000, 3),
        "quiet_p99_even_ms": round(statistics.median(spread for _, spread in pairs) * 1000, 3),
    }


# Overtakes


def overtakes(side: Side, load: Load) -> Figures:
    """The most messages of others that any of the quiet ones' let by, while the one that floods has many standing."""
    _stand(side, _FLOOD, load.backlog)
    marks: dict[int, int] = {}
    with _crew(side, _BATCH) as served:
        until = monotonic_s() + load.seconds
        sent = [0]

        def flood() -> None:
            while monotonic_s() < until:
                _stand(side, _FLOOD, 10 * _BATCH)
                sent[0] += 10 * _BATCH
                # What stands grows no further than it was.
                served.wait(lambda: served.count >= sent[0] - 10 * _BATCH)

        def quiet(nth: int) -> None:
            number = nth + 1
            while monotonic_s() < until:
                tenant = 1 + number % load.quiet
                side.publish(tenant, [_payload.pack(tenant, number)])
                with served.changed:
                    marks[number] = served.count
                number += _PUBLISHERS
                # Each of the quiet has one on its way at most.
                earlier = number - load.quiet
                if earlier > 0:
                    served.wait(lambda earlier=earlier: earlier in served.places)  # type: ignore[misc]

        in_threads([flood, *(partial(quiet, nth) for nth in range(_PUBLISHERS))])
        served.wait(lambda: all(number in served.places for number in marks))
    side.purge()
    found = [max(0, served.places[number] - mark) for number, mark in marks.items()]
    return {
        "overtakes_max": max(found),
        "overtakes_bound": len(side.claimers) * _BATCH + load.tenants,
        "overtakes_median": statistics.median(found),
        "overtaken": len(found),
    }


def _stand(side: Side, tenant: int, messages: int) -> None:
    while messages > 0:
        some = min(messages, 50 * _BATCH)
        side.publish(tenant, [_payload.pack(tenant, 0)] * some)
        messages -= some


# Shares, and what they cost


def jain(side: Side, load: Load) -> Figures:
    """Jain's index of what all tenants got when half of what each of them had standing was served: 1 is fair."""
    each = max(40, load.backlog // load.tenants)
    for tenant in range(load.tenants):
        _stand(side, tenant, each)
    with _crew(side, 10) as served:
        served.most = each * load.tenants / 2
        served.wait(lambda: served.over)
        got = [served.by_tenant[tenant] for tenant in range(load.tenants)]
    side.purge()
    return {"jain": round(sum(got) ** 2 / (len(got) * sum(count**2 for count in got)), 4)}


def throughput(fair: Side, unfair: Side, load: Load) -> Figures:
    """Messages a second that are claimed and acked, by tenants in turn and in unfair order, which take turns."""
    ratios = []
    for _ in range(max(1, load.pairs - 1)):
        ratios.append(_rate(fair, load) / _rate(unfair, load))
    return {"throughput_ratio": round(statistics.median(ratios), 3)}


def _rate(side: Side, load: Load) -> float:
    each = load.backlog // load.tenants
    for tenant in range(load.tenants):
        _stand(side, tenant, each)
    with _crew(side, _BATCH) as served:
        began = monotonic_s()
        served.wait(lambda: served.count >= each * load.tenants)
        took = monotonic_s() - began
    return each * load.tenants / took


def measure(urls: Sequence[str], load: Load, parts: Sequence[str]) -> dict[str, Figures]:
    """Both sides, or one, through brokers that share a store."""
    found: dict[str, Figures] = {}
    for part in parts:
        with ExitStack() as stack, _sides(stack, urls, load, lanes=part == "lanes") as (fair, unfair):
            found[part] = {
                **overtakes(fair, load),
                **quiet_p99(fair, load),
                **jain(fair, load),
                **throughput(fair, unfair, load),
            }
    return found


@contextmanager
def _sides(stack: ExitStack, urls: Sequence[str], load: Load, *, lanes: bool) -> Iterator[tuple[Side, Side]]:
    """Tenants apart, and nobody apart."""

    def client(number: int, tenant: str) -> duly.Client:
        return stack.enter_context(duly.connect(urls[number % len(urls)], tenant=tenant))

    one = [client(number, "bench") for number in range(max(len(urls), _LANE_CLAIMERS))]
    names = [f"unfair-{number}" for number in range(1 if lanes else load.tenants)]
    with own_topics(one[0], "fair", *names) as (topic, *others):
        for name in (topic, *others):
            one[0].create_topic(name, kind="queue", lease=_LEASE_S)
        if lanes:
            claimers = [Place(client, topic) for client in one[:_LANE_CLAIMERS]]
            without = [Place(client, others[0]) for client in one[:_LANE_CLAIMERS]]
            yield (
                Side([Place(one[n % len(one)], topic) for n in range(load.tenants)], claimers, lanes=True),
                Side([Place(one[n % len(one)], others[0]) for n in range(load.tenants)], without),
            )
            return
        apart = [Place(client(number, f"tenant-{number}"), topic) for number in range(load.tenants)]
        for place in apart:
            place.client.create_topic(topic, kind="queue", lease=_LEASE_S)
        together = [Place(one[number % len(one)], name) for number, name in enumerate(others)]
        more = [apart[_FLOOD]] * (_FLOOD_CLAIMERS - 1)
        yield Side(apart, [*apart, *more]), Side(together, [*together, *[together[_FLOOD]] * (_FLOOD_CLAIMERS - 1)])
