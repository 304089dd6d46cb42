"""Operations in applications' own transactions: checked at once, counted when the mail is taken in, never refused then.

Broken once to see it fail: with each verb asking for the operations that it wants itself (`_expect` in writer.py left
out), transactions that take in mail wait for each other until PostgreSQL ends one of them after a second.
"""

from __future__ import annotations

import time

import pytest

import duly
from duly.message import OPERATION
from tests.conftest import scaled
from tests.store.patience import Aside

from .conftest import Application

BUDGET = 100


def some(count: int, *names: str) -> list[duly.Message]:
    return [duly.Message(b"x", headers={OPERATION: name}) for name in names or ("import",) for _ in range(count)]


def standing(q: duly.Client) -> list[tuple[str, int, int, bool]]:
    return [(one.id, one.published, one.left, one.stopped_at is not None) for one in q.operations()]


def alerts(q: duly.Client) -> int:
    return sum(event.kind == "operation_stopped" for event in q.events())


@pytest.fixture(autouse=True)
def budget(q: duly.Client) -> None:
    q.update_tenant("default", operation_messages=BUDGET)


def test_an_application_is_refused_at_once_and_a_rollback_counts_nothing(app: Application, q: duly.Client) -> None:
    connection = app.connect()
    with connection.transaction(force_rollback=True):
        q.publish("jobs", some(BUDGET), tx=connection)
    q.browse("jobs")
    assert standing(q) == []
    with connection.transaction():
        q.publish("jobs", some(BUDGET), tx=connection)
    assert len(q.browse("jobs")) == BUDGET
    with pytest.raises(duly.OperationExhausted), connection.transaction():
        q.publish("jobs", some(10), tx=connection)
    assert alerts(q) == 1
    assert len(q.browse("jobs")) == BUDGET


def test_what_was_committed_by_several_at_once_is_owed(app: Application, q: duly.Client) -> None:
    first, second = app.connect(), app.connect()
    with first.transaction(), second.transaction():
        q.publish("jobs", some(BUDGET), tx=first)
        q.publish("jobs", some(BUDGET), tx=second)
    app.ask("SELECT duly.publish('jobs', 'x', headers => %s)", '{"duly-operation": "import"}')
    app.ask("SELECT duly.publish('jobs', 'x', headers => %s)", '{"duly-operation": "no\\nname"}')
    assert len(q.browse("jobs", limit=1000)) == 2 * BUDGET + 2, "it is committed: nothing refuses it"
    ((name, published, left, stopped),) = standing(q)
    assert (name, published, stopped) == ("import", 2 * BUDGET + 1, True)
    assert -BUDGET - 1 <= left <= -BUDGET + 20
    assert alerts(q) == 1
    with pytest.raises(duly.OperationExhausted):
        q.publish("jobs", some(1))
    q.resume_operation("import", messages=5)
    q.publish("jobs", some(5))


def test_mail_and_publishes_of_several_topics_never_wait_for_each_other(app: Application, q: duly.Client) -> None:
    """Mail of one operation comes in with publishes of the other, here in one order and there in the other."""
    q.update_tenant("default", operation_messages=10**9)
    q.create_topic("more", kind="queue")
    rounds = scaled(60, 600)

    def work(topic: str, by_mail: str, itself: str) -> float:
        own, connection, longest = app.elsewhere(topic), app.connect(), 0.0
        for _ in range(rounds):
            with connection.transaction():
                own.publish(topic, some(1, by_mail), tx=connection)
            began = time.monotonic()
            own.publish(topic, some(1, itself))
            longest = max(longest, time.monotonic() - began)
        return longest

    one = Aside(lambda: work("jobs", "one", "two"))
    other = Aside(lambda: work("more", "two", "one"))
    assert max(one.result(120), other.result(120)) < 0.9, "PostgreSQL would end one that waits for another after 1 s"
    for topic in ("jobs", "more"):
        q.browse(topic)
    assert {name: published for name, published, _, _ in standing(q)} == {"one": 2 * rounds, "two": 2 * rounds}
