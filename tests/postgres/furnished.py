"""A store with everything in it that a store can have, and what a client sees of one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import apsw
import pytest

import duly
import duly.engine.stage
from duly.engine.publish import make_publish_id
from duly.engine.stage import CommitStages
from duly.push import secret_text
from tests.simulation.queue_interleaving import Sizes
from tests.store.patience import eventually

GROUPS = {"orders": ["billing", "audit"], "wide": ["one"], "aged": ["late"]}
SECRET = secret_text(bytes(range(32)))
QUEUES = ("emails", "limited", "staged")
TENANTS = ("default", "acme")


# What consumers held when the store moved, by tenant, topic and group.
Held = dict[tuple[str, str, str], duly.Batch]


def small_steps(patch: pytest.MonkeyPatch) -> None:
    """A few thousand messages make runs of every kind, folds under way included."""
    Sizes(absorb_from=150, fan=3, slice=120, block=40, slack=50, few=10).apply(patch)


def furnish(path: str, clock: duly.ManualClock, patch: pytest.MonkeyPatch, dice: random.Random) -> Held:
    """Makes a store in a file. The application has a table in it, too."""
    held: Held = {}
    small_steps(patch)
    for tenant in TENANTS:
        with duly.connect(path, clock=clock, consumer="w1", tenant=tenant) as q:
            _logs(q, clock, held, tenant)
            _aged(q, clock)
            _queue(q, clock, held, tenant, dice)
            _limited(q, held, tenant)
            _stages(q, patch)
            q.create_topic("gone", kind="queue")
            q.publish("gone", [b"never mind"] * 10)
            q.delete_topic("gone", force=True)
            q.stop_operation("a loop")
            q.create_schedule("nightly", topic="emails", cron="0 0 1 1 *", zone="Europe/Berlin", template="${tick}")
            q.pause_schedule("nightly")
            q.create_schedule("yearly", topic="emails", cron="@yearly", payload=b"\xff")
            _pushes(q)
    with closing(apsw.Connection(path)) as application:
        application.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY); CREATE TABLE bills (id INTEGER)")
    with duly.connect(path, clock=clock) as q:
        q.put_principal("root", [duly.Grant("*")], operator=True)
        q.create_key("root", note="a note", operator=True)
    return held


def _pushes(q: duly.Client) -> None:
    hook = duly.ToHttp("https://example.com/hook", headers={"Authorization": "Bearer sesame"})
    q.create_push("hook", topic="wide", group="one", to=hook, secret=SECRET)
    q.create_push("onward", topic="aged", group="late", to=duly.ToTopic("emails"), paused=True)


def _logs(q: duly.Client, clock: duly.ManualClock, held: Held, tenant: str) -> None:
    q.create_topic("orders", kind="log", lease=600, retry=duly.RetryPolicy(max_attempts=2, base=5, cap=5))
    q.create_topic("wide", kind="log", partitions=3)
    q.create_group("orders", "billing", start="earliest")
    q.create_group("orders", "audit", start="earliest")
    q.create_group("wide", "one", start="earliest")
    for batch in range(20):
        q.publish("orders", [f"{tenant} {batch} {n} ".encode() + b"x" * 40 * n for n in range(50)])
        q.publish("wide", [duly.Message(b"%d" % n, key=f"k{n}", headers={"n": str(n)}) for n in range(30)])
    q.publish("orders", b"known by its id", publish_id="given")
    q.publish("orders", duly.Message(b"long" * 100_000, id="long"))
    first = q.claim("orders", group="billing", max_messages=100)
    q.ack(first.deliveries[:60])
    q.nack(first.deliveries[60:70], delay=30, reason="later\u2026")
    first.deliveries[70].bury("no use")
    first.deliveries[71].nack(delay=0)
    held[tenant, "orders", "billing"] = first
    second = q.claim("orders", group="audit", max_messages=20, lease=5)
    assert len(second) == 20
    clock.advance(6)
    assert len(q.claim("orders", group="audit", max_messages=3)) == 3
    q.seek("wide", "one", offset={1: 4})
    q.pause("wide", group="one")


def _aged(q: duly.Client, clock: duly.ManualClock) -> None:
    """A log whose old blocks were dropped: of one a dead letter is kept, and the publish id that may be repeated."""
    q.create_topic("aged", kind="log", retention=duly.Retention(age=60, drop_unsettled=True))
    q.create_group("aged", "late", start="earliest")
    for n in range(4):
        q.publish("aged", [b"old %d" % n] * 100, publish_id=make_publish_id(clock.now_ms(), repeatable=True))
    q.claim("aged", group="late", max_messages=150).deliveries[120].bury("kept")
    clock.advance(61)
    eventually(lambda: q.describe_topic("aged").partitions[0].first_offset)
    q.publish("aged", [b"new"] * 100)


def _queue(q: duly.Client, clock: duly.ManualClock, held: Held, tenant: str, dice: random.Random) -> None:
    q.create_topic(
        "emails", kind="queue", lease=600, dedupe=3600, retry=duly.RetryPolicy(max_attempts=2, base=5, cap=5)
    )
    for batch in range(24):
        q.publish("emails", [_message(f"{tenant}-{batch}-{n}", dice) for n in range(60)])
        if batch % 4 == 3:
            served = q.claim("emails", max_messages=40)
            q.ack(served.deliveries[:25])
            q.nack(served.deliveries[25:32], delay=dice.choice([0, 5, 600]), reason="again")
            q.release(served.deliveries[32:35])
            clock.advance(7)
            for n in range(6):
                q.move("emails", f"{tenant}-{batch}-{n}", due=timedelta(seconds=n * 20), priority=n)
            q.cancel("emails", [f"{tenant}-{batch}-{n}" for n in range(10, 16)])
    for delivery in q.claim("emails", max_messages=4):
        delivery.bury("unreadable")
    under_way = q.claim("emails", max_messages=50)
    q.ack(under_way.deliveries[::3])
    q.cancel("emails", [under_way.deliveries[1].id])
    held[tenant, "emails", ""] = under_way


def _message(name: str, dice: random.Random) -> duly.Message:
    return duly.Message(
        name.encode() + b"." * dice.choice([0, 10, 6000]),
        id=name,
        due=timedelta(seconds=dice.choice([0, 0, 3, 60, 4000])),
        priority=dice.choice([0, 1, 7]),
        lane=dice.choice([None, None, "a", "b"]),
        expires_at=None,
    )


def _limited(q: duly.Client, held: Held, tenant: str) -> None:
    lanes = duly.Lanes(max_in_flight=2, rate=5, breaker=duly.Breaker(calls=1))
    q.create_topic("limited", kind="queue", lease=600, lanes=lanes, breaker=duly.Breaker())
    for batch in range(6):
        q.publish("limited", [duly.Message(b"%d" % n, lane=f"lane {n % 7}", id=f"{batch}-{n}") for n in range(70)])
    under_way = q.claim("limited", max_messages=9)
    # One lane's breaker is open from now on.
    under_way.deliveries[0].nack(delay=0)
    held[tenant, "limited", ""] = under_way


def _stages(q: duly.Client, patch: pytest.MonkeyPatch) -> None:
    q.create_topic("staged", kind="queue")
    patch.setattr(duly.engine.stage, "_QUEUE_BLOCKS_A_SLICE", 2)
    for name, count in (("done", 300), ("half", 4000), ("open", 500)):
        for number in range(2):
            q.stage("staged", [b"%d" % n for n in range(count)], stage=name, number=number)
    q.commit_stages("staged", {"done": 600}, job="first")
    # One slice of it, as if the client had died then.
    half = CommitStages(q._tenant, "staged", "second", 0, (("half", 8000),))
    assert q._alive().do(half, deadline=None).left


def seen(q: duly.Client) -> dict[Any, Any]:
    """Everything that a client can ask for without changing anything. How far events are packed is a chore's affair."""
    found: dict[Any, Any] = {"topics": q.list_topics(), "events": list(q.events()), "schedules": q.schedules()}
    for topic in q.list_topics():
        about = q.describe_topic(topic)
        found[topic] = about
        for group in about.groups:
            found[topic, group] = q.describe_group(topic, group)
            found[topic, group, "dead"] = list(q.dead(topic, group=group))
        if about.kind == "queue":
            found[topic, "browse"] = list(_browsed(q, topic))
            found[topic, "coming"] = q.coming(topic, minutes=90)
        for partition in about.partitions:
            batches = q.read_arrow(topic, partition=partition.partition, offset=partition.first_offset)
            found[topic, partition.partition] = [row for batch in batches for row in batch.to_pylist()]
    return found


def _browsed(q: duly.Client, topic: str) -> Iterator[duly.QueuedMessage]:
    after = (0, -1)
    while page := q.browse(topic, after=after, limit=1000):
        yield from page
        after = (page[-1].partition, page[-1].offset)


def drained(q: duly.Client, clock: duly.ManualClock) -> dict[tuple[str, str], list[tuple[int, int, bytes, int]]]:
    """Claims everything out, redriven dead letters too; by topic and group, in the order in which it came."""
    q.resume("wide", group="one")
    # Whoever was committing stages goes on; else a chore would, in its own time.
    assert q.commit_stages("staged", {"half": 8000}, job="second").messages == 8000
    every = [(topic, group) for topic in q.list_topics() for group in q.describe_topic(topic).groups]
    came: dict[tuple[str, str], list[tuple[int, int, bytes, int]]] = {each: [] for each in every}
    for topic, group in every:
        q.redrive(topic, group=group)
    for _ in range(120):
        for topic, group in every:
            while batch := q.claim(topic, group=group, max_messages=500):
                came[topic, group] += [(d.partition, d.offset, d.payload, d.attempt) for d in batch]
                q.ack(batch)
        clock.advance(60)
    return came
