"""A gate: how many messages a claim may have now, and when to look again. Values in, values out; no store, no clock.

A *gate* stands before a group, and before each lane of a queue whose lanes have limits. It counts tokens (`rate`),
retries (`RetryPolicy.budget`) and outcomes (`Breaker`); slots (`max_in_flight`) are counted by whoever asks. Moments
are milliseconds of the store's clock, in floats: at 3,000 a second a token takes a third of one.

**Tokens.** `next_at` says when the next is there. What lies behind now is saved up, at most `SAVED_MS` of it: whoever
comes late by less loses nothing, and whoever comes after a pause gets no burst. In any ten seconds that is at most
three in two hundred too many, and one token. A gate that is shut is looked at again when there is a token, or, where
they come faster, when `GATHER_MS` of them have gathered: else every claim would be of one message.

**Retries** are paid for by fresh deliveries: each adds `budget` to a credit, a retry takes one of it. A credit fades
within ten seconds, so nobody saves up a storm. Where there is none, a retry a second goes nevertheless. What is not
paid for stays due, in its order, and is handed out as credit comes.

**The breaker:**

            failures >= share, of >= calls in window
    CLOSED ─────────────────────────────────────────▶ OPEN ◀──┐ the probe failed: the next one waits twice as long
      ▲                                                │  └───┘
      │ the rate is what it was                        │ the probe was acked
      └────────────────────── RAMP ◀───────────────────┘
                             │    ▲                      each second: + a step (a thirtieth, at least one a second),
                             └────┘                      or half, if failures reach the share; below half a step OPEN

OPEN lets one message at a time through, the probe. It alone decides: what was on its way before says nothing of how
things are now. An ack is a success; a nack and a lease that runs out are failures (a lease one failure, however many
messages it held: a consumer died). Bury and release say nothing: the one is a verdict on a message, the other none; a
probe that ends so is followed by the next at once.

While a gate is open no failure uses an attempt or makes a suspect, so an outage buries nothing. One does: a probe whose
lease ran out. It ran alone and took its consumer with it; should it do so as often as a message may, it is poison,
whatever state the destination is in. It goes to the end of the line each time, so in an outage it is another
message's turn. What fails in the same breath as the gate opens was handed out before, and uses its attempt.

Failure cases. A probe that is gone (its group was moved, its topic purged) is never settled: after `probe_until` the
next one goes. A rate that is raised: `next_at` is never further ahead than one token. A claim whose commit is lost with
its server takes its tokens back with it.
"""

from __future__ import annotations

import math

import msgspec
from msgspec.structs import replace

from ..topic import Breaker

CLOSED, OPEN, RAMP = 0, 1, 2
STATES = ("closed", "open", "ramp")
# So much of a rate is saved up for whoever comes late: of the 200 that ten seconds may be off.
SAVED_MS = 150.0
# So long tokens are left to gather.
GATHER_MS = 20.0
ENDLESS = 2**40
# A window is counted in so many parts.
_PARTS = 10
# A rate is won back in so many steps, one a second.
STEPS = 30
_FADE_MS = 10_000.0
_FLOOR_MS = 1_000.0
_STEP_MS = 1_000.0
# Of what is made ready of a lane while its breaker is not closed, so much waits to be claimed at most.
PASSES_MAX = 1_000


class Terms(msgspec.Struct, frozen=True):
    """What is set for a gate; None: nothing."""

    rate: float | None = None
    max_in_flight: int | None = None
    budget: float | None = None
    breaker: Breaker | None = None


class Circuit(msgspec.Struct, frozen=True, array_like=True):
    """A breaker's state. CLOSED counts outcomes by part of its window; OPEN waits for a probe; RAMP has a rate."""

    state: int = CLOSED
    # (number of the part, successes, failures)
    counts: tuple[tuple[int, int, int], ...] = ()
    # How long the next probe waits once this one failed, and when it may go.
    wait_ms: float = 0.0
    probe_at: float = 0.0
    # A group's: the lease that it is; a lane's: its offset. It is waited for until then.
    probe: int | None = None
    probe_until: float = 0.0
    # The rate that is allowed while it ramps, the one that it ramps up to, and when these outcomes are judged.
    rate: float = 0.0
    target: float = 0.0
    judge_at: float = 0.0
    acked: int = 0
    failed: int = 0
    # A lane's: the offsets that were made ready since it opened and are not claimed yet.
    passes: tuple[int, ...] = ()


