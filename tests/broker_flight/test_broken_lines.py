"""A client whose broker dies, stands still, goes down in order or was never there: within its time it knows."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import duly
from duly.engine.columns import ARROW_FROM

from .conftest import ROOT, Elsewhere, Here, eventually, free_port

# A client waits this much longer than its deadline for a broker that may be about to answer.
GRACE_S = 2.5
# Enough to travel as a record batch, on a line of its own.
BIG = [b"x" * 100] * (ARROW_FROM + 1)


def taking(call: Callable[[], object], kind: type[BaseException]) -> tuple[float, Any]:
    """How long a call takes to raise, and what it raises."""
    began = time.monotonic()
    with pytest.raises(kind) as caught:
        call()
    return time.monotonic() - began, caught.value


@pytest.fixture
def jobs(elsewhere: Elsewhere) -> Iterator[duly.Client]:
    """A client of a broker elsewhere that has been used: lines of all kinds are open."""
    with duly.connect(elsewhere.url, timeout=1) as q:
        q.create_topic("jobs", kind="queue", timeout=10)
        q.publish("jobs", b"first", timeout=10)
        q.publish("jobs", BIG, timeout=10)
        yield q


# Never there


@pytest.mark.parametrize("messages", [b"one", BIG], ids=["one", "many"])
def test_nothing_was_ever_sent_so_publish_is_unavailable_and_not_unknown(messages: Any) -> None:
    with duly.connect(f"duly://127.0.0.1:{free_port()}", timeout=0.5) as q:
        took, error = taking(lambda: q.publish("jobs", messages), duly.Unavailable)
        assert "No broker answers" in str(error)
        assert "Nothing was done" in str(error)
        assert took < 0.5 + GRACE_S
        took, _ = taking(q.list_topics, duly.Unavailable)
        assert took < 0.5 + GRACE_S


def test_of_several_addresses_whichever_answers_is_used(here: Here) -> None:
    with duly.connect(f"duly://127.0.0.1:{free_port()},{here.address}", timeout=5) as q:
        q.create_topic("jobs", kind="queue")
        q.publish("jobs", b"one")
        q.publish("jobs", BIG)
        began = time.monotonic()
        for _ in range(20):
            q.list_topics()
        assert time.monotonic() - began < 1


def test_a_port_where_something_else_listens_is_no_broker() -> None:
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with duly.connect(f"duly://127.0.0.1:{other.getsockname()[1]}", timeout=0.5) as q:
            took, _ = taking(q.list_topics, duly.Unavailable)
        assert took < 0.5 + GRACE_S


# Killed


@pytest.mark.parametrize("messages", [b"one", BIG], ids=["one", "many"])
def test_a_publish_that_was_sent_is_unknown_when_the_broker_stays_away(
    elsewhere: Elsewhere, jobs: duly.Client, messages: Any
) -> None:
    elsewhere.kill()
    took, error = taking(lambda: jobs.publish("jobs", messages), duly.PublishUnknown)
    assert took < 1 + GRACE_S
    elsewhere.start()
    receipt = jobs.publish("jobs", messages, publish_id=error.publish_id, timeout=10)
    assert receipt.publish_id == error.publish_id


def test_a_restart_in_between_goes_unnoticed(elsewhere: Elsewhere, jobs: duly.Client) -> None:
    elsewhere.kill()
    elsewhere.start()
    jobs.publish("jobs", b"two", timeout=10)
    jobs.publish("jobs", BIG, timeout=10)
    assert len(jobs.claim("jobs", max_messages=1000, timeout=10)) == 2 + 2 * len(BIG)


def test_what_cannot_be_repeated_is_not_asked_of_a_broker_that_went_while_nobody_looked(
    elsewhere: Elsewhere, jobs: duly.Client
) -> None:
    time.sleep(0.6)
    elsewhere.kill()
    elsewhere.start()
    jobs.create_topic("more", kind="log", timeout=10)
    assert jobs.list_topics() == ["jobs", "more"]


# Standing still


def test_a_broker_that_stands_still_keeps_nobody_past_their_deadline(elsewhere: Elsewhere, jobs: duly.Client) -> None:
    elsewhere.signal(signal.SIGSTOP)
    fresh = duly.connect(elsewhere.url, timeout=0.5)
    calls: list[tuple[Callable[[], object], type[duly.Error], float]] = [
        (lambda: jobs.publish("jobs", b"one"), duly.PublishUnknown, 1),
        (lambda: jobs.publish("jobs", BIG), duly.PublishUnknown, 1),
        (lambda: jobs.claim("jobs"), duly.Unavailable, 1),
        (lambda: jobs.claim("jobs", wait=1), duly.Unavailable, 2),
        (lambda: jobs.describe_topic("jobs"), duly.Unavailable, 1),
        (lambda: jobs.create_topic("more", kind="log"), duly.Unavailable, 1),
        (lambda: fresh.publish("jobs", b"one"), duly.Unavailable, 0.5),
        (lambda: fresh.publish("jobs", BIG), duly.Unavailable, 0.5),
        (lambda: fresh.list_topics(), duly.Unavailable, 0.5),
    ]
    try:
        # All at once, each on a thread of its own, as in a server that has many to serve.
        with ThreadPoolExecutor(len(calls)) as threads:
            outcomes = [threads.submit(taking, call, kind) for call, kind, _ in calls]
            for outcome, (_, _, seconds) in zip(outcomes, calls, strict=True):
                took, error = outcome.result()
                assert took < seconds + GRACE_S, error
        began = time.monotonic()
        fresh.close()
        jobs.close()
        assert time.monotonic() - began < 1
    finally:
        elsewhere.signal(signal.SIGCONT)


def test_another_broker_is_used_when_one_stands_still(elsewhere: Elsewhere, here: Here) -> None:
    with duly.connect(elsewhere.url, timeout=30) as alone:
        alone.create_topic("there", kind="queue")
    with duly.connect(f"{elsewhere.url},{here.address}", timeout=4) as q:
        # The first of the two is the one that it is at: the other has no such topic.
        assert q.describe_topic("there", timeout=30).name == "there"
        elsewhere.signal(signal.SIGSTOP)
        try:
            with pytest.raises(duly.Unavailable):
                q.create_topic("jobs", kind="queue", exist_ok=True, timeout=0.5)
            began = time.monotonic()
            q.create_topic("jobs", kind="queue")  # by the other, which has none
            first_s = time.monotonic() - began
            began = time.monotonic()
            q.publish("jobs", b"one")
            assert first_s < 4
            assert time.monotonic() - began < 1
        finally:
            elsewhere.signal(signal.SIGCONT)


# Going down in order


def test_on_sigterm_what_is_under_way_is_answered_and_waiting_claims_go_elsewhere(
    elsewhere: Elsewhere, here: Here, jobs: duly.Client
) -> None:
    stored: list[bytes] = []
    with duly.connect(here.url, timeout=10) as other:
        other.create_topic("empty", kind="queue")
    with duly.connect(elsewhere.url, timeout=10) as q:
        q.create_topic("empty", kind="queue")
    both = duly.connect(f"{elsewhere.url},{here.address}", timeout=10)
    with both, ThreadPoolExecutor(2) as threads:

        def publish() -> None:
            for number in range(10_000):
                try:
                    jobs.publish("jobs", b"%d" % number)
                except duly.Unavailable:
                    return
                stored.append(b"%d" % number)

        waiting = threads.submit(lambda: both.claim("empty", wait=15).payloads)
        busy = threads.submit(publish)
        time.sleep(0.5)
        began = time.monotonic()
        elsewhere.signal(signal.SIGTERM)
        assert elsewhere.wait() == 0
        assert time.monotonic() - began < 5
        busy.result(10)
        with duly.connect(here.url, timeout=10) as other:
            other.publish("empty", b"from the other")
        assert waiting.result(10) == [b"from the other"]
    with duly.connect(str(elsewhere.path)) as file:
        found = {p for _ in range(50) for p in file.claim("jobs", max_messages=10_000).payloads}
    assert found >= set(stored)
    assert stored


# Leaving


def test_close_ends_a_claim_that_waits_in_another_thread(here: Here, q: duly.Client) -> None:
    q.create_topic("jobs", kind="queue")
    other = duly.connect(here.url)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(lambda: taking(lambda: other.claim("jobs", wait=30), duly.Closed))
        eventually(lambda: here.broker.room.count == 1)
        other.close()
        assert waiting.result(5)[0] < 5
    eventually(lambda: here.broker.room.count == 0)
    with pytest.raises(duly.Closed):
        other.list_topics()


WAITS = """
import sys, duly
q = duly.connect(sys.argv[1])
print("waiting", flush=True)
try:
    q.claim("jobs", wait=60)
