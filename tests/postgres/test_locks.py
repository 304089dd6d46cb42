"""Nobody waits for an application's open transaction: not another one, not a broker, not a renewal. What it settles is
taken over by nobody before it has ended, and is then done once, or delivered again.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import duly
from duly.store.postgres.transaction import PostgresTransaction
from tests.conftest import scaled

from .conftest import Application, Connection, store_of

# So long nothing takes that waits for nobody; locks are waited for 2 s by the application and 10 s by Duly.
AT_ONCE_S = 1.0


@contextmanager
def at_once(*, what: str = "") -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < AT_ONCE_S, f"somebody waited {what}"


def states(q: duly.Client, topic: str = "jobs") -> dict[str, str]:
    return {one.id: one.state for one in q.browse(topic)}


def messages(count: int) -> list[duly.Message]:
    return [duly.Message(b"%d" % number, id=f"m{number}") for number in range(count)]


def begun(app: Application, count: int) -> list[Connection]:
    return [app.connect(autocommit=False) for _ in range(count)]


@pytest.mark.parametrize("last", ["commit", "rollback"])
def test_two_transactions_settle_messages_of_one_lease_beside_each_other(
    app: Application, q: duly.Client, last: str
) -> None:
    q.publish("jobs", messages(5))
    held = q.claim("jobs")
    first, second = begun(app, 2)
    with at_once():
        q.ack([held[0]], tx=first)
        q.ack([held[1]], tx=second)
        q.publish("jobs", duly.Message(b"new", id="n0"), tx=first)
        q.publish("jobs", duly.Message(b"new", id="n1"), tx=second)
        q.nack([held[2]], delay=60, tx=first)
        q.nack([held[3]], delay=60, tx=second)
        first.commit()
        # The second one still has a share of the lease: what the first asked of it waits, and nothing else does.
        assert states(q)["n0"] == "ready"
        assert q.claim("jobs", max_messages=1).payloads == [b"new"]
        q.publish("jobs", duly.Message(b"later", id="later"))
        assert q.ack([held[4]]).done == 1
        getattr(second, last)()
    left = states(q)
    assert "m0" not in left
    assert "m4" not in left
    assert left["m2"] == "retrying"
    if last == "commit":
        assert left["n1"] == "ready"
        assert "m1" not in left
        assert left["m3"] == "retrying"
    else:
        assert "n1" not in left
        assert left["m1"] == left["m3"] == "leased"
    assert app.ask("SELECT count(*) FROM duly.inbox") == [(0,)]


def test_a_claim_that_acks_beside_an_open_transaction_leaves_its_verdict_and_is_served(
    app: Application, q: duly.Client
) -> None:
    q.publish("jobs", messages(5))
    held = q.claim("jobs", max_messages=3)
    (open_one,) = begun(app, 1)
    with at_once():
        q.ack([held[0]], tx=open_one)
        got = q.claim("jobs", max_messages=1, acks=[held[1]])
        # Beside claims that have nothing to do with it, too.
        more = q.claim("jobs", max_messages=1, acks=[held[2]])
    assert (len(got), got.acked) == (1, duly.Settled(1))
    assert (len(more), more.acked) == (1, duly.Settled(1))
    open_one.commit()
    assert states(q) == {"m3": "leased", "m4": "leased"}
    assert app.ask("SELECT count(*) FROM duly.inbox") == [(0,)]


def test_brokers_never_wait_for_an_open_transaction(app: Application, q: duly.Client) -> None:
    other = app.elsewhere("w2")
    rounds = scaled(10, 100)
    q.publish("jobs", messages(40 + 2 * rounds))
    mine, others = q.claim("jobs", max_messages=10), other.claim("jobs", max_messages=10)
    (tx,) = begun(app, 1)
    q.ack(mine, tx=tx)
    q.publish("jobs", b"in the transaction", tx=tx)
    moved, cancelled = f"m{39 + 2 * rounds}", f"m{38 + 2 * rounds}"
    q.move("jobs", moved, due=60, tx=tx)
    q.cancel("jobs", cancelled, tx=tx)
    for at in range(rounds):
        for client in (q, other):
            with at_once():
                client.publish("jobs", duly.Message(b"x", id=f"{client.consumer}-{at}"))
                batch = client.claim("jobs", max_messages=1)
                client.extend(batch)
                client.ack(batch)
                client.browse("jobs", limit=3)
                client.move("jobs", f"{client.consumer}-{at}", due=1)
                client.cancel("jobs", f"{client.consumer}-{at}")
    with at_once():
        assert other.ack(others).done == 10
    tx.commit()
    left = states(other)
    assert not {f"m{number}" for number in range(10)} & set(left)
    assert left[moved] == "waiting"
    assert cancelled not in left


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_what_cannot_be_done_beside_an_open_transaction_says_so_at_once(
    app: Application, q: duly.Client, end: str
) -> None:
    """What would end the lease, or mark it, from outside; and it can be done afterwards."""
    q.publish("jobs", messages(3))
    held = q.claim("jobs")
    (tx,) = begun(app, 1)
    q.ack([held[0]], tx=tx)
    asks: list[Callable[[], object]] = [
        lambda: q.cancel("jobs", "m1"),
        lambda: q.cancel("jobs", "m1", tx=tx),
        lambda: q.release(consumer="w1"),
        q.held,
        lambda: q.purge("jobs"),
        lambda: q.delete_topic("jobs", force=True),
    ]
    for ask in asks:
        with at_once(), pytest.raises(duly.Busy):
            ask()
    getattr(tx, end)()
    assert q.cancel("jobs", "m1") == {"m1": "leased"}
    (again,) = q.held()
    assert sorted(again.payloads) == ([b"1", b"2"] if end == "commit" else [b"0", b"1", b"2"])


def test_mail_that_cancels_waits_for_an_open_transaction_and_holds_up_nothing(app: Application, q: duly.Client) -> None:
    q.publish("jobs", messages(2))
    held = q.claim("jobs")
    settling, cancelling = begun(app, 2)
    assert q.cancel("jobs", "m1", tx=cancelling) == {"m1": "leased"}
    q.ack([held[0]], tx=settling)
    cancelling.commit()
    with at_once():
        q.publish("jobs", duly.Message(b"x", id="x"))
        assert set(states(q)) == {"m0", "m1", "x"}
    settling.rollback()
    assert [one.id for one in q.browse("jobs") if one.cancelled] == ["m1"]
    q.nack(held, delay=0)
    assert set(states(q)) == {"m0", "x"}


# Renewal


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_batch_is_renewed_while_a_transaction_settles_part_of_it(
    app: Application, q: duly.Client, complaints: Callable[[], list[str]], end: str
) -> None:
    """For three times the lease, while others want its messages; neither is anything lost nor delivered twice."""
    q.create_topic("short", kind="queue", lease=0.6)
    q.publish("short", messages(4))
    rival = app.elsewhere("rival")
    (tx,) = begun(app, 1)
    with q.claim("short") as batch:
        q.ack([batch[0]], tx=tx)
        until = time.monotonic() + 1.8
        while time.monotonic() < until:
            assert not rival.claim("short", wait=0.05)
        getattr(tx, end)()
        until = time.monotonic() + 0.9
        while time.monotonic() < until:
            assert not rival.claim("short", wait=0.05)
    # What was rolled back is held until its lease ends, as nobody could tell the batch, and delivered again.
    again = rival.claim("short", wait=2)
    assert again.payloads == ([] if end == "commit" else [b"0"])
    assert rival.ack(again).done == len(again)
    assert not q.browse("short")
    assert not [one for one in complaints() if "renewing" in one]


def test_all_of_a_batch_settled_in_a_transaction_that_takes_longer_than_its_lease(
    app: Application, q: duly.Client
) -> None:
    q.create_topic("short", kind="log", lease=0.3)
    q.create_group("short", "g")
    q.publish("short", [b"a", b"b"])
    (tx,) = begun(app, 1)
    with q.claim("short", group="g") as batch:
        q.ack(batch, tx=tx)
    time.sleep(0.5)
    with at_once():
        assert not q.claim("short", group="g")
    tx.commit()
    assert not q.claim("short", group="g", wait=0.5)
    assert q.describe_group("short", "g").leased == 0


class Boom(Exception):
    """Something of the application's that failed."""


