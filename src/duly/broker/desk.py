"""A desk: the queue before one group, and the *round* of those who are asked for at this moment.

Who comes stands at its end. A round takes the first from its front; those who are served in it are gone, and those who
are not go back to the front in their order when the last of them is answered. So whoever stands in the queue came
after all who are asked for, and going back costs the same however many wait.

One who will not wait (`hurried`) stands in the queue like everyone: it gets something when those before it did. It
goes with nothing at the end of the first dry round that was asked for after it came: one under way may have looked
before that.

Not thread-safe: the room locks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from ..engine.claimed import Claim, Claimed
from ..engine.find import QUEUE_GROUP

Answered = Callable[[Claimed | Exception], None]
Key = tuple[str, str, str]

# Claims of one desk that are asked for at the same time.
_ABREAST_MAX = 256


def key_of(command: Claim) -> Key:
    """The group that is claimed for: a queue's has a name, and those who leave it out stand at the same desk."""
    return (command.tenant, command.topic, command.group or QUEUE_GROUP)


class Waiter:
    """One claim in the room."""

    __slots__ = ("command", "desk", "gone", "number", "then", "until")

    def __init__(self, number: int, command: Claim, desk: Desk, until: float | None, then: Answered) -> None:
        self.number = number
        self.command = command
        self.desk = desk
        # None: it will not wait.
        self.until = until
        self.then = then
        # Answered, or its client left.
        self.gone = False

    def is_over(self, now: float) -> bool:
        """Whether its patience has ended."""
        return self.until is None or self.until <= now


class Desk:
    """The queue before one group."""

    __slots__ = (
        "_abreast",
        "_dry",
        "_horizon",
        "_hurried",
        "_round",
        "_unanswered",
        "key",
        "next_due",
        "rung",
        "slots",
        "waiting",
    )

    def __init__(self, key: Key) -> None:
        self.key = key
        # By number: in the order of their coming.
        self.waiting: OrderedDict[int, Waiter] = OrderedDict()
        self._hurried: dict[int, Waiter] = {}
        self._round: dict[int, Waiter] = {}
        self._unanswered = 0
        self._abreast = 1
        # Somebody in this round got nothing.
        self._dry = False
        # The last who stood here when this round was asked for.
        self._horizon = -1
        # Something rang since this round was asked for.
        self.rung = False
        self.slots: frozenset[int] = frozenset()
        # When something is due by itself, as far as the last who got nothing was told.
        self.next_due: int | None = None

    @property
    def asking(self) -> bool:
        """Whether a round is under way."""
        return self._unanswered > 0

    @property
    def empty(self) -> bool:
        return not self.waiting and not self._unanswered

    def come(self, waiter: Waiter) -> None:
        """Stands at the end. Numbers grow."""
        self.waiting[waiter.number] = waiter
        if waiter.until is None:
            self._hurried[waiter.number] = waiter

    def leave(self, waiter: Waiter) -> bool:
        """Goes, unless it is asked for at this moment."""
        self._hurried.pop(waiter.number, None)
        return self.waiting.pop(waiter.number, None) is not None

    def leave_all(self) -> list[Waiter]:
        """Everyone goes who is not asked for at this moment."""
        left = list(self.waiting.values())
        self.waiting.clear()
        self._hurried.clear()
        return left

    def begin_round(self) -> list[Waiter]:
        """Those who are asked for next."""
        self._horizon = next(reversed(self.waiting))
        chosen = [self.waiting.popitem(last=False)[1] for _ in range(min(self._abreast, len(self.waiting)))]
        for waiter in chosen:
            self._hurried.pop(waiter.number, None)
        self._round = {waiter.number: waiter for waiter in chosen}
        self._unanswered = len(chosen)
        self._dry = self.rung = False
        return chosen

    def answered(self, waiter: Waiter, *, served: bool) -> bool:
        """Notes an answer. True when it was the last of its round."""
        self._unanswered -= 1
        if served:
            del self._round[waiter.number]
        else:
            self._dry = True
        return not self._unanswered

    def end_round(self, now: float) -> list[Waiter]:
        """Those who got nothing go back to their places; those go, and are returned, who do not wait any longer."""
        over: list[Waiter] = []
        for waiter in reversed(self._round.values()):
            if waiter.is_over(now):
                over.append(waiter)
            elif not waiter.gone:
                self.waiting[waiter.number] = waiter
                self.waiting.move_to_end(waiter.number, last=False)
        self._round = {}
        if self._dry:
            seen = [waiter for waiter in self._hurried.values() if waiter.number <= self._horizon]
            for waiter in seen:
                self.leave(waiter)
            over += seen
        self._abreast = 1 if self._dry else min(2 * self._abreast, _ABREAST_MAX)
        return over

    @property
    def may_get_more(self) -> bool:
        """Whether another round is worth it at once."""
        return bool(self.waiting) and (self.rung or not self._dry or bool(self._hurried))
