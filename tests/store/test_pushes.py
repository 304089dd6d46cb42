"""Pushes: a group's messages go somewhere, as it is set; what is set, who may see what of it, and what ends it."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

import duly
from duly.engine.push_holding import (
    DisablePush,
    HoldPushes,
    LetGoPushes,
    disable_pushes,
    glance,
    hold_pushes,
    let_go_pushes,
)
from duly.engine.pushes import DeletePush, DescribePush, PausePush, PushPlace, ResumePush, runnable_push
from duly.push import secret_text

from .conftest import Home
from .patience import eventually

HOOK = duly.ToHttp("https://example.com/hook", headers={"Authorization": "Bearer sesame", "X-Shop": "7"}, timeout=3)


@pytest.fixture
def billing(q: duly.Client, orders: str) -> duly.NewPush:
    """A push of group `billing` of the log `orders`."""
    return q.create_push("hook", topic=orders, group="billing", to=HOOK)


def told(q: duly.Client, prefix: str = "push_") -> list[tuple[str, dict[str, object]]]:
    return [(event.kind, event.facts) for event in q.events() if event.kind.startswith(prefix)]


def write(q: duly.Client, verb: Any, command: Any) -> Any:
    store = q._port.store  # type: ignore[attr-defined]
    return store.write(verb, command, tenant="$pushes", cost=0, deadline=None)


def look(q: duly.Client, verb: Any, command: Any) -> Any:
    return q._port.look(verb, command)  # type: ignore[attr-defined]


def test_a_push_is_described_without_what_is_secret(q: duly.Client, billing: duly.NewPush) -> None:
    assert (billing.name, billing.topic, billing.group, billing.state) == ("hook", "orders", "billing", "active")
    assert len(base64.b64decode((billing.secret or "").removeprefix("whsec_"))) == 32
    q.publish("orders", [b"1", b"2", b"3"])
    q.claim("orders", group="billing", max_messages=1)
    known = q.describe_push("hook")
    hidden = duly.ToHttp("https://example.com/hook", headers={"Authorization": "…", "X-Shop": "…"}, timeout=3)
    assert known.to == known.to_http == hidden
    assert (known.lag, known.leased, known.holder, known.last, known.version) == (2, 1, None, None, 1)
    assert known.gate is not None
    assert q.pushes() == [duly.Push(**{name: getattr(known, name) for name in duly.Push.__slots__})]
    assert "sesame" not in repr([known, q.pushes(), list(q.audit()), list(q.events())])
    assert (billing.secret or "?") not in repr([known, q.pushes(), list(q.audit()), list(q.events())])


def test_a_queues_push_needs_no_group(q: duly.Client) -> None:
    q.create_topic("jobs", kind="queue")
    q.publish("jobs", [b"1", b"2"])
    assert q.create_push("mail", topic="jobs", to=HOOK).group == "queue"
    assert q.describe_push("mail").lag == 2


def test_pushes_are_listed_by_name_in_pages(q: duly.Client, orders: str) -> None:
    names = [f"push {n:02}" for n in range(7)]
    for name in reversed(names):
        q.create_group(orders, name)
        q.create_push(name, topic=orders, group=name, to=HOOK)
    assert [push.name for push in q.pushes()] == names
    assert [push.name for push in q.pushes(limit=3)] == names[:3]
    assert [push.name for push in q.pushes(after=names[4])] == names[5:]


def test_a_group_has_one_push_and_a_name_is_one_pushs(q: duly.Client, billing: duly.NewPush) -> None:
    with pytest.raises(duly.PushExists, match="Group 'billing' of topic 'orders' has a push, 'hook'"):
        q.create_push("other", topic="orders", group="billing", to=HOOK)
    q.create_group("orders", "shipping")
    with pytest.raises(duly.PushExists, match="Push 'hook' exists"):
        q.create_push("hook", topic="orders", group="shipping", to=HOOK)
    q.delete_push("hook")
    q.create_push("other", topic="orders", group="billing", to=HOOK)
    assert [push.name for push in q.pushes()] == ["other"]


def test_a_group_without_a_breaker_gets_one(q: duly.Client, billing: duly.NewPush) -> None:
    assert q.describe_group("orders", "billing").settings.breaker == duly.Breaker()
    q.create_group("orders", "own", breaker=duly.Breaker(calls=7))
    q.create_push("own", topic="orders", group="own", to=HOOK)
    assert q.describe_group("orders", "own").settings.breaker == duly.Breaker(calls=7)
    q.create_topic("jobs", kind="queue", breaker=duly.Breaker(calls=9))
    q.create_push("jobs", topic="jobs", to=HOOK)
    assert q.describe_group("jobs", "queue").settings.breaker is None, "the topic's holds"
    q.create_group("orders", "onward")
    q.create_push("onward", topic="orders", group="onward", to=duly.ToTopic("jobs"))
    assert q.describe_group("orders", "onward").settings.breaker is None, "a topic does not fail like an endpoint"


@pytest.mark.parametrize(
    ("wrong", "error", "match"),
    [
        ({"topic": "nowhere"}, duly.TopicNotFound, "nowhere"),
        ({"group": "nobody"}, duly.GroupNotFound, "nobody"),
        ({"group": None}, duly.InvalidArgument, "group="),
        ({"name": ""}, duly.InvalidArgument, "push name"),
        ({"name": "a\nb"}, duly.InvalidArgument, "push name"),
        ({"name": "x" * 257}, duly.InvalidArgument, "push name"),
        ({"name": 7}, duly.InvalidArgument, "push name"),
        ({"to": "https://example.com/"}, duly.InvalidArgument, "duly.ToHttp"),
        ({"to": duly.ToTopic("orders")}, duly.InvalidArgument, "cannot go to"),
        ({"to": duly.ToTopic("nowhere")}, duly.TopicNotFound, "nowhere"),
        ({"to": duly.ToTopic("later"), "secret": secret_text(bytes(32))}, duly.InvalidArgument, "Nothing is signed"),
        ({"to": duly.ToTopic("archive", lane="key")}, duly.InvalidArgument, "is a log"),
        ({"secret": "sesame"}, duly.InvalidArgument, "whsec_"),
        ({"secret": "whsec_!!"}, duly.InvalidArgument, "no base64"),
        ({"secret": secret_text(bytes(8))}, duly.LimitExceeded, "24 to 64"),
        ({"paused": "yes"}, duly.InvalidArgument, "paused"),
        ({"to": duly.ToHttp("https://a.b/", headers={"X": "…"})}, duly.InvalidArgument, "A new push has none"),
    ],
)
def test_what_is_wrong_is_refused_and_nothing_is_done(
    q: duly.Client, orders: str, wrong: dict[str, Any], error: type[Exception], match: str
) -> None:
    q.create_topic("later", kind="queue")
    q.create_topic("archive", kind="log")
    given: dict[str, Any] = {"name": "hook", "topic": orders, "group": "billing", "to": HOOK} | wrong
    with pytest.raises(error, match=match):
        q.create_push(given.pop("name"), **given)
    assert q.pushes() == []
    assert q.describe_group(orders, "billing").settings.breaker is None


def test_a_push_that_is_not_there(q: duly.Client) -> None:
    calls: list[Callable[[], object]] = [
        lambda: q.describe_push("hook"),
        lambda: q.update_push("hook", request_timeout=3),
        lambda: q.pause_push("hook"),
        lambda: q.resume_push("hook"),
        lambda: q.rotate_push_secret("hook"),
        lambda: q.delete_push("hook"),
    ]
    for call in calls:
        with pytest.raises(duly.PushNotFound, match="no push 'hook'"):
            call()


def test_it_is_changed_in_part_and_as_a_whole(q: duly.Client, billing: duly.NewPush) -> None:
    after = q.update_push("hook", url="https://example.com/other", concurrency=3)
    assert after.to_http is not None
    assert (after.to_http.url, after.to_http.concurrency, after.to_http.timeout) == ("https://example.com/other", 3, 3)
    assert after.version == 2
    with pytest.raises(duly.StaleVersion, match="version 2, not 1"):
        q.update_push("hook", version=1, request_timeout=9)
    assert q.update_push("hook", version=2, to=duly.ToHttp("https://example.com/third")).to == duly.ToHttp(
        "https://example.com/third"
    )
    wrongs: list[Callable[[], object]] = [
        lambda: q.update_push("hook", colour="red"),
        lambda: q.update_push("hook", due="now + 5s"),
        lambda: q.update_push("hook", to=duly.ToTopic("orders")),
        lambda: q.update_push("hook", to=HOOK, request_timeout=3),
        lambda: q.update_push("hook", request_timeout=0),
        lambda: q.update_push("hook", url="nowhere"),
        lambda: q.update_push("hook", headers={"X-New": "…"}),
    ]
    for wrong in wrongs:
        with pytest.raises(duly.InvalidArgument):
            wrong()
    assert q.describe_push("hook").version == 3


@pytest.mark.embedded
def test_a_header_that_is_shown_as_hidden_stays_as_it_is(q: duly.Client, billing: duly.NewPush) -> None:
    shown = q.describe_push("hook").to_http
    assert shown is not None
    headers = {**shown.headers, "X-Shop": "8", "X-New": "9"}
    q.update_push("hook", headers={name.lower(): value for name, value in headers.items()})
    found = look(q, runnable_push, PushPlace("default", "hook"))
    assert found.push.to.headers == {"authorization": "Bearer sesame", "x-shop": "8", "x-new": "9"}


@pytest.mark.embedded
def test_both_secrets_sign_until_the_overlap_ends(q: duly.Client, orders: str, clock: duly.ManualClock) -> None:
    first = secret_text(bytes(range(32)))
    assert q.create_push("hook", topic=orders, group="billing", to=HOOK, secret=first).secret == first
    second = q.rotate_push_secret("hook", overlap=3600)
    assert second.secret != first
    assert second.older_secrets_until_ms == clock.now_ms() + 3_600_000

    def signing() -> list[str]:
        return [secret_text(key) for key in look(q, runnable_push, PushPlace("default", "hook")).push.secrets]

    assert signing() == [second.secret, first]
    third = q.rotate_push_secret("hook", overlap=60, secret=secret_text(bytes(24)))
    assert signing() == [third.secret, second.secret, first]
    clock.advance(60)
    assert signing() == [third.secret, first], "each until its own end"
    clock.advance(3540)
    assert signing() == [third.secret]
    assert q.describe_push("hook").older_secrets_until_ms is None
    fourth = q.rotate_push_secret("hook", overlap=0)
    assert signing() == [fourth.secret]
    for _ in range(4):
        q.rotate_push_secret("hook")
    with pytest.raises(duly.LimitExceeded, match="overlap=0"):
        q.rotate_push_secret("hook")
    assert len(signing()) == 5
    q.rotate_push_secret("hook", overlap=0)
    assert len(signing()) == 1


def test_a_push_to_a_topic_has_no_secret(q: duly.Client, orders: str) -> None:
    q.create_topic("later", kind="queue")
    made = q.create_push("onward", topic=orders, group="billing", to=duly.ToTopic("later", lane="key"))
    assert made.secret is None
    assert made.to == duly.ToTopic("later", lane="key")
    with pytest.raises(duly.InvalidArgument, match="nothing is signed"):
        q.rotate_push_secret("onward")
    q.create_topic("sooner", kind="queue")
    assert q.update_push("onward", topic="sooner").to == duly.ToTopic("sooner", lane="key")
    with pytest.raises(duly.InvalidArgument, match="cannot go to"):
        q.update_push("onward", topic="orders")


def test_it_is_paused_and_resumed(q: duly.Client, billing: duly.NewPush) -> None:
    assert q.pause_push("hook").state == "paused"
    version = q.pause_push("hook").version
    assert version == 2, "twice changes nothing"
    assert q.resume_push("hook").state == "active"
    assert q.resume_push("hook").version == 3
    kinds = [kind for kind, _ in told(q)]
    assert kinds == ["push_created", "push_paused", "push_resumed"]
    actions = [entry.action for entry in q.audit() if "push" in entry.action]
    assert actions == ["create_push", "pause_push", "resume_push"]


@pytest.mark.embedded
def test_a_runner_disables_it_and_a_person_hears_of_it(
    q: duly.Client, billing: duly.NewPush, events: list[duly.Event]
) -> None:
    write(q, disable_pushes, DisablePush("default", "hook", 1, "the endpoint answered 410"))
    known = q.describe_push("hook")
    assert (known.state, known.reason, known.version) == ("disabled", "the endpoint answered 410", 2)
    eventually(lambda: [event.kind for event in events] == ["push_disabled"])
    (alert,) = events
    assert alert.alert
    assert (alert.topic, alert.group, alert.facts["push"]) == ("orders", "billing", "hook")
    with pytest.raises(duly.Conflict, match="the endpoint answered 410"):
        q.pause_push("hook")
    assert look(q, runnable_push, PushPlace("default", "hook")) is None
    after = q.resume_push("hook")
    assert (after.state, after.reason) == ("active", "")


def test_what_goes_to_a_topic_that_is_deleted_is_disabled(q: duly.Client, orders: str) -> None:
    q.create_topic("later", kind="queue")
    q.create_push("onward", topic=orders, group="billing", to=duly.ToTopic("later"))
    q.delete_topic("later")
    known = q.describe_push("onward")
    assert (known.state, known.reason) == ("disabled", "the topic that it goes to was deleted")
    with pytest.raises(duly.TopicNotFound):
        q.resume_push("onward")
    q.create_topic("later", kind="log")
    assert q.resume_push("onward").state == "active"
    q.delete_topic("later")
    assert q.describe_push("onward").state == "disabled", "it is known by which topic it goes to now"


def test_a_push_ends_with_its_group_and_with_its_topic(home: Home, q: duly.Client, billing: duly.NewPush) -> None:
    q.create_group("orders", "shipping")
    q.create_push("other", topic="orders", group="shipping", to=HOOK)
    q.delete_group("orders", "billing")
    assert [push.name for push in q.pushes()] == ["other"]
    q.delete_topic("orders")
    assert q.pushes() == []
    assert home.rows("duly_push") == 0
    ended = [(facts["push"], facts["reason"]) for kind, facts in told(q) if kind == "push_deleted"]
    assert ended == [("hook", "its group was deleted"), ("other", "its topic was deleted")]


def test_a_tenant_has_its_own(home: Home, billing: duly.NewPush) -> None:
    other = home.connect(tenant="other")
    other.create_topic("jobs", kind="queue")
    with pytest.raises(duly.PushNotFound):
        other.describe_push("hook")
    assert other.pushes() == []
    other.create_push("hook", topic="jobs", to=HOOK)
    with pytest.raises(duly.TopicNotFound):
        other.create_push("onward", topic="jobs", to=duly.ToTopic("orders"))


def test_a_tenant_that_is_suspended_changes_none(home: Home, q: duly.Client, billing: duly.NewPush) -> None:
    q.suspend_tenant("default")
    with pytest.raises(duly.TenantSuspended):
        q.update_push("hook", request_timeout=9)
    with pytest.raises(duly.TenantSuspended):
        q.resume_push("hook")
    assert q.describe_push("hook").state == "active"
    q.resume_tenant("default")
    assert q.update_push("hook", request_timeout=9).version == 2


@pytest.mark.embedded
def test_a_deleted_tenant_leaves_none(home: Home, q: duly.Client, billing: duly.NewPush) -> None:
    q.delete_tenant("default", force=True)
    eventually(lambda: home.rows("duly_push") == 0)


@pytest.mark.embedded
def test_what_was_decided_of_a_push_holds_for_that_of_its_topic_alone(q: duly.Client, billing: duly.NewPush) -> None:
    """Between the decision and the call another may have been made under its name."""
    q.create_topic("jobs", kind="queue")
    for command in (DeletePush, PausePush, ResumePush, DescribePush):
        with pytest.raises(duly.PushNotFound):
            q._port.do(command("default", "hook", of_topic="jobs"), deadline=None)
    q._port.do(DeletePush("default", "hook", of_topic="orders"), deadline=None)
    assert q.pushes() == []


# Who runs which


@pytest.mark.embedded
def test_rows_say_who_runs_what_and_who_is_gone_holds_nothing(
    home: Home, q: duly.Client, orders: str, clock: duly.ManualClock
) -> None:
    for n in range(4):
        q.create_group(orders, f"g{n}")
        q.create_push(f"p{n}", topic=orders, group=f"g{n}", to=HOOK)
    store = q._port.store  # type: ignore[attr-defined]

    def beat(*names: str) -> None:
        for name in names:
            store.member_put(duly.Member(name, "", "", "0.9.0", 0))

    def held() -> dict[str | None, int]:
        holders = [push.holder for push in q.pushes()]
        return {name: holders.count(name) for name in set(holders)}

    def take(name: str) -> int:
        taken: int = write(q, hold_pushes, HoldPushes("", name))
        return taken

    assert take("a") == 0, "who is no member takes nothing"
    beat("a")
    assert take("a") == 4
    assert held() == {"a": 4}
    beat("b")
    assert take("b") == 0, "what somebody runs is not taken from him"
    write(q, let_go_pushes, LetGoPushes("", "a", (("default", "p0"), ("default", "p1"))))
    assert take("a") == 0, "half of them is its share"
    assert take("b") == 2
    assert held() == {"a": 2, "b": 2}
    clock.advance(5)
    beat("b")
    clock.advance(2.5)
    assert held() == {None: 2, "b": 2}, "a was not seen for seven seconds"
    assert take("b") == 2
    write(q, let_go_pushes, LetGoPushes("", "a", None))
    assert held() == {"b": 4}, "who comes back lets nothing go that is another's by now"
    q.pause_push("p0")
    assert held() == {"b": 3, None: 1}


@pytest.mark.embedded
def test_a_glance_differs_after_any_change_and_only_then(q: duly.Client, orders: str) -> None:
    seen = {look(q, glance, None).pulse}
    assert seen == {(0, 0)}

    def changed() -> bool:
        pulse = look(q, glance, None).pulse
        is_new = pulse not in seen
        seen.add(pulse)
        return is_new

    def anew() -> None:
        q.delete_push("hook")
        q.create_push("hook", topic=orders, group="billing", to=HOOK)

    steps: list[Callable[[], object]] = [
        lambda: q.create_push("hook", topic=orders, group="billing", to=HOOK),
        lambda: q.update_push("hook", request_timeout=9),
        lambda: q.rotate_push_secret("hook"),
        lambda: q.pause_push("hook"),
        lambda: q.resume_push("hook"),
        anew,
    ]
    for number, step in enumerate(steps):
        step()
        assert changed(), number
        q.publish(orders, b"x")
        q.describe_push("hook")
        assert not changed(), number
