"""What becomes of a commit that nobody can be sure of, and of what a process remembers when the server has lost some.

Each of these failed when it was written, against the code as it was: what was wrong stands in the docstring.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

import duly
import duly.store.postgres.store
import duly.store.postgres.writer
from tests.postgres.proxy import Proxy
from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.timeout(120)

Start = Callable[..., PostgresServer]


class Admin:
    """Looks at a server's sessions, and ends what they do."""

    def __init__(self, server: PostgresServer) -> None:
        self._connection = psycopg.connect(server.dsn(), autocommit=True)

    def waiting_for_standby(self, within_s: float = 10) -> list[int]:
        """The sessions whose commits wait for the standby; waits for the first."""
        return self._sessions("wait_event = 'SyncRep'", within_s)

    def giving_ids(self) -> list[int]:
        """The sessions that lease ids are got through."""
        return self._sessions("query LIKE '%%ids_by_thousand%%'", 5)

    def _sessions(self, such: str, within_s: float) -> list[int]:
        asked = f"SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND {such}"
        deadline = time.monotonic() + within_s
        while not (found := [pid for (pid,) in self._connection.execute(asked.encode())]):
            assert time.monotonic() < deadline, f"no session has {such}"
            time.sleep(0.005)
        return found

    def cancel(self, pids: list[int]) -> None:
        for pid in pids:
            self._connection.execute("SELECT pg_cancel_backend(%s)", (pid,))

    def terminate(self, pids: list[int]) -> None:
        for pid in pids:
            self._connection.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))

    def close(self) -> None:
        self._connection.close()