class Gate(msgspec.Struct, frozen=True, array_like=True):
    """A group's gate as it is stored."""

    next_at: float = 0.0
    credit: float = 0.0
    credit_at: float = 0.0
    # When a retry goes without credit.
    retry_at: float = 0.0
    circuit: Circuit = Circuit()


class Room(msgspec.Struct, frozen=True):
    """How many messages may pass, how many retries among them, and when to look again where it is none."""

    most: int = ENDLESS
    retries: int = ENDLESS
    look_at: float = 0.0
    retry_at: float = 0.0


# Tokens


def tokens(next_at: float, rate: float, now_ms: float) -> tuple[int, float]:
    """How many tokens are there, and the moment from which on they count."""
    gap_ms = 1000.0 / rate
    if not next_at:
        return 1, now_ms
    if now_ms - next_at >= max(gap_ms, SAVED_MS):
        # Nobody asked for long.
        next_at = now_ms - max(0.0, SAVED_MS - gap_ms)
    next_at = max(next_at, now_ms - SAVED_MS)
    return (int((now_ms - next_at) * rate / 1000.0 + 1e-6) + 1 if next_at <= now_ms else 0), next_at


def next_look(next_at: float, rate: float, now_ms: float) -> float:
    """When to look for tokens that are spent."""
    return max(next_at, now_ms + GATHER_MS) if 1000.0 / rate < GATHER_MS else next_at


def rate_of(circuit: Circuit, rate: float | None) -> float | None:
    """The rate that holds now."""
    if circuit.state != RAMP:
        return rate
    return circuit.rate if rate is None else min(rate, circuit.rate)


# Gates of groups


def room(gate: Gate, terms: Terms, now_ms: float, *, in_flight: int = 0, free_at: float | None = None) -> Room:
    """How much may pass. `free_at`: when the next of those in flight is due again by itself."""
    most, look_at = ENDLESS, 0.0
    if terms.breaker is not None and gate.circuit.state == OPEN:
        held_until = shut_until(gate.circuit, now_ms)
        most, look_at = (1, 0.0) if held_until is None else (0, held_until)
    rate = rate_of(gate.circuit, terms.rate)
    if rate is not None:
        there, next_at = tokens(gate.next_at, rate, now_ms)
        most = min(most, there)
        if not there:
            look_at = max(look_at, next_look(next_at, rate, now_ms))
    if terms.max_in_flight is not None:
        free = max(0, terms.max_in_flight - in_flight)
        most = min(most, free)
        if not free and free_at is not None:
            look_at = max(look_at, free_at)
    if terms.budget is None:
        return Room(most, ENDLESS, look_at)
    retries = int(_credit(gate, now_ms) + 1e-9)
    if not retries and now_ms >= gate.retry_at:
        retries = 1
    return Room(most, retries, look_at, gate.retry_at)


def as_set(gate: Gate, terms: Terms, now_ms: float) -> Gate:
    """The gate as what is set for it now, and time, have it."""
    if terms.breaker is not None:
        circuit = judged(gate.circuit, terms.breaker, now_ms, terms.rate)
        gate = gate if circuit is gate.circuit else replace(gate, circuit=circuit)
    rate = rate_of(gate.circuit, terms.rate)
    if rate is not None and gate.next_at > now_ms + 1000.0 / rate:
        # A rate that was raised holds at once.
        gate = replace(gate, next_at=now_ms + 1000.0 / rate)
    return gate


def spent(gate: Gate, terms: Terms, now_ms: float, *, count: int, fresh: int = 0, again: int = 0) -> Gate:
    """The gate after messages passed; `fresh` of them for the first time, `again` not."""
    rate = rate_of(gate.circuit, terms.rate)
    if rate is not None and count:
        _, next_at = tokens(gate.next_at, rate, now_ms)
        gate = replace(gate, next_at=next_at + count * 1000.0 / rate)
    if terms.budget is not None and (fresh or again):
        credit = max(0.0, _credit(gate, now_ms) - again) + terms.budget * fresh
        retry_at = now_ms + _FLOOR_MS if again else gate.retry_at
        gate = replace(gate, credit=credit, credit_at=now_ms, retry_at=retry_at)
    return gate


def _credit(gate: Gate, now_ms: float) -> float:
    return gate.credit * math.exp(min(0.0, gate.credit_at - now_ms) / _FADE_MS)


# Breakers


def shut_until(circuit: Circuit, now_ms: float) -> float | None:
    """When an OPEN one lets its next probe through; None: now."""
    moment = circuit.probe_at if circuit.probe is None else circuit.probe_until
    return moment if now_ms < moment else None


