"""duly health, and thresholds as options."""

from __future__ import annotations

from pathlib import Path

import pytest

import duly

from .test_cli import folder, ok, refused, run, shop, stocked, words

__all__ = ["folder", "shop", "stocked"]


def test_a_table_for_people_and_exit_code_0_when_nothing_alerts(shop: Path) -> None:
    shown = ok("health").out
    assert "level" in shown
    assert "billing" in shown
    assert "emails" in shown
    assert ok("health", "--problems").err == "Everything is ok.\n"


def test_a_document_a_group_for_programs(shop: Path) -> None:
    ok(*words("topics update orders --health dead=1,2 --health undelivered=4,100"))
    ran = run("health", "orders", "--json")
    assert ran.code == 1
    assert {key: ran.document[key] for key in ("level", "topic", "group", "paused", "undelivered", "dead")} == {
        "level": "alert",
        "topic": "orders",
        "group": "billing",
        "paused": False,
        "undelivered": 0,
        "dead": 2,
    }
    assert ran.document["reasons"] == [
        {
            "level": "alert",
            "measure": "dead",
            "figure": 2,
            "threshold": 2.0,
            "text": "2 dead letters: alert from 2 on",
        }
    ]


def test_a_warning_fails_only_when_asked_to(shop: Path) -> None:
    ok(*words("topics update emails --health dead=1,2"))
    assert "1 dead letter: warn from 1 on" in ok("health").out
    assert run("health", "--strict").code == 1
    assert [line["topic"] for line in run(*words("health --problems --json")).lines] == ["emails"]


def test_thresholds_are_set_changed_and_switched_off(folder: Path) -> None:
    ok(*words("topics create t --kind queue --health oldest_age=1m,5m --health retry_ratio=5%,20%"))
    ok(*words("topics update t --health consumers=2,1"))
    ok(*words("topics update t --health oldest_age=none"))
    with duly.connect("app.duly") as q:
        assert q.describe_topic("t").settings.health == duly.Health(consumers=(2, 1), retry_ratio=(0.05, 0.2))
    assert "consumers 2 warns, 1 alerts" in ok("topics", "show", "t").out


@pytest.mark.parametrize("bad", ["dead", "dead=1", "dead=1,2,3", "dead=x,y", "sleep=1,2", "dead=-1,2", "=1,2"])
def test_what_is_no_threshold_is_refused(folder: Path, bad: str) -> None:
    assert refused("topics", "create", "t", "--kind", "log", "--health", bad).code == 2


def test_thresholds_in_the_wrong_order_are_refused(folder: Path) -> None:
    assert "warn must be reached before alert" in refused(*words("topics create t --kind log --health dead=5,1")).err


def test_an_unknown_topic_is_one_line_of_error(shop: Path) -> None:
    assert refused("health", "nowhere").code == 1
