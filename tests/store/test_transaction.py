"""The application's own transaction: its rows and Duly's messages are kept together, or neither is."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any

import apsw
import pyarrow as pa
import pytest

import duly

from .conftest import sharp
from .patience import Aside

pytestmark = [pytest.mark.embedded, pytest.mark.sqlite]


class Undo(Exception):
    """Leaves a block so that it is rolled back."""


@pytest.fixture
def jobs(q: duly.Client) -> str:
    """A queue, and a table of the application's beside it."""
    q.create_topic("jobs", kind="queue", lease=30, retry=sharp(10))
    with q.transaction() as tx:
        tx.execute("CREATE TABLE done (id TEXT PRIMARY KEY, n INTEGER NOT NULL)")
    return "jobs"


def rows(q: duly.Client) -> list[tuple[Any, ...]]:
    with q.transaction() as tx:
        return tx.execute("SELECT id, n FROM done ORDER BY id")


def states(q: duly.Client) -> dict[str, str]:
    return {one.id: one.state for one in q.browse("jobs")}


def leave(*, kept: bool) -> None:
    if not kept:
        raise Undo


def block(q: duly.Client, work: Callable[[duly.Transaction], Any], *, kept: bool) -> None:
    """Does something in a transaction beside a row of the application, and commits or rolls back."""
    with contextlib.suppress(Undo), q.transaction() as tx:
        tx.execute("INSERT INTO done VALUES ('row', 1)")
        work(tx)
        leave(kept=kept)
    assert rows(q) == ([("row", 1)] if kept else [])


both = pytest.mark.parametrize("kept", [True, False], ids=["commit", "rollback"])


# Each verb


@both
@pytest.mark.parametrize(
    "messages",
    [b"x", duly.Message(b"x", id="own"), [b"x", b"x"], pa.table({"payload": pa.array([b"x", b"x"], pa.binary())})],
    ids=["bytes", "message", "list", "arrow"],
)
@pytest.mark.parametrize("kind", ["log", "queue"])
def test_what_is_published_is_there_with_the_rows(
    q: duly.Client, jobs: str, kind: str, messages: Any, kept: bool
) -> None:
    q.create_topic("t", kind=kind)
    group = "g" if kind == "log" else None
    if group:
        q.create_group("t", group)
    receipts: list[duly.Receipt] = []
    block(q, lambda tx: receipts.append(q.publish("t", messages, tx=tx)), kept=kept)
    assert receipts[0].count in (1, 2)
    assert set(q.claim("t", group=group).payloads) == ({b"x"} if kept else set())


def _each(held: duly.Batch, act: Callable[[duly.Delivery], None]) -> None:
    for delivery in held:
        act(delivery)


VERDICTS: dict[str, tuple[Callable[[duly.Client, duly.Batch, duly.Transaction], Any], str | None]] = {
    "ack": (lambda q, held, tx: q.ack(held, tx=tx), None),
    "ack each": (lambda q, held, tx: _each(held, lambda d: d.ack(tx=tx)), None),
    "ack batch": (lambda q, held, tx: held.ack(tx=tx), None),
    "nack": (lambda q, held, tx: q.nack(held, delay=60, tx=tx), "retrying"),
    "nack each": (lambda q, held, tx: _each(held, lambda d: d.nack(delay=60, reason="later", tx=tx)), "retrying"),
    "release": (lambda q, held, tx: held.release(tx=tx), "ready"),
    "release each": (lambda q, held, tx: _each(held, lambda d: d.release(tx=tx)), "ready"),
    "release a consumer's": (lambda q, held, tx: q.release(consumer="w1", tx=tx), "ready"),
    "bury": (lambda q, held, tx: q.bury(held, reason="bad", tx=tx), "dead"),
    "bury each": (lambda q, held, tx: _each(held, lambda d: d.bury("bad", tx=tx)), "dead"),
}


@both
@pytest.mark.parametrize("verdict", VERDICTS)
def test_deliveries_are_settled_with_the_rows(q: duly.Client, jobs: str, verdict: str, kept: bool) -> None:
    settle, state = VERDICTS[verdict]
    q.publish(jobs, [duly.Message(b"a", id="a"), duly.Message(b"b", id="b")])
    held = q.claim(jobs)
    block(q, lambda tx: settle(q, held, tx), kept=kept)
    after = {} if state is None else dict.fromkeys("ab", state)
    assert states(q) == (after if kept else dict.fromkeys("ab", "leased"))


