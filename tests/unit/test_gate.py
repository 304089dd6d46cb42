"""Gates as values: tokens, the budget of retries, and a breaker's states (engine/gate.py draws them)."""

from __future__ import annotations

import os
import random

import msgspec
import pytest

from duly.engine.gate import (
    CLOSED,
    ENDLESS,
    OPEN,
    RAMP,
    SAVED_MS,
    Circuit,
    Gate,
    Terms,
    as_set,
    is_blank,
    judged,
    next_look,
    probing,
    room,
    shut_until,
    spent,
    tokens,
    told,
    unanswered,
)
from duly.topic import Breaker

NOW = 1_700_000_000_000
BREAKER = Breaker(failures=0.5, calls=4, window=10, probe=1, probe_max=8)


@pytest.mark.parametrize("rate", [0.3, 7, 900, 30_000])
def test_whoever_comes_late_by_less_than_is_saved_loses_nothing(rate: float) -> None:
    draw, next_at, now, given = random.Random(3), 0.0, float(NOW), 0
    while now < NOW + 60_000:
        there, next_at = tokens(next_at, rate, now)
        given, next_at = given + there, next_at + there * 1000 / rate
        now = max(next_look(next_at, rate, now), now) + draw.uniform(0, SAVED_MS * 0.7)
    assert given == pytest.approx(60 * rate, abs=rate * SAVED_MS / 1000 + 2)


def test_a_pause_saves_no_more_than_that() -> None:
    assert tokens(NOW - 3_600_000, 1000, NOW)[0] == SAVED_MS
    assert tokens(NOW - 3_600_000, 1, NOW) == (1, NOW)
    assert tokens(NOW - 50, 1, NOW) == (1, NOW - 50), "it is only late"
    assert tokens(NOW + 1, 1, NOW) == (0, NOW + 1)


def test_tokens_that_come_fast_are_left_to_gather() -> None:
    assert next_look(NOW + 1, 1000, NOW) == NOW + 20
    assert next_look(NOW + 40, 10, NOW) == NOW + 40


def test_a_rate_that_was_raised_holds_at_once() -> None:
    gate = spent(Gate(), Terms(rate=0.01), NOW, count=1)
    assert room(gate, Terms(rate=100), NOW).most == 0
    assert room(as_set(gate, Terms(rate=100), NOW), Terms(rate=100), NOW + 10).most == 1


def test_all_that_limits_has_to_let_a_message_through() -> None:
    terms = Terms(rate=100, max_in_flight=3)
    assert room(Gate(), terms, NOW).most == 1, "nothing is saved up at the beginning"
    assert room(Gate(NOW - 50), terms, NOW, in_flight=1).most == 2
    shut = room(spent(Gate(), terms, NOW, count=10), terms, NOW, in_flight=3, free_at=NOW + 5_000)
    assert (shut.most, shut.look_at) == (0, NOW + 5_000)
    assert room(Gate(), Terms(), NOW).most == ENDLESS


def test_retries_are_paid_for_by_fresh_deliveries_and_the_credit_fades() -> None:
    terms = Terms(budget=0.2)
    gate = spent(Gate(), terms, NOW, count=100, fresh=100)
    assert room(gate, terms, NOW).retries == 20
    assert room(gate, terms, NOW + 10_000).retries == 7
    gate = spent(gate, terms, NOW, count=20, again=20)
    assert (room(gate, terms, NOW).retries, room(gate, terms, NOW).retry_at) == (0, NOW + 1000)
    assert room(gate, terms, NOW + 1000).retries == 1


def fail(circuit: Circuit, count: int, at_ms: float, **more: bool) -> Circuit:
    return told(circuit, BREAKER, at_ms, failed=count, **more)


def test_it_opens_when_the_share_of_enough_calls_in_the_window_failed() -> None:
    assert fail(Circuit(), 3, NOW).state == CLOSED, "too few calls"
    mixed = told(Circuit(), BREAKER, NOW, acked=4)
    assert fail(mixed, 3, NOW).state == CLOSED, "too small a share"
    assert fail(mixed, 4, NOW).state == OPEN
    assert fail(fail(Circuit(), 3, NOW), 1, NOW + 9_000).state == OPEN
    assert fail(fail(Circuit(), 3, NOW), 1, NOW + 11_000).state == CLOSED, "those are long ago"
    assert told(fail(mixed, 3, NOW), BREAKER, NOW + 11_000, acked=1).state == CLOSED, "success opens nothing"


def test_probes_go_one_at_a_time_and_wait_twice_as_long_after_each_that_fails() -> None:
    circuit, now, waits = fail(Circuit(), 4, NOW), float(NOW), []
    for _ in range(5):
        moment = shut_until(circuit, now)
        assert moment is not None
        waits.append((moment - now) / 1000)
        circuit = probing(circuit, 7, moment + 30_000)
        assert shut_until(circuit, moment) == moment + 30_000
        assert told(circuit, BREAKER, moment, acked=5, failed=5) == circuit, "others say nothing"
        circuit, now = fail(circuit, 1, moment, probe=True), moment
    assert waits == [1, 2, 4, 8, 8]
    assert shut_until(unanswered(probing(circuit, 8, now + 30_000), now), now) is None


