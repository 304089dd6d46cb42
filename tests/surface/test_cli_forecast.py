"""duly forecast: drawn for people, a document a group for programs."""

from __future__ import annotations

from pathlib import Path

import duly

from .test_cli import folder, ok, refused, run, shop, stocked, words

__all__ = ["folder", "shop", "stocked"]


def test_a_topic_is_drawn_on_80_columns_a_line_a_minute_or_several(shop: Path) -> None:
    with duly.connect("app.duly") as q:
        q.create_topic("timed", kind="queue")
        q.publish("timed", [duly.Message(b"", due=600 + 600 * (number % 2)) for number in range(1500)])
        q.publish("timed", [duly.Message(b"", due=4000)])
    ran = run(*words("forecast timed --minutes 120 --rate 0.5"), env={"COLUMNS": "80"})
    lines = ran.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in ran.out
    drawn = [line for line in lines if "█" in line]
    assert len([line for line in lines if line.strip()[2:3] == ":"]) == 24
    # Two times 750 of which each takes 25 for a minute; and the one is seen beside them.
    assert sorted(line.count("█") for line in drawn) == [1, 39, 39]
    assert [line.split()[-2:] for line in drawn] == [["750", "25"], ["750", "25"], ["1", "1"]]
    assert "at most     25 at " in ran.out
    assert "given" in ran.out


def test_all_topics_have_a_line_a_group_with_what_it_takes(shop: Path) -> None:
    shown = run("forecast", env={"COLUMNS": "120"}).out
    assert "billing" in shown
    assert "emails" in shown
    assert "Give a rate" in ok("forecast", "emails").err


def test_a_document_a_group_for_programs(shop: Path) -> None:
    ran = ok(*words("forecast emails --minutes 3 --rate 2 --json"))
    told = ran.document
    with duly.connect("app.duly") as q:
        known = q.forecast("emails", minutes=3, rate=2)
    assert {key: told[key] for key in ("topic", "group", "ready", "leased", "service_rate", "observed")} == {
        "topic": "emails",
        "group": "queue",
        "ready": known.ready,
        "leased": known.leased,
        "service_rate": 2.0,
        "observed": 0,
    }
    assert len(told["minutes"]) == 3
    assert [one["topic"] for one in ok("forecast", "--json").lines][:1] == ["emails"]


def test_a_group_without_its_topic_is_refused(shop: Path) -> None:
    assert refused("forecast", "--group", "billing").code == 2
    assert "no group" in refused("forecast", "orders", "--group", "nobody").err
