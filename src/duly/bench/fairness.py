"""One tenant floods beside many quiet ones: what that does to them, twice.

    lanes    tenants as lanes of one queue, with claimers for all of it
    topics   tenants with their own topics and claimers, who share brokers

A *window* is a load that is sent at its times, however late it is served: the quiet ones' single messages, and batches
of the one that sends a thousand times as much as any of them. The same window, its messages spread evenly over all of
them, is what it is held against: the same sizes at the same moments, and another owner. Single messages are measured,
from the moment at which they should have been sent to their claim's return. Flood and evenness take turns, and the
median of their pairs is told, so that what else the machine does falls on both.

*Overtakes* of a quiet message are the messages of others that were claimed between its publish's return and its own
claim, with as much standing before as anybody likes. When something was claimed its lease says, by the store's clock;
what was being claimed at that moment is why claimers × batch is in the bound.
"""

from __future__ import annotations

import bisect
import itertools
import statistics
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path

import duly
from duly.bench.brokers import own_broker, own_topics
from duly.bench.own_postgres import own_postgres
from duly.bench.postgres import own_place
from duly.bench.threads import in_threads
from duly.clock import SystemClock, moment_ms, monotonic_s

Figures = dict[str, float]

TIMES = 1000
_FLOOD = 0
_LEASE_S = 600
_BATCH = 100
_LANE_CLAIMERS = 4
_FLOOD_CLAIMERS = 4
_PUBLISHERS = 4
# Turns that either side of a pair is cut into.
_SLICES = 4
# A claimer of the quiet waits for so long, and then looks whether it is over.
_WAIT_S = 2.0
_GIVE_UP_S = 60
_POSTGRES = ("postgresql://", "postgres://")
PARTS = ("lanes", "topics")
_payload = struct.Struct("<II")


@dataclass(frozen=True, slots=True)
class Load:
    """How much is sent: `per_s` single messages by each quiet tenant, for so many seconds on either side of a pair."""

    quiet: int = 100
    per_s: float = 2.0
    seconds: float = 2.0
    pairs: int = 5
    backlog: int = 20_000

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
    """A way of telling tenants apart: each has places to publish to, which take turns; where all share one queue, a
    lane. `claimers`: all at work; `alike`: as many for each tenant.
    """

    def __init__(
        self, places: Sequence[Sequence[Place]], claimers: Sequence[Place], alike: Sequence[Place], *, lanes: bool
    ) -> None:
        self._places = [itertools.cycle(some) for some in places]
        self._topics = {id(some[0]): some[0] for some in places}.values()
        self._lanes = lanes
        self.claimers = claimers
        self.alike = alike

    def publish(self, tenant: int, payloads: list[bytes]) -> None:
        """Publishes for one of them."""
        place = next(self._places[tenant])
        lane = f"tenant-{tenant}" if self._lanes else None
        place.client.publish(place.topic, [duly.Message(payload, lane=lane) for payload in payloads])

    def purge(self) -> None:
        """Drops what is left."""
        for place in self._topics:
            place.client.purge(place.topic)