class Call(threading.Thread):
    """Something done in a thread of its own, and what came of it."""

    def __init__(self, do: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._do = do
        self.answer: Any = None
        self.took_s = 0.0
        self.start()

    def run(self) -> None:
        began = time.monotonic()
        try:
            self.answer = self._do()
        except duly.Error as error:
            self.answer = error
        self.took_s = time.monotonic() - began

    def end(self, within_s: float = 60) -> Any:
        self.join(within_s)
        assert not self.is_alive(), "it does not end"
        return self.answer


def url_of(*servers: PostgresServer) -> str:
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    return f"postgresql://duly@{hosts}/postgres?schema=proof"


@pytest.fixture
def with_standby(postgres_server: Start) -> Iterator[tuple[PostgresServer, PostgresServer, Admin]]:
    primary = postgres_server()
    standby = primary.standby(synchronous=True)
    admin = Admin(primary)
    yield primary, standby, admin
    admin.close()
    standby.resume() if standby.running else None
    standby.close()


def test_claims_that_the_server_lost_are_delivered_again_whichever_topic_notices_first(postgres_server: Start) -> None:
    """The memory of a topic outlived the server's: only the topic whose connection broke forgot. Four were lost."""
    server = postgres_server(wal_writer_delay="10s", bgwriter_delay="10s")
    with duly.connect(url_of(server), consumer="w") as q:
        for topic, kind in (("first", "queue"), ("jobs", "queue"), ("orders", "log")):
            q.create_topic(topic, kind=kind, lease=1)
            if kind == "log":
                q.create_group(topic, "g")
            q.publish(topic, [b"%d" % number for number in range(10)])
            group = "g" if kind == "log" else None
            # This process has the last turn at it, for good.
            q.claim(topic, group=group, max_messages=1)[0].ack()
        topics = (("jobs", None), ("orders", "g"))
        lost = {topic: q.claim(topic, group=group, max_messages=4) for topic, group in topics}
        server.kill()
        server.start()
        q.claim("first", max_messages=1)[0].ack()
        for topic, group in topics:
            came: set[bytes] = set()
            while batch := q.claim(topic, group=group, max_messages=10, wait=1.5):
                came.update(batch.payloads)
                assert q.ack(batch).lost == ()
            assert came == {b"%d" % number for number in range(1, 10)}
            assert q.ack(lost[topic]).done == 0


def test_a_claim_that_cannot_get_ids_leaves_no_open_transaction_behind(
    fresh_store_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction was left open on its line, and joined by the next: what it had passed over was skipped for ever."""
    monkeypatch.setattr(duly.store.postgres.store, "_IDS_A_BLOCK", 3)
    url = fresh_store_url()
    seen: list[int] = []
    with psycopg.connect(url.partition("?")[0], autocommit=True) as admin, duly.connect(url, consumer="w") as q:
        q.create_topic("orders", kind="log", lease=600)
        q.create_group("orders", "g")
        q.publish("orders", [b"%d" % number for number in range(40)])
        giving = "SELECT pid FROM pg_stat_activity WHERE query LIKE '%ids_by_thousand%' AND pid <> pg_backend_pid()"
        for _ in range(4):
            for (pid,) in admin.execute(giving).fetchall():
                admin.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))
            for _ in range(5):
                seen += [int(payload) for payload in q.claim("orders", group="g", max_messages=2).payloads]
    assert seen == list(range(40))


@pytest.mark.parametrize("end", ["cancel", "terminate"])
@pytest.mark.parametrize("publish_id", [None, "mine"])
def test_a_publish_whose_wait_for_the_standby_is_ended_answers_when_the_standby_has_it(
    with_standby: tuple[PostgresServer, PostgresServer, Admin], end: str, publish_id: str | None
) -> None:
    """With an id that Duly made, a repeated publish that found its batch wrote nothing, and so waited for nobody."""
    primary, standby, admin = with_standby
    with duly.connect(url_of(primary, standby), consumer="w") as q:
        q.create_topic("orders", kind="log")
        standby.pause()
        call = Call(lambda: q.publish("orders", b"one", publish_id=publish_id))
        for _ in range(3):
            getattr(admin, end)(admin.waiting_for_standby())
            call.join(0.3)
            assert call.is_alive(), f"answered {call.answer!r}, and the standby does not have it"
        again = Call(lambda: q.publish("orders", b"one", publish_id="mine")) if publish_id else None
        time.sleep(0.3)
        assert again is None or again.is_alive(), "a repeated publish answered, and the standby does not have it"
        standby.resume()
        assert isinstance(call.end(), duly.Receipt)
        assert again is None or again.end().duplicate
        # What was answered is there when the primary is not.
        primary.kill()
        standby.promote()
        assert [message.payload for message in q.read("orders", offset=0)] == [b"one"]


def test_a_publish_in_doubt_is_never_said_not_to_have_been_done(
    with_standby: tuple[PostgresServer, PostgresServer, Admin],
) -> None:
    """Repeated, it waited for a lock, and Busy said: nothing was done. It was stored. So said Timeout."""
    primary, standby, admin = with_standby
    with duly.connect(url_of(primary), consumer="w", timeout=3) as q:
        q.create_topic("orders", kind="log")
        standby.pause()
        # Somebody else's commit has the topic's lock, and waits for the standby.
        with duly.connect(url_of(primary), consumer="other") as other:
            call = Call(lambda: q.publish("orders", b"one"))
            admin.cancel(admin.waiting_for_standby())
            blocking = Call(lambda: other.publish("orders", b"two"))
            answer = call.end()
            standby.resume()
            blocking.end()
        stored = [message.payload for message in q.read("orders", offset=0)]
        assert stored.count(b"one") == 1
        assert isinstance(answer, (duly.PublishUnknown, duly.Receipt)), f"it is stored, and the answer was {answer!r}"
        if isinstance(answer, duly.PublishUnknown):
            assert q.publish("orders", b"one", publish_id=answer.publish_id).duplicate


def test_a_publish_in_doubt_when_the_server_stays_away_is_unknown(postgres_server: Start) -> None:
    """The server is killed during the commit: it may have been done. Timeout said that nothing was."""
    # Commits take a tenth of a second.
    server = postgres_server(commit_delay="100000", commit_siblings="0")
    with duly.connect(url_of(server), consumer="w", timeout=2) as q:
        q.create_topic("orders", kind="log")
        for wait_s in (0.03, 0.08):
            call = Call(lambda: q.publish("orders", b"one"))
            time.sleep(wait_s)
            server.kill()
            answer = call.end()
            server.start()
            first = q.describe_topic("orders").partitions[0].first_offset
            stored = [message.payload for message in q.read("orders", offset=first)]
            if isinstance(answer, duly.Receipt):
                assert stored == [b"one"]
            else:
                assert not stored or isinstance(answer, duly.PublishUnknown), f"it is stored; the answer was {answer!r}"
            q.purge("orders")


STOPS_WHILE_READING = """
import os, signal, sys
import duly
from duly.store.postgres.line import Line

flush, receive = Line.flush, Line._receive
asked = []

def flush_noting(line):
    asked[:] = line._under_way
    return flush(line)

def receive_later(line):
    if b"blocks" in asked:
        os.kill(os.getpid(), signal.SIGSTOP)
    return receive(line)

Line.flush, Line._receive = flush_noting, receive_later
with duly.connect(sys.argv[1]) as q:
    q.claim("orders", group="g", max_messages=100, max_bytes=60_000_000)
"""


STOPS_WITH_THE_LOCK = """
import os, signal, sys
import duly
from duly.store.postgres.writer import PostgresWriter

take = PostgresWriter._take

def take_later(writer, seat):
    os.kill(os.getpid(), signal.SIGSTOP)
    return take(writer, seat)

with duly.connect(sys.argv[1]) as q:
    PostgresWriter._take = take_later
    q.claim("orders", group="g")
"""


@pytest.mark.parametrize("script", [STOPS_WHILE_READING, STOPS_WITH_THE_LOCK], ids=["being sent much", "idle"])
def test_a_process_stopped_with_a_topics_lock_does_not_keep_it(fresh_store_url: Callable[[], str], script: str) -> None:
    """Stopped while it is sent much, it was not idle to the server, and never thrown out: others got Busy for ever.

    The other half fails without idle_in_transaction_session_timeout.
    """
    url = fresh_store_url()
    with duly.connect(url, consumer="w") as q:
        q.create_topic("orders", kind="log")
        q.create_group("orders", "g")
        for _ in range(12):
            q.publish("orders", [os.urandom(900_000) for _ in range(2)])
        stopped = subprocess.Popen([sys.executable, "-c", script, url])
        try:
            deadline = time.monotonic() + 20
            while "T" not in _state(stopped.pid):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            began = time.monotonic()
            while True:
                try:
                    assert len(q.claim("orders", group="g", max_messages=1)) == 1
                    break
                except duly.Busy:
                    assert time.monotonic() - began < 20, "one stopped process keeps the topic"
            took = time.monotonic() - began
            print(f"others went on after {took:.1f} s")
            assert took > 5, "it had no lock, and this proves nothing"
        finally:
            stopped.send_signal(signal.SIGKILL)
            stopped.wait()


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0]


def test_a_call_ends_when_its_time_is_over_whatever_the_server_does(postgres_server: Start) -> None:
    """The caller's own thread led the transaction, and waited half a minute for a server that was silent."""
    server = postgres_server()
    with duly.connect(url_of(server), consumer="w") as q:
        q.create_topic("orders", kind="log")
        server.pause()
        call = Call(lambda: q.publish("orders", b"one", timeout=2))
        call.join(8)
        late = call.is_alive()
        server.resume()
        call.end()
        assert not late, f"it was given 2 s, and took {call.took_s:.0f}"


def test_what_was_lost_with_a_server_is_not_served_from_memory(postgres_server: Start) -> None:
    """A standby that nobody waited for lacks what came last. Blocks that were read were served for ever after."""
    primary = postgres_server()
    standby = primary.standby()
    url = url_of(primary, standby)
    with duly.connect(url, consumer="w") as q:
        q.create_topic("orders", kind="log")
        q.publish("orders", b"first")
        _until(lambda: _is_there(standby, "orders"))
        standby.stop()
        q.publish("orders", b"lost")
        assert [message.payload for message in q.read("orders")] == [b"first", b"lost"]
        primary.kill()
        standby.start()
        standby.promote()
        with duly.connect(url, consumer="other") as other:
            other.publish("orders", b"kept")
        assert [message.payload for message in q.read("orders", timeout=30)] == [b"first", b"kept"]
    standby.close()


def _is_there(server: PostgresServer, topic: str) -> bool:
    with psycopg.connect(server.dsn()) as connection:
        if connection.execute("SELECT to_regclass('proof.block')").fetchone() == (None,):
            return False
        found = connection.execute(
            "SELECT count(*) FROM proof.block AS b JOIN proof.part AS p ON p.id = b.partition "
            "JOIN proof.topic AS t ON t.id = p.topic WHERE t.name = %s",
            [topic],
        ).fetchone()
    return found is not None and found[0] > 0


def _until(holds: Callable[[], bool], within_s: float = 20) -> None:
    give_up = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < give_up, "it does not come to be"
        time.sleep(0.05)


@pytest.mark.parametrize("said", [b"COMMIT\x00", b""], ids=["after the answer", "instead of the answer"])
def test_a_server_that_commits_and_goes_away_has_it_stored_once(postgres_server: Start, said: bytes) -> None:
    """Told to stop, a server does the commit under way and ends the connection in its next breath. The FATAL that comes
    where the end of the pipeline belongs was taken for a refusal, and the batch was stored again.
    """
    server = postgres_server()
    farewell = Farewell(server.port, said)
    with duly.connect(f"postgresql://duly@127.0.0.1:{farewell.port}/postgres?schema=proof", consumer="w") as q:
        q.create_topic("orders", kind="log")
        for number in range(3):
            q.publish("orders", b"before %d" % number)
        farewell.armed.set()
        q.publish("orders", b"one")
        assert not farewell.armed.is_set()
        stored = [message.payload for message in q.read("orders", offset=3)]
    farewell.close()
    assert stored == [b"one"]


def test_a_connection_that_breaks_when_a_topic_is_let_go_of_has_nothing_stored_again(
    postgres_server: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock that is kept between transactions is let go of behind a commit. When that failed the jobs ran again."""
    monkeypatch.setattr(duly.store.postgres.writer, "_MANY_JOBS", 1)
    server = postgres_server()
    cut = CutAtUnlock(server.port)
    published = [b"%d" % number for number in range(20)]
    with (
        duly.connect(f"postgresql://duly@127.0.0.1:{cut.port}/postgres?schema=proof", consumer="w") as q,
        duly.connect(url_of(server), consumer="other") as other,
    ):
        q.create_topic("orders", kind="log")
        cut.armed.set()
        for payload in published:
            # The other one's turn: from then on it is looked first, and the topic is kept.
            other.publish("orders", b"other")
            q.publish("orders", payload)
        assert cut.cuts
        stored = [message.payload for message in other.read("orders", offset=0)]
    cut.close()
    assert [payload for payload in stored if payload != b"other"] == published


class CutAtUnlock(Proxy):
    """Once armed, it breaks each connection on which a topic's lock is to be let go of."""

    def __init__(self, port: int) -> None:
        self.armed = threading.Event()
        self.cuts = 0
        super().__init__(port)

    def _passed(self, data: bytes) -> tuple[bytes, bool]:
        at = data.find(b"pg_advisory_unlock(")
        if at < 0 or not self.armed.is_set():
            return data, True
        self.cuts += 1
        return b"", False


class Farewell(Proxy):
    """Once armed, it lets the server do its next commit, and says what one that is told to stop says then."""

    _DONE = b"C\x00\x00\x00\x0bCOMMIT\x00"
    _SAYS = b"SFATAL\x00VFATAL\x00C57P01\x00Mterminating connection due to administrator command\x00\x00"

    def __init__(self, port: int, said: bytes) -> None:
        self.armed = threading.Event()
        self._said = said
        super().__init__(port)

    def _passed(self, data: bytes) -> tuple[bytes, bool]:
        at = data.find(self._DONE)
        if at < 0 or not self.armed.is_set():
            return data, True
        self.armed.clear()
        if self._said:
            at += len(self._DONE)
        return data[:at] + b"E" + (len(self._SAYS) + 4).to_bytes(4, "big") + self._SAYS, False
