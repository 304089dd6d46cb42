"""What a queue's journal says of every message: where it may be, from when on it may come, who holds it until when.

Reading the journal already checks what was answered before the crash: nothing came before its time, nothing that was
settled came again, nobody was given what somebody else held.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .checker import Broken
from .queue_workload import Spec

ABSENT, OPEN, ACKED, DEAD, GONE = "absent", "open", "acked", "dead", "gone"
SETTLEMENTS = ("ack", "nack", "release", "bury", "extend")


@dataclass
class Known:
    """One message."""

    topic: str
    spec: Spec
    batch: int
    # Its place among all that was published.
    number: int
    published: int
    priority: int
    # It does not come before this moment; `exact`: it is due then, and not later.
    due: int
    exact: bool = True
    # Every moment that it was given to wait for, or perhaps was: by its publisher, a move or a nack. All else that
    # puts it back makes it due at once.
    dues: set[int] = field(default_factory=set)
    states: set[str] = field(default_factory=lambda: {ABSENT, OPEN})
    held_until: int = 0
    # Or until then, if an extension in doubt was done: it may have been meant to shorten the lease.
    held_perhaps: int = 0
    # Cancelled under a lease: yes, no, or nobody knows.
    marked: bool | None = False
    # It was dead, or stored only when it was repeated: it stands behind others of its lane now.
    late: bool = False

    @property
    def key(self) -> str:
        return self.spec.key

    def expired(self, now: int) -> bool:
        return self.spec.expires is not None and self.spec.expires <= now


@dataclass
class Doubt:
    """A step without an answer: it happened whole, or not at all."""

    what: str
    keys: set[str]
    due: int | None = None
    priority: int | None = None
    # Of a move: to these its due time is news, to those its priority. To others it may have been given before, and
    # they look the same whether they were moved or not.
    due_is_news: set[str] = field(default_factory=set)
    priority_is_news: set[str] = field(default_factory=set)
    # Nothing was begun after it.
    last: bool = False


@dataclass
class Batch:
    """A published batch: `certain` once it was acknowledged."""

    topic: str
    specs: list[Spec]
    publish_id: str | None
    certain: bool = False
    refused: bool = False


class Model:
    """What is known after a journal."""

    def __init__(self, journal: Iterable[str]) -> None:
        self.known: dict[str, Known] = {}
        self.batches: dict[int, Batch] = {}
        self.topics: dict[str, bool] = {}
        # By topic: the newest message with an id.
        self.by_id: dict[str, dict[str, str]] = defaultdict(dict)
        self.doubts: list[Doubt] = []
        self.at = 0
        self.finished = False
        self.phases: dict[str, int] = {}
        self.deliveries = 0
        begun: dict[int, dict[str, Any]] = {}
        last = 0
        for line in journal:
            entry = json.loads(line)
            self.at = entry["at"]
            if "begin" in entry:
                last = entry["begin"]
                begun[last] = entry
                if entry["what"] == "publish":
                    self._begin_publish(entry)
            elif "done" in entry:
                self._done(begun.pop(entry["done"]), entry)
            elif "refused" in entry:
                self._refused(begun.pop(entry["refused"]))
            elif "doubt" in entry and begun[entry["doubt"]]["what"] != "publish":
                self._in_doubt(begun.pop(entry["doubt"]))
            elif "calls" in entry:
                self.finished, self.phases = True, entry["phases"]
        for number, entry in begun.items():
            self._in_doubt(entry, last=number == last)

    # Publishing

    def _begin_publish(self, entry: dict[str, Any]) -> None:
        specs = [Spec(**spec) for spec in entry["specs"]]
        self.batches[entry["batch"]] = Batch(entry["topic"], specs, entry["publish_id"])
        for spec in specs:
            due = self.at if spec.due is None else spec.due
            number = len(self.known)
            exact = spec.due is not None
            self.known[spec.key] = Known(
                entry["topic"], spec, entry["batch"], number, self.at, spec.priority, due, exact, {due}
            )

    def _published(self, begin: dict[str, Any], end: dict[str, Any]) -> None:
        batch = self.batches[begin["batch"]]
        batch.certain = True
        for at, (spec, text) in enumerate(zip(batch.specs, end["ids"], strict=True)):
            one = self.known[spec.key]
            one.states = {ABSENT} if at in end["absent"] else {OPEN}
            if at in end["absent"]:
                self._id_in_use(begin["topic"], text)
            else:
                self.by_id[begin["topic"]][text] = spec.key

    def _id_in_use(self, topic: str, text: str) -> None:
        """An id was said to be in use: then its message is not settled."""
        other = self.known.get(self.by_id[topic].get(text, ""))
        if other is not None and other.states <= {ACKED, GONE}:
            raise Broken(f"{text} was said to be in use; {other} is settled")

    # Answers

    def _done(self, begin: dict[str, Any], end: dict[str, Any]) -> None:
        what = begin["what"]
        if what == "create_topic":
            self.topics[begin["topic"]] = True
        elif what == "publish":
            self._published(begin, end)
        elif what == "claim":
            if len(end["keys"]) > begin["most"]:
                raise Broken(f"{len(end['keys'])} came where {begin['most']} were asked for")
            for key in end["keys"]:
                self.deliver(key, begin["topic"], self.at, end["until"])
        elif what in SETTLEMENTS:
            for key in set(begin["keys"]) - set(end["lost"]):
                self._settled(key, begin)
        elif what == "redrive":
            if end["answer"] != len(begin["keys"]):
                raise Broken(f"{len(begin['keys'])} dead letters were sent back, {end['answer']} were found")
            for key in begin["keys"]:
                one = self._touch(key)
                one.states, one.due, one.exact, one.held_until = {OPEN}, self.at, False, 0
                one.late = True
                one.priority = one.spec.priority
        elif what in ("move", "cancel"):
            for text, answer in end["answer"].items():
                self._changed(begin, text, answer)

    def _touch(self, key: str) -> Known:
        """A message that is about to be known again."""
        self._obscure([key])
        return self.known[key]

    def deliver(self, key: str, topic: str, now: int, until: int) -> Known:
        """A message came to somebody, who has it until then."""
        if key not in self.known or self.known[key].topic != topic:
            raise Broken(f"{key} was delivered in {topic}: it was never published there")
        one = self._touch(key)
        if OPEN not in one.states:
            raise Broken(f"{one} was delivered at {now}: it is settled")
        if now < one.due:
            raise Broken(f"{one} was delivered at {now}, before its time")
        if now < one.held_until:
            raise Broken(f"{one} was delivered at {now}: somebody holds it")
        if one.expired(now):
            raise Broken(f"{one} was delivered at {now}, after its expiry")
        if one.marked:
            raise Broken(f"{one} was delivered at {now}: it was cancelled under its lease")
        one.states, one.held_until, one.marked, one.exact = {OPEN}, until, False, False
        one.held_perhaps = 0
        self.deliveries += 1
        return one

    def _settled(self, key: str, begin: dict[str, Any]) -> None:
        one, what = self._touch(key), begin["what"]
        if one.states <= {ACKED, DEAD, GONE} and one.marked is False:
            raise Broken(f"{one} was settled again by {what}")
        if what == "extend":
            one.held_until, one.held_perhaps = self.at + begin["lease"] * 1000, 0
            return
        one.held_until = 0
        if what == "ack":
            one.states = {ACKED}
        elif one.marked or (what == "nack" and one.expired(self.at)):
            one.states = {GONE}
        else:
            one.states = {DEAD} if what == "bury" else {OPEN}
            if one.marked is None:
                one.states.add(GONE)
            one.due = self._due_after(begin)
            one.dues.add(one.due)
            one.exact = what == "nack"
        one.marked = False

    def _due_after(self, begin: dict[str, Any]) -> int:
        """When what a settlement puts back is due."""
        return self.at + round(begin.get("delay", 0) * 1000)

    def _changed(self, begin: dict[str, Any], text: str, answer: str) -> None:
        key = self.by_id[begin["topic"]].get(text)
        if key is None:
            return
        one = self._touch(key)
        if answer in ("not_found", "finished"):
            if one.states == {OPEN} and not one.expired(self.at) and one.marked is False:
                raise Broken(f"{one} is open, and {begin['what']} said {answer}")
            one.states = one.states - {OPEN} or {GONE}
            one.marked = False
            return
        if OPEN not in one.states:
            raise Broken(f"{one} is settled, and {begin['what']} said {answer}")
        one.states = {OPEN}
        if answer == "leased":
            if begin["what"] == "cancel":
                one.marked = True
        elif self.at < one.held_until:
            raise Broken(f"{one} is held, and {begin['what']} said {answer}")
        elif begin["what"] == "cancel":
            one.states = {GONE}
        else:
            one.held_until = 0
            if begin["due"] is not None:
                one.due, one.exact = begin["due"], True
                one.dues.add(one.due)
            if begin["priority"] is not None:
                one.priority = begin["priority"]

    def _refused(self, begin: dict[str, Any]) -> None:
        if begin["what"] == "publish":
            self.batches[begin["batch"]].refused = True
            for spec in self.batches[begin["batch"]].specs:
                self.known[spec.key].states = {ABSENT}
        elif begin["what"] == "create_topic":
            self.topics[begin["topic"]] = False

    # No answer

    def _in_doubt(self, begin: dict[str, Any], *, last: bool = False) -> None:
        what = begin["what"]
        if what == "publish":
            fresh = {spec.key for spec in self.batches[begin["batch"]].specs if not self._id_was_used(begin, spec)}
            self.doubts.append(Doubt(what, {key for key in fresh if not self.known[key].expired(self.at)}, last=last))
        elif what == "claim":
            # Any of them may have been held by nobody, and come back when that was over.
            for one in self.known.values():
                one.exact = one.exact and one.topic != begin["topic"]
        elif what in ("move", "cancel"):
            self._change_in_doubt(begin, last=last)
        elif what == "redrive":
            self._obscure(begin["keys"])
            self.doubts.append(Doubt(what, set(begin["keys"]), last=last))
            for key in begin["keys"]:
                one = self.known[key]
                one.states = one.states | {OPEN}
                one.due, one.exact, one.late = min(one.due, self.at), False, True
                if one.priority != one.spec.priority:
                    # It has its first one again, or what a move gave it.
                    one.priority = -1
        elif what in SETTLEMENTS:
            mine = {key for key in begin["keys"] if self.known[key].held_until > self.at}
            self.doubts.append(Doubt(what, set(mine), last=last))
            for key in begin["keys"]:
                self._perhaps_settled(self.known[key], begin)

    def _obscure(self, keys: Iterable[str]) -> None:
        """What these look like may be the work of another step: they say nothing any more of those in doubt."""
        for doubt in self.doubts:
            doubt.keys.difference_update(keys)

    def _change_in_doubt(self, begin: dict[str, Any], *, last: bool) -> None:
        by_id = self.by_id[begin["topic"]]
        keys = [by_id[text] for text in begin["ids"] if text in by_id]
        free = {key for key in keys if self._is_free(self.known[key])}
        doubt = Doubt(begin["what"], free, begin.get("due"), begin.get("priority"), last=last)
        self._find_news(doubt)
        if doubt.what == "cancel":
            self._obscure(keys)
        self.doubts.append(doubt)
        for key in keys:
            self._perhaps_changed(self.known[key], begin)

    def _find_news(self, doubt: Doubt) -> None:
        # What is due by now may have come to be so in other ways.
        if doubt.due is not None and doubt.due > self.at:
            doubt.due_is_news = {key for key in doubt.keys if doubt.due not in self.known[key].dues}
        if doubt.priority is not None:
            doubt.priority_is_news = {key for key in doubt.keys if self.known[key].priority not in (-1, doubt.priority)}

    def _id_was_used(self, begin: dict[str, Any], spec: Spec) -> bool:
        return spec.id is not None and spec.id in self.by_id[begin["topic"]]

    def _is_free(self, one: Known) -> bool:
        return one.states == {OPEN} and not one.held_until and not one.expired(self.at) and one.marked is False

    def _perhaps_changed(self, one: Known, begin: dict[str, Any]) -> None:
        if OPEN not in one.states:
            return
        if begin["what"] == "cancel":
            one.states = one.states | {GONE}
            one.marked = one.marked or None
        else:
            if begin["due"] is not None:
                one.due = min(one.due, begin["due"])
                one.dues.add(begin["due"])
            one.exact = False
            one.priority = -1

    def _perhaps_settled(self, one: Known, begin: dict[str, Any]) -> None:
        if OPEN not in one.states:
            return
        if begin["what"] == "extend":
            if one.held_until > self.at:
                ends = one.held_until, self.at + begin["lease"] * 1000
                one.held_until, one.held_perhaps = min(ends), max(ends)
            return
        after = {"ack": ACKED, "bury": DEAD}.get(begin["what"], OPEN)
        one.states = one.states | {after}
        if begin["what"] != "ack" and (one.marked is not False or one.expired(self.at)):
            one.states = one.states | {GONE}
        one.dues.add(self._due_after(begin))
        one.held_until, one.exact = 0, False
