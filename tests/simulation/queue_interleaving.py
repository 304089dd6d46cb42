"""A seeded driver that does everything at once to one queue, beside a model that is a plain list of messages.

Every message carries a number. The model knows of each where it must be: waiting until a moment, under somebody's
lease, acked, dead, or dropped as expired; and so what the next claim has to bring, in which order.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

import duly
import duly.engine.fold
import duly.engine.index
import duly.engine.queue_claim
import duly.engine.queue_retain
import duly.engine.views
from duly.clock import from_ms

LEASE_S = 8
MAX_ATTEMPTS = 3
RETRY_S = 2
BIG = 5000
PRIORITIES = (0, 0, 1, 2, 7, 7, 65_535)
WAITS_MS = (0, 0, 0, 0, 1, 500, 1000, 3000, 9000, 40_000)
TTLS_MS = (None, None, None, None, None, 1, 700, 5000)
VERDICTS = ("ack", "ack", "ack", "nack", "nack", "delayed", "release", "extend", "bury")


@dataclass(slots=True)
class Entry:
    """One message as the model sees it. `suspect` names the claim whose lease ran out on it, with its half."""

    number: int
    seq: int
    priority: int
    lane: str | None
    due_ms: int
    published_due_ms: int
    expires_ms: int | None
    size: int
    id: str | None
    state: str = "waiting"
    attempts: int = 0
    suspect: tuple[int, int] | None = None
    hold: Hold | None = None
    was_claimed: bool = False

    @property
    def key(self) -> tuple[int, int, int]:
        return self.priority, self.due_ms, self.seq

    def expired(self, now: int) -> bool:
        return self.expires_ms is not None and self.expires_ms <= now


@dataclass(slots=True)
class Hold:
    """Who has a message under which claim, and until when."""

    delivery: duly.Delivery
    claim: int
    claimed_with: int
    consumer: str
    expires_ms: int


@dataclass(slots=True)
class Sizes:
    """How small the engine's steps are made, so that few messages take all of its ways."""

    absorb_from: int = 4096
    absorb: int = 16_384
    promote: int = 8192
    fan: int = 16
    slice: int = 4000
    block: int = 1000
    merge: int = 20_000
    ahead: int = 2048
    merged: int = 5
    slack: int = 20_000
    few: int = 50
    sweep: int = 64

    @property
    def in_steps(self) -> bool:
        """Whether what is due may become ready by and by, so that a claim need not see all of it."""
        return self.promote < 8192 or self.absorb < 16_384

    def apply(self, patch: pytest.MonkeyPatch) -> None:
        for module, name, value in (
            (duly.engine.fold, "ABSORB_FROM", self.absorb_from),
            (duly.engine.index, "ABSORB_FROM", self.absorb_from),
            (duly.engine.index, "ABSORB_MAX", self.absorb),
            (duly.engine.index, "PROMOTE_MAX", self.promote),
            (duly.engine.fold, "FAN", self.fan),
            (duly.engine.fold, "_SLICE", self.slice),
            (duly.engine.index, "RUN_BLOCK", self.block),
            (duly.engine.fold, "RUN_BLOCK", self.block),
            (duly.engine.fold, "_OWED_MAX", self.slice),
            (duly.engine.index, "AHEAD_FIRST", self.ahead),
            (duly.engine.views, "AHEAD_FIRST", self.ahead),
            (duly.engine.views, "_AHEAD_MAX", 4 * self.ahead),
            (duly.engine.index, "_MERGED_MIN", self.merged),
            (duly.engine.queue_claim, "_MERGE_MAX", self.merge),
            # The model has every lease that ran out end with the next claim; small merges make very many.
            (duly.engine.queue_claim, "_TAKE_OVER_MAX", 10_000),
            (duly.engine.queue_retain, "_SLACK", self.slack),
            (duly.engine.queue_retain, "_FEW", self.few),
            (duly.engine.index, "SWEEP_BLOCKS", self.sweep),
        ):
            patch.setattr(module, name, value)
        index: Any = duly.engine.index.Index
        patch.setattr(index.absorb, "__defaults__", (self.absorb,))
        patch.setattr(index.promote, "__defaults__", (self.promote,))
        patch.setattr(index.retag, "__defaults__", (self.promote,))


