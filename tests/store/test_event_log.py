"""`$events`: rows of events are packed into a log that anyone may read, and nothing is lost or doubled by it."""

from __future__ import annotations

import json
from itertools import islice

import pytest

import duly

from .conftest import Home
from .patience import eventually
from .telling import history, kinds, only

EVENTS = "$events"


def unpacked(home: Home) -> int:
    """Rows of events that are not in the log yet."""
    return home.rows("duly_event")


def pack(home: Home) -> None:
    """Lets the time come at which the chore runs, and those of its further steps."""
    home.clock.advance(1)

    def packed() -> bool:
        home.clock.advance(0.01)
        return unpacked(home) == 0

    eventually(packed)


def fill(q: duly.Client, events: int, *, at_once: int = 1) -> None:
    """Publishes to `t`, an event each, so many in a transaction."""
    for _ in range(0, events, at_once):
        if at_once == 1:
            q.publish("t", b"x")
            continue
        with q.transaction() as tx:
            for _ in range(at_once):
                q.publish("t", b"x", tx=tx)


def published(q: duly.Client) -> list[int]:
    return [event.offset for event in only(q, "published", topic="t")]


# Packing


def test_packed_or_not_the_events_are_the_same(home: Home) -> None:
    q = home.connect()
    q.create_topic("t", kind="queue", lease=30)
    q.publish("t", [duly.Message(b"x", id=f"m{number}", priority=number % 3) for number in range(6)])
    q.claim("t", max_messages=4)[1].ack()
    assert unpacked(home)
    before, of_one = list(q.events()), history(q, "t", "m3")
    pack(home)
    assert list(q.events()) == before
    assert history(q, "t", "m3") == of_one
    q.publish("t", b"x")
    assert unpacked(home) == 1
    assert list(q.events())[:-1] == before
    assert kinds(q)[-1] == "published"


@pytest.mark.embedded
@pytest.mark.sqlite
def test_a_message_of_the_log_has_the_events_of_one_transaction(home: Home) -> None:
    q = home.connect()
    q.create_topic("t", kind="queue")
    fill(q, 3, at_once=3)
    pack(home)
    lists = [json.loads(message.payload) for message in q.read(EVENTS)]
    assert [[event["kind"] for event in each] for each in lists] == [["topic_created"], ["published"] * 3]


@pytest.mark.embedded
@pytest.mark.sqlite
def test_all_are_there_in_order_while_they_are_packed_between_pages(home: Home) -> None:
    q = home.connect()
    q.create_topic("t", kind="queue")
    # Pages of a thousand end in the middle of a transaction's list.
    fill(q, 3500, at_once=700)
    events = (event.offset for event in q.events(topic="t") if event.kind == "published")
    got = list(islice(events, 100))
    pack(home)
    got += islice(events, 1400)
    q.publish("t", b"x")
    pack(home)
    assert [*got, *events] == list(range(3501))


@pytest.mark.embedded
@pytest.mark.sqlite
def test_all_are_there_when_a_page_ends_between_packed_and_unpacked(home: Home) -> None:
    q = home.connect()
    q.create_topic("t", kind="queue")
    fill(q, 600, at_once=300)
    pack(home)
    fill(q, 900, at_once=300)
    events = (event.offset for event in q.events(topic="t") if event.kind == "published")
    got = [next(events)]
    pack(home)
    fill(q, 600, at_once=300)
    assert [*got, *events] == list(range(2100))


