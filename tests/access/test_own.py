"""Grants for one's own messages alone: the publisher is remembered wherever the message goes."""

from __future__ import annotations

import pytest

import duly
from duly.engine.block import Place as At
from duly.engine.find import find_topic
from duly.engine.lookup import keep_message
from duly.engine.publisher import publisher_at

from .conftest import Place

OWN = (duly.Grant("publish"), duly.Grant("cancel", own=True), duly.Grant("move", own=True))


def stocked(place: Place) -> None:
    place.store.create_topic("jobs", kind="queue")
    for name in ("anna", "bert"):
        with place.connect(place.key(name, *OWN)) as q:
            q.publish("jobs", [duly.Message(b"one", id=f"{name}-{at}") for at in range(3)])
    place.store.publish("jobs", duly.Message(b"one", id="embedded"))


def test_ones_own_messages_are_moved_and_cancelled_and_no_others(place: Place) -> None:
    stocked(place)
    with place.connect(place.key("anna")) as anna:
        asked = ["anna-0", "bert-0", "embedded", "never"]
        assert anna.cancel("jobs", asked) == dict.fromkeys(asked, "not_found") | {"anna-0": "cancelled"}
        asked = ["anna-1", "bert-1", "embedded"]
        assert anna.move("jobs", asked, priority=7) == dict.fromkeys(asked, "not_found") | {"anna-1": "moved"}
    with place.http(place.key("bert")) as bert:
        told = bert.post("/v1/topics/jobs/cancel", json={"ids": ["anna-2", "bert-0"]}).json()
        assert told["answers"] == {"anna-2": "not_found", "bert-0": "cancelled"}
    left = {message.id for message in place.store.browse("jobs")}
    assert left == {"anna-1", "anna-2", "bert-1", "bert-2", "embedded"}


def test_a_grant_for_all_is_for_all(place: Place) -> None:
    stocked(place)
    with place.connect(place.key("boss", *OWN, duly.Grant("cancel"))) as boss:
        assert boss.cancel("jobs", ["anna-0", "embedded"]) == {"anna-0": "cancelled", "embedded": "cancelled"}


def test_an_operator_is_not_the_tenants_principal_of_that_name(place: Place) -> None:
    stocked(place)
    own = [duly.Grant("cancel", own=True, tenants="*")]
    with place.connect(place.key("anna", *own, operator=True), tenant="default") as operator:
        assert operator.cancel("jobs", ["anna-0"]) == {"anna-0": "not_found"}


def test_who_it_was_is_not_said_by_the_client(place: Place) -> None:
    stocked(place)
    from duly.broker.authority import Shown
    from duly.broker.entry import Entry
    from duly.engine.inquiry import Cancel

    entry = Entry(place.broker, Shown(place.key("anna")))
    admitted = entry.admit(Cancel("", "jobs", ("bert-0",), own="bert"))
    assert admitted.own == "anna"


def test_staged_messages_have_a_publisher(place: Place) -> None:
    place.store.create_topic("jobs", kind="queue")
    with place.connect(place.key("anna", *OWN)) as anna, place.connect(place.key("bert", *OWN)) as bert:
        anna.stage("jobs", [duly.Message(b"one", id="a")], stage="s", number=0)
        anna.commit_stages("jobs", {"s": 1}, job="j", version=1)
        assert bert.cancel("jobs", ["a"]) == {"a": "not_found"}
        assert anna.cancel("jobs", ["a"]) == {"a": "cancelled"}


def test_a_message_that_is_kept_alone_keeps_its_publisher(place: Place) -> None:
    stocked(place)
    home = place.broker._home

    def keep(tx, commands):  # type: ignore[no-untyped-def]
        topic = find_topic(tx, "default", "jobs")
        (partition,) = topic.partitions
        for block in list(tx.blocks(topic.tenant_id, partition, 0, 7)):
            for index in range(block.count):
                keep_message(
                    tx, At(topic.tenant_id, partition, block.base + index), block.columns.slice(index, index + 1), 0
                )
        tx.blocks_delete(topic.tenant_id, partition, 7, 100)
        return [[publisher_at(tx, topic.tenant_id, partition, offset) for offset in range(7)] for _ in commands]

    found = home.store.write(keep, None, tenant="$test", cost=0, deadline=None)
    assert found == ["anna"] * 3 + ["bert"] * 3 + [""]


def test_a_claim_that_acks_takes_the_grant_to_settle_too(place: Place) -> None:
    stocked(place)
    with place.connect(place.key("taker", duly.Grant("claim"))) as taker:
        batch = taker.claim("jobs", max_messages=1)
        with pytest.raises(duly.Denied):
            taker.claim("jobs", max_messages=1, acks=batch)
        assert place.store.describe_group("jobs", "queue").leased == 1
        assert not batch[0].settled
        # A loop looks for more on a session that remembers what it claims.
        with pytest.raises(duly.Denied):
            for _ in taker.consume("jobs", wait=0):
                pass
        assert place.store.describe_group("jobs", "queue").leased == 2
    with place.connect(place.key("worker", duly.Grant("claim"), duly.Grant("settle"))) as worker:
        batch = worker.claim("jobs", max_messages=1)
        assert worker.claim("jobs", max_messages=1, acks=batch).acked == duly.Settled(1)
