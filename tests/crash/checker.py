"""What must be true of a store after a crash, given the journal of what was answered before it.

`check` opens the store as any client would and raises `Broken` with what it found:
every acknowledged batch is there whole and once, no batch is there in part, a refused one is not
there at all, a repeated publish id adds nothing, whoever held a lease still holds it alone, and every
group gets exactly what it had not settled.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

import duly

from .workload import payloads

Position = tuple[int, int]
Of = tuple[str, str]

OPEN, ACKED, DEAD = "open", "acked", "dead"
# Where a verdict leaves a message.
_AFTER = {"ack": ACKED, "nack": OPEN, "release": OPEN, "bury": DEAD, "extend": OPEN}


class Broken(AssertionError):
    """A promise is broken."""


@dataclass
class Batch:
    """A published batch: `certain` once it was acknowledged, `refused` when it was said to be not stored."""

    topic: str
    name: str
    bodies: list[bytes]
    publish_id: str | None
    certain: bool = False
    refused: bool = False
    positions: list[Position] = field(default_factory=list)


@dataclass
class Doubt:
    """A settlement without an answer: it happened whole, or not at all."""

    of: Of
    positions: list[Position]
    before: str
    after: str


@dataclass
class Expected:
    """What a journal says about the store."""

    batches: list[Batch] = field(default_factory=list)
    topics: dict[str, bool] = field(default_factory=dict)
    groups: dict[Of, bool] = field(default_factory=dict)
    # What a message may be to a group; a message that is not listed is open.
    states: dict[Of, dict[Position, set[str]]] = field(default_factory=lambda: defaultdict(dict))
    held: dict[Of, set[Position]] = field(default_factory=lambda: defaultdict(set))
    doubts: list[Doubt] = field(default_factory=list)
    at: int = 0
    finished: bool = False

    def state(self, of: Of, position: Position) -> set[str]:
        return self.states[of].get(position, {OPEN})


def expected(journal: Iterable[str]) -> Expected:
    """Reads a journal; an operation that was begun and not answered is in doubt."""
    found = Expected()
    begun: dict[int, dict[str, Any]] = {}
    for line in journal:
        entry = json.loads(line)
        found.at = entry["at"]
        if "begin" in entry:
            begun[entry["begin"]] = entry
            if entry["what"] == "publish":
                bodies = payloads(entry["batch"], entry["count"], bytes_each=entry["bytes_each"])
                found.batches.append(Batch(entry["topic"], entry["batch"], bodies, entry["publish_id"]))
        elif "done" in entry:
            _done(found, begun.pop(entry["done"]), entry)
        elif "refused" in entry:
            _refused(found, begun.pop(entry["refused"]))
        elif "calls" in entry:
            found.finished = True
    for entry in begun.values():
        _in_doubt(found, entry)
    return found


def _done(found: Expected, begin: dict[str, Any], end: dict[str, Any]) -> None:
    what = begin["what"]
    if what == "create_topic":
        found.topics[begin["topic"]] = True
    elif what == "create_group":
        found.groups[begin["topic"], begin["group"]] = True
    elif what == "publish":
        batch = next(batch for batch in found.batches if batch.name == begin["batch"])
        batch.certain, batch.positions = True, _positions(end)
    elif what == "claim":
        found.held[begin["topic"], begin["group"]].update(_positions(end))
    elif what == "redrive":
        for states in found.states[begin["topic"], begin["group"]].values():
            if DEAD in states:
                states -= {DEAD}
                states |= {OPEN}
    elif what in _AFTER:
        of = (begin["topic"], begin["group"])
        settled = set(_positions(begin)) - set(_positions({"positions": end["lost"]}))
        for position in settled:
            found.states[of][position] = {_AFTER[what]}
        if what != "extend":
            found.held[of] -= settled


def _refused(found: Expected, begin: dict[str, Any]) -> None:
    what = begin["what"]
    if what == "publish":
        next(batch for batch in found.batches if batch.name == begin["batch"]).refused = True
    elif what == "create_topic":
        found.topics[begin["topic"]] = False
    elif what == "create_group":
        found.groups[begin["topic"], begin["group"]] = False


def _in_doubt(found: Expected, begin: dict[str, Any]) -> None:
    of = (begin.get("topic", ""), begin.get("group", ""))
    if begin["what"] == "redrive":
        dead = [position for position, states in found.states[of].items() if states == {DEAD}]
        _doubt(found, Doubt(of, dead, DEAD, OPEN))
    elif begin["what"] in _AFTER:
        positions = _positions(begin)
        found.held[of] -= set(positions)
        _doubt(found, Doubt(of, positions, OPEN, _AFTER[begin["what"]]))


def _doubt(found: Expected, doubt: Doubt) -> None:
    for position in doubt.positions:
        found.states[doubt.of][position] = found.state(doubt.of, position) | {doubt.after}
    found.doubts.append(doubt)


def _positions(entry: dict[str, Any]) -> list[Position]:
    return [(partition, offset) for partition, offset in entry["positions"]]


def check(path: Path, journal: Iterable[str]) -> Expected:
    """Raises Broken unless the store is what the journal allows. Returns what was expected."""
    wanted = expected(journal)
    check_integrity(path)
    clock = duly.ManualClock(wanted.at)
    with duly.connect(path, clock=clock, consumer="checker") as q:
        _Check(q, clock, wanted).run()
    return wanted


def check_integrity(path: Path) -> None:
    """Has SQLite look at every page of a copy."""
    copy = path.parent / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    for suffix in ("", "-wal", "-journal"):
        if (file := path.with_name(path.name + suffix)).exists():
            shutil.copy(file, copy / file.name)
    if not (copy / path.name).exists():
        return
    connection = apsw.Connection(str(copy / path.name))
    try:
        answer = [row[0] for row in connection.execute("PRAGMA integrity_check")]
    finally:
        connection.close()
    if answer != ["ok"]:
        raise Broken(f"integrity_check: {answer}")


class _Check:
    def __init__(self, q: duly.Client, clock: duly.ManualClock, wanted: Expected) -> None:
        self.q = q
        self.clock = clock
        self.wanted = wanted
        # What lies in the log: by topic and position; and where each topic's partitions begin.
        self.log: dict[str, dict[Position, bytes]] = {}
        self.first: dict[str, dict[int, int]] = {}

    def run(self) -> None:
        self.definitions()
        self.scan()
        self.batches()
        self.repeat()
        groups = [(topic, group) for topic in self.log for group in self.q.list_groups(topic)]
        for of in groups:
            self.nobody_else_holds(of)
        self.clock.advance(3600)
        for of in groups:
            self.everything_open_comes(of)

    def definitions(self) -> None:
        topics = self.q.list_topics()
        for topic, certain in self.wanted.topics.items():
            if certain != (topic in topics):
                raise Broken(f"topic {topic} should be {'there' if certain else 'absent'}; there are {topics}")
        for (topic, group), certain in self.wanted.groups.items():
            if certain != (topic in topics and group in self.q.list_groups(topic)):
                raise Broken(f"group {group} of {topic} should be {'there' if certain else 'absent'}")

    def scan(self) -> None:
        """Reads every log from its beginning to its end."""
        for topic in self.q.list_topics():
            self.log[topic], self.first[topic] = {}, {}
            for part in self.q.describe_topic(topic).partitions:
                first = offset = part.first_offset
                while True:
                    try:
                        page = self.q.read(topic, partition=part.partition, offset=offset)
                    except duly.OffsetTruncated as error:
                        first = offset = error.first_offset
                        continue
                    if not page:
                        break
                    self.log[topic].update({(part.partition, one.offset): one.payload for one in page})
                    offset = page[-1].offset + 1
                self.first[topic][part.partition] = first

    def batches(self) -> None:
        """Acknowledged: whole, at its place. Refused: absent. In doubt: whole or absent. Nothing else."""
        lying = {topic: Counter(found.values()) for topic, found in self.log.items()}
        for batch in self.wanted.batches:
            there = [lying.get(batch.topic, Counter())[body] for body in batch.bodies]
            if batch.refused and any(there):
                raise Broken(f"{batch.name} was refused and is there")
            if batch.certain:
                self.at_its_place(batch)
            elif len(set(there)) != 1 or there[0] > 1:
                raise Broken(f"{batch.name} is there in part or twice: {Counter(there)}")
        known = {(batch.topic, body) for batch in self.wanted.batches for body in batch.bodies}
        for topic, bodies in lying.items():
            for body, times in bodies.items():
                if (topic, body) not in known or times > 1:
                    raise Broken(f"{body[:40]!r} lies in {topic} {times} times")

    def at_its_place(self, batch: Batch) -> None:
        for (partition, offset), body in zip(batch.positions, batch.bodies, strict=True):
            if offset < self.first[batch.topic][partition]:
                continue
            if self.log[batch.topic].get((partition, offset)) != body:
                raise Broken(f"{batch.name} was acknowledged and {body[:20]!r} is not at {partition}/{offset}")

    def repeat(self) -> None:
        """Publishes again, with its id, all that was not refused: it is there once."""
        for batch in self.wanted.batches:
            if batch.publish_id is None or batch.refused or batch.topic not in self.log:
                continue
            there = batch.certain or batch.bodies[0] in self.log[batch.topic].values()
            messages = [duly.Message(body, key=f"k{at}") for at, body in enumerate(batch.bodies)]
            receipt = self.q.publish(batch.topic, messages, publish_id=batch.publish_id)
            if receipt.duplicate != there:
                raise Broken(f"{batch.name} repeated: duplicate is {receipt.duplicate}, it was there: {there}")
            if batch.certain and receipt.positions != batch.positions:
                raise Broken(f"{batch.name} repeated lies at {receipt.positions[:3]}, was at {batch.positions[:3]}")
            batch.certain, batch.positions = True, receipt.positions
        self.scan()
        self.batches()

    def nobody_else_holds(self, of: Of) -> None:
        """While the leases of the dead are valid, their messages and the settled ones come to nobody."""
        seen: set[Position] = set()
        while batch := self.q.claim(of[0], group=of[1], max_messages=300, lease=30):
            for position in self.received(of, batch):
                if position in self.wanted.held[of]:
                    raise Broken(f"{position} of {of} is held under a valid lease and was handed out again")
                if position in seen:
                    raise Broken(f"{position} of {of} was handed out twice under valid leases")
                seen.add(position)

    def everything_open_comes(self, of: Of) -> None:
        """When all leases are over: what is not settled comes once, what is settled does not."""
        delivered: Counter[Position] = Counter()
        while batch := self.q.claim(of[0], group=of[1], max_messages=1000):
            delivered.update(self.received(of, batch))
            if (settled := self.q.ack(batch)).lost:
                raise Broken(f"the lease of {settled.lost} was lost at once")
        if twice := [position for position, times in delivered.items() if times > 1]:
            raise Broken(f"{twice} of {of} were delivered twice after everything expired")
        dead = {(one.message.partition, one.message.offset) for one in self.q.dead(of[0], group=of[1])}
        self.compare(of, set(delivered), dead)

    def received(self, of: Of, batch: duly.Batch) -> list[Position]:
        positions = []
        for delivery in batch:
            position = (delivery.partition, delivery.offset)
            if self.log[of[0]].get(position, delivery.payload) != delivery.payload:
                raise Broken(f"{position} of {of} was delivered with other bytes than the log has")
            if self.wanted.state(of, position) <= {ACKED, DEAD}:
                raise Broken(f"{position} of {of} is settled and was delivered")
            positions.append(position)
        return positions

    def compare(self, of: Of, delivered: set[Position], dead: set[Position]) -> None:
        stored = {position for batch in self.wanted.batches if batch.topic == of[0] for position in batch.positions}
        stored |= set(self.log[of[0]])

        def seen(position: Position) -> str:
            return OPEN if position in delivered else DEAD if position in dead else ACKED

        wrong = {
            position: (seen(position), self.wanted.state(of, position))
            for position in stored
            if seen(position) not in self.wanted.state(of, position)
        }
        if wrong:
            raise Broken(f"{of}: {len(wrong)} messages are not what they should be: {dict(list(wrong.items())[:5])}")
        if strangers := (delivered | dead) - stored:
            raise Broken(f"{of}: {strangers} were never published")
        for doubt in self.wanted.doubts:
            outcomes = {seen(position) for position in doubt.positions}
            if doubt.of == of and doubt.before != doubt.after and len(outcomes) > 1:
                raise Broken(f"{of}: a settlement in doubt happened in part: {outcomes}")