def test_more_rows_than_one_step_packs(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duly.engine.event_log._ROWS_A_SLICE", 7)
    q = home.connect()
    q.create_topic("t", kind="queue")
    fill(q, 50)
    pack(home)
    assert published(q) == list(range(50))
    assert q.describe_topic(EVENTS).messages == 51


def test_more_bytes_than_one_step_packs(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duly.engine.event_log._BYTES_A_SLICE", 500)
    q = home.connect()
    q.create_topic("t", kind="queue")
    fill(q, 50)
    pack(home)
    assert published(q) == list(range(50))


def test_a_history_that_takes_many_looks_is_whole(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duly.engine.event_log._LOOK_MAX", 3)
    q = home.connect()
    q.create_topic("t", kind="queue")
    q.publish("t", [duly.Message(b"x", id=f"m{number}") for number in range(2)])
    batch = q.claim("t", max_messages=2)
    fill(q, 20)
    pack(home)
    batch[0].ack()
    fill(q, 20)
    batch.ack()
    assert history(q, "t", "m1") == ["published", "claimed", "acked"]
    assert len(published(q)) == 41


def test_tenants_are_packed_each_into_their_own(home: Home) -> None:
    clients = {name: home.connect(tenant=name) for name in ("a", "b", "c")}
    for number in range(6):
        for name, q in clients.items():
            q.create_topic("t", kind="queue", exist_ok=True)
            q.publish("t", [b"x"] * (number + len(name)))
    before = {name: list(q.events()) for name, q in clients.items()}
    pack(home)
    for name, q in clients.items():
        assert list(q.events()) == before[name]
        assert {event.tenant for event in q.events()} == {name}
        assert q.describe_topic(EVENTS).messages == 7


def test_they_survive_that_everybody_leaves_packed_and_not(home: Home) -> None:
    q = home.connect()
    q.create_topic("t", kind="queue")
    fill(q, 3)
    pack(home)
    fill(q, 3)
    before = list(q.events())
    q.close()
    again = home.connect()
    assert list(again.events()) == before
    pack(home)
    assert list(again.events()) == before


def test_what_is_packed_by_another_process_is_seen(home: Home) -> None:
    first, second = home.connect(), home.connect()
    first.create_topic("t", kind="queue")
    for _ in range(3):
        for q in (first, second):
            q.publish("t", b"x")
        pack(home)
    assert list(first.events()) == list(second.events())
    assert published(first) == list(range(6))


# A log like others


def test_it_is_read_and_claimed_from_but_not_published_to(home: Home) -> None:
    q = home.connect()
    q.create_topic("t", kind="queue")
    fill(q, 4)
    pack(home)
    q.create_group(EVENTS, "audit")
    batch = q.claim(EVENTS, group="audit", max_messages=100)
    seen = [event["kind"] for payload in batch.payloads for event in json.loads(payload)]
    assert seen == kinds(q)
    batch.ack()
    with pytest.raises(duly.InvalidArgument):
        q.publish(EVENTS, b"[]")
    assert not q.claim(EVENTS, group="audit")


def test_it_is_not_among_the_topics_and_none_can_be_made_like_it(home: Home) -> None:
    q = home.connect()
    q.create_topic("t", kind="queue")
    pack(home)
    assert q.list_topics() == ["t"]
    assert {one.topic for one in q.health()} == {"t"}
    with pytest.raises(duly.InvalidArgument):
        q.create_topic("$mine", kind="log")


def test_nothing_is_recorded_of_it(home: Home) -> None:
    q = home.connect()
    q.create_topic("t", kind="queue")
    pack(home)
    before = kinds(q)
    q.create_group(EVENTS, "audit")
    batch = q.claim(EVENTS, group="audit")
    batch[0].nack()
    q.update_topic(EVENTS, lease=5)
    q.seek(EVENTS, "audit", to="earliest")
    q.claim(EVENTS, group="audit").ack()
    q.pause(EVENTS)
    q.delete_group(EVENTS, "audit")
    assert kinds(q) == before
    assert unpacked(home) == 0


def test_it_is_kept_for_a_week_or_a_gigabyte(home: Home) -> None:
    q = home.connect()
    q.create_topic("t", kind="queue")
    fill(q, 3)
    pack(home)
    kept = q.describe_topic(EVENTS).settings.retention
    assert kept == duly.Retention(age=7 * 86_400, bytes=10**9, drop_unsettled=True)
    home.clock.advance(6 * 86_400)
    fill(q, 1)
    pack(home)
    home.clock.advance(86_400)
    eventually(lambda: published(q) == [3])
    assert history(q, "t", "nobody") == []


def test_another_retention_holds_at_once_even_past_a_group(home: Home) -> None:
    q = home.connect()
    q.create_topic("t", kind="queue")
    fill(q, 3)
    pack(home)
    q.create_group(EVENTS, "audit")
    home.clock.advance(60)
    q.update_topic(EVENTS, retention=duly.Retention(age=30, drop_unsettled=True))
    eventually(lambda: q.describe_topic(EVENTS).messages == 0)
    assert list(q.events()) == []
    fill(q, 1)
    pack(home)
    assert published(q) == [3]


def test_by_bytes_the_oldest_go(home: Home) -> None:
    q = home.connect()
    q.create_topic("t", kind="queue")
    for _ in range(5):
        fill(q, 100)
        pack(home)
    size = q.describe_topic(EVENTS).bytes
    q.update_topic(EVENTS, retention=duly.Retention(bytes=size // 2, drop_unsettled=True))
    eventually(lambda: q.describe_topic(EVENTS).bytes <= size // 2)
    left = published(q)
    assert left == list(range(left[0], 500))
    assert left[0] > 0


# Rest


def test_an_idle_store_becomes_quiet(home: Home) -> None:
    q = home.connect()
    q.create_topic("t", kind="queue", lease=30)
    q.publish("t", [b"x"] * 5)
    q.claim("t", max_messages=5).ack()
    # What is noted to be done soon is done within these, and what that leads to.
    for _ in range(5):
        pack(home)
    changed = home.watch()

    def changes_within(seconds: float) -> bool:
        before = changed()
        try:
            eventually(lambda: changed() != before, within_s=seconds)
        except AssertionError:
            return False
        return True

    eventually(lambda: not changes_within(0.1))
    told = q.describe_topic(EVENTS).messages
    home.clock.advance(30)
    assert not changes_within(0.3)
    soon = home.clock.now_ms() + 60_000
    assert not home.ask(f"SELECT chore FROM duly_agenda WHERE due_at_ms < {soon}")
    assert unpacked(home) == 0
    assert q.describe_topic(EVENTS).messages == told == len(q.read(EVENTS))