def test_the_error_of_a_block_is_not_hidden_by_the_batch_inside(app: Application, q: duly.Client) -> None:
    """The batch ends before the transaction does: what it gives back is settled when that is rolled back."""
    q.publish("jobs", messages(2))
    connection = app.connect()

    def fail() -> None:
        with connection.transaction(), q.claim("jobs") as batch:
            q.ack([batch[0]], tx=connection)
            raise Boom

    with pytest.raises(Boom):
        fail()
    assert states(q) == {"m0": "retrying", "m1": "retrying"}


def test_a_batch_inside_the_transaction_acks_the_rest_by_itself(app: Application, q: duly.Client) -> None:
    q.publish("jobs", messages(3))
    connection = app.connect()
    with at_once(), connection.transaction(), q.claim("jobs") as batch:
        batch[0].ack(tx=connection)
    assert states(q) == {}


def test_the_end_of_a_batch_does_not_ack_what_was_rolled_back(app: Application, q: duly.Client) -> None:
    q.publish("jobs", messages(4))
    connection = app.connect()
    with q.claim("jobs") as batch:
        for delivery in batch[:3]:
            with contextlib.suppress(Boom), connection.transaction():
                connection.execute("INSERT INTO orders VALUES (%s)", (delivery.id,))
                delivery.ack(tx=connection)
                if delivery.id == "m1":
                    raise Boom
    assert app.orders() == ["m0", "m2"]
    assert states(q) == {"m1": "leased"}


