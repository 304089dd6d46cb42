"""A seeded driver that does everything at once to one file and can account for every message.

Every message carries a number of its own. For each group the driver knows which numbers were acked,
which are dead letters and which somebody holds; at the end a full drain has to leave nothing open.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

import duly

SIZES = (1, 1, 1, 2, 3, 7, 30, 63, 64, 65, 200, 1023, 1024, 1025, 3000)
TAKES = (1, 2, 5, 60, 300, 1500, 5000)
GROUPS = ("ann", "bob")
VERDICTS = ("ack", "ack", "ack", "nack", "nack", "release", "extend", "bury")
RETENTIONS = (
    duly.Retention(),
    duly.Retention(settled=True),
    duly.Retention(age=20),
    duly.Retention(bytes=50_000),
    duly.Retention(age=5, settled=True),
)


@dataclass(slots=True)
class Hold:
    """Who has a number, and until when."""

    expires_at: int
    consumer: str
    delivery: duly.Delivery


@dataclass(slots=True)
class Account:
    """One group's books."""

    acked: set[int] = field(default_factory=set)
    held: dict[int, Hold] = field(default_factory=dict)
    # Deliveries so far; None once a hung consumer's release has made it uncertain.
    attempts: dict[int, int | None] = field(default_factory=dict)