except KeyboardInterrupt:
    q.list_topics()
    q.close()
    print("interrupted")
"""


def test_ctrl_c_ends_a_waiting_claim_on_the_main_thread(here: Here, q: duly.Client) -> None:
    q.create_topic("jobs", kind="queue")
    program = subprocess.Popen(
        [sys.executable, "-c", WAITS, here.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    eventually(lambda: here.broker.room.count == 1, 15)
    began = time.monotonic()
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=10)
    assert "interrupted" in out
    assert err == ""
    assert time.monotonic() - began < 3
    # Nobody waits there any more: what comes is for others.
    eventually(lambda: here.broker.room.count == 0)


FORKS = """
import os, sys, duly
q = duly.connect(sys.argv[1], timeout=5)
q.publish("jobs", b"parent")
watch = q._watch(q._claim_of("jobs", None, 1, None, None, None))
watch.claim(1, deadline=None)
child = os.fork()
if child == 0:
    own = duly.connect(sys.argv[1], timeout=5)
    for call in (lambda: q.publish("jobs", b"child"), lambda: q.claim("jobs", wait=1), q.list_topics, own.list_topics):
        try:
            call()
        except duly.Error as error:
            print(type(error).__name__, error, flush=True)
    q.close()
    own.close()
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
q.publish("jobs", b"parent")
q.close()
"""


def test_a_forked_child_is_told_why_it_cannot_and_never_hangs(here: Here, q: duly.Client) -> None:
    q.create_topic("jobs", kind="queue")
    done = subprocess.run([sys.executable, "-c", FORKS, here.url], capture_output=True, text=True, timeout=30, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("StoreError gRPC does not survive a fork") == 4


def test_many_threads_share_a_client(here: Here, q: duly.Client) -> None:
    q.create_topic("jobs", kind="queue")

    def work(number: int) -> list[bytes]:
        q.publish("jobs", [b"%d-%d" % (number, at) for at in range(3 if number % 2 else 100)])
        with q.claim("jobs", max_messages=1000, wait=0.1) as batch:
            return batch.payloads

    with ThreadPoolExecutor(32) as threads:
        got = [payload for found in threads.map(work, range(200)) for payload in found]
    got += q.claim("jobs", max_messages=100_000).payloads
    assert len(got) == len(set(got)) == 100 * 3 + 100 * 100
    here.settle_streams(64)


USES = """
import sys, duly
q = duly.connect(sys.argv[1], timeout=5)
q.create_topic("jobs", kind="queue", exist_ok=True)
q.publish("jobs", [b"x"] * 1000)
with q.claim("jobs", max_messages=1000) as batch:
    pass
q.claim("jobs", wait=0.1)
print("used", flush=True)
"""


@pytest.mark.parametrize("end", ["", "q.close()", "sys.stdin.readline()", "sys.stdin.readline(); q.close()"])
def test_nothing_is_said_on_stderr_in_normal_use(elsewhere: Elsewhere, end: str) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", USES + end, elsewhere.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "used\n"
    # Those who wait for a line live to see their broker go.
    elsewhere.signal(signal.SIGTERM)
    assert elsewhere.wait() == 0
    assert program.communicate("\n", timeout=15)[1] == ""
    assert program.returncode == 0
    assert elsewhere.said.read_text() == ""


def test_threads_do_not_outlive_their_client(here: Here) -> None:
    before = {thread.ident for thread in threading.enumerate()}
    with duly.connect(here.url) as q:
        q.create_topic("jobs", kind="queue")
        q.publish("jobs", b"one")
    eventually(lambda: not [t for t in threading.enumerate() if t.ident not in before and t.name.startswith("duly-")])
    here.settle_streams()