@both
@pytest.mark.parametrize("verdict", ["ack", "nack", "bury"])
def test_a_log_is_settled_with_the_rows(q: duly.Client, jobs: str, orders: str, verdict: str, kept: bool) -> None:
    q.publish(orders, [b"a", b"b"])
    held = q.claim(orders, group="billing")
    block(q, lambda tx: VERDICTS[verdict][0](q, held, tx), kept=kept)
    group = q.describe_group(orders, "billing")
    assert (group.leased, group.dead) == ((0, 2 if verdict == "bury" else 0) if kept else (2, 0))
    assert q.ack(held).done == (0 if kept else 2)


@both
def test_move_and_cancel_count_with_the_rows(q: duly.Client, jobs: str, kept: bool) -> None:
    q.publish(jobs, [duly.Message(b"x", id="moved"), duly.Message(b"x", id="gone"), duly.Message(b"x", id="first")])
    answers: list[dict[str, str]] = []

    def change(tx: duly.Transaction) -> None:
        answers.append(q.move(jobs, ["moved", "none"], due=60, tx=tx))
        answers.append(q.cancel(jobs, "gone", tx=tx))
        answers.append(q.cancel(jobs, "gone", tx=tx))

    block(q, change, kept=kept)
    assert answers == [{"moved": "moved", "none": "not_found"}, {"gone": "cancelled"}, {"gone": "finished"}]
    assert states(q) == (
        {"moved": "waiting", "first": "ready"} if kept else dict.fromkeys(("moved", "gone", "first"), "ready")
    )


@both
def test_one_transaction_takes_all_verbs_on_a_log_and_a_queue(
    q: duly.Client, jobs: str, orders: str, kept: bool
) -> None:
    q.publish(orders, [b"order"] * 3)
    q.publish(jobs, [duly.Message(b"job", id="job"), duly.Message(b"x", id="x", due=5)])
    ordered, job = q.claim(orders, group="billing"), q.claim(jobs)

    def work(tx: duly.Transaction) -> None:
        q.ack(ordered[:2], tx=tx)
        ordered[2].nack(tx=tx)
        q.ack(job, tx=tx)
        q.publish(orders, b"more", tx=tx)
        q.publish(jobs, duly.Message(b"follow-up", id="next"), tx=tx)
        q.move(jobs, "next", priority=3, tx=tx)
        q.cancel(jobs, "x", tx=tx)

    block(q, work, kept=kept)
    assert len(q.read(orders)) == (4 if kept else 3)
    assert states(q) == ({"next": "ready"} if kept else {"job": "leased", "x": "waiting"})
    assert q.describe_group(orders, "billing").leased == (0 if kept else 3)


def test_a_consumer_of_another_tenant_joins_through_its_own_client(home: Any, q: duly.Client, jobs: str) -> None:
    other = home.connect(tenant="other")
    other.create_topic("jobs", kind="queue")
    block(q, lambda tx: other.publish("jobs", b"x", tx=tx), kept=False)
    assert other.claim("jobs").payloads == []
    block(q, lambda tx: other.publish("jobs", b"x", tx=tx), kept=True)
    assert other.claim("jobs").payloads == [b"x"]


# What is in a block stays there until the commit


def test_nobody_else_sees_anything_before_the_commit(q: duly.Client, jobs: str, reopen: Any) -> None:
    other = reopen()
    with q.transaction() as tx:
        tx.execute("INSERT INTO done VALUES ('row', 1)")
        q.publish(jobs, duly.Message(b"x", id="x"), tx=tx)
        assert states(other) == {}
        assert Aside(lambda: states(q)).result() == {}
    assert states(other) == {"x": "ready"}
    assert rows(other) == [("row", 1)]


def test_the_transaction_reads_its_own_rows(q: duly.Client, jobs: str) -> None:
    with q.transaction() as tx:
        tx.executemany("INSERT INTO done VALUES (:id, :n)", [{"id": str(n), "n": n} for n in range(3)])
        assert tx.execute("SELECT sum(n) FROM done") == [(3,)]
        assert tx.execute("UPDATE done SET n = n + ? WHERE id = ? RETURNING n", (10, "2")) == [(12,)]
        assert tx.execute("DELETE FROM done; SELECT count(*) FROM done") == [(0,)]


