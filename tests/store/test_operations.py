"""Operations: what comes of one cause carries its name, and may publish so much; then so much a second."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

import duly
from duly.message import OPERATION
from tests.conftest import scaled

from .conftest import Home
from .patience import Aside, eventually

DEPTH, RATE = 100, 2


def of(name: str, *payloads: bytes) -> list[duly.Message]:
    """Messages that carry an operation, as any publisher may send them."""
    return [duly.Message(payload, headers={OPERATION: name}) for payload in payloads]


def some(count: int, name: str = "import") -> list[duly.Message]:
    return of(name, *[b"x"] * count)


@pytest.fixture
def jobs(q: duly.Client) -> str:
    """A queue of a tenant whose operations may publish a hundred messages, then two a second."""
    q.create_topic("jobs", kind="queue")
    q.update_tenant("default", operation_messages=DEPTH, operation_per_s=RATE)
    return "jobs"


def refused(q: duly.Client, count: int = 1, name: str = "import", topic: str = "jobs") -> duly.OperationExhausted:
    """The error that a publish of an operation ends with."""
    with pytest.raises(duly.OperationExhausted) as caught:
        q.publish(topic, some(count, name))
    assert caught.value.operation == name
    return caught.value


def alerts(q: duly.Client) -> list[tuple[str, object]]:
    return [(event.topic, event.facts["operation"]) for event in q.events() if event.kind == "operation_stopped"]


def test_it_publishes_so_many_then_so_many_a_second(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, some(60))
    q.publish(jobs, some(40))
    assert refused(q).retry_after_ms == 500
    clock.advance(0.499)
    refused(q)
    clock.advance(0.001)
    q.publish(jobs, some(1))
    refused(q)
    clock.advance(5)
    refused(q, 11)
    q.publish(jobs, some(10))
    refused(q)
    q.publish(jobs, [b"of none"])
    q.publish(jobs, some(DEPTH, "another"))


def test_a_batch_is_refused_whole_unless_it_is_bigger_than_all_that_it_could_wait_for(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    q.publish(jobs, some(DEPTH + 20))
    assert [(one.published, one.left) for one in q.operations()] == [(120, -20)]
    assert refused(q).retry_after_ms == 10_500, "it owes twenty"
    clock.advance(10.5 + 9.5)
    mixed = [*of("another", b"1"), *some(21)]
    with pytest.raises(duly.OperationExhausted):
        q.publish(jobs, mixed)
    assert "another" not in [one.id for one in q.operations()], "nothing of it was stored or counted"
    q.publish(jobs, mixed[:-1])
    clock.advance(49)
    refused(q, DEPTH + 1)
    clock.advance(1)
    q.publish(jobs, some(DEPTH + 1))


def test_that_it_is_stopped_is_told_once_until_it_has_been_at_rest(
    q: duly.Client, jobs: str, clock: duly.ManualClock, events: list[duly.Event]
) -> None:
    since = clock.now_ms()
    q.publish(jobs, some(DEPTH))
    refused(q)
    for _ in range(5):
        clock.advance(0.5)
        q.publish(jobs, some(1))
        refused(q)
    assert alerts(q) == [(jobs, "import")]
    # Whoever listens hears it, on PostgreSQL from a thread that has answered before.
    eventually(lambda: any(event.kind == "operation_stopped" for event in events))
    assert [event.topic for event in events if event.kind == "operation_stopped"] == [jobs]
    (stopped,) = q.operations(stopped=True)
    assert stopped == duly.Operation("import", DEPTH + 5, 0, since)
    clock.advance(50)
    assert q.operations() == [], "full again, it is as if it had never been"
    q.publish(jobs, some(DEPTH))
    assert q.operations(stopped=True) == []
    refused(q)
    assert alerts(q) == [(jobs, "import")] * 2


def test_resumed_it_goes_on_with_as_many_as_it_is_given(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, some(DEPTH))
    refused(q)
    assert q.resume_operation("import").left == DEPTH
    q.publish(jobs, some(DEPTH))
    refused(q)
    after = q.resume_operation("import", messages=3 * DEPTH)
    assert (after.left, after.stopped_at, after.held) == (3 * DEPTH, None, False)
    for _ in range(3):
        q.publish(jobs, some(DEPTH))
    refused(q)
    with pytest.raises(duly.NotFound, match="not stopped"):
        q.resume_operation("another")
    told = [(entry.action, entry.facts.get("operation")) for entry in q.audit()]
    assert told.count(("resume_operation", "import")) == 2


def test_stopped_by_hand_it_publishes_nothing_before_it_is_resumed(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    assert q.stop_operation("import").held
    clock.advance(24 * 3600)
    assert (refused(q).retry_after_ms or 0) >= 60_000
    assert [(one.id, one.held) for one in q.operations(stopped=True)] == [("import", True)]
    q.resume_operation("import")
    q.publish(jobs, some(DEPTH))
    refused(q)


def test_those_who_are_refused_come_back_one_after_the_other(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, some(DEPTH))
    assert [refused(q).retry_after_ms for _ in range(4)] == [500, 1000, 1500, 2000]
    q.resume_operation("import")
    q.publish(jobs, some(DEPTH))
    assert refused(q).retry_after_ms is not None


def test_topics_and_clients_share_an_operation_and_tenants_do_not(home: Home) -> None:
    ours, again, theirs = home.connect(), home.connect(), home.connect(tenant="theirs")
    for client in (ours, theirs):
        client.create_topic("jobs", kind="queue")
        client.create_topic("more", kind="log")
        client.update_tenant(client.tenant, operation_messages=DEPTH)
    ours.publish("jobs", some(DEPTH // 2))
    again.publish("more", some(DEPTH // 2))
    refused(ours)
    refused(again, topic="more")
    theirs.publish("jobs", some(DEPTH))
    assert len(alerts(ours)) == 1


def test_many_at_once_from_several_topics_publish_as_many_as_there_are(
    home: Home,
) -> None:
    """Each batch is of two operations, in one order here and in the other there."""
    clients = [home.connect() for _ in range(4)]
    clients[0].create_topic("jobs0", kind="queue")
    clients[0].update_tenant("default", operation_messages=DEPTH)
    for number in range(1, 4):
        clients[0].create_topic(f"jobs{number}", kind="queue")
    stored: list[int] = []
    lock = threading.Lock()

    def work(number: int) -> None:
        names = ["one", "two"] if number % 2 else ["two", "one"]
        for _ in range(scaled(40, 400)):
            try:
                clients[number].publish(f"jobs{number}", [message for name in names for message in some(1, name)])
            except duly.OperationExhausted:
                continue
            with lock:
                stored.append(number)

    for aside in [Aside(lambda number=number: work(number)) for number in range(4)]:  # type: ignore[misc]
        aside.result(60)
    assert len(stored) == DEPTH, "the manual clock gives none back"
    assert {one.id: one.published for one in clients[0].operations()} == {"one": DEPTH, "two": DEPTH}


def test_turned_off_nothing_is_counted_and_a_changed_budget_holds_at_once(q: duly.Client, jobs: str) -> None:
    q.update_tenant("default", operation_messages=None)
    q.publish(jobs, some(3 * DEPTH))
    assert q.operations() == []
    with pytest.raises(duly.Conflict, match="not counted"):
        q.stop_operation("import")
    q.update_tenant("default", operation_messages=DEPTH // 2)
    q.publish(jobs, some(DEPTH // 2))
    refused(q)
    with pytest.raises(duly.LimitExceeded):
        q.update_tenant("default", operation_messages=0)


def test_a_repeated_publish_and_ids_in_use_are_not_counted_again(q: duly.Client) -> None:
    q.create_topic("jobs", kind="queue", dedupe=60)
    q.update_tenant("default", operation_messages=DEPTH)
    q.publish("jobs", some(60), publish_id="p")
    assert q.publish("jobs", some(60), publish_id="p").duplicate
    named = [duly.Message(b"x", id=f"m{number}", headers={OPERATION: "import"}) for number in range(40)]
    q.publish("jobs", named)
    assert len(q.publish("jobs", named).duplicates) == 40
    assert [one.published for one in q.operations()] == [100]


def test_rows_at_rest_are_swept(home: Home, clock: duly.ManualClock) -> None:
    q = home.connect()
    q.create_topic("jobs", kind="queue")
    for number in range(20):
        q.publish("jobs", some(5, f"op{number}"))
    q.stop_operation("op7")
    assert len(q.operations()) == home.rows("duly_operation") == 20
    clock.advance(120)
    assert [one.id for one in q.operations()] == ["op7"]
    eventually(lambda: home.rows("duly_operation") == 1)


def test_they_are_listed_in_pages(q: duly.Client, jobs: str) -> None:
    names = {f"op{number}" for number in range(7)}
    for name in names:
        q.publish(jobs, some(2, name))
    pages: list[duly.Operation] = []
    while page := q.operations(after=pages[-1].id if pages else "", limit=3):
        pages += page
    assert sorted(one.id for one in pages) == sorted(names) == sorted(one.id for one in q.operations())
    assert {(one.published, one.left) for one in pages} == {(2, DEPTH - 2)}


# What carries it


def headers_of(q: duly.Client, topic: str = "jobs") -> list[dict[str, str]]:
    return [dict(message.headers) for message in q.read(topic)]


def test_what_is_published_inside_carries_it_unless_it_says_otherwise(q: duly.Client) -> None:
    pa = pytest.importorskip("pyarrow")
    q.create_topic("jobs", kind="log")
    own = duly.Message(b"own", headers={OPERATION: "own", "a": "b"})
    with duly.operation("import"):
        q.publish("jobs", [b"plain", duly.Message(b"x", headers={"a": "b"}), own])
        with duly.operation(None):
            q.publish("jobs", b"none")
        q.publish("jobs", duly.Message(b"none", headers={OPERATION: ""}))
        q.publish("jobs", pa.table({"payload": [b"arrow"]}))
        q.publish("jobs", [b"many"] * 500)
    q.publish("jobs", b"after")
    here = {OPERATION: "import"}
    expected: list[dict[str, str]] = [here, {"a": "b", **here}, {OPERATION: "own", "a": "b"}, {}]
    assert headers_of(q) == [*expected, {OPERATION: ""}, here, *[here] * 500, {}]
    assert {one.id: one.published for one in q.operations()} == {"import": 503, "own": 1}
    for name in ("", "a\nb", "x" * 257, 7):
        with pytest.raises(duly.InvalidArgument), duly.operation(name):  # type: ignore[arg-type]
            pass


def test_a_header_of_dulys_own_makes_no_message_too_big(q: duly.Client) -> None:
    q.create_topic("jobs", kind="log")
    full = {f"h{number}": "x" for number in range(64)}
    big = {"h": "x" * (duly.LIMITS.headers_bytes_max - 1)}
    pa = pytest.importorskip("pyarrow")
    kind = pa.map_(pa.string(), pa.string())
    with duly.operation("import"):
        q.publish("jobs", [duly.Message(b"1", headers=full), duly.Message(b"2", headers=big)])
    named = [[*full.items(), (OPERATION, "import")]]
    q.publish("jobs", pa.table({"payload": [b"3"], "headers": pa.array(named, kind)}))
    assert [len(headers) for headers in headers_of(q)] == [65, 2, 65]
    for headers in ({**full, "more": "x"}, {**full, OPERATION: "x" * 300}):
        with pytest.raises(duly.LimitExceeded):
            q.publish("jobs", duly.Message(b"4", headers=headers))
    with pytest.raises(duly.InvalidArgument, match="names no operation"):
        q.publish("jobs", duly.Message(b"5", headers={OPERATION: "a\nb"}))


def test_a_delivery_names_the_operation_of_what_it_has_caused(
    q: duly.Client, reopen: Callable[[], duly.Client]
) -> None:
    q.create_topic("jobs", kind="queue", lease=1)
    q.publish("jobs", [duly.Message(b"a", id="secret id"), *of("import", b"b")])
    batch = q.claim("jobs")
    first, second = batch
    assert second.operation == "import"
    assert first.operation.startswith("jobs@")
    assert "secret" not in first.operation
    first.nack(delay=0)
    again = reopen().claim("jobs")
    assert [one.operation for one in again] == [first.operation], "whoever is given it again goes on with the same"


def test_a_producer_leaves_out_what_may_not_be_published_and_sends_the_rest(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, some(DEPTH))
    producer = q.producer(linger=30)
    with duly.operation("import"):
        lost = producer.publish(jobs, b"lost")
    with duly.operation("another"):
        kept = producer.publish(jobs, b"kept")
    plain = producer.publish(jobs, b"plain")
    with pytest.raises(duly.OperationExhausted):
        producer.close()
    assert isinstance(lost.exception(), duly.OperationExhausted)
    assert kept.result() == plain.result()
    assert kept.result().count == 2


@pytest.mark.embedded
@pytest.mark.sqlite
def test_in_the_applications_transaction_it_is_counted_with_the_commit(q: duly.Client, jobs: str) -> None:
    with q.transaction() as tx:
        q.publish(jobs, some(DEPTH), tx=tx)
        tx.rollback()
    assert q.operations() == []
    with q.transaction() as tx:
        q.publish(jobs, some(DEPTH), tx=tx)
        with pytest.raises(duly.OperationExhausted):
            q.publish(jobs, some(1), tx=tx)
    assert [one.published for one in q.operations()] == [DEPTH]


def test_released_for_later_it_is_not_delivered_before_and_no_attempt_is_counted(
    q: duly.Client, clock: duly.ManualClock
) -> None:
    for kind in ("queue", "log"):
        q.create_topic(kind, kind=kind, lease=30)
        if kind == "log":
            q.create_group(kind, "g")
        group = "g" if kind == "log" else None
        q.publish(kind, [b"1", b"2"])
        one, two = q.claim(kind, group=group)
        one.release(delay=60)
        two.ack()
        clock.advance(59.999)
        assert q.claim(kind, group=group).payloads == []
        clock.advance(0.001)
        (again,) = q.claim(kind, group=group)
        assert (again.payload, again.attempt) == (b"1", 1)
        again.ack()
    with pytest.raises(duly.InvalidArgument):
        q.release(consumer="w1", delay=5)
