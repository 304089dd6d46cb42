"""q.claim(…, acks=…): what is done with is acked in the transaction of the next claim."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

import duly

from .conftest import Home, sharp
from .patience import Aside


@pytest.fixture(params=["log", "queue"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def jobs(q: duly.Client, kind: str) -> str:
    """Six messages, in a log with the group `g` or in a queue; leases of 30 s, retries after 10 s sharp."""
    q.create_topic("jobs", kind=kind, lease=30, retry=sharp(10))
    if kind == "log":
        q.create_group("jobs", "g")
    q.publish("jobs", [b"%d" % number for number in range(6)])
    return "jobs"


@pytest.fixture
def take(q: duly.Client, jobs: str, kind: str) -> Callable[..., duly.Batch]:
    def taken(client: duly.Client | None = None, most: int = 2, **how: Any) -> duly.Batch:
        return (client or q).claim(jobs, group="g" if kind == "log" else None, max_messages=most, **how)

    return taken


Take = Callable[..., duly.Batch]


def left(q: duly.Client, kind: str) -> tuple[int, int]:
    """Messages that are not done with, and of these the leased."""
    group = q.describe_group("jobs", "g" if kind == "log" else "queue")
    return group.lag + group.pending, group.leased


def test_each_claim_acks_the_batch_before(q: duly.Client, take: Take, kind: str, clock: duly.ManualClock) -> None:
    first = take()
    assert first.acked is None
    second = take(acks=first)
    assert (second.payloads, second.acked) == ([b"2", b"3"], duly.Settled(2))
    assert all(one.settled for one in first)
    assert left(q, kind) == (4, 2)
    third = take(acks=second)
    last = take(acks=third)
    assert (len(last), last.acked) == (0, duly.Settled(2))
    clock.advance(3600)
    assert left(q, kind) == (0, 0)
    assert len(take()) == 0


def test_a_part_of_a_batch_and_single_deliveries(q: duly.Client, take: Take, kind: str) -> None:
    first = take(most=3)
    second = take(most=1, acks=[first[0], first[2]])
    assert second.acked == duly.Settled(2)
    assert [one.settled for one in first] == [True, False, True]
    third = take(most=1, acks=first[1])
    assert third.acked == duly.Settled(1)
    # Of several batches, too.
    assert take(most=1, acks=[second[0], third[0]]).acked == duly.Settled(2)
    assert left(q, kind) == (1, 1)


@pytest.mark.parametrize("nothing", [[], (), "a settled batch"])
def test_nothing_to_ack_is_no_error(take: Take, nothing: Any) -> None:
    if nothing == "a settled batch":
        nothing = take(most=1)
        nothing.ack()
    got = take(most=1, acks=nothing)
    assert (len(got), got.acked) == (1, duly.Settled(0))


def test_a_lost_lease_is_told_and_costs_neither_the_others_nor_the_claim(
    q: duly.Client, take: Take, kind: str, clock: duly.ManualClock, reopen: Callable[[], duly.Client]
) -> None:
    lost, kept = take(lease=10), take(lease=60)
    clock.advance(11)
    thief = reopen()
    stolen = [one for _ in range(3) for one in take(thief, most=6)]
    taken_over = {one.payload for one in stolen} & set(lost.payloads)
    assert taken_over
    q.publish("jobs", b"another")
    got = take(most=1, acks=[*lost, *kept])
    assert got.acked is not None
    assert got.acked.done + len(got.acked.lost) == 4
    assert {one.payload for one in got.acked.lost} >= taken_over
    assert all(one.settled for one in kept)
    assert all(one.lost for one in got.acked.lost)
    assert len(got) == 1
    # Whoever took it over has it.
    assert take(most=1, acks=stolen).acked == duly.Settled(len(stolen))


def test_what_was_not_acked_is_delivered_again(take: Take, clock: duly.ManualClock) -> None:
    first = take()
    take(acks=[first[0]])
    clock.advance(31)
    again = [one.payload for _ in range(6) for one in take(most=6)]
    assert b"0" not in again
    assert b"1" in again


def test_acks_do_not_wait_for_the_claim(q: duly.Client, take: Take, kind: str) -> None:
    batch = take(most=6)
    waiting = Aside(lambda: take(acks=batch, wait=30))
    assert waiting.still_running_after(0.3)
    assert left(q, kind) == (0, 0)
    q.publish("jobs", b"7")
    got = waiting.result()
    assert (got.payloads, got.acked) == ([b"7"], duly.Settled(6))


def test_a_claim_that_is_refused_acks_nothing(q: duly.Client, take: Take, kind: str) -> None:
    batch = take()
    q.create_topic("another", kind="queue")
    q.publish("another", b"x")
    elsewhere = q.claim("another")
    with pytest.raises(duly.InvalidArgument, match="of its own topic and group"):
        take(acks=elsewhere)
    with pytest.raises(duly.InvalidArgument, match="of its own topic and group"):
        take(acks=[*batch, *elsewhere])
    with pytest.raises(duly.InvalidArgument):
        take(most=0, acks=batch)
    wrong: list[Any] = [1, "batch", [b"x"], [None], {"a": 1}]
    for acks in wrong:
        with pytest.raises(duly.InvalidArgument):
            take(acks=acks)
    assert not any(one.settled for one in [*batch, *elsewhere])
    assert left(q, kind)[1] == 2
    assert batch.ack().done == 2
    assert elsewhere.ack().done == 1


def test_of_a_paused_topic_nothing_comes_and_acks_are_done(q: duly.Client, take: Take) -> None:
    batch = take()
    q.pause("jobs")
    got = take(acks=batch)
    assert (len(got), got.acked) == (0, duly.Settled(2))


def test_inside_a_with_block_the_end_acks_what_the_next_claim_did_not(q: duly.Client, take: Take, kind: str) -> None:
    with take(most=2) as batch:
        following = take(most=2, acks=[batch[0]])
    assert all(one.settled for one in batch)
    following.release()
    assert left(q, kind) == (4, 0)


def test_a_cancelled_message_that_is_acked_is_done(q: duly.Client, kind: str, take: Take) -> None:
    if kind == "log":
        return
    batch = take(most=1)
    assert q.cancel("jobs", [batch[0].id])
    assert take(most=1, acks=batch).acked == duly.Settled(1)
    assert [event.kind for event in q.events(topic="jobs", message=batch[0].id)][-1] == "acked"


def test_many_claims_at_once_each_ack_their_own(
    take: Take, q: duly.Client, kind: str, reopen: Callable[[], duly.Client]
) -> None:
    q.publish("jobs", [b"more"] * 194)
    clients = [reopen() for _ in range(4)]

    def work(client: duly.Client) -> int:
        done, batch = 0, take(client, most=5)
        while batch:
            batch = take(client, most=5, acks=batch)
            assert batch.acked is not None
            assert not batch.acked.lost
            done += batch.acked.done
        return done

    finished = [Aside(partial(work, client)) for client in clients]
    assert sum(aside.result() for aside in finished) == 200
    assert left(q, kind) == (0, 0)


def test_a_broker_that_knows_nothing_of_acks_is_told_of_them_by_themselves(
    take: Take, q: duly.Client, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = take()
    port = q._port
    claim = port.claim
    monkeypatch.setattr(port, "claim", lambda command, **how: claim(replace(command, acks=None), **how))
    got = take(acks=batch)
    assert (len(got), got.acked) == (2, duly.Settled(2))
    assert left(q, kind) == (4, 2)


@pytest.mark.embedded
def test_both_are_one_commit(home: Home, take: Take) -> None:
    def commits() -> int:
        """What happened is a row a commit until it is packed."""
        ((count,),) = home.ask("SELECT count(*) FROM duly_event")
        return int(count)

    batch = take()
    before = commits()
    assert len(take(acks=batch)) == 2
    assert commits() == before + 1
