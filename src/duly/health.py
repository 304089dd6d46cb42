"""Health, as values: what an examination of a store came upon, and how a topic's groups do by its thresholds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .topic import Health

LEVELS = ("ok", "warn", "alert")

# A consumer counts as active so long after it was last seen. One that waits looks at least every minute, and is noted
# as seen once a minute at most.
ACTIVE_MS = 180_000


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    level: str
    what: str
    meaning: str = ""
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Figures:
    """What a group's health is judged by.

    `consumers`: seen in the last three minutes, or holding a lease. `undelivered`: due, and never claimed.
    `oldest_age`: seconds for which the oldest of what could be claimed has been due (on a log: published); in a
    queue of more than some thousands it is looked for among the next and the last to be delivered.
    `retry_ratio`: of the messages that are due, leased or retrying, the share that failed and waits for
    another attempt. `dead`: dead letters.
    """

    consumers: int
    undelivered: int
    oldest_age: float
    retry_ratio: float
    dead: int


@dataclass(frozen=True, slots=True)
class HealthReason:
    """A figure that has reached a threshold, in words and in numbers."""

    level: str
    measure: str
    figure: float
    threshold: float
    text: str


@dataclass(frozen=True, slots=True)
class GroupHealth:
    """How a group of a topic does: `ok`, `warn` or `alert`, with the reasons.

    A queue has one group. A log without groups has nobody to fall behind: it is listed with the group "" and is ok.
    """

    topic: str
    group: str
    level: str
    reasons: tuple[HealthReason, ...]
    figures: Figures
    paused: bool


def worst(levels: Iterable[str]) -> str:
    """The worst of some levels; ok when there are none."""
    return max(levels, key=LEVELS.index, default="ok")


def judge(thresholds: Health, figures: Figures) -> tuple[HealthReason, ...]:
    """The figures that have reached a threshold, the worst first."""
    found = []
    for measure, say in _WORDS.items():
        bounds: tuple[float, float] | None = getattr(thresholds, measure)
        figure = getattr(figures, measure)
        if bounds is None:
            continue
        fewer_is_worse = measure == "consumers"
        for level, bound in (("alert", bounds[1]), ("warn", bounds[0])):
            if figure <= bound if fewer_is_worse else figure >= bound:
                limit = f"at {_number(bound)} or fewer" if fewer_is_worse else f"from {_bound(measure, bound)} on"
                found.append(HealthReason(level, measure, figure, bound, f"{say(figure)}: {level} {limit}"))
                break
    return tuple(sorted(found, key=lambda reason: -LEVELS.index(reason.level)))


def _say_consumers(count: float) -> str:
    return f"{_number(count) if count else 'no'} active consumer{'' if count == 1 else 's'}"


def _say_undelivered(count: float) -> str:
    return f"{_number(count)} due message{'' if count == 1 else 's'} undelivered"


def _say_oldest_age(seconds: float) -> str:
    return f"the oldest waits for {_span(seconds)}"


def _say_retry_ratio(share: float) -> str:
    return f"{_share(share)} of the open messages failed and wait for another attempt"


def _say_dead(count: float) -> str:
    return f"{_number(count)} dead letter{'' if count == 1 else 's'}"


_WORDS: dict[str, Callable[[float], str]] = {
    "consumers": _say_consumers,
    "undelivered": _say_undelivered,
    "oldest_age": _say_oldest_age,
    "retry_ratio": _say_retry_ratio,
    "dead": _say_dead,
}


def _bound(measure: str, bound: float) -> str:
    if measure == "oldest_age":
        return _span(bound)
    return _share(bound) if measure == "retry_ratio" else _number(bound)


def _number(value: float) -> str:
    return f"{value:,.15g}"


def _share(value: float) -> str:
    return f"{100 * value:.3g}%"


def _span(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"