def probing(circuit: Circuit, probe: int, until_ms: float) -> Circuit:
    """A probe is on its way."""
    return replace(circuit, probe=probe, probe_until=until_ms)


def unanswered(circuit: Circuit, now_ms: float) -> Circuit:
    """The probe came to an end that says nothing: the next may go."""
    return replace(circuit, probe=None, probe_at=now_ms)


def told(
    circuit: Circuit,
    breaker: Breaker,
    now_ms: float,
    *,
    acked: int = 0,
    failed: int = 0,
    probe: bool = False,
    rate: float | None = None,
) -> Circuit:
    """The circuit after outcomes; `probe`: of the message that all wait for. `rate` is the one that is configured."""
    if circuit.state == RAMP:
        return replace(circuit, acked=circuit.acked + acked, failed=circuit.failed + failed)
    if circuit.state == OPEN:
        if not probe:
            return circuit
        return _ramping(circuit, now_ms) if acked else _opened(circuit, breaker, now_ms, circuit.target)
    circuit = replace(circuit, counts=_counted(circuit, breaker, now_ms, acked, failed))
    good = sum(count[1] for count in circuit.counts)
    bad = sum(count[2] for count in circuit.counts)
    if not failed or good + bad < breaker.calls or bad < breaker.failures * (good + bad):
        return circuit
    # Where nothing is configured, what it did is what it can do.
    target = rate if rate is not None else max(1.0, (good + bad) * 1000.0 / breaker.window_ms)
    return _opened(Circuit(), breaker, now_ms, target)


def judged(circuit: Circuit, breaker: Breaker, now_ms: float, rate: float | None) -> Circuit:
    """The circuit as time has it: a ramp goes a step up or halves, and ends where its rate is reached."""
    if circuit.state != RAMP or now_ms < circuit.judge_at:
        return circuit
    outcomes = circuit.acked + circuit.failed
    bad = outcomes > 0 and circuit.failed >= breaker.failures * outcomes
    circuit = replace(
        circuit,
        target=circuit.target if rate is None else rate,
        judge_at=now_ms + _STEP_MS,
        acked=0,
        failed=0,
    )
    if not outcomes:
        return circuit
    step = _step(circuit.target)
    if bad:
        halved = circuit.rate / 2
        return _opened(circuit, breaker, now_ms, circuit.target) if halved < step / 2 else replace(circuit, rate=halved)
    risen = circuit.rate + step
    return Circuit() if risen >= circuit.target else replace(circuit, rate=risen)


def _step(target: float) -> float:
    """What a ramp begins with and grows by: one a second is no storm."""
    return max(target / STEPS, min(target, 1.0))


def is_blank(circuit: Circuit, breaker: Breaker | None, now_ms: float) -> bool:
    """Whether there is nothing to remember of it."""
    if breaker is None:
        return True
    first = int(now_ms * _PARTS // breaker.window_ms) - _PARTS
    return circuit.state == CLOSED and not any(part > first for part, _, _ in circuit.counts)


def _ramping(circuit: Circuit, now_ms: float) -> Circuit:
    # It keeps its wait: should it open again, that goes on from there.
    return Circuit(
        RAMP,
        wait_ms=circuit.wait_ms,
        rate=_step(circuit.target),
        target=circuit.target,
        judge_at=now_ms + _STEP_MS,
        passes=circuit.passes,
    )


def _opened(circuit: Circuit, breaker: Breaker, now_ms: float, target: float) -> Circuit:
    """Open, or open for longer: a probe goes when its wait is over, and the one after it waits twice as long."""
    wait_ms = min(max(circuit.wait_ms, breaker.probe_ms), breaker.probe_max_ms)
    return Circuit(
        OPEN,
        wait_ms=min(2 * wait_ms, breaker.probe_max_ms),
        probe_at=now_ms + wait_ms,
        target=target,
        passes=circuit.passes,
    )


def _counted(
    circuit: Circuit, breaker: Breaker, now_ms: float, acked: int, failed: int
) -> tuple[tuple[int, int, int], ...]:
    """The counts of the window that ends now, with more."""
    part = int(now_ms * _PARTS // breaker.window_ms)
    kept = [count for count in circuit.counts if part - _PARTS < count[0] <= part]
    if kept and kept[-1][0] == part:
        _, good, bad = kept.pop()
        acked, failed = acked + good, failed + bad
    return (*kept, (part, acked, failed))
