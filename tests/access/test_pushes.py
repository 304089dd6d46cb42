"""Who may do what with a push: it takes what having its messages claimed and sent takes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyarrow import flight

import duly
from duly.broker.authority import Shown
from duly.broker.entry import Entry
from duly.engine.pushes import DeletePush
from duly.grants import TOPIC_ACTIONS
from duly.wire.operations import encode

from .conftest import ALL, Place, options

Call = Callable[[duly.Client], object]
HOOK = duly.ToHttp("https://example.com/", headers={"Authorization": "Bearer sesame"})


@pytest.fixture
def stocked(place: Place) -> Place:
    for topic in ("jobs", "theirs", "later"):
        place.store.create_topic(topic, kind="queue")
    place.store.create_push("hook", topic="jobs", to=HOOK)
    place.store.create_push("hidden", topic="theirs", to=HOOK)
    return place


def on(topic: str, *actions: str) -> list[duly.Grant]:
    return [duly.Grant(action, topic) for action in actions]


def test_to_make_one_takes_configure_and_claim_and_to_publish_where_it_goes(stocked: Place) -> None:
    def make(grants: list[duly.Grant], to: duly.ToHttp | duly.ToTopic) -> None:
        token = stocked.key(f"p{len(stocked.store.list_principals())}", *grants)
        with stocked.connect(token) as q:
            q.create_push("onward", topic="later", to=to)

    for lacking in (on("later", "configure"), on("later", "claim", "publish"), []):
        with pytest.raises((duly.Denied, duly.TopicNotFound)):
            make(lacking, HOOK)
    both = on("later", "configure", "claim")
    with pytest.raises(duly.TopicNotFound):
        make(both, duly.ToTopic("jobs"))
    with pytest.raises(duly.Denied):
        make([*both, *on("jobs", "read")], duly.ToTopic("jobs"))
    assert [push.name for push in stocked.store.pushes()] == ["hidden", "hook"], "nothing was half done"
    make([*both, *on("jobs", "publish")], duly.ToTopic("jobs"))


CALLS: dict[str, tuple[Call, tuple[str, ...]]] = {
    "update": (lambda q: q.update_push("hook", request_timeout=3), ("configure", "claim")),
    "pause": (lambda q: q.pause_push("hook"), ("configure",)),
    "resume": (lambda q: q.resume_push("hook"), ("configure", "claim")),
    "rotate": (lambda q: q.rotate_push_secret("hook"), ("configure",)),
    "describe": (lambda q: q.describe_push("hook"), ("read",)),
    "delete": (lambda q: q.delete_push("hook"), ("configure",)),
}


@pytest.mark.parametrize("name", CALLS)
def test_each_takes_its_grants_on_the_topic_of_the_push(stocked: Place, name: str) -> None:
    call, actions = CALLS[name]
    elsewhere = stocked.key("elsewhere", *on("later", *TOPIC_ACTIONS))
    with stocked.connect(elsewhere) as q, pytest.raises(duly.PushNotFound) as unseen:
        call(q)
    with stocked.connect(stocked.key("unknown", *ALL)) as q, pytest.raises(duly.PushNotFound) as missing:
        q.describe_push("none")
    assert str(unseen.value).replace("hook", "none") == str(missing.value), "what one may not see is not there"
    if name != "describe":
        with stocked.connect(stocked.key("reader", *on("jobs", "read"))) as q, pytest.raises(duly.Denied):
            call(q)
    with stocked.connect(stocked.key("enough", *on("jobs", *actions))) as q:
        call(q)


def test_whoever_has_it_go_elsewhere_may_publish_there(stocked: Place) -> None:
    stocked.store.create_push("onward", topic="later", to=duly.ToTopic("jobs"))
    grants = on("later", "configure", "claim")
    with stocked.connect(stocked.key("few", *grants)) as q:
        with pytest.raises(duly.TopicNotFound):
            q.update_push("onward", topic="theirs")
        with pytest.raises(duly.TopicNotFound):
            q.update_push("onward", to=duly.ToTopic("theirs"))
        q.update_push("onward", due="now + 5s")
    with stocked.connect(stocked.key("more", *grants, *on("theirs", "publish"))) as q:
        assert q.update_push("onward", topic="theirs").to == duly.ToTopic("theirs", due="now + 5s")


def test_a_list_has_those_that_one_may_see(stocked: Place) -> None:
    with stocked.connect(stocked.key("some", *on("jobs", "browse"))) as q:
        assert [push.name for push in q.pushes()] == ["hook"]
        assert [push.name for push in q.pushes(limit=1)] == ["hook"], "those before it take no place"
    with stocked.connect(stocked.key("none")) as q, pytest.raises(duly.Denied):
        q.pushes()
    with stocked.connect(stocked.key("stranger", *ALL, tenant="other")) as q:
        assert q.pushes() == []
        with pytest.raises(duly.PushNotFound):
            q.describe_push("hook")


def test_what_is_denied_is_audited_with_its_topic(stocked: Place) -> None:
    with stocked.connect(stocked.key("reader", *on("jobs", "read"))) as q, pytest.raises(duly.Denied):
        q.delete_push("hook")
    stocked.broker.drain()
    stocked.broker._denials.close()
    (denied,) = [entry for entry in stocked.store.audit() if entry.outcome == "denied"]
    assert (denied.action, denied.topic, denied.principal) == ("configure", "jobs", "reader")


def test_a_command_cannot_say_which_topic_it_is_about(stocked: Place) -> None:
    """What it says is overwritten, or what is decided of one topic would hold for another's push."""
    token = stocked.key("own", *on("jobs", "configure"))
    body = encode(DeletePush("default", "hidden", of_topic="jobs"))
    with stocked.raw() as client, pytest.raises(flight.FlightError, match="no push"):
        list(client.do_action(flight.Action("delete_push", body), options(token)))
    assert len(stocked.store.pushes()) == 2
    entry = Entry(stocked.broker, Shown(token))
    for said in ("", "theirs"):
        assert entry.admit(DeletePush("default", "hook", of_topic=said)).of_topic == "jobs"