def test_reads_and_doctor_work_inside_the_block(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, duly.Message(b"x", id="before"))
    with q.transaction() as tx:
        q.publish(jobs, duly.Message(b"x", id="inside"), tx=tx)
        assert "before" in states(q)
        assert q.describe_topic(jobs).name == jobs
        assert not [finding for finding in q.examine() if finding.level == "alert"]
    assert set(states(q)) == {"before", "inside"}


@both
def test_a_waiting_claim_wakes_with_the_commit_and_not_before(q: duly.Client, jobs: str, kept: bool) -> None:
    waiter = Aside(lambda: q.claim(jobs, wait=30))
    assert waiter.still_running_after(0.05)

    def work(tx: duly.Transaction) -> None:
        q.publish(jobs, b"x", tx=tx)
        assert waiter.still_running_after(0.1)

    block(q, work, kept=kept)
    if not kept:
        assert waiter.still_running_after(0.1)
        q.publish(jobs, b"x")
    assert waiter.result().payloads == [b"x"]


@both
def test_events_go_out_after_the_commit_only(q: duly.Client, jobs: str, events: list[duly.Event], kept: bool) -> None:
    q.publish(jobs, b"x")
    held = q.claim(jobs)
    events.clear()

    def work(tx: duly.Transaction) -> None:
        q.bury(held, reason="bad", tx=tx)
        assert not events

    block(q, work, kept=kept)
    assert [event.kind for event in events if event.kind == "buried"] == (["buried"] if kept else [])


def test_a_listener_may_publish_when_it_hears_of_the_commit(home: Any, clock: duly.ManualClock) -> None:
    clients: list[duly.Client] = []

    def heard(event: duly.Event) -> None:
        if event.kind == "buried":
            clients[0].publish("jobs", duly.Message(b"heard", id="heard"))

    with duly.connect(home.address, clock=clock, on_event=heard) as q:
        clients.append(q)
        q.create_topic("jobs", kind="queue")
        q.publish("jobs", b"x")
        held = q.claim("jobs")
        with q.transaction() as tx:
            q.bury(held, tx=tx)
        assert "heard" in states(q)