def drawn_sizes(draw: random.Random) -> Sizes:
    """Small steps of every kind, each alone and together with others."""
    absorb_from = draw.choice([1, 10, 200, 4096])
    return Sizes(
        absorb_from=absorb_from,
        # Publishers leave less than `absorb_from` to the next claim; it can take in all of that.
        absorb=draw.choice([max(30, absorb_from), 16_384, 16_384, 16_384]),
        promote=draw.choice([5, 8192, 8192, 8192]),
        fan=draw.choice([2, 3, 4, 16]),
        slice=draw.choice([8, 50, 1000, 4000]),
        block=draw.choice([4, 10, 100, 1000]),
        merge=draw.choice([3, 50, 20_000, 20_000]),
        ahead=draw.choice([2, 16, 2048]),
        merged=draw.choice([1, 3, 5]),
        slack=draw.choice([0, 50, 20_000]),
        few=draw.choice([2, 50]),
        sweep=draw.choice([1, 3, 64]),
    )


class QueueInterleaving:
    """Random verbs, from one seed, on some clients of one store."""

    def __init__(
        self, path: str, seed: int, *, in_lanes: bool, sizes: Sizes, largest: int = 60, clients: int = 2
    ) -> None:
        self.path = path
        self.draw = random.Random(seed)
        self.in_lanes = in_lanes
        self.sizes = sizes
        self.largest = largest
        self.clock = duly.ManualClock()
        self.entries: dict[int, Entry] = {}
        self.batches: list[duly.Batch] = []
        self.claims = 0
        self.paused = False
        self.done: Counter[str] = Counter()
        self.clients = [self._connect(f"w{at}") for at in range(clients)]
        retry = duly.RetryPolicy(max_attempts=MAX_ATTEMPTS, base=RETRY_S, shape="fixed", jitter="none")
        lanes = duly.Lanes(weights={"a": 3, "b*": 0.5})
        self.clients[0].create_topic("t", kind="queue", lease=LEASE_S, retry=retry, lanes=lanes)

    def _connect(self, consumer: str) -> duly.Client:
        return duly.connect(self.path, clock=self.clock, consumer=consumer)

    def close(self) -> None:
        for client in self.clients:
            client.close()

    def run(self, steps: int) -> None:
        weighted: list[tuple[int, Callable[[], object]]] = [
            (8, self.publish),
            (12, self.claim),
            (8, self.settle_batch),
            (8, self.settle_part),
            (6, self.pass_time),
            (2, self.redrive),
            (1, self.purge_dead),
            (1, self.release_consumer),
            (1, self.regain),
            (2, self.reopen),
            (1, self.pause_or_resume),
            (2 if self.in_lanes else 0, self.weigh),
            (3, self.check_dead),
        ]
        verbs = [verb for weight, verb in weighted for _ in range(weight)]
        for _ in range(steps):
            self.draw.choice(verbs)()

    @property
    def q(self) -> duly.Client:
        return self.draw.choice(self.clients)

    @property
    def now(self) -> int:
        return self.clock.now_ms()

    # Publishing

    def publish(self) -> None:
        many = self.draw.choice([1, 1, 2, 5, 20, self.largest])
        first = len(self.entries)
        made = [self._entry(first + at) for at in range(many)]
        receipt = self.q.publish("t", self._table(made) if self.draw.random() < 0.4 else self._messages(made))
        for entry, (partition, offset) in zip(made, receipt.positions, strict=True):
            assert partition == 0
            assert offset == entry.seq, "offsets are given in the order of arrival"
            self.entries[entry.number] = entry
        self.done["published"] += many

    def _entry(self, number: int) -> Entry:
        draw = self.draw
        # Some are due in the past, out of order.
        due_ms = self.now + (draw.choice(WAITS_MS) if draw.random() < 0.8 else -draw.randrange(20_000))
        ttl_ms = draw.choice(TTLS_MS)
        return Entry(
            number,
            number,
            draw.choice(PRIORITIES),
            draw.choice([None, "a", "b1", "b2", "c"]) if self.in_lanes else None,
            due_ms,
            due_ms,
            None if ttl_ms is None else due_ms + ttl_ms,
            BIG if draw.random() < 0.02 else 8 + number % 5,
            f"id-{number}" if number % 3 == 0 else None,
        )

    def _messages(self, made: list[Entry]) -> Any:
        messages = [
            duly.Message(
                payload_of(entry),
                id=entry.id,
                due=from_ms(entry.due_ms) if entry.due_ms != self.now else None,
                priority=entry.priority or None,
                lane=entry.lane,
                ttl=None if entry.expires_ms is None else (entry.expires_ms - entry.due_ms) / 1000,
            )
            for entry in made
        ]
        return messages[0] if len(messages) == 1 else messages

    def _table(self, made: list[Entry]) -> pa.Table:
        return pa.table(
            {
                "payload": pa.array([payload_of(entry) for entry in made], pa.binary()),
                "id": pa.array([entry.id for entry in made], pa.string()),
                "priority": pa.array([entry.priority for entry in made], pa.int32()),
                "lane": pa.array([entry.lane for entry in made], pa.string()),
                "due_at": pa.array([entry.due_ms for entry in made], pa.int64()),
                "expires_at": pa.array([entry.expires_ms for entry in made], pa.int64()),
            }
        )

    # Claiming

    def claim(self, most: int | None = None) -> duly.Batch:
        client = self.q
        most = most or self.draw.choice([1, 2, 3, 10, 50, 500])
        most_bytes = self.draw.choice([None, None, None, 100])
        lease_s = self.draw.choice([None, None, 1, 30])
        meant, given = self._to_ack()
        batch = client.claim("t", max_messages=most, max_bytes=most_bytes, lease=lease_s, acks=given)
        if batch.acked is not None:
            self._answered(meant, batch.acked, "ack", None)
        if self.paused:
            assert len(batch) == 0, "a paused queue delivers nothing"
            return batch
        self.claims += 1
        self._take_over()
        self._check_claim(batch, most, most_bytes)
        self._took(batch, client.consumer, round((lease_s or LEASE_S) * 1000))
        return batch

    def _to_ack(self) -> tuple[list[duly.Delivery], duly.Batch | list[duly.Delivery] | None]:
        """What is acked with a claim: mostly nothing, or a batch, or a part of one."""
        if not self.batches or self.draw.random() < 0.7:
            return [], None
        batch = self.draw.choice(self.batches)
        open_ = [d for d in batch if not d.settled]
        part = self.draw.sample(open_, self.draw.randint(0, len(open_)))
        return (open_, batch) if self.draw.random() < 0.5 else (part, part)

    def _take_over(self) -> None:
        """Leases that ran out end here; due is the lease's end."""
        late: dict[int, list[Entry]] = {}
        for entry in self.entries.values():
            if entry.hold is not None and entry.hold.expires_ms <= self.now:
                late.setdefault(entry.hold.claim, []).append(entry)
        for claim, entries in late.items():
            for entry in entries:
                assert entry.hold is not None
                entry.due_ms = entry.hold.expires_ms
                alone = entry.hold.claimed_with == 1
                entry.hold = None
                if alone and entry.attempts >= MAX_ATTEMPTS:
                    # One that expired meanwhile may be given up as either.
                    entry.state = "dead" if not entry.expired(self.now) else self._gone_as(entry)
                    self.done["buried by expiry"] += 1
                else:
                    entry.state = "waiting"
                    entry.suspect = (claim, (len(entries) + 1) // 2)
                    self.done["put back by expiry"] += 1

    def _gone_as(self, entry: Entry) -> str:
        return "dead" if entry.number in {number_of(letter.payload) for letter in self.q.dead("t")} else "dropped"

    def _ready(self) -> list[Entry]:
        now = self.now
        found = [e for e in self.entries.values() if e.state == "waiting" and e.due_ms <= now and not e.expired(now)]
        return sorted(found, key=lambda entry: entry.key)

    def _check_claim(self, batch: duly.Batch, most: int, most_bytes: int | None) -> None:
        ready = self._ready()
        got = [self.entries[number_of(payload)] for payload in batch.payloads]
        assert len({entry.number for entry in got}) == len(got), "one message twice in a batch"
        for entry in got:
            assert entry.state == "waiting", f"{entry} was delivered"
            assert entry.due_ms <= self.now, f"{entry} was delivered before its time, {self.now}"
            assert not entry.expired(self.now), f"{entry} was delivered after its expiry"
        assert len(got) <= most
        if most_bytes is not None:
            assert len(got) <= 1 or sum(entry.size for entry in got) <= most_bytes
        self._check_suspects(got)
        self._check_priorities(got)
        if not self.sizes.in_steps:
            self._check_order(got, ready)
            self._check_count(got, ready, most, most_bytes)

    def _check_suspects(self, got: list[Entry]) -> None:
        origins = {entry.suspect for entry in got}
        assert len(origins) <= 1, f"suspects were mixed with others: {origins}"
        origin = origins.pop() if origins else None
        if origin is not None:
            assert len(got) <= origin[1], f"{len(got)} suspects at once; half is {origin[1]}"
            self.done["suspects"] += 1

    def _check_priorities(self, got: list[Entry]) -> None:
        priorities = [entry.priority for entry in got]
        assert priorities == sorted(priorities)

    def _check_order(self, got: list[Entry], ready: list[Entry]) -> None:
        if not self.in_lanes:
            assert [entry.key for entry in got] == [entry.key for entry in ready[: len(got)]]
            return
        if not got:
            return
        taken = {entry.number for entry in got}
        left = [entry for entry in ready if entry.number not in taken]
        last = max(entry.priority for entry in got)
        assert all(entry.priority >= last for entry in left), "a smaller priority was left behind"
        for lane in {entry.lane for entry in got}:
            # The last ones served and the most overdue of those left behind: all pairs would take too long.
            served = [entry for entry in got if entry.lane == lane][-60:]
            behind = [entry for entry in left if entry.lane == lane][:60]
            for at, entry in enumerate(served):
                for other in [*served[at + 1 :], *behind]:
                    assert not self._precedes(other, entry), f"{other} waits behind {entry}"

    def _precedes(self, one: Entry, other: Entry) -> bool:
        """Whether one has to be served before the other, both of one lane.

        In a named lane a turn is given when a message becomes ready, and kept: one that comes in later with an
        earlier due time, or again after a failure, is behind those that have theirs.
        """
        if one.lane is None or one.priority != other.priority:
            return one.key < other.key
        again = one.was_claimed or other.was_claimed
        return not again and one.seq < other.seq and one.published_due_ms <= other.published_due_ms

    def _check_count(self, got: list[Entry], ready: list[Entry], most: int, most_bytes: int | None) -> None:
        if not ready:
            assert not got
            return
        assert got, f"nothing was delivered, though {len(ready)} are ready"
        if self.in_lanes:
            if most_bytes is None and not any(entry.suspect for entry in ready):
                assert len(got) == min(most, len(ready))
            return
        if ready[0].suspect is None:
            allowed = next((at for at, entry in enumerate(ready) if entry.suspect), len(ready))
            whole = min(most, allowed)
            if most_bytes is not None and len(got) < whole:
                assert sum(entry.size for entry in ready[: len(got) + 1]) > most_bytes
            else:
                assert len(got) == whole, f"{len(got)} of {whole}"

    def _took(self, batch: duly.Batch, consumer: str, lease_ms: int) -> None:
        for delivery in batch:
            entry = self.entries[number_of(delivery.payload)]
            entry.attempts += 1
            self._check_delivery(delivery, entry)
            entry.state, entry.suspect, entry.was_claimed = "leased", None, True
            entry.hold = Hold(delivery, self.claims, len(batch), consumer, self.now + lease_ms)
        self.done["claimed"] += len(batch)
        if len(batch):
            self.batches.append(batch)

    def _check_delivery(self, delivery: duly.Delivery, entry: Entry) -> None:
        assert delivery.payload == payload_of(entry)
        assert delivery.offset == entry.seq
        assert delivery.attempt == entry.attempts, f"{entry}: attempt {delivery.attempt}"
        assert (delivery.lane, delivery.priority) == (entry.lane, entry.priority)
        assert delivery.due is None or delivery.due == from_ms(entry.published_due_ms)
        if entry.id is not None:
            assert delivery.id == entry.id

    # Settling

    def settle_batch(self) -> None:
        if self.batches:
            batch = self.batches.pop(self.draw.randrange(len(self.batches)))
            self._settle([d for d in batch if not d.settled], batch, self.draw.choice(VERDICTS))

    def settle_part(self) -> None:
        if self.batches:
            batch = self.draw.choice(self.batches)
            open_ = [d for d in batch if not d.settled]
            part = self.draw.sample(open_, self.draw.randint(0, len(open_)))
            self._settle(part, part, self.draw.choice(VERDICTS))

    def _settle(self, meant: list[duly.Delivery], given: duly.Batch | list[duly.Delivery], verdict: str) -> None:
        delay_s = self.draw.choice([0, 0.5, 3]) if verdict == "delayed" else None
        client = self.q
        settled: duly.Settled = (
            client.nack(given, delay=delay_s) if verdict == "delayed" else getattr(client, verdict)(given)
        )
        self._answered(meant, settled, verdict, delay_s)

    def _answered(self, meant: list[duly.Delivery], settled: duly.Settled, verdict: str, delay_s: float | None) -> None:
        lost = {id(delivery) for delivery in settled.lost}
        held = [delivery for delivery in meant if self._holds(delivery)]
        for delivery in held:
            entry = self.entries[number_of(delivery.payload)]
            assert entry.hold is not None
            assert id(delivery) not in lost or entry.hold.expires_ms <= self.now, f"{entry} was lost too early"
        done = [delivery for delivery in meant if id(delivery) not in lost]
        assert settled.done == len(done)
        for delivery in done:
            assert self._holds(delivery), f"a stale {verdict} of {number_of(delivery.payload)} was accepted"
            self._settled(self.entries[number_of(delivery.payload)], verdict, delay_s)
        self.done[verdict] += len(done)
        self.done["lost"] += len(lost)

    def _holds(self, delivery: duly.Delivery) -> bool:
        hold = self.entries[number_of(delivery.payload)].hold
        return hold is not None and hold.delivery is delivery

    def _settled(self, entry: Entry, verdict: str, delay_s: float | None) -> None:
        assert entry.hold is not None
        if verdict == "extend":
            entry.hold.expires_ms = self.now + entry.hold.delivery._batch.lease_ms
            return
        entry.hold = None
        if verdict == "ack":
            entry.state = "acked"
        elif verdict == "bury":
            entry.state = "dead"
        elif verdict == "release":
            entry.state, entry.due_ms = "waiting", self.now
            entry.attempts -= 1
        elif entry.expired(self.now):
            entry.state = "dropped"
        elif entry.attempts >= MAX_ATTEMPTS:
            entry.state = "dead"
        else:
            wait_s = RETRY_S if delay_s is None else delay_s
            entry.state, entry.due_ms = "waiting", self.now + round(wait_s * 1000)

    # The others

    def pass_time(self) -> None:
        self.clock.advance(self.draw.choice([0.001, 0.1, 0.5, 1, 2, 9, 31]))

    def redrive(self) -> None:
        client = self.q
        letters = list(client.dead("t"))
        chosen = [letter for letter in letters if self.draw.random() < 0.5]
        assert client.redrive("t", ids=[letter.id for letter in chosen]) == len(chosen)
        for letter in chosen:
            entry = self.entries[number_of(letter.payload)]
            assert entry.state == "dead" or self._died_unseen(entry)
            self._sent_back(entry)

    def _sent_back(self, entry: Entry) -> None:
        entry.hold, entry.suspect = None, None
        entry.state, entry.due_ms, entry.attempts = "waiting", self.now, 0
        self.done["redriven"] += 1

    def _died_unseen(self, entry: Entry) -> bool:
        """A lease may be ended by whoever looks first."""
        hold = entry.hold
        return hold is not None and hold.expires_ms <= self.now and entry.attempts >= MAX_ATTEMPTS

    def purge_dead(self) -> None:
        if self.draw.random() < 0.7:
            return
        dead = [entry for entry in self.entries.values() if entry.state == "dead"]
        assert self.q.purge("t", dead=True) == len(dead)
        for entry in dead:
            entry.state = "purged"

    def release_consumer(self) -> None:
        """A hung consumer's leases are freed, those that ran out and were not taken over among them."""
        consumer = self.draw.choice([client.consumer for client in self.clients])
        self.q.release(consumer=consumer)
        for entry in self.entries.values():
            if entry.hold is not None and entry.hold.consumer == consumer:
                self._settled(entry, "release", None)

    def regain(self) -> None:
        """A consumer that lost its memory gets back what it holds; its former self is fenced off."""
        client = self.draw.choice(self.clients)
        batches = client.held()
        holding = {
            entry.number: entry
            for entry in self.entries.values()
            if entry.hold is not None and entry.hold.consumer == client.consumer and entry.hold.expires_ms > self.now
        }
        got = [delivery for batch in batches for delivery in batch]
        assert sorted(number_of(delivery.payload) for delivery in got) == sorted(holding)
        for delivery in got:
            entry = holding[number_of(delivery.payload)]
            assert entry.hold is not None
            self._check_delivery(delivery, entry)
            entry.hold.delivery = delivery
            entry.hold.expires_ms = self.now + LEASE_S * 1000
        self.batches.extend(batches)

    def reopen(self) -> None:
        """One client of the store, or all, so that the file is closed and opened."""
        every = range(len(self.clients))
        for at in self.draw.choice([*([at] for at in every), every]):
            self.clients[at].close()
        for at, client in enumerate(self.clients):
            if client._closed:
                self.clients[at] = self._connect(f"w{at}")

    def pause_or_resume(self) -> None:
        self.paused = not self.paused and self.draw.random() < 0.5
        if self.paused:
            self.q.pause("t")
        else:
            self.q.resume("t")

    def weigh(self) -> None:
        """Other weights: they hold for what is ready already, and change no lane's order."""
        weights = {"a": self.draw.choice([0.01, 1, 3, 200]), "b*": self.draw.choice([0.5, 1, 40])}
        self.q.update_topic("t", lanes=duly.Lanes(weights=weights))
        self.done["weighed"] += 1

    # The books

    def check_dead(self) -> None:
        letters = {number_of(letter.payload): letter for letter in self.q.dead("t")}
        dead = {entry.number for entry in self.entries.values() if entry.state == "dead"}
        unseen = {number for number in set(letters) - dead if self._died_unseen(self.entries[number])}
        assert set(letters) - unseen == dead
        for number in dead:
            assert letters[number].payload == payload_of(self.entries[number])
            assert letters[number].attempts == self.entries[number].attempts

    def drain(self) -> None:
        """Claims and acks until nothing is open; then every message was acked, is dead, or expired."""
        self.paused = False
        self.q.resume("t")
        self._drain()
        self.check_dead()
        states = Counter(entry.state for entry in self.entries.values())
        assert set(states) <= {"acked", "dead", "waiting", "dropped", "purged"}
        for entry in self.entries.values():
            assert entry.state != "waiting" or entry.expired(self.now), f"{entry} is lost"
        assert self.q.redrive("t") == states["dead"]
        for entry in self.entries.values():
            if entry.state == "dead":
                self._sent_back(entry)
        self._drain()
        assert not list(self.q.dead("t"))

    def _drain(self) -> None:
        while True:
            self.clock.advance(60)
            batch = self.claim(500)
            while len(batch):
                settled = self.q.ack(batch)
                assert (settled.done, settled.lost) == (len(batch), ())
                for delivery in batch:
                    self._settled(self.entries[number_of(delivery.payload)], "ack", None)
                batch = self.claim(500)
            if not any(self._open(entry) for entry in self.entries.values()):
                return
            self.done["drained"] += 1
            assert self.done["drained"] < 2000, "the drain does not end"

    def _open(self, entry: Entry) -> bool:
        return entry.state == "leased" or (entry.state == "waiting" and not entry.expired(self.now))


def payload_of(entry: Entry) -> bytes:
    return entry.number.to_bytes(8) + b"." * (entry.size - 8)


def number_of(payload: bytes) -> int:
    return int.from_bytes(payload[:8])