def ramp(rate: float | None, at_ms: float = NOW) -> Circuit:
    circuit = told(Circuit(), BREAKER, at_ms - 1, failed=4, rate=rate)
    return told(circuit, BREAKER, at_ms, acked=1, probe=True, rate=rate)


def test_a_ramp_grows_each_second_that_goes_well_halves_when_it_does_not_and_ends_at_the_rate() -> None:
    circuit, rates = ramp(300), []
    for second in range(1, 40):
        if circuit.state != RAMP:
            break
        rates.append(circuit.rate)
        bad = second in (10, 11)
        circuit = told(circuit, BREAKER, NOW, acked=5, failed=5 if bad else 0)
        assert judged(circuit, BREAKER, NOW + 1000 * second - 1, 300) == circuit
        circuit = judged(circuit, BREAKER, NOW + 1000 * second, 300)
    assert rates[:12] == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 50, 25]
    assert (circuit, max(rates)) == (Circuit(), 295)


def test_a_ramp_that_fails_at_its_foot_opens_again_and_its_probe_waits_for_longer() -> None:
    circuit = told(ramp(300), BREAKER, NOW, failed=1)
    circuit = judged(circuit, BREAKER, NOW + 1000, 300)
    circuit = judged(told(circuit, BREAKER, NOW, failed=1), BREAKER, NOW + 2000, 300)
    assert (circuit.state, circuit.probe_at) == (OPEN, NOW + 4000)


def test_where_no_rate_is_set_it_ramps_up_to_what_it_did_and_is_free_then() -> None:
    circuit = told(Circuit(), BREAKER, NOW, acked=300)
    circuit = told(circuit, BREAKER, NOW, failed=300)
    assert circuit.target == 60
    assert judged(ramp(None), BREAKER, NOW + 60_000, None).state == RAMP, "nothing was heard of it yet"


def test_what_is_long_ago_need_not_be_remembered() -> None:
    circuit = fail(Circuit(), 1, NOW)
    assert not is_blank(circuit, BREAKER, NOW)
    assert is_blank(circuit, BREAKER, NOW + 11_000)
    assert is_blank(fail(Circuit(), 9, NOW), None, NOW)


def test_a_gate_holds_whatever_happens_to_it() -> None:
    """A random life: tokens, probes and ramps keep to their bounds, and what is stored is what was there."""
    seed = int(os.environ.get("DULY_TEST_SEED", random.randrange(2**32)))
    print(f"seed {seed}")
    draw = random.Random(seed)
    for _ in range(40):
        rate = draw.choice([None, 0.5, 20, 2000])
        terms = Terms(rate=rate, budget=draw.choice([None, 0, 0.3]), breaker=draw.choice([None, BREAKER]))
        gate, now, start, given, fresh, again = Gate(), float(NOW), float(NOW), 0, 0, 0
        for _ in range(300):
            gate = msgspec.msgpack.decode(msgspec.msgpack.encode(as_set(gate, terms, now)), type=Gate)
            found = room(gate, terms, now)
            circuit = gate.circuit
            assert circuit.state != OPEN or found.most <= 1
            if circuit.state == RAMP and rate is not None:
                assert 0 < circuit.rate <= rate
            assert found.most > 0 or found.look_at >= now, "whoever is shut out knows when to come again"
            count = min(found.most, draw.randrange(60))
            old = min(count, found.retries, draw.randrange(10))
            gate = spent(gate, terms, now, count=count, fresh=count - old, again=old)
            given, fresh, again = given + count, fresh + count - old, again + old
            if terms.breaker is not None:
                circuit = gate.circuit
                if circuit.state == OPEN and count:
                    gate = msgspec.structs.replace(gate, circuit=probing(circuit, 1, now + draw.uniform(0, 3000)))
                failed = draw.randint(0, count) if draw.random() < 0.4 else 0
                probe = gate.circuit.probe is not None and draw.random() < 0.5
                one = {"failed": 1} if draw.random() < 0.5 else {"acked": 1}
                many = one if probe else {"acked": count - failed, "failed": failed}
                circuit = told(gate.circuit, terms.breaker, now, probe=probe, rate=rate, **many)
                gate = msgspec.structs.replace(gate, circuit=circuit)
                assert circuit.state != OPEN or circuit.probe_at <= now + 8_000
            now += draw.choice([0.0, 1.0, 20.0, 700.0, 5_000.0])
            if rate is not None:
                assert given <= rate * (now - start + SAVED_MS) / 1000 + 1
            if terms.budget is not None:
                assert again <= terms.budget * fresh + (now - start) / 1000 + 1