class Interleaving:
    """Random verbs, from one seed, on some clients of one store."""

    def __init__(self, path: str, seed: int, clients: int = 2) -> None:
        self.path = path
        self.draw = random.Random(seed)
        self.clock = duly.ManualClock()
        self.clients = [self._connect(f"w{at}") for at in range(clients)]
        self.partitions = self.draw.choice([1, 1, 3])
        self.places: dict[tuple[int, int], int] = {}
        self.count = 0
        self.accounts = {group: Account() for group in GROUPS}
        self.batches: list[duly.Batch] = []
        retry = duly.RetryPolicy(max_attempts=3, base=1, cap=8, jitter=self.draw.choice(["full", "none"]))
        retention = self.draw.choice(RETENTIONS)
        self.clients[0].create_topic(
            "t", kind="log", partitions=self.partitions, retention=retention, lease=8, retry=retry
        )
        for group in GROUPS:
            self.clients[0].create_group("t", group)

    def _connect(self, consumer: str) -> duly.Client:
        return duly.connect(self.path, clock=self.clock, consumer=consumer)

    def close(self) -> None:
        for client in self.clients:
            client.close()

    def run(self, steps: int) -> None:
        weighted: list[tuple[int, Callable[[], None]]] = [
            (6, self.publish),
            (8, self.claim),
            (4, self.claim_acking),
            (8, self.settle_batch),
            (8, self.settle_part),
            (4, self.pass_time),
            (1, self.redrive),
            (1, self.release_consumer),
            (1, self.reopen),
            (1, self.check_truncated),
        ]
        verbs = [verb for weight, verb in weighted for _ in range(weight)]
        for _ in range(steps):
            self.draw.choice(verbs)()

    @property
    def q(self) -> duly.Client:
        return self.draw.choice(self.clients)

    # Verbs

    def publish(self) -> None:
        many = self.draw.choice(SIZES)
        numbers = range(self.count, self.count + many)
        receipt = self.q.publish("t", self._batch(numbers))
        self.count += many
        self.places.update(zip(receipt.positions, numbers, strict=True))

    def _batch(self, numbers: range) -> object:
        payloads = [number.to_bytes(8) + b"." * (number % 5) for number in numbers]
        form = self.draw.randrange(4)
        if form == 0:
            return pa.table({"payload": pa.chunked_array([payloads[:1], payloads[1:]], pa.binary())})
        if form == 1:
            keys = [f"k{number % 7}" if number % 2 else None for number in numbers]
            headers = [{"n": str(number)} if number % 3 == 0 else None for number in numbers]
            return [duly.Message(p, key=k, headers=h) for p, k, h in zip(payloads, keys, headers, strict=True)]
        return payloads[0] if len(payloads) == 1 else payloads

    def claim(self) -> None:
        group = self.draw.choice(GROUPS)
        client = self.q
        lease_s = self.draw.choice([1, 8, 30])
        most_bytes = self.draw.choice([None, None, 200])
        batch = client.claim(
            "t", group=group, max_messages=self.draw.choice(TAKES), max_bytes=most_bytes, lease=lease_s
        )
        self._took(group, batch, client.consumer, lease_s * 1000)

    def claim_acking(self) -> None:
        """Acks a batch, or a part of one, with the next claim of its group."""
        if not self.batches:
            return
        batch = self.draw.choice(self.batches)
        open_ = [d for d in batch if not d.settled]
        part = self.draw.sample(open_, self.draw.randint(0, len(open_)))
        meant, given = self.draw.choice([(open_, batch), (part, part)])
        client = self.q
        got = client.claim("t", group=batch.group, max_messages=self.draw.choice(TAKES), lease=8, acks=given)
        assert got.acked is not None
        self._answered("ack", batch, meant, got.acked)
        self._took(batch.group, got, client.consumer, 8000)

    def _took(self, group: str, batch: duly.Batch, consumer: str, lease_ms: int) -> None:
        account, now = self.accounts[group], self.clock.now_ms()
        seen: set[int] = set()
        for delivery in batch:
            number = number_of(delivery.payload)
            assert self.places[delivery.partition, delivery.offset] == number
            assert number not in seen, f"{number} twice in one batch"
            assert number not in account.acked, f"{number} comes again after its ack"
            before = account.held.get(number)
            assert before is None or before.expires_at <= now, f"{number} is leased to {before}"
            self._attempt(account, number, delivery.attempt)
            account.held[number] = Hold(now + lease_ms, consumer, delivery)
            seen.add(number)
        if len(batch):
            self.batches.append(batch)

    def _attempt(self, account: Account, number: int, attempt: int) -> None:
        before = account.attempts.get(number, 0)
        assert before is None or attempt == before + 1, f"{number}: attempt {attempt} after {before}"
        account.attempts[number] = attempt

    def settle_batch(self) -> None:
        if self.batches:
            batch = self.batches.pop(self.draw.randrange(len(self.batches)))
            self._settle(batch, [d for d in batch if not d.settled], batch)

    def settle_part(self) -> None:
        if self.batches:
            batch = self.draw.choice(self.batches)
            open_ = [d for d in batch if not d.settled]
            part = self.draw.sample(open_, self.draw.randint(0, len(open_)))
            self._settle(batch, part, part)

    def _settle(self, batch: duly.Batch, meant: list[duly.Delivery], given: duly.Batch | list[duly.Delivery]) -> None:
        verdict = self.draw.choice(VERDICTS)
        if verdict == "bury" and len(meant) > 50:
            verdict = "ack"
        self._answered(verdict, batch, meant, getattr(self.q, verdict)(given))

    def _answered(self, verdict: str, batch: duly.Batch, meant: list[duly.Delivery], settled: duly.Settled) -> None:
        lost = {id(delivery) for delivery in settled.lost}
        done = [delivery for delivery in meant if id(delivery) not in lost]
        assert settled.done == len(done)
        for delivery in done:
            self._settled(self.accounts[batch.group], verdict, delivery, batch.lease_ms)

    def _settled(self, account: Account, verdict: str, delivery: duly.Delivery, lease_ms: int) -> None:
        number = number_of(delivery.payload)
        hold = account.held.get(number)
        assert hold is not None, f"a stale {verdict} of {number} was accepted"
        assert hold.delivery is delivery, f"a stale {verdict} of {number} was accepted"
        if verdict == "extend":
            hold.expires_at = self.clock.now_ms() + lease_ms
            return
        del account.held[number]
        if verdict == "ack":
            account.acked.add(number)
        elif verdict == "release":
            before = account.attempts[number]
            account.attempts[number] = None if before is None else before - 1

    def pass_time(self) -> None:
        self.clock.advance(self.draw.choice([0.1, 0.5, 1, 2, 9, 31]))

    def redrive(self) -> None:
        group = self.draw.choice(GROUPS)
        client = self.q
        letters = list(client.dead("t", group=group))
        chosen = [letter.id for letter in letters if self.draw.random() < 0.5]
        assert client.redrive("t", group=group, ids=chosen) == len(chosen)
        for letter in letters:
            if letter.id in chosen:
                self.accounts[group].attempts[number_of(letter.payload)] = 0

    def release_consumer(self) -> None:
        """A hung consumer's leases are freed. Those that expired may have been taken over by now, unseen."""
        consumer = self.draw.choice([client.consumer for client in self.clients])
        self.q.release(consumer=consumer)
        for account in self.accounts.values():
            for number in [number for number, hold in account.held.items() if hold.consumer == consumer]:
                account.attempts[number] = None
                del account.held[number]

    def reopen(self) -> None:
        at = self.draw.randrange(len(self.clients))
        self.clients[at].close()
        self.clients[at] = self._connect(f"w{at}")

    # The books

    def dead(self, group: str) -> set[int]:
        return {number_of(letter.payload) for letter in self.q.dead("t", group=group)}

    def check_truncated(self) -> None:
        """What the log no longer has was handed out to every group. What is still open was re-homed:
        the drain proves that nothing of it is lost.
        """
        firsts = {part.partition: part.first_offset for part in self.q.describe_topic("t").partitions}
        for group, account in self.accounts.items():
            for (partition, offset), number in self.places.items():
                if offset < firsts[partition]:
                    assert number in account.attempts, f"{number} was truncated and {group} never had it"

    def drain(self) -> None:
        """Claims and acks until nothing is open; then every number is acked once or a dead letter."""
        for group, account in self.accounts.items():
            self._drain(group)
            dead = self.dead(group)
            assert not dead & account.acked
            assert dead | account.acked == set(range(self.count)), f"{group} misses some"
            assert self.clients[0].redrive("t", group=group) == len(dead)
            account.attempts.update(dict.fromkeys(dead, 0))
            self._drain(group)
            assert account.acked == set(range(self.count))
        self.check_truncated()

    def _drain(self, group: str) -> None:
        while True:
            self.clock.advance(60)
            batch = self.q.claim("t", group=group, max_messages=5000)
            self._took(group, batch, "drain", batch.lease_ms)
            settled = self.q.ack(batch)
            assert (settled.done, settled.lost) == (len(batch), ())
            for delivery in batch:
                self._settled(self.accounts[group], "ack", delivery, 0)
            left = self.q.describe_group("t", group)
            if not (left.lag or left.pending):
                return


def number_of(payload: bytes) -> int:
    return int.from_bytes(payload[:8])