def test_time_goes_on_inside_the_block(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    """A delay counts from its command, not from the beginning of the transaction: nothing comes early."""
    q.publish(jobs, duly.Message(b"again", id="again"))
    held = q.claim(jobs)
    with q.transaction() as tx:
        clock.advance(8)
        q.publish(jobs, duly.Message(b"later", id="later", due=5), tx=tx)
        q.nack(held, delay=5, tx=tx)
    assert q.claim(jobs).payloads == []
    clock.advance(5)
    assert sorted(q.claim(jobs).payloads) == [b"again", b"later"]


# Deliveries after a rollback


def test_deliveries_acked_and_rolled_back_are_open_again(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, [b"a", b"b", b"c"])
    held = q.claim(jobs)

    def settle(tx: duly.Transaction) -> None:
        held[0].ack(tx=tx)
        held.nack(tx=tx)

    block(q, settle, kept=False)
    assert not any(delivery.settled for delivery in held)
    assert held.lease_expires_at is not None
    held[0].ack()
    assert held.ack().done == 2
    assert states(q) == {}


def test_deliveries_first_looked_at_after_the_rollback_are_open(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, [b"a", b"b"])
    held = q.claim(jobs)
    block(q, lambda tx: held.ack(tx=tx), kept=False)
    assert [delivery.settled for delivery in held] == [False, False]
    assert held.ack().done == 2


def test_what_was_settled_before_the_block_stays_settled(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, [b"a", b"b"])
    held = q.claim(jobs)
    held[0].ack()
    block(q, lambda tx: held[1].ack(tx=tx), kept=False)
    assert [delivery.settled for delivery in held] == [True, False]


@both
def test_a_batch_as_a_context_manager_around_the_transaction(q: duly.Client, jobs: str, kept: bool) -> None:
    q.publish(jobs, [duly.Message(b"a", id="a"), duly.Message(b"b", id="b")])
    with contextlib.suppress(Undo), q.claim(jobs) as batch, q.transaction() as tx:
        tx.executemany("INSERT INTO done VALUES (?, 1)", [(delivery.id,) for delivery in batch])
        q.ack(batch, tx=tx)
        leave(kept=kept)
    assert rows(q) == ([("a", 1), ("b", 1)] if kept else [])
    # Nacked by the batch's block when the transaction raised.
    assert states(q) == ({} if kept else dict.fromkeys("ab", "retrying"))


def test_a_renewal_that_waited_for_the_transaction_does_no_harm(
    home: Any, q: duly.Client, jobs: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Leases of 0.3 s are renewed every 0.1 s; the renewals find the store held, and go on after it."""
    q.create_topic("short", kind="queue", lease=0.3)
    q.publish("short", [b"a", b"b"])
    with caplog.at_level(logging.WARNING, "duly"), q.claim("short") as batch:
        block(q, lambda tx: (q.ack(batch, tx=tx), threading.Event().wait(0.3)), kept=False)
        threading.Event().wait(0.2)
        assert not any(delivery.settled for delivery in batch)
        with q.transaction() as tx:
            assert q.ack(batch, tx=tx).done == 2
            threading.Event().wait(0.3)
    assert not batch.lost
    assert q.describe_topic("short").messages == 0


# Publish ids and dedupe


def test_a_publish_id_rolled_back_is_stored_when_repeated(q: duly.Client, jobs: str) -> None:
    block(q, lambda tx: q.publish(jobs, duly.Message(b"x", id="x"), publish_id="once", tx=tx), kept=False)
    assert not q.publish(jobs, duly.Message(b"x", id="x"), publish_id="once").duplicate
    assert states(q) == {"x": "ready"}


def test_a_publish_id_repeated_inside_and_after_the_block_stores_once(q: duly.Client, jobs: str) -> None:
    receipts: list[duly.Receipt] = []

    def twice(tx: duly.Transaction) -> None:
        receipts.extend(q.publish(jobs, b"x", publish_id="once", tx=tx) for _ in range(2))

    block(q, twice, kept=True)
    receipts.append(q.publish(jobs, b"x", publish_id="once"))
    assert [receipt.duplicate for receipt in receipts] == [False, True, True]
    assert len({tuple(receipt.ids) for receipt in receipts}) == 1
    assert len(states(q)) == 1


@both
def test_an_id_is_known_inside_the_dedupe_window_if_it_was_committed(q: duly.Client, jobs: str, kept: bool) -> None:
    q.create_topic("unique", kind="queue", dedupe=60)
    block(q, lambda tx: q.publish("unique", duly.Message(b"1", id="x"), tx=tx), kept=kept)
    q.publish("unique", duly.Message(b"2", id="x"))
    assert q.claim("unique").payloads == [b"1" if kept else b"2"]


@both
def test_offsets_have_no_gaps_whatever_became_of_a_transaction(
    q: duly.Client, jobs: str, orders: str, kept: bool
) -> None:
    q.publish(orders, b"0")
    block(q, lambda tx: q.publish(orders, [b"in"] * 5, tx=tx), kept=kept)
    q.publish(orders, b"last")
    assert [one.offset for one in q.read(orders)] == list(range(7 if kept else 2))
    assert not [finding for finding in q.examine() if finding.level == "alert"]


# Errors inside the block


def test_an_error_of_a_command_leaves_the_rest_of_the_transaction_whole(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    q.publish(jobs, b"late")
    late = q.claim(jobs)
    clock.advance(31)
    q.claim(jobs, consumer="faster")

    def work(tx: duly.Transaction) -> None:
        q.publish(jobs, duly.Message(b"1", id="1"), tx=tx)
        with pytest.raises(duly.TopicNotFound):
            q.publish("nowhere", b"x", tx=tx)
        with pytest.raises(duly.InvalidArgument):
            q.publish(jobs, [duly.Message(b"x", id="2"), duly.Message(b"x", partition=99)], tx=tx)
        with pytest.raises(duly.LeaseLost):
            late[0].ack(tx=tx)
        assert q.ack(late, tx=tx).lost
        q.publish(jobs, duly.Message(b"3", id="3"), tx=tx)

    block(q, work, kept=True)
    assert {"1", "3"} < set(states(q))
    assert "2" not in states(q)


def test_a_constraint_that_fails_undoes_its_statement_only(q: duly.Client, jobs: str) -> None:
    def work(tx: duly.Transaction) -> None:
        q.publish(jobs, duly.Message(b"x", id="x"), tx=tx)
        with pytest.raises(apsw.ConstraintError):
            tx.execute("INSERT INTO done VALUES ('new', 1), ('row', 1)")
        with pytest.raises(apsw.SQLError):
            tx.execute("INSERT INTO nowhere VALUES (1)")

    block(q, work, kept=True)
    assert states(q) == {"x": "ready"}


@pytest.mark.parametrize(
    "sql", ["INSERT OR ROLLBACK INTO done VALUES ('row', 1)", "INSERT INTO strict VALUES (NULL)"], ids=["or", "trigger"]
)
def test_a_statement_that_rolls_everything_back_undoes_the_messages_too(
    q: duly.Client, jobs: str, orders: str, sql: str
) -> None:
    with q.transaction() as tx:
        tx.execute("CREATE TABLE strict (n)")
        tx.execute("CREATE TRIGGER s BEFORE INSERT ON strict BEGIN SELECT RAISE(ROLLBACK, 'no'); END")
    q.publish(orders, b"before")

    def work(tx: duly.Transaction) -> None:
        q.publish(orders, [b"x"] * 5, tx=tx)
        with pytest.raises(apsw.ConstraintError):
            tx.execute(sql)
        with pytest.raises(duly.StoreError):
            tx.execute("INSERT INTO done VALUES ('alone', 1)")
        with pytest.raises(duly.StoreError):
            q.publish(orders, b"alone", tx=tx)

    with pytest.raises(duly.StoreError, match="nothing was stored"):
        block(q, work, kept=True)
    assert rows(q) == []
    assert q.publish(orders, b"after").positions == [(0, 1)]
    assert [one.payload for one in q.read(orders)] == [b"before", b"after"]
    assert not [finding for finding in q.examine() if finding.level == "alert"]


def test_rollback_inside_the_block_undoes_everything_and_the_block_ends_quietly(q: duly.Client, jobs: str) -> None:
    with q.transaction() as tx:
        tx.execute("INSERT INTO done VALUES ('row', 1)")
        q.publish(jobs, b"x", tx=tx)
        tx.rollback()
        # It is over: the thread is free to write.
        q.publish(jobs, duly.Message(b"y", id="y"))
        with pytest.raises(duly.InvalidArgument, match="rolled back"):
            q.publish(jobs, b"x", tx=tx)
    assert states(q) == {"y": "ready"}
    assert rows(q) == []


def test_tables_of_the_application_are_made_and_dropped_with_the_messages(q: duly.Client, jobs: str) -> None:
    for kept in (False, True):
        try:
            with q.transaction() as tx:
                tx.execute("CREATE TABLE made (n); CREATE INDEX made_n ON made (n); ANALYZE made; DROP TABLE done")
                q.publish(jobs, b"x", tx=tx)
                leave(kept=kept)
        except Undo:
            assert rows(q) == []
    with q.transaction() as tx:
        assert tx.execute("SELECT name FROM sqlite_schema WHERE name IN ('made', 'done')") == [("made",)]
    assert len(states(q)) == 1


def test_the_rows_are_there_for_the_next_process_and_so_are_the_messages(
    q: duly.Client, jobs: str, reopen: Any
) -> None:
    block(q, lambda tx: q.publish(jobs, duly.Message(b"x", id="x"), tx=tx), kept=True)
    q.close()
    again = reopen()
    assert rows(again) == [("row", 1)]
    assert states(again) == {"x": "ready"}


def test_foreign_keys_of_the_applications_tables_hold(q: duly.Client) -> None:
    with q.transaction() as tx:
        tx.execute("CREATE TABLE customer (id INTEGER PRIMARY KEY)")
        tx.execute("CREATE TABLE bill (customer INTEGER REFERENCES customer (id))")
    with pytest.raises(apsw.ConstraintError), q.transaction() as tx:
        tx.execute("INSERT INTO bill VALUES (5)")
