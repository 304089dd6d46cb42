"""The writer is held up, by another's lock or by the device: what callers are told, and that a repeat stores once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import apsw
import pytest

import duly
from duly.store.sqlite.writer import Writer


@pytest.fixture(autouse=True)
def topic(q: duly.Client) -> None:
    q.create_topic("t", kind="log", partitions=2)
    q.create_group("t", "g")


@contextmanager
def write_lock(path: str) -> Iterator[None]:
    """Holds the file's write lock, as another process would."""
    connection = apsw.Connection(path)
    connection.set_busy_timeout(5000)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")
        connection.close()


@contextmanager
def slow_device() -> Iterator[None]:
    """No commit comes to its end inside."""
    commit, over = Writer._commit, threading.Event()

    def held_up(self: Writer, *args: Any) -> None:
        over.wait(30)
        commit(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Writer, "_commit", held_up)
        try:
            yield
        finally:
            over.set()


BATCH = [duly.Message(b"a", id="own", partition=1), duly.Message(b"b", partition=0), duly.Message(b"c", partition=1)]


def _stored(q: duly.Client) -> list[bytes]:
    return sorted(m.payload for p in range(2) for m in q.read("t", partition=p))


def _unknown(q: duly.Client, messages: Any, publish_id: str | None = None) -> duly.PublishUnknown:
    """A publish that times out while the writer is at it. A chore that is there before it makes it try again."""
    for _ in range(100):
        try:
            with slow_device():
                q.publish("t", messages, publish_id=publish_id, timeout=0.05)
        except duly.PublishUnknown as unknown:
            return unknown
        except duly.Timeout:
            _settle_down(q)
    raise AssertionError("the writer is never free")


def _settle_down(q: duly.Client) -> None:
    """Returns when everything that was queued before is done."""
    q.pause("t")
    q.resume("t")


def test_whoever_waits_for_somebody_elses_lock_can_withdraw(q: duly.Client, path: str) -> None:
    with write_lock(path), pytest.raises(duly.Timeout) as caught:
        q.publish("t", b"never", timeout=0.2)
    assert not isinstance(caught.value, duly.PublishUnknown)
    _settle_down(q)
    assert _stored(q) == []


@pytest.mark.parametrize("own", [None, "mine"])
def test_a_publish_that_timed_out_is_unknown_and_its_repeat_stores_once(
    q: duly.Client, path: str, own: str | None
) -> None:
    caught = _unknown(q, BATCH, publish_id=own)
    publish_id = caught.publish_id
    assert own in (None, publish_id)
    assert publish_id in str(caught)
    receipt = q.publish("t", BATCH, publish_id=publish_id)
    again = q.publish("t", BATCH, publish_id=publish_id)
    assert again.duplicate
    assert (receipt.positions, receipt.ids) == (again.positions, again.ids)
    assert [partition for partition, _ in receipt.positions] == [1, 0, 1]
    assert receipt.ids[0] == "own"
    assert _stored(q) == [b"a", b"b", b"c"]


def test_an_unknown_publish_that_was_consumed_and_truncated_is_still_stored_once(
    q: duly.Client, path: str, clock: duly.ManualClock
) -> None:
    q.update_topic("t", retention=duly.Retention(settled=True))
    caught = _unknown(q, b"once")
    _settle_down(q)
    assert q.ack(q.claim("t", group="g")).done == 1
    _wait_until(lambda: sum(p.first_offset for p in q.describe_topic("t").partitions) == 1, clock)
    assert q.publish("t", b"once", publish_id=caught.publish_id).duplicate
    assert len(q.claim("t", group="g")) == 0


def _wait_until(seen: Callable[[], bool], clock: duly.ManualClock) -> None:
    patience = time.monotonic() + 20
    while not seen():
        assert time.monotonic() < patience
        clock.advance(2)
        time.sleep(0.01)


def test_a_publish_that_never_began_is_a_timeout_and_stores_nothing(q: duly.Client, path: str) -> None:
    """The first job is at the writer; the second waits behind it and is withdrawn whole."""
    with ThreadPoolExecutor(1) as pool, write_lock(path):
        first = pool.submit(q.publish, "t", b"first", timeout=20)
        time.sleep(0.2)
        with pytest.raises((duly.Timeout, duly.PublishUnknown)) as caught:
            q.publish("t", b"second", timeout=0.05)
    first.result()
    _settle_down(q)
    assert isinstance(caught.value, TimeoutError | duly.PublishUnknown)
    if isinstance(caught.value, duly.Timeout):
        assert _stored(q) == [b"first"]


