"""Bad input of every kind to what queues alone offer: due times, priorities, lanes, ids, filters."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import duly

from .test_bad_input import HUGE, LIMITS, NOT_NAMES, Call, Refused, Stage, all_refused, stage

__all__ = ["stage"]


ON_A_LOG_ALONE: dict[str, Call] = {
    "create_group": lambda q, v: q.create_group(v, "g"),
    "delete_group": lambda q, v: q.delete_group(v, "g"),
    "seek": lambda q, v: q.seek(v, "g", to="latest"),
    "read": lambda q, v: q.read(v),
    "partition": lambda q, v: q.publish(v, duly.Message(b"", partition=0)),
}
ON_A_QUEUE_ALONE: dict[str, Call] = {
    "move": lambda q, v: q.move(v, "m5", due=5),
    "cancel": lambda q, v: q.cancel(v, "m5"),
    "get": lambda q, v: q.get(v, "m5"),
    "browse": lambda q, v: q.browse(v),
    "coming": lambda q, v: q.coming(v),
    "due": lambda q, v: q.publish(v, duly.Message(b"", due=5)),
    "due_now": lambda q, v: q.publish(v, duly.Message(b"", due=0)),
    "priority": lambda q, v: q.publish(v, duly.Message(b"", priority=0)),
    "lane": lambda q, v: q.publish(v, duly.Message(b"", lane="a")),
}


@pytest.mark.parametrize("name", ON_A_LOG_ALONE)
def test_what_belongs_to_a_log_is_refused_of_a_queue(stage: Stage, name: str) -> None:
    all_refused(stage, ON_A_LOG_ALONE[name], ["line"], Refused, "queue")


@pytest.mark.parametrize("name", ON_A_QUEUE_ALONE)
def test_what_belongs_to_a_queue_is_refused_of_a_log(stage: Stage, name: str) -> None:
    all_refused(stage, ON_A_QUEUE_ALONE[name], ["log"], Refused, "log")


def test_a_queue_is_claimed_without_a_group_and_a_log_with_one(stage: Stage) -> None:
    calls: list[Call] = [
        lambda q, v: q.claim("line", group=v),
        lambda q, v: q.update_group("line", v, lease=3),
        lambda q, v: list(q.dead("line", group=v)),
        lambda q, v: q.redrive("line", group=v),
        lambda q, v: q.purge("line", group=v, dead=True),
        lambda q, v: q.held(topic="line", group=v),
        lambda q, v: q.release(consumer="w1", topic="line", group=v),
    ]
    for call in calls:
        all_refused(stage, call, NOT_NAMES, Refused, "name")
        all_refused(stage, call, ["g", "billing"], duly.GroupNotFound, "queue")
    all_refused(stage, lambda q, v: q.claim("log", group=v), [None], Refused, "group")


@pytest.mark.parametrize("verb", ["move", "cancel", "get"])
def test_a_bad_message_id(stage: Stage, verb: str) -> None:
    def call(q: duly.Client, value: Any) -> object:
        return q.move("line", value, due=5) if verb == "move" else getattr(q, verb)("line", value)

    bad: list[Any] = [None, 5, 1.5, True, b"m5", object(), "", "\ud800", [5], [None], [b"m5"], ["m5", ""], [["m5"]]]
    if verb == "get":
        bad += [["m5", "m6"], [], {}]
    all_refused(stage, call, bad, Refused, "id")


def test_ids_that_no_message_has_are_not_found(stage: Stage) -> None:
    q = stage.q
    before = stage.state()
    strangers = ["nope", "M5", "m5 ", "x" * 2000, "@", "@1", "@1-", "@1-999999", "@99-0", f"@1-{HUGE}"]
    assert q.move("line", strangers, due=5) == dict.fromkeys(strangers, "not_found")
    assert q.cancel("line", strangers) == dict.fromkeys(strangers, "not_found")
    assert [q.get("line", stranger) for stranger in strangers] == [None] * len(strangers)
    assert q.move("line", [], due=5) == q.cancel("line", []) == {}
    assert stage.state() == before


def test_too_many_ids_at_once(stage: Stage) -> None:
    ids = [f"m{n}" for n in range(LIMITS.batch_messages_max + 1)]
    for call in (lambda q, v: q.move("line", v, due=5), lambda q, v: q.cancel("line", v)):
        all_refused(stage, call, [ids], duly.LimitExceeded, "ids")


def test_move_to_nothing(stage: Stage) -> None:
    all_refused(stage, lambda q, v: q.move("line", v), ["m5"], Refused, "Move")


def test_a_bad_filter_for_browse(stage: Stage) -> None:
    states = [5, b"ready", "", "Ready", "finished", [], {}, object()]
    all_refused(stage, lambda q, v: q.browse("line", state=v), states, Refused, "state")
    spans = [(), (1,), (1, 2, 3), ("0", 5), (0, None), (5, 2), {0: 1, 1: 2}, object()]
    all_refused(stage, lambda q, v: q.browse("line", priority=v), spans, Refused, "priority")
    texts = [5, True, b"a", {}, [], object()]
    all_refused(stage, lambda q, v: q.browse("line", lane=v), [*texts, "", "\ud800"], Refused, "lane")
    all_refused(stage, lambda q, v: q.browse("line", key=v), texts, Refused, "key")
    places = [None, "x", 5, (), (0,), (0, 0, 0), ("0", 0), (0, "0"), (-1, 0), [0, 0], (0, 1.5), (True, 0), (0, HUGE)]
    all_refused(stage, lambda q, v: q.browse("line", after=v), places, Refused, "after")


def test_a_bad_lane(stage: Stage) -> None:
    bad = [name for name in NOT_NAMES if name is not True]
    all_refused(stage, lambda q, v: q.publish("line", duly.Message(b"", lane=v)), [*bad, True], Refused, "lane")


def test_a_due_time_further_ahead_than_the_limit(stage: Stage) -> None:
    now = datetime.fromtimestamp(stage.now_ms / 1000, UTC)
    most = timedelta(milliseconds=LIMITS.due_ms_ahead_max)
    beyond = [most + timedelta(seconds=1), now + most + timedelta(seconds=1), datetime.max.replace(tzinfo=UTC)]
    all_refused(stage, lambda q, v: q.publish("line", duly.Message(b"", due=v)), beyond, Refused, "due")
    all_refused(stage, lambda q, v: q.move("line", "m5", due=v), beyond, Refused, "due")
    assert stage.q.move("line", "m5", due=now + most) == {"m5": "moved"}
    assert stage.q.publish("line", duly.Message(b"", due=most)).count == 1
