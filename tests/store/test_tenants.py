"""Tenants: what is one's is nobody else's; suspended, resumed and deleted; quotas of topics and of bytes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest

import duly
from duly.message import StoredMessage

from .conftest import Home

PATIENCE_S = 20


def eventually(holds: Callable[[], bool]) -> None:
    """Waits for what a chore, or a look at what is stored, brings about."""
    until = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until, "it did not come about"
        time.sleep(0.05)


@pytest.mark.plain  # to encrypt `default` is to make it
def test_a_tenant_is_made_described_listed_and_changed(q: duly.Client) -> None:
    made = q.create_tenant("acme", topics=5, publish_per_s=100)
    assert (made.name, made.state, made.version, made.topics) == ("acme", "active", 1, 0)
    assert made.settings == duly.TenantSettings(topics=5, publish_per_s=100)
    assert q.create_tenant("acme", topics=5, publish_per_s=100, exist_ok=True) == made
    changed = q.update_tenant("acme", publish_per_s=None, stored_bytes=10**6, version=1)
    assert changed.settings == duly.TenantSettings(topics=5, stored_bytes=10**6)
    assert q.describe_tenant("acme") == changed
    q.create_tenant("globex")
    assert q.list_tenants() == ["acme", "globex"]
    assert q.list_tenants(after="acme", limit=1) == ["globex"]


def test_a_tenants_weight_is_kept_and_is_one_where_none_was_given(q: duly.Client) -> None:
    assert q.create_tenant("acme").settings.weight == 1
    assert q.update_tenant("acme", weight=2.5).settings == duly.TenantSettings(weight=2.5)
    assert q.update_tenant("acme", topics=5).settings == duly.TenantSettings(weight=2.5, topics=5)
    assert q.describe_tenant("acme").settings.weight == 2.5
    for beyond in (0, -1, 1000.5, float("nan")):
        with pytest.raises(duly.LimitExceeded, match="weight"):
            q.update_tenant("acme", weight=beyond)
    for wrong in (None, True, "2"):
        with pytest.raises(duly.InvalidArgument):
            q.update_tenant("acme", weight=wrong)


def test_what_cannot_be_is_refused(q: duly.Client) -> None:
    q.create_tenant("acme")
    with pytest.raises(duly.TenantExists):
        q.create_tenant("acme")
    with pytest.raises(duly.TenantExists, match="other settings"):
        q.create_tenant("acme", topics=1, exist_ok=True)
    with pytest.raises(duly.StaleVersion):
        q.update_tenant("acme", topics=1, version=7)
    for settings in ({"topics": 0}, {"topics": -1}, {"stored_bytes": 2**60}):
        with pytest.raises(duly.LimitExceeded):
            q.update_tenant("acme", **settings)
    wrong: list[dict[str, Any]] = [{"topics": 1.5}, {"topics": True}, {"colour": "red"}]
    for given in wrong:
        with pytest.raises(duly.InvalidArgument):
            q.create_tenant("globex", **given)
    for name in ("", "$chores", "a\nb"):
        with pytest.raises(duly.InvalidArgument):
            q.create_tenant(name)
    verbs: list[Callable[[str], object]] = [
        q.describe_tenant,
        q.update_tenant,
        q.suspend_tenant,
        q.resume_tenant,
        q.delete_tenant,
    ]
    for verb in verbs:
        with pytest.raises(duly.TenantNotFound):
            verb("nobody")


def test_a_tenants_first_topic_makes_it_where_nobody_has_a_key(home: Home) -> None:
    home.connect(tenant="acme").create_topic("orders", kind="log")
    described = home.connect().describe_tenant("acme")
    assert (described.state, described.topics) == ("active", 1)


def test_everything_is_named_within_its_tenant(home: Home) -> None:
    ours, theirs = home.connect(tenant="ours"), home.connect(tenant="theirs")
    for client in (ours, theirs):
        client.create_topic("orders", kind="log")
        client.create_group("orders", "billing")
    ours.publish("orders", b"ours")
    assert theirs.claim("orders", group="billing").payloads == []
    assert [message.payload for message in ours.read("orders")] == [b"ours"]
    theirs.delete_topic("orders")
    assert ours.list_topics() == ["orders"]
    with pytest.raises(duly.TopicNotFound):
        theirs.read("orders")


CALLS: dict[str, Callable[[duly.Client], object]] = {
    "publish": lambda q: q.publish("jobs", b"x"),
    "claim": lambda q: q.claim("jobs"),
    "held": lambda q: q.held(),
    "get": lambda q: q.get("jobs", "a"),
    "browse": lambda q: q.browse("jobs"),
    "coming": lambda q: q.coming("jobs"),
    "move": lambda q: q.move("jobs", "a", due=60),
    "cancel": lambda q: q.cancel("jobs", "a"),
    "dead": lambda q: list(q.dead("jobs")),
    "redrive": lambda q: q.redrive("jobs"),
    "purge": lambda q: q.purge("jobs"),
    "stage": lambda q: q.stage("jobs", [b"x"], stage="s", number=0),
    "read": lambda q: q.read("orders"),
    "offset_at": lambda q: q.offset_at("orders", 0),  # type: ignore[arg-type]
    "seek": lambda q: q.seek("orders", "billing", to="latest"),
    "create_topic": lambda q: q.create_topic("more", kind="log"),
    "update_topic": lambda q: q.update_topic("jobs", lease=5),
    "delete_topic": lambda q: q.delete_topic("jobs", force=True),
    "create_group": lambda q: q.create_group("orders", "more"),
    "events": lambda q: list(q.events()),
}
del CALLS["offset_at"]


@pytest.fixture
def acme(home: Home) -> duly.Client:
    client = home.connect(tenant="acme", consumer="w1")
    client.create_topic("jobs", kind="queue", lease=30)
    client.create_topic("orders", kind="log")
    client.create_group("orders", "billing")
    client.publish("jobs", [duly.Message(b"1", id="a"), duly.Message(b"2", id="b"), duly.Message(b"3", id="c")])
    return client


def test_a_suspended_tenant_is_refused_everything_but_to_settle(home: Home, acme: duly.Client) -> None:
    operator = home.connect()
    batch = acme.claim("jobs", max_messages=2)
    assert operator.suspend_tenant("acme").state == "suspended"
    for name, call in CALLS.items():
        with pytest.raises(duly.TenantSuspended):
            call(acme)
        assert name
    assert acme.extend([batch[0]], 60).done == 1
    assert acme.ack([batch[0]]).done == 1
    assert acme.nack([batch[1]]).done == 1
    assert acme.describe_topic("jobs").messages == 2
    assert acme.list_topics() == ["jobs", "orders"]
    # Nobody else notices.
    operator.create_topic("jobs", kind="queue")
    operator.publish("jobs", b"mine")
    assert operator.resume_tenant("acme").state == "active"
    home.clock.advance(3600)
    assert sorted(acme.claim("jobs", max_messages=10).payloads) == [b"2", b"3"]


def test_a_claim_that_waits_ends_when_its_tenant_is_suspended(home: Home, acme: duly.Client) -> None:
    from concurrent.futures import ThreadPoolExecutor

    acme.ack(acme.claim("jobs", max_messages=10))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: acme.claim("jobs", wait=20))
        time.sleep(0.3)
        began = time.monotonic()
        home.connect().suspend_tenant("acme")
        with pytest.raises(duly.TenantSuspended):
            waiting.result(15)
        assert time.monotonic() - began < 8


@pytest.mark.embedded
def test_what_joined_an_applications_transaction_is_refused_too(home: Home, acme: duly.Client) -> None:
    if "postgresql" in home.address:
        import psycopg

        from tests import postgres_schemas

        home.connect().suspend_tenant("acme")
        with psycopg.connect(postgres_schemas.database()) as connection:
            with pytest.raises(duly.TenantSuspended):
                acme.publish("jobs", b"x", tx=connection)
            with pytest.raises(duly.TenantSuspended):
                acme.cancel("jobs", "a", tx=connection)
        return
    home.connect().suspend_tenant("acme")
    with acme.transaction() as tx, pytest.raises(duly.TenantSuspended):
        acme.publish("jobs", b"x", tx=tx)


def test_a_tenant_with_topics_is_deleted_only_by_force(home: Home, acme: duly.Client) -> None:
    operator = home.connect()
    with pytest.raises(duly.TenantNotEmpty, match="2 topics"):
        operator.delete_tenant("acme")
    assert len(acme.claim("jobs", max_messages=1)) == 1
    operator.create_tenant("empty")
    operator.delete_tenant("empty")
    eventually(lambda: "empty" not in operator.list_tenants())


def test_a_deleted_tenant_is_gone_at_once_and_erased_soon_after(home: Home, acme: duly.Client) -> None:
    operator = home.connect()
    acme.publish("orders", [bytes(2000)] * 50)
    batch = acme.claim("jobs")
    operator.delete_tenant("acme", force=True)
    with pytest.raises(duly.TopicNotFound):
        acme.publish("jobs", b"x")
    with pytest.raises(duly.TopicNotFound):
        acme.claim("jobs")
    # The chores go by the clock.
    eventually(lambda: _advanced(home) and "acme" not in operator.list_tenants())
    assert batch
    for table in ("duly_block", "duly_topic", "duly_part", "duly_grp", "duly_tenant", "duly_lease", "duly_event"):
        others = f"SELECT count(*) FROM {table}"
        if table == "duly_tenant":
            others += " WHERE name = 'acme'"
        assert home.ask(others) == [(0,)], table
    acme.create_topic("jobs", kind="queue")
    assert acme.claim("jobs").payloads == []


def test_topics_of_a_deleted_tenant_are_in_no_list_while_they_are_there(home: Home, acme: duly.Client) -> None:
    operator = home.connect()
    # Chores rest.
    operator.pause_store()
    operator.delete_tenant("acme", force=True)
    assert acme.list_topics() == []
    assert list(acme.health()) == []
    assert operator.describe_tenant("acme").state == "deleting"


def _advanced(home: Home) -> bool:
    home.clock.advance(1.5)
    return True


def test_a_tenant_that_is_being_deleted_can_not_be_made_again_meanwhile(home: Home, acme: duly.Client) -> None:
    operator = home.connect()
    operator.pause_store()
    operator.delete_tenant("acme", force=True)
    assert operator.describe_tenant("acme").state == "deleting"
    with pytest.raises(duly.TenantExists, match="being deleted"):
        operator.create_tenant("acme")
    with pytest.raises(duly.TenantNotFound, match="being deleted"):
        acme.create_topic("more", kind="log")
    with pytest.raises(duly.TenantNotFound, match="being deleted"):
        operator.resume_tenant("acme")


def limit(operator: duly.Client, **settings: Any) -> None:
    """Sets quotas of `acme`, which may have been made by whoever connected to it."""
    try:
        operator.create_tenant("acme", **settings)
    except duly.TenantExists:
        operator.update_tenant("acme", **settings)


def noise(size: int) -> bytes:
    """A payload that takes its size wherever it is stored."""
    return os.urandom(size)


def test_topics_are_a_quota(home: Home) -> None:
    operator, acme = home.connect(), home.connect(tenant="acme")
    limit(operator, topics=2)
    acme.create_topic("one", kind="log")
    acme.create_topic("two", kind="queue")
    with pytest.raises(duly.QuotaExceeded, match="2"):
        acme.create_topic("three", kind="log")
    acme.create_topic("two", kind="queue", exist_ok=True)
    acme.delete_topic("one")
    acme.create_topic("three", kind="log")
    operator.update_tenant("acme", topics=None)
    acme.create_topic("four", kind="log")


def test_bytes_stored_are_a_quota(home: Home) -> None:
    operator, acme = home.connect(), home.connect(tenant="acme")
    limit(operator, stored_bytes=100_000)
    acme.create_topic("orders", kind="log")
    acme.create_group("orders", "billing")
    acme.publish("orders", noise(60_000))
    with pytest.raises(duly.QuotaExceeded) as caught:
        acme.publish("orders", [noise(30_000), noise(30_000)])
    assert caught.value.retry_after_ms
    # A small one still fits, and so does nothing more.
    acme.publish("orders", noise(30_000))
    with pytest.raises(duly.QuotaExceeded):
        acme.publish("orders", noise(30_000))
    # Nobody else is held up, and what is stored can be read and claimed.
    operator.create_topic("orders", kind="log")
    operator.publish("orders", noise(200_000))
    assert len(acme.claim("orders", group="billing", max_messages=10)) == 2
    assert operator.describe_tenant("acme").stored_bytes >= 90_000


def test_what_is_staged_counts_and_is_not_counted_twice_when_it_is_published(home: Home) -> None:
    operator, acme = home.connect(), home.connect(tenant="acme")
    limit(operator, stored_bytes=100_000)
    acme.create_topic("orders", kind="log")
    acme.stage("orders", noise(60_000), stage="one", number=0)
    assert operator.describe_tenant("acme").stored_bytes >= 60_000
    for stage, number in (("one", 1), ("two", 0)):
        with pytest.raises(duly.QuotaExceeded):
            acme.stage("orders", noise(60_000), stage=stage, number=number)
    acme.commit_stages("orders", {"one": 1}, job="import")
    assert 60_000 <= operator.describe_tenant("acme").stored_bytes < 70_000
    acme.publish("orders", noise(30_000))
    with pytest.raises(duly.QuotaExceeded):
        acme.publish("orders", noise(30_000))


def test_what_is_kept_after_its_block_is_gone_counts(home: Home) -> None:
    operator, acme = home.connect(), home.connect(tenant="acme")
    limit(operator, stored_bytes=100_000)
    acme.create_topic("orders", kind="log")
    acme.create_group("orders", "billing")
    acme.publish("orders", [noise(30_000), noise(30_000)])
    for delivery in acme.claim("orders", group="billing", max_messages=10):
        delivery.bury()
    acme.purge("orders")
    # The blocks go by and by; the dead letters stay.
    eventually(lambda: 60_000 <= operator.describe_tenant("acme").stored_bytes < 70_000)
    with pytest.raises(duly.QuotaExceeded):
        acme.publish("orders", noise(60_000))


def test_copies_that_are_replayed_count(home: Home) -> None:
    operator, acme = home.connect(), home.connect(tenant="acme")
    limit(operator, stored_bytes=100_000)
    acme.create_topic("orders", kind="log")
    acme.create_group("orders", "billing")
    acme.publish("orders", [b"x"] * 3)
    acme.ack(acme.claim("orders", group="billing", max_messages=10))
    copies = [
        StoredMessage(0, message.offset, message.id, noise(40_000), None, {}, message.published_at_ms, None)
        for message in acme.read("orders", offset=0)
    ]
    acme.purge("orders")
    known = acme.describe_topic("orders")
    of = (known.incarnation, known.partitions[0].id)
    with pytest.raises(duly.QuotaExceeded):
        acme.replay("orders", copies, group="billing", of=of, job="again")
    assert acme.replay("orders", copies[:2], group="billing", of=of, job="again").messages == 2
    with pytest.raises(duly.QuotaExceeded):
        acme.publish("orders", noise(60_000))


def test_one_batch_that_is_refused_leaves_others_of_the_same_commit_alone(home: Home) -> None:
    operator, acme = home.connect(), home.connect(tenant="acme")
    limit(operator, stored_bytes=50_000)
    acme.create_topic("orders", kind="log")
    from concurrent.futures import ThreadPoolExecutor

    def publish(_: int) -> bool:
        try:
            acme.publish("orders", noise(9_000))
        except duly.QuotaExceeded:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        stored = sum(pool.map(publish, range(16)))
    assert stored == 5
    assert acme.describe_topic("orders").messages == 5


def test_what_is_purged_makes_room_again(home: Home) -> None:
    operator, acme = home.connect(), home.connect(tenant="acme")
    limit(operator, stored_bytes=100_000)
    acme.create_topic("orders", kind="log")
    acme.publish("orders", noise(90_000))
    acme.purge("orders")

    def takes() -> bool:
        home.clock.advance(1.5)
        try:
            acme.publish("orders", noise(60_000))
        except duly.QuotaExceeded:
            return False
        return True

    eventually(takes)


def test_raising_a_quota_counts_at_once(home: Home) -> None:
    operator, acme = home.connect(), home.connect(tenant="acme")
    limit(operator, stored_bytes=10_000)
    acme.create_topic("orders", kind="log")
    with pytest.raises(duly.QuotaExceeded):
        acme.publish("orders", noise(20_000))
    operator.update_tenant("acme", stored_bytes=30_000)
    acme.publish("orders", noise(20_000))
    operator.update_tenant("acme", stored_bytes=None)
    acme.publish("orders", noise(50_000))


def test_settings_of_a_tenant_outlast_the_client(home: Home, reopen: Callable[[], duly.Client]) -> None:
    home.connect().create_tenant("acme", topics=3, encrypt=False)
    assert reopen().describe_tenant("acme").settings == duly.TenantSettings(topics=3)