# Leases that end


@pytest.mark.parametrize("kind", ["queue", "log"])
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_nobody_takes_over_what_an_open_transaction_settles(
    app: Application, q: duly.Client, kind: str, end: str
) -> None:
    q.create_topic("short", kind=kind, lease=0.2)
    group = "g" if kind == "log" else None
    if group:
        q.create_group("short", group)
    q.publish("short", [b"a", b"b"])
    held = q.claim("short", group=group)
    (tx,) = begun(app, 1)
    q.ack([held[0]], tx=tx)
    rival = app.elsewhere("rival")
    with at_once():
        # The whole lease is left alone.
        assert not rival.claim("short", group=group, wait=0.6)
        assert not rival.claim("short", group=group)
    getattr(tx, end)()
    got: list[bytes] = []
    until = time.monotonic() + 5
    while time.monotonic() < until and len(got) < (1 if end == "commit" else 2):
        batch = rival.claim("short", group=group, wait=1)
        got += batch.payloads
        rival.ack(batch)
    assert sorted(got) == ([b"b"] if end == "commit" else [b"a", b"b"])
    assert not rival.claim("short", group=group, wait=0.4)
    assert q.ack([held[1]]).done == 0


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_verdict_on_two_leases_holds_both_while_one_of_them_has_to_wait(
    app: Application, q: duly.Client, end: str
) -> None:
    """A batch has a lease in each partition. One transaction acks of both, and commits; another one acks of one."""
    q.create_topic("short", kind="log", partitions=2, lease=0.3)
    q.create_group("short", "g")
    q.publish("short", [duly.Message(b"%d" % number, partition=number % 2) for number in range(4)])
    held = {one.payload: one for one in q.claim("short", group="g")}
    assert len({one._lease_id for one in held.values()}) == 2
    both, other = begun(app, 2)
    q.ack([held[b"0"], held[b"2"], held[b"1"]], tx=both)
    q.ack([held[b"3"]], tx=other)
    both.commit()
    rival = app.elsewhere("rival")
    time.sleep(0.4)
    assert not rival.claim("short", group="g", wait=0.3)
    getattr(other, end)()
    assert rival.claim("short", group="g", wait=1).payloads == ([] if end == "commit" else [b"3"])


def test_whoever_waits_beside_an_expired_lease_that_is_settled_does_not_ask_all_the_time(
    app: Application, q: duly.Client
) -> None:
    q.create_topic("short", kind="queue", lease=0.1)
    q.publish("short", b"x")
    held = q.claim("short")
    (tx,) = begun(app, 1)
    q.ack(held, tx=tx)
    time.sleep(0.2)
    claims = 0
    writer = store_of(q)._writer
    take = writer.run

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal claims
        claims += 1
        return take(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "run", counted)
        assert not q.claim("short", wait=1)
    assert claims < 40
    tx.commit()


