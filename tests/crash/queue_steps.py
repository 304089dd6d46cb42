"""The engine's steps made small: a few dozen messages are absorbed, promoted and folded many times over.

A run's blocks have to be read with the size they were written with: whoever opens such a store takes these steps, too.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import duly.engine.fold
import duly.engine.ids
import duly.engine.index
import duly.engine.queue_claim
import duly.engine.queue_retain
import duly.engine.retain

FOLD_AT_ONCE = 8

# By name, wherever a module of the engine has it: constants are imported by name.
_SMALL = {
    "ABSORB_FROM": 16,
    "RUN_BLOCK": 4,
    "PROMOTE_MAX": 6,
    "_MERGED_MIN": 2,
    "AHEAD_FIRST": 4,
    "_AHEAD_MAX": 16,
    "_OWED_MAX": 8,
    "FAN": 3,
    "_FAN": 3,
    "_SLICE": 8,
    "_SLACK": 0,
    "_FEW": 3,
    "SWEEP_BLOCKS": 2,
}

# What the life of a queue consists of besides its verbs: a name, where it is done, and as what.
PHASES: dict[str, tuple[Any, str]] = {
    "absorb": (duly.engine.index.Index, "add_run"),
    "promote": (duly.engine.index.Index, "promote"),
    "fold begins": (duly.engine.fold, "_begin"),
    "fold": (duly.engine.fold, "_copy"),
    "swap": (duly.engine.fold, "_swap"),
    "ids": (duly.engine.ids, "_add"),
    "ids fold": (duly.engine.ids, "_fold"),
    "truncate": (duly.engine.retain, "droppable"),
}


def make_small() -> Callable[[], None]:
    """Takes small steps from now on; returns what ends that."""
    engine = [module for name, module in sys.modules.items() if name.startswith("duly.engine.")]
    before = [(module, name, vars(module)[name]) for module in engine for name in _SMALL if name in vars(module)]
    for module, name, _ in before:
        setattr(module, name, _SMALL[name])
    index: Any = duly.engine.index.Index
    defaults = [(verb, verb.__defaults__) for verb in (index.promote, index.admit)]
    for verb, _ in defaults:
        verb.__defaults__ = (6,)
    fold_some = duly.engine.fold._fold_some
    # Else every fold would be over in the transaction that began it.
    setattr(duly.engine.fold, "_fold_some", lambda index, most: fold_some(index, min(most, FOLD_AT_ONCE)))  # noqa: B010

    def undo() -> None:
        for module, name, value in before:
            setattr(module, name, value)
        for verb, values in defaults:
            verb.__defaults__ = values
        setattr(duly.engine.fold, "_fold_some", fold_some)  # noqa: B010

    return undo


@contextlib.contextmanager
def small_steps() -> Iterator[None]:
    undo = make_small()
    try:
        yield
    finally:
        undo()


def watch_phases(tell: Callable[[str, int], None]) -> None:
    """Has `tell` called with a phase's name and how often it has come, each time it is about to begin."""
    times: Counter[str] = Counter()

    def watched(phase: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def watching(*values: Any, **named: Any) -> Any:
            times[phase] += 1
            tell(phase, times[phase])
            return act(*values, **named)

        # Their defaults may have been changed.
        return watching

    for phase, (place, name) in PHASES.items():
        setattr(place, name, watched(phase, getattr(place, name)))