class Served:
    """What was handed out, in order."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.count = 0
        self.by_tenant: Counter[int] = Counter()
        # When each batch was claimed, by the store's clock, and of the messages that are watched the numbers; else 0.
        self.batches: list[tuple[int, list[int]]] = []
        # Of messages that are watched, when they came, by ours.
        self.moments: dict[int, float] = {}
        self.over = False
        # So many are enough.
        self.most: float = float("inf")

    def came(self, batch: duly.Batch) -> None:
        """A claim returned."""
        now = monotonic_s()
        expires_at = batch.lease_expires_at
        claimed_ms = 0 if expires_at is None else moment_ms(expires_at, "lease") - _LEASE_S * 1000
        found = [_payload.unpack(payload) for payload in batch.payloads]
        with self.changed:
            self.by_tenant.update(tenant for tenant, _ in found)
            self.moments.update((number, now) for _, number in found if number)
            self.batches.append((claimed_ms, [number for _, number in found]))
            self.count += len(found)
            self.over = self.over or self.count >= self.most
            self.changed.notify_all()

    def wait(self, ready: Callable[[], bool]) -> None:
        """Waits until something is so. Raises when messages do not come."""
        with self.changed:
            if not self.changed.wait_for(ready, timeout=_GIVE_UP_S):
                raise duly.Error(f"Messages did not come: {self.count} did.")


@contextmanager
def _crew(claimers: Sequence[Place], most: int) -> Iterator[Served]:
    """Claimers at work, `most` messages a claim, until the end."""
    served = Served()
    errors: list[BaseException] = []
    crew = threading.Thread(target=_at_work, args=(claimers, served, most, errors))
    crew.start()
    try:
        yield served
    finally:
        with served.changed:
            served.over = True
        crew.join()
    if errors:
        raise errors[0]


def _at_work(claimers: Sequence[Place], served: Served, most: int, errors: list[BaseException]) -> None:
    try:
        in_threads([partial(_claim, place, served, most) for place in claimers])
    except BaseException as error:
        errors.append(error)


def _claim(place: Place, served: Served, most: int) -> None:
    while not served.over:
        batch = place.client.claim(place.topic, max_messages=most, wait=_WAIT_S)
        while batch and not served.over:
            served.came(batch)
            batch = place.client.claim(place.topic, max_messages=most, acks=batch)
        if batch:
            place.client.ack(batch)


# Windows


def _window(side: Side, load: Load, served: Served, *, evenly: bool) -> list[float]:
    """Sends a load at its times; how long each single message took."""
    seconds = load.seconds / _SLICES
    singles = round(load.quiet * load.per_s * seconds)
    batches = round(load.per_s * TIMES * seconds / _BATCH)
    began = monotonic_s() + 0.1
    before = served.count
    due = {number: began + number * seconds / singles for number in range(1, singles + 1)}

    def send_single(number: int) -> None:
        _wait_until(due[number])
        tenant = number % load.tenants if evenly else 1 + number % load.quiet
        side.publish(tenant, [_payload.pack(tenant, number)])

    def send_batch(number: int) -> None:
        _wait_until(began + number * seconds / batches)
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
    # As many claimers for each: more of them for one would be another load.
    with _crew(side.alike, _BATCH) as served:
        _window(side, load, served, evenly=True)
        for _ in range(load.pairs):
            flood: list[float] = []
            spread: list[float] = []
            for nth in range(_SLICES):
                # Either is the first as often.
                for evenly in (True, False) if nth % 2 else (False, True):
                    took = _window(side, load, served, evenly=evenly)
                    (spread if evenly else flood).extend(took)
            pairs.append((_p99(flood), _p99(spread)))
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
    clock = SystemClock()
    with _crew(side.claimers, _BATCH) as served:
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
                marks[number] = clock.now_ms()
                number += _PUBLISHERS
                # Each of the quiet has one on its way at most.
                earlier = number - load.quiet
                if earlier > 0:
                    served.wait(lambda earlier=earlier: earlier in served.moments)  # type: ignore[misc]

        in_threads([flood, *(partial(quiet, nth) for nth in range(_PUBLISHERS))])
        served.wait(lambda: all(number in served.moments for number in marks))
    side.purge()
    found = _overtakes(served, marks)
    return {
        "overtakes_max": max(found),
        "overtakes_bound": len(side.claimers) * _BATCH + load.tenants,
        "overtakes_median": statistics.median(found),
        "overtaken": len(found),
    }


def _overtakes(served: Served, marks: Mapping[int, int]) -> list[int]:
    """Of each message that is watched, how many were claimed after its mark, by the store's clock, and before it."""
    batches = sorted(served.batches, key=itemgetter(0))
    moments = [claimed_ms for claimed_ms, _ in batches]
    before = [0, *itertools.accumulate(len(numbers) for _, numbers in batches)]
    found = []
    for nth, (_, numbers) in enumerate(batches):
        for place, number in enumerate(numbers, before[nth]):
            if number:
                found.append(max(0, place - before[bisect.bisect_right(moments, marks[number])]))
    return found


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
    with _crew(side.alike, 10) as served:
        served.most = each * load.tenants / 2
        served.wait(lambda: served.over)
        got = [served.by_tenant[tenant] for tenant in range(load.tenants)]
    side.purge()
    return {"jain": round(sum(got) ** 2 / (len(got) * sum(count**2 for count in got)), 4)}


def throughput(fair: Side, unfair: Side, load: Load) -> Figures:
    """Messages a second that are claimed and acked, by tenants in turn and in unfair order, which take turns."""
    rates: dict[Side, list[float]] = {fair: [], unfair: []}
    for nth in range(1 + 2 * load.pairs):
        # Either is the first as often; what comes before the first pair warms up.
        for side in (fair, unfair) if nth % 2 else (unfair, fair):
            rates[side].append(_rate(side, load))
    ratios = [mine / others for mine, others in zip(rates[fair][1:], rates[unfair][1:], strict=True)]
    return {"throughput_ratio": round(statistics.median(ratios), 3)}


def _rate(side: Side, load: Load) -> float:
    each = load.backlog // load.tenants
    for tenant in range(load.tenants):
        _stand(side, tenant, each)
    with _crew(side.claimers, _BATCH) as served:
        began = monotonic_s()
        served.wait(lambda: served.count >= each * load.tenants)
        took = monotonic_s() - began
    return each * load.tenants / took


@contextmanager
def places(store: str | None, path: Path, folder: Path, *, postgres: bool, brokers: int | None) -> Iterator[list[str]]:
    """Addresses of brokers that were started on a store: one that is named, a PostgreSQL of our own, or a file."""
    with ExitStack() as stack:
        if postgres:
            address = stack.enter_context(own_postgres(folder))
            store = stack.enter_context(own_place(address)).store
        elif store is not None and store.startswith(_POSTGRES):
            store = stack.enter_context(own_place(store)).store
        several = 3 if store is not None and store.startswith(_POSTGRES) else 1
        yield [stack.enter_context(own_broker(store or path)) for _ in range(brokers or several)]


def held(figures: Mapping[str, Figures]) -> bool:
    """Whether nobody was overtaken by more than may be: whatever the machine, that holds."""
    return all(found["overtakes_max"] <= found["overtakes_bound"] for found in figures.values())


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
            yield _shared(one, topic, load, lanes=True), _shared(one, others[0], load, lanes=False)
            return
        apart = [Place(client(number, f"tenant-{number}"), topic) for number in range(load.tenants)]
        for place in apart:
            place.client.create_topic(topic, kind="queue", lease=_LEASE_S)
        # Of one tenant, and as many clients.
        together = [Place(client(number, "bench"), name) for number, name in enumerate(others)]
        yield _owned(apart), _owned(together)


def _shared(clients: Sequence[duly.Client], topic: str, load: Load, *, lanes: bool) -> Side:
    """One queue for all."""
    places = [Place(client, topic) for client in clients]
    claimers = places[:_LANE_CLAIMERS]
    return Side([places] * load.tenants, claimers, claimers, lanes=lanes)


def _owned(places: Sequence[Place]) -> Side:
    """A queue each."""
    more = [places[_FLOOD]] * (_FLOOD_CLAIMERS - 1)
    return Side([[place] for place in places], [*places, *more], places, lanes=False)