def test_claims_and_settlements_time_out_and_can_be_repeated(q: duly.Client, path: str) -> None:
    q.publish("t", BATCH)
    batch = q.claim("t", group="g")
    with write_lock(path):
        for call in (
            lambda: q.ack(batch, timeout=0.05),
            lambda: batch[0].ack(timeout=0.05),
            lambda: q.claim("t", group="g", timeout=0.05),
            lambda: q.create_topic("new", kind="log", timeout=0.05),
        ):
            with pytest.raises((duly.Timeout, duly.Busy)) as caught:
                call()
            assert str(caught.value).endswith(".")
    _settle_down(q)
    # Done by the call that timed out, or by this one; nothing is left either way.
    q.ack(batch)
    assert q.describe_group("t", "g").pending == 0


def test_reads_go_on_while_the_writer_is_blocked(q: duly.Client, path: str) -> None:
    q.publish("t", BATCH)
    with write_lock(path):
        assert _stored(q) == [b"a", b"b", b"c"]
        assert q.describe_group("t", "g").lag == 3
        assert q.list_topics() == ["t"]


def test_the_repeats_of_many_threads_store_once(q: duly.Client, path: str) -> None:
    """All repeats wait for the same lock and go into one commit together."""
    caught = _unknown(q, BATCH)
    publish_id = caught.publish_id
    with ThreadPoolExecutor(8) as pool:
        with write_lock(path):
            repeats = [pool.submit(q.publish, "t", BATCH, publish_id=publish_id, timeout=20) for _ in range(8)]
            time.sleep(0.2)
        places = {tuple(repeat.result().positions) for repeat in repeats}
    assert len(places) == 1
    assert _stored(q) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("made", [True, False])
def test_first_tries_of_many_threads_under_one_publish_id_store_once(q: duly.Client, path: str, made: bool) -> None:
    publish_id = "shared"
    if made:
        q.create_topic("other", kind="log")
        publish_id = q.publish("other", b"x").publish_id
    with ThreadPoolExecutor(8) as pool:
        with write_lock(path):
            tries = [pool.submit(q.publish, "t", BATCH, publish_id=publish_id, timeout=20) for _ in range(8)]
            time.sleep(0.2)
        receipts = [each.result() for each in tries]
    assert sum(not receipt.duplicate for receipt in receipts) == 1
    assert _stored(q) == [b"a", b"b", b"c"]


def test_a_wait_ends_with_its_time_and_not_with_the_call_timeout(q: duly.Client) -> None:
    began = time.monotonic()
    assert len(q.claim("t", group="g", wait=0.3, timeout=0.1)) == 0
    assert 0.25 <= time.monotonic() - began < 5


def test_the_first_write_of_a_new_client_waits_for_the_lock_like_any_other(
    q: duly.Client, path: str, clock: duly.ManualClock
) -> None:
    with duly.connect(path, clock=clock) as other, ThreadPoolExecutor(1) as pool:
        with write_lock(path):
            first = pool.submit(other.publish, "t", BATCH, timeout=20)
            time.sleep(0.3)
        assert first.result().count == 3
    assert _stored(q) == [b"a", b"b", b"c"]


def test_closing_while_blocked_finishes_what_was_accepted(path: str, q: duly.Client, clock: duly.ManualClock) -> None:
    other = duly.connect(path, clock=clock)
    with ThreadPoolExecutor(1) as pool:
        with write_lock(path):
            accepted = pool.submit(other.publish, "t", BATCH, timeout=20)
            time.sleep(0.2)
            closing = threading.Thread(target=other.close)
            closing.start()
            time.sleep(0.1)
        assert accepted.result().count == 3
    closing.join(20)
    assert not closing.is_alive()
    assert _stored(q) == [b"a", b"b", b"c"]
    with pytest.raises(duly.Closed):
        other.publish("t", b"late")


def test_a_lock_held_for_long_is_busy_and_nothing_is_done(
    q: duly.Client, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duly.store.sqlite.writer._BUSY_S", 0.5)
    with write_lock(path), pytest.raises(duly.Busy):
        q.publish("t", BATCH, timeout=60)
    _settle_down(q)
    assert _stored(q) == []


def test_those_who_wait_are_woken_though_others_before_and_behind_them_gave_up(q: duly.Client, path: str) -> None:
    patience = [0.1, 20, 0.1, 20, 20, 0.15, 20, 0.1] * 4
    with ThreadPoolExecutor(len(patience)) as pool:
        with write_lock(path):
            asked = [pool.submit(q.publish, "t", b"%d" % n, timeout=s) for n, s in enumerate(patience)]
            time.sleep(0.5)
        for seconds, answer in zip(patience, asked, strict=True):
            if seconds == 20:
                assert answer.result(10).count == 1
            else:
                with pytest.raises((duly.PublishUnknown, duly.Timeout)):
                    answer.result(10)