def test_cancelling_an_expired_message_that_is_being_settled(app: Application, q: duly.Client) -> None:
    """It is not called cancelled and then delivered again."""
    q.create_topic("short", kind="queue", lease=0.1)
    q.publish("short", messages(1))
    held = q.claim("short")
    (tx,) = begun(app, 1)
    q.nack(held, delay=0, tx=tx)
    time.sleep(0.2)
    with pytest.raises(duly.Busy):
        q.cancel("short", "m0")
    tx.rollback()
    assert q.cancel("short", "m0") == {"m0": "cancelled"}
    assert not q.claim("short", wait=0.3)


@pytest.mark.parametrize("kind", ["queue", "log"])
def test_a_commit_between_the_beginning_of_a_claim_and_its_take_over(
    app: Application, q: duly.Client, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it settled is not delivered again; what it published, too, is delivered once."""
    q.create_topic("short", kind=kind, lease=0.2)
    group = "g" if kind == "log" else None
    if group:
        q.create_group("short", group)
    q.publish("short", [b"%d" % number for number in range(6)])
    held = q.claim("short", group=group, max_messages=4)
    (tx,) = begun(app, 1)
    q.ack([held[0]], tx=tx)
    q.publish("short", [b"new %d" % number for number in range(3)], tx=tx)
    time.sleep(0.3)
    look = PostgresTransaction.leases_due
    commits = [tx.commit]

    def commit_first(self: PostgresTransaction, *place: Any) -> Any:
        if commits:
            commits.pop()()
        return look(self, *place)

    monkeypatch.setattr(PostgresTransaction, "leases_due", commit_first)
    got: list[bytes] = []
    until = time.monotonic() + 10
    while len(got) < 8 and time.monotonic() < until:
        batch = q.claim("short", group=group, wait=0.2, lease=30)
        got += batch.payloads
        q.ack(batch)
    assert not commits
    assert sorted(got) == [b"1", b"2", b"3", b"4", b"5", b"new 0", b"new 1", b"new 2"]
    assert not q.claim("short", group=group, wait=0.3)


def test_a_commit_at_the_moment_of_a_take_over_is_done_once(app: Application, q: duly.Client) -> None:
    """Between the snapshot in which a claim finds the lease, and its lock: the mail is looked at once more."""
    q.create_topic("short", kind="queue", lease=0.1, retry=duly.RetryPolicy(max_attempts=1000))
    rivals = [app.elsewhere(f"rival{number}") for number in range(2)]
    stop = threading.Event()
    taken: list[str] = []

    def claim(rival: duly.Client) -> None:
        while not stop.is_set():
            batch = rival.claim("short", lease=60)
            taken.extend(one.id for one in batch)
            rival.ack(batch)

    threads = [threading.Thread(target=claim, args=(rival,)) for rival in rivals]
    connection = app.connect()
    rounds, done, late = scaled(25, 600), [], 0
    # The rivals begin when all are held: what they get is taken over.
    held = []
    for number in range(rounds):
        q.publish("short", duly.Message(b"x", id=f"r{number}"))
        held.append(q.claim("short", max_messages=1, lease=scaled(2, 15) + 0.02 * number)[0])
    for thread in threads:
        thread.start()
    for delivery in held:
        with connection.transaction():
            if q.ack([delivery], tx=connection).done:
                done.append(delivery.id)
                end = delivery.lease_expires_at.timestamp()
                # Open until about the moment at which its lease ends.
                late += 1
                while time.time() < end + 0.002 * (len(done) % 5 - 2):
                    time.sleep(0.0002)
    time.sleep(0.3)
    stop.set()
    for thread in threads:
        thread.join()
    print(f"{late} of {rounds} transactions ended at the end of the lease; {len(taken)} messages were taken over")
    assert late > rounds / 2
    assert not set(done) & set(taken), "done in a transaction, and delivered again"
    assert sorted([*done, *taken]) == sorted(one.id for one in held)
    assert not q.browse("short")
