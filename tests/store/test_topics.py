"""Topics: create, update, describe, list, delete, pause, resume, purge."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest

import duly
from tests.store.conftest import Home

from .patience import eventually


def test_a_created_topic_is_described_with_its_settings_and_nothing_in_it(
    q: duly.Client, clock: duly.ManualClock
) -> None:
    made = q.create_topic("orders", kind="log", partitions=3, lease=timedelta(minutes=1), ttl=3600)

    assert made == q.describe_topic("orders")
    assert (made.tenant, made.name, made.kind) == ("default", "orders", "log")
    assert made.settings.lease == 60.0
    assert made.settings.ttl == 3600.0
    assert made.created_at_ms == clock.now_ms()
    assert made.paused is False
    assert made.groups == ()
    assert [part.partition for part in made.partitions] == [0, 1, 2]
    assert (made.messages, made.bytes) == (0, 0)


def test_creating_a_topic_twice_is_topic_exists(q: duly.Client) -> None:
    q.create_topic("orders", kind="log")
    with pytest.raises(duly.TopicExists):
        q.create_topic("orders", kind="log")


def test_exist_ok_leaves_an_equal_topic_as_it_is(q: duly.Client) -> None:
    q.create_topic("orders", kind="log", lease=10)
    q.publish("orders", b"kept")
    again = q.create_topic("orders", kind="log", lease=timedelta(seconds=10), exist_ok=True)
    assert again.messages == 1
    assert again.version == 1


@pytest.mark.parametrize(
    "other",
    [
        {"kind": "queue"},
        {"kind": "log", "lease": 11},
        {"kind": "log", "partitions": 2},
        {"kind": "log", "retry": duly.RetryPolicy(max_attempts=2)},
        {"kind": "log", "retention": duly.Retention(bytes=1)},
        {"kind": "log", "archive": True},
        {"kind": "log", "dead_letters": False},
        {"kind": "log", "health": duly.Health(dead=(1, 2))},
    ],
    ids=lambda other: "-".join(other),
)
def test_exist_ok_with_other_settings_is_topic_exists(q: duly.Client, other: dict[str, object]) -> None:
    before = q.create_topic("orders", kind="log", lease=10)
    with pytest.raises(duly.TopicExists, match="other settings"):
        q.create_topic("orders", exist_ok=True, **{"lease": 10, **other})  # type: ignore[arg-type]
    assert q.describe_topic("orders") == before


def test_the_refusal_names_what_differs(q: duly.Client) -> None:
    q.create_topic("orders", kind="log", lease=10)
    with pytest.raises(duly.TopicExists, match="lease"):
        q.create_topic("orders", kind="log", lease=20, exist_ok=True)


def test_a_topic_is_never_created_by_itself(q: duly.Client) -> None:
    for call in (
        lambda: q.publish("orders", b"x"),
        lambda: q.claim("orders", group="g"),
        lambda: q.read("orders"),
        lambda: q.create_group("orders", "g"),
        lambda: q.describe_topic("orders"),
        lambda: q.update_topic("orders", lease=1),
        lambda: q.delete_topic("orders"),
        lambda: q.pause("orders"),
        lambda: q.purge("orders"),
    ):
        with pytest.raises(duly.TopicNotFound):
            call()
    assert q.list_topics() == []


def test_names_are_1_to_256_printable_characters(q: duly.Client) -> None:
    q.create_topic("ü" * 256, kind="log")
    for bad in ("", "x" * 257, "tab\there", "line\n", "nul\0"):
        with pytest.raises(duly.InvalidArgument):
            q.create_topic(bad, kind="log")
    assert q.list_topics() == ["ü" * 256]


def test_names_that_begin_with_a_dollar_are_dulys_own(q: duly.Client) -> None:
    with pytest.raises(duly.InvalidArgument):
        q.create_topic("$events", kind="log")


def test_a_setting_that_does_not_exist_is_refused(q: duly.Client) -> None:
    with pytest.raises(duly.InvalidArgument, match="leese"):
        q.create_topic("orders", kind="log", leese=3)
    assert q.list_topics() == []


def test_update_changes_what_is_named_and_keeps_the_rest(q: duly.Client) -> None:
    q.create_topic("orders", kind="log", lease=10, ttl=60)
    changed = q.update_topic("orders", lease=20)
    assert changed.settings.lease == 20.0
    assert changed.settings.ttl == 60.0
    assert q.describe_topic("orders") == changed


def test_update_holds_for_the_next_claim(q: duly.Client, clock: duly.ManualClock, orders: str) -> None:
    q.publish(orders, [b"a", b"b"])
    first = q.claim(orders, group="billing", max_messages=1)
    q.update_topic(orders, lease=100)
    second = q.claim(orders, group="billing", max_messages=1)
    assert first.lease_expires_at is not None
    assert second.lease_expires_at is not None
    assert second.lease_expires_at - first.lease_expires_at == timedelta(seconds=70)


def test_every_update_raises_the_version(q: duly.Client) -> None:
    first = q.create_topic("orders", kind="log")
    second = q.update_topic("orders", lease=20)
    assert second.version > first.version


def test_update_with_the_version_that_was_read_succeeds(q: duly.Client) -> None:
    read = q.create_topic("orders", kind="log")
    assert q.update_topic("orders", version=read.version, lease=20).settings.lease == 20.0


def test_update_with_a_version_that_somebody_changed_is_stale(q: duly.Client) -> None:
    read = q.create_topic("orders", kind="log")
    q.update_topic("orders", lease=20)
    with pytest.raises(duly.StaleVersion):
        q.update_topic("orders", version=read.version, lease=30)
    assert q.describe_topic("orders").settings.lease == 20.0


@pytest.mark.parametrize("change", [{"kind": "queue"}, {"partitions": 2}])
def test_kind_and_partitions_cannot_be_changed(q: duly.Client, change: dict[str, object]) -> None:
    before = q.create_topic("orders", kind="log")
    with pytest.raises(duly.InvalidArgument):
        q.update_topic("orders", **change)  # type: ignore[arg-type]
    assert q.describe_topic("orders") == before


def test_a_refused_update_changes_nothing(q: duly.Client) -> None:
    before = q.create_topic("orders", kind="log")
    with pytest.raises(duly.InvalidArgument):
        q.update_topic("orders", lease=20, ttl=-1)
    assert q.describe_topic("orders") == before


def test_topics_are_listed_by_name_in_pages(q: duly.Client) -> None:
    for name in ("b", "d", "a", "c", "é"):
        q.create_topic(name, kind="log")
    assert q.list_topics() == ["a", "b", "c", "d", "é"]
    assert q.list_topics(limit=2) == ["a", "b"]
    assert q.list_topics(after="b", limit=2) == ["c", "d"]
    assert q.list_topics(after="é") == []


def test_topics_survive_the_client(q: duly.Client, reopen: Callable[[], duly.Client]) -> None:
    made = q.create_topic(
        "orders",
        kind="queue",
        lanes=duly.Lanes(max_in_flight=1, rate=5, weights={"acme": 3}),
        retry=duly.RetryPolicy(max_attempts=2, base=1, cap=9, shape="linear", jitter="none"),
        retention=duly.Retention(age=5, bytes=7, settled=True, drop_unsettled=True),
        health=duly.Health(consumers=(2, 1), dead=(1, 10)),
        dedupe=60,
        rate=100,
    )
    q.close()
    assert reopen().describe_topic("orders") == made


def test_a_new_client_sees_what_another_changed(q: duly.Client, reopen: Callable[[], duly.Client]) -> None:
    other = reopen()
    q.create_topic("orders", kind="log", lease=10)
    assert other.describe_topic("orders").settings.lease == 10.0
    other.publish("orders", b"warm")
    q.update_topic("orders", ttl=5)
    other.publish("orders", b"short-lived")
    assert [m.expires_at_ms is not None for m in q.read("orders")] == [False, True]


def test_tenants_do_not_see_each_others_topics(home: Home) -> None:
    acme, globex = home.connect(tenant="acme"), home.connect(tenant="globex")
    acme.create_topic("orders", kind="log")
    assert globex.list_topics() == []
    with pytest.raises(duly.TopicNotFound):
        globex.publish("orders", b"x")
    globex.create_topic("orders", kind="log", lease=1)
    globex.publish("orders", b"x")
    assert acme.describe_topic("orders").messages == 0


# Delete


def test_an_empty_topic_is_deleted(q: duly.Client) -> None:
    q.create_topic("orders", kind="log")
    q.create_group("orders", "billing")
    q.delete_topic("orders")
    assert q.list_topics() == []
    with pytest.raises(duly.TopicNotFound):
        q.describe_topic("orders")


def test_delete_refuses_a_topic_that_has_messages(q: duly.Client, orders: str) -> None:
    q.publish(orders, b"x")
    with pytest.raises(duly.TopicNotEmpty):
        q.delete_topic(orders)
    assert q.claim(orders, group="billing")[0].payload == b"x"


def test_delete_with_force_takes_the_messages_and_groups_along(q: duly.Client, orders: str) -> None:
    q.publish(orders, b"x")
    held = q.claim(orders, group="billing")
    q.delete_topic(orders, force=True)
    assert q.list_topics() == []
    with pytest.raises(duly.TopicNotFound):
        q.ack(held)


def test_a_topic_made_again_under_the_same_name_starts_empty(q: duly.Client, orders: str) -> None:
    q.publish(orders, [b"old"] * 5, publish_id="p1")
    old = q.claim(orders, group="billing")
    q.bury(old[:1])
    q.delete_topic(orders, force=True)
    q.create_topic(orders, kind="log")
    q.create_group(orders, "billing")
    assert q.describe_topic(orders).messages == 0
    assert len(q.claim(orders, group="billing")) == 0
    assert list(q.dead(orders, group="billing")) == []
    assert q.ack(old[1:]).done == 0
    assert not q.publish(orders, b"new", publish_id="p1").duplicate
    assert [d.payload for d in q.claim(orders, group="billing")] == [b"new"]


@pytest.mark.plain
def test_a_deleted_topics_space_returns_to_the_device_by_itself(q: duly.Client, home: Home) -> None:
    q.create_topic("big", kind="log")
    for _ in range(8):
        q.publish("big", [bytes(100_000)] * 10)
    full = home.bytes_on_device()
    q.delete_topic("big", force=True)
    assert full > 8_000_000
    eventually(lambda: home.bytes_on_device() < 2_000_000)


# Pause and resume


def test_a_paused_topic_delivers_nothing_but_takes_messages_and_acks(q: duly.Client, orders: str) -> None:
    q.publish(orders, b"before")
    held = q.claim(orders, group="billing")
    q.pause(orders)
    q.publish(orders, b"after")
    assert q.describe_topic(orders).paused
    assert len(q.claim(orders, group="billing")) == 0
    assert q.ack(held).done == 1


def test_resume_delivers_what_came_meanwhile(q: duly.Client, orders: str) -> None:
    q.pause(orders)
    q.publish(orders, b"after")
    q.resume(orders)
    assert not q.describe_topic(orders).paused
    assert [d.payload for d in q.claim(orders, group="billing")] == [b"after"]


def test_pausing_a_group_stops_that_group_alone(q: duly.Client, orders: str) -> None:
    q.create_group(orders, "audit")
    q.publish(orders, b"x")
    q.pause(orders, group="billing")
    assert q.describe_group(orders, "billing").paused
    assert len(q.claim(orders, group="billing")) == 0
    assert len(q.claim(orders, group="audit")) == 1
    q.resume(orders, group="billing")
    assert len(q.claim(orders, group="billing")) == 1


def test_a_pause_survives_the_client(q: duly.Client, orders: str, reopen: Callable[[], duly.Client]) -> None:
    q.publish(orders, b"x")
    q.pause(orders)
    q.close()
    other = reopen()
    assert len(other.claim(orders, group="billing")) == 0
    assert other.describe_topic(orders).paused


def test_a_paused_topic_can_be_read(q: duly.Client, orders: str) -> None:
    q.publish(orders, b"x")
    q.pause(orders)
    assert [m.payload for m in q.read(orders)] == [b"x"]


# Purge


def test_purge_drops_a_topics_messages_for_every_group(q: duly.Client, orders: str) -> None:
    q.create_group(orders, "audit")
    q.publish(orders, [b"a", b"b", b"c"])
    assert q.purge(orders) == 3
    assert q.describe_topic(orders).messages == 0
    for group in ("billing", "audit"):
        assert len(q.claim(orders, group=group)) == 0
        assert q.describe_group(orders, group).lag == 0


def test_purge_fences_off_open_leases_and_ends_retries(q: duly.Client, orders: str, clock: duly.ManualClock) -> None:
    q.publish(orders, [b"a", b"b"])
    held = q.claim(orders, group="billing")
    held[0].nack()
    q.purge(orders)
    with pytest.raises(duly.LeaseLost):
        held[1].ack()
    clock.advance(3600)
    assert len(q.claim(orders, group="billing")) == 0
    assert q.describe_group(orders, "billing").pending == 0


def test_offsets_go_on_after_a_purge(q: duly.Client, orders: str) -> None:
    q.publish(orders, [b"a", b"b"])
    q.purge(orders)
    assert q.publish(orders, b"c").positions == [(0, 2)]
    (delivery,) = q.claim(orders, group="billing")
    assert (delivery.offset, delivery.payload) == (2, b"c")
    with pytest.raises(duly.OffsetTruncated):
        q.read(orders, offset=0)


def test_purge_of_a_group_drops_what_that_group_has_not_settled(
    q: duly.Client, orders: str, clock: duly.ManualClock
) -> None:
    q.create_group(orders, "audit")
    q.publish(orders, [b"a", b"b", b"c", b"d"])
    held = q.claim(orders, group="billing", max_messages=2)
    held[0].nack(delay=60)
    assert q.purge(orders, group="billing") == 4
    clock.advance(3600)
    assert len(q.claim(orders, group="billing")) == 0
    assert held[1].settled is False
    assert q.ack([held[1]]).lost == (held[1],)
    assert len(q.claim(orders, group="audit")) == 4


def test_purge_keeps_dead_letters_until_it_is_told_to_drop_them(q: duly.Client, orders: str) -> None:
    q.publish(orders, b"poison")
    q.claim(orders, group="billing")[0].bury("bad")
    q.purge(orders)
    assert [letter.payload for letter in q.dead(orders, group="billing")] == [b"poison"]
    assert q.purge(orders, group="billing", dead=True) == 1
    assert list(q.dead(orders, group="billing")) == []


def test_purge_of_an_archived_topic_is_refused_before_it_is_archived(q: duly.Client) -> None:
    q.create_topic("orders", kind="log", archive=True)
    q.publish("orders", [b"a", b"b"])
    with pytest.raises(duly.Error):
        q.purge("orders")
    assert q.describe_topic("orders").messages == 2
    q.archived("orders", offset=2)
    assert q.purge("orders") == 2


# Queues


def test_a_queue_has_lanes_and_one_group_by_itself(q: duly.Client) -> None:
    made = q.create_topic("emails", kind="queue", dedupe=3600, lanes=duly.Lanes(weights={"acme": 3}))
    assert (made.kind, made.settings.dedupe, len(made.groups)) == ("queue", 3600.0, 1)
    assert made.settings.lanes == duly.Lanes(weights={"acme": 3})
    assert q.create_topic("plain", kind="queue").settings.lanes == duly.Lanes()


def test_what_a_queue_settles_is_kept_no_longer_by_default(q: duly.Client) -> None:
    assert q.create_topic("emails", kind="queue").settings.kept == duly.Retention(settled=True)
    kept = q.create_topic("kept", kind="queue", retention=duly.Retention(age=60)).settings.kept
    assert (kept.settled, kept.age) == (False, 60.0)


@pytest.mark.parametrize("setting", [{"lanes": duly.Lanes()}, {"dedupe": 60}], ids=["lanes", "dedupe"])
def test_lanes_and_dedupe_belong_to_queues_alone(q: duly.Client, setting: dict[str, object]) -> None:
    q.create_topic("emails", kind="queue", **setting)  # type: ignore[arg-type]
    with pytest.raises(duly.InvalidArgument, match="queues"):
        q.create_topic("orders", kind="log", **setting)  # type: ignore[arg-type]
    assert q.list_topics() == ["emails"]


def test_a_queues_lanes_and_dedupe_can_be_changed(q: duly.Client) -> None:
    q.create_topic("emails", kind="queue")
    q.publish("emails", b"before")
    after = q.update_topic("emails", lanes=duly.Lanes(weights={"acme": 2}), dedupe=60, lease=5)
    assert (after.settings.lanes, after.settings.dedupe) == (duly.Lanes(weights={"acme": 2}), 60.0)
    assert q.claim("emails").payloads == [b"before"]


def test_a_queues_groups_are_not_made_moved_or_removed(q: duly.Client) -> None:
    q.create_topic("emails", kind="queue")
    (only,) = q.list_groups("emails")
    for call in (
        lambda: q.create_group("emails", "other"),
        lambda: q.delete_group("emails", only),
        lambda: q.seek("emails", only, to="latest"),
    ):
        with pytest.raises(duly.InvalidArgument, match="queue"):
            call()
    assert q.list_groups("emails") == [only]


def test_a_paused_queue_takes_messages_and_delivers_them_when_resumed(q: duly.Client) -> None:
    q.create_topic("emails", kind="queue")
    q.publish("emails", b"before")
    held = q.claim("emails")
    q.pause("emails")
    q.publish("emails", b"meanwhile")
    assert q.claim("emails").payloads == []
    assert q.ack(held).done == 1
    q.resume("emails")
    assert q.claim("emails").payloads == [b"meanwhile"]


def test_purge_drops_a_queues_messages_wherever_they_are(q: duly.Client, clock: duly.ManualClock) -> None:
    q.create_topic("emails", kind="queue", lease=10, retry=duly.RetryPolicy(base=1, jitter="none"))
    q.publish("emails", [duly.Message(b"later", due=60, id="later"), b"a", b"b", b"c"])
    leased, failed = q.claim("emails", max_messages=1), q.claim("emails", max_messages=1)
    q.nack(failed)
    assert q.purge("emails") == 4
    assert (q.ack(leased).done, q.browse("emails"), q.describe_topic("emails").messages) == (0, [], 0)
    clock.advance(120)
    assert q.claim("emails").payloads == []
    q.publish("emails", [duly.Message(b"after", id="later")])
    assert q.claim("emails").payloads == [b"after"]


def test_a_queue_with_messages_is_deleted_by_force_alone(q: duly.Client) -> None:
    q.create_topic("emails", kind="queue")
    q.publish("emails", [duly.Message(b"old", id="one", due=60), b"ready"])
    with pytest.raises(duly.TopicNotEmpty):
        q.delete_topic("emails")
    q.delete_topic("emails", force=True)
    q.create_topic("emails", kind="queue")
    assert q.get("emails", "one") is None
    assert (q.browse("emails"), q.claim("emails").payloads) == ([], [])


def test_many_threads_may_create_one_topic_with_exist_ok(q: duly.Client) -> None:
    failures: list[Exception] = []

    def create() -> None:
        try:
            q.create_topic("orders", kind="log", exist_ok=True)
        except duly.Error as error:
            failures.append(error)

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert failures == []
    assert q.list_topics() == ["orders"]
