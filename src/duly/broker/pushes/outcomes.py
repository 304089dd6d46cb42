"""What became of messages, gathered until it is settled: messages of one fate travel in one command.

Of what was taken the status and the time of every answer go along, a lease a command, in the order of its messages:
they stand in the event `acked`. Of what failed they are the reason, which the history of the message keeps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from ...client.batch import Delivery, Hold, hold_of
from ...engine.verdict import Settle, Token
from ...limits import LIMITS
from ...push import RunningPush
from .answers import Answer, Meaning

_TIMES_MAX = 100
# An index in a lease, and how many milliseconds its answer took.
_Taken = dict[int, int]


class Outcomes:
    """Of one push, since they were last taken."""

    def __init__(self, push: RunningPush) -> None:
        self._push = push
        # By store, lease, its size, and status.
        self._taken: defaultdict[tuple[str, int, int, int], _Taken] = defaultdict(dict)
        # By store, verdict, wait and reason.
        self._others: defaultdict[tuple[str, str, int | None, str], list[Hold]] = defaultdict(list)

    def __bool__(self) -> bool:
        return bool(self._taken or self._others)

    def note(self, deliveries: Sequence[Delivery], answer: Answer, meaning: Meaning) -> None:
        """Deliveries whose request was answered, or failed."""
        for one in deliveries:
            if meaning.verdict == "ack" and one.id not in meaning.failed:
                hold = hold_of(one)
                self._taken[hold.incarnation, hold.lease_id, hold.size, answer.status or 0][hold.position] = answer.ms
            elif meaning.verdict == "ack":
                self._add(one, "nack", None, f"{meaning.reason}: named among the failed")
            else:
                self._add(one, meaning.verdict, meaning.delay_ms, meaning.reason)

    def release(self, deliveries: Sequence[Delivery], delay_ms: int | None = None) -> None:
        """Deliveries that were not sent to the end, and nobody's fault."""
        for one in deliveries:
            self._add(one, "release", delay_ms, "")

    def _add(self, one: Delivery, verdict: str, delay_ms: int | None, reason: str) -> None:
        hold = hold_of(one)
        self._others[hold.incarnation, verdict, delay_ms, reason[: LIMITS.reason_chars_max]].append(hold)

    def take(self) -> Iterator[Settle]:
        """All of it as commands; they are gone from here then."""
        taken, self._taken = self._taken, defaultdict(dict)
        others, self._others = self._others, defaultdict(list)
        push = self._push
        for (incarnation, lease_id, size, status), answers in taken.items():
            # All of a lease is ended by one statement.
            token = Token(lease_id, None if len(answers) == size else tuple(sorted(answers)))
            reason = _took(status, [answers[index] for index in sorted(answers)])
            yield Settle(push.tenant, incarnation, push.topic, push.group, "ack", (token,), None, reason)
        for (incarnation, verdict, delay_ms, reason), holds in others.items():
            yield Settle(push.tenant, incarnation, push.topic, push.group, verdict, _tokens(holds), delay_ms, reason)


def _took(status: int, times_ms: list[int]) -> str:
    if len(set(times_ms)) == 1:
        # One message, or a batch that was answered as one.
        return f"{status} in {times_ms[0]} ms"
    if len(times_ms) > _TIMES_MAX:
        return f"{status} in {min(times_ms)} to {max(times_ms)} ms"
    return f"{status} in {', '.join(map(str, times_ms))} ms"


def _tokens(holds: Sequence[Hold]) -> tuple[Token, ...]:
    indexes: defaultdict[int, list[int]] = defaultdict(list)
    for hold in holds:
        indexes[hold.lease_id].append(hold.position)
    return tuple(Token(lease_id, tuple(chosen)) for lease_id, chosen in indexes.items())
