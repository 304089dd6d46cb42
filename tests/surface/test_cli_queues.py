"""Queues on the command line: due times, priorities, lanes; move, cancel, get, browse, coming."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import duly

from .test_cli import folder, ok, refused, run, shop, stocked, words

__all__ = ["folder", "shop", "stocked"]


@pytest.fixture
def line(folder: Path) -> str:
    """A queue without messages, which tries again at once."""
    ok(*words("topics create line --kind queue --backoff-base 0 --max-attempts 2"))
    return "line"


def ids(*more: str, topic: str = "emails") -> list[str]:
    return [found["id"] for found in ok("browse", topic, "--json", *more).lines]


def get(id: str, topic: str = "emails") -> dict[str, Any]:
    return ok("get", topic, id, "--json").document


def claimed(*more: str, topic: str = "line") -> list[str]:
    return [found["payload"] for found in ok("claim", topic, "-n", "100", "--json", *more).lines]


def ahead(text: str) -> timedelta:
    """How far ahead of now a moment is that was printed."""
    return datetime.fromisoformat(text) - datetime.now(UTC)


class TestPublish:
    def test_due_priority_and_lane_are_what_they_say(self, line: str) -> None:
        ok(*words("publish line later --id later --due 2h --lane acme --priority 7 --ttl 1h"))
        ok(*words("publish line second --priority 2"))
        ok(*words("publish line first --priority 1 --due now"))
        assert claimed("--ack") == ["first", "second"]
        later = get("later", line)
        assert (later["state"], later["lane"], later["priority"]) == ("waiting", "acme", 7)
        assert timedelta(minutes=119) < ahead(later["due"]) <= timedelta(hours=2)
        assert timedelta(minutes=179) < ahead(later["expires_at"]) <= timedelta(hours=3)

    def test_a_moment_is_a_due_time(self, line: str) -> None:
        at = (datetime.now(UTC) + timedelta(days=30)).replace(microsecond=0)
        ok("publish", line, "x", "--id", "x", "--due", at.isoformat())
        assert datetime.fromisoformat(get("x", line)["due"]) == at

    def test_an_id_that_is_there_already_is_told_and_not_stored(self, line: str) -> None:
        ok(*words("publish line one --id same"))
        assert "there already: same id" in ok(*words("publish line two --id same")).out
        receipt = ok(*words("publish line three --id same --json")).document
        assert (receipt["ids"], receipt["duplicates"]) == (["same"], [0])
        assert claimed() == ["one"]

    def test_json_lines_carry_everything_that_belongs_to_a_message(self, line: str) -> None:
        documents = [
            {"payload": "text ☃", "id": "a", "key": "k", "headers": {"h": "1"}, "priority": 9},
            {"payload": {"n": [1, None]}, "id": "b", "lane": "acme", "due": 3600, "ttl": 60},
            {"payload_base64": base64.b64encode(b"\xff\x00").decode(), "id": "c", "due": "2h"},
            {"payload": "", "id": "d", "due": "2030-01-31T12:00:00Z", "expires_at": "2031-01-31T12:00:00Z"},
            {"payload": "e", "id": "e", "lane": None, "priority": 0},
        ]
        text = "\n\n".join(json.dumps(document) for document in documents) + "\n"
        ran = ok("publish", line, "--json-lines", "--lane", "globex", "--priority", "3", "--json", stdin=text)
        assert ran.document["ids"] == ["a", "b", "c", "d", "e"]
        a, b, c, d, e = (get(id, line) for id in "abcde")
        assert (a["payload"], a["key"], a["headers"], a["priority"]) == ("text ☃", "k", {"h": "1"}, 9)
        assert (b["payload"], b["lane"], b["priority"]) == ('{"n":[1,null]}', "acme", 3)
        assert timedelta(minutes=59) < ahead(b["due"]) <= timedelta(hours=1)
        assert (c["payload_base64"], c["state"]) == (base64.b64encode(b"\xff\x00").decode(), "waiting")
        assert (d["due"], d["expires_at"]) == ("2030-01-31T12:00:00.000Z", "2031-01-31T12:00:00.000Z")
        assert (e["lane"], e["priority"]) == ("globex", 0)

    def test_json_lines_go_to_a_log_too(self, folder: Path) -> None:
        ok(*words("topics create t --kind log --partitions 2"))
        ok("publish", "t", "--json-lines", stdin='{"payload": "x", "id": "i", "partition": 1}')
        (read,) = ok("read", "t", "--json").lines
        assert (read["payload"], read["id"], read["partition"]) == ("x", "i", 1)

    @pytest.mark.parametrize(
        ("bad", "told"),
        [
            ("{", "no JSON"),
            ("[" * 100_000, "no JSON"),
            ("ÿ", "no JSON"),
            ('"text"', "an object"),
            ("{}", "payload or payload_base64"),
            ('{"payload": "x", "payload_base64": "eA=="}', "payload or payload_base64"),
            ('{"payload_base64": "?"}', "no base64"),
            ('{"payload_base64": 5}', "no base64"),
            ('{"payload": "\\ud800"}', "Unicode"),
            ('{"payload": "x", "prio": 5}', "no field 'prio'"),
            ('{"payload": "x", "priority": "5"}', "priority"),
            ('{"payload": "x", "priority": 65536}', "priority"),
            ('{"payload": "x", "due": "soon"}', "due"),
            ('{"payload": "x", "due": []}', "due"),
            ('{"payload": "x", "due": -1}', "due"),
            ('{"payload": "x", "due": NaN}', "due"),
            ('{"payload": "x", "lane": 5}', "lane"),
            ('{"payload": "x", "id": 5}', "id"),
            ('{"payload": "x", "headers": {"a": 1}}', "headers"),
            ('{"payload": "x", "expires_at": 5}', "expires_at"),
            ('{"payload": "x", "ttl": 5, "expires_at": "2031-01-31T12:00:00Z"}', "ttl"),
        ],
    )
    def test_a_bad_line_is_refused_and_nothing_of_its_batch_is_stored(self, line: str, bad: str, told: str) -> None:
        ran = refused("publish", line, "--json-lines", stdin=f'{{"payload": "good"}}\n{bad}\n')
        assert ran.code == 1
        assert told in ran.err
        assert ids(topic=line) == []

    def test_a_bad_line_is_numbered_and_what_was_stored_before_is_told(self, line: str) -> None:
        ran = run("publish", line, "--json-lines", stdin='{"payload": 1}\n' * 1001 + "\nnot json\n")
        assert ran.code == 1
        assert "Line 1003: " in ran.err
        assert "first 1,000 messages are stored" in ran.err


class TestClaim:
    def test_a_queue_needs_no_group(self, line: str) -> None:
        ok(*words("publish line x --lane acme --priority 3 --due now"))
        (found,) = ok(*words("claim line --json")).lines
        assert (found["lane"], found["priority"], found["attempt"], found["verdict"]) == ("acme", 3, 1, "release")
        assert timedelta(minutes=-1) < ahead(found["due"]) <= timedelta()
        table = ok(*words("claim line --ack"))
        for part in ("acme", "3", "ago", "priority", "lane", "due"):
            assert part in table.out
        assert "Acked 1 message" in table.err
        assert "Nothing is due" in ok("claim", line).err

    def test_what_failed_for_good_is_listed_shown_and_redriven(self, line: str) -> None:
        ok(*words("publish line x --id x"))
        for _ in range(2):
            ok(*words("claim line --nack --reason broken"))
        assert [found["id"] for found in ok(*words("dead list line --json")).lines] == ["x"]
        assert "broken" in ok(*words("dead list line")).out
        assert len(ok(*words("dead show line x --json")).document["history"]) == 2
        assert get("x", line)["state"] == "dead"
        assert "topic 'line'" in ok(*words("dead redrive line --id x")).out
        assert claimed() == ["x"]
        assert "no dead letters of topic 'line'" in ok(*words("dead list line")).err
        assert ok(*words("dead purge line --json")).document["purged"] == 0

    def test_what_is_held_is_shown_and_freed(self, line: str) -> None:
        ok(*words("publish line x y"))
        ok(*words("claim line --keep --consumer me --lease 1h"))
        assert [found["messages"] for found in ok(*words("held --consumer me --json")).lines] == [1]
        assert ok(*words("held --topic line --json")).document["consumer"] == "me"
        assert ok(*words("release --consumer me --topic line --json")).document["released"] == 1
        assert len(claimed()) == 2

    def test_stats_and_groups_show_how_a_queue_stands(self, line: str) -> None:
        ok(*words("publish line a b c --due now"))
        ok(*words("publish line d --due 1h"))
        ok(*words("claim line --keep --consumer me"))
        (document,) = ok(*words("stats --json")).lines
        (group,) = document["groups"]
        assert (group["lag"], group["leased"], group["consumers"][0]["consumer"]) == (3, 1, "me")
        assert ok("groups", "show", line, group["group"], "--json").document["leased"] == 1
        for text in (ok("stats").out, ok("groups", "list", line).out, ok("groups", "show", line, group["group"]).out):
            assert "leased" in text


class TestMove:
    def test_to_another_time_and_priority(self, shop: Path) -> None:
        told = ok(*words("move emails welcome-42 --due now --priority 0 --json")).document
        assert told == {"topic": "emails", "id": "welcome-42", "outcome": "moved"}
        assert claimed(topic="emails") == ["forty-two", "now"]
        ok(*words("move emails welcome-42 welcome-44 --due 1d"))
        assert claimed(topic="emails") == []
        assert ahead(get("welcome-44")["due"]) > timedelta(hours=23)

    def test_every_id_is_answered_and_one_that_was_not_moved_exits_with_1(self, shop: Path) -> None:
        ok(*words("claim emails --keep"))
        line = words("move emails nowhere welcome-43 welcome-44 receipt-7 nowhere --due 5m")
        ran = run(*line, "--json")
        assert ran.code == 1
        assert {found["id"]: found["outcome"] for found in ran.lines} == {
            "nowhere": "not_found",
            "welcome-43": "moved",
            "welcome-44": "leased",
            "receipt-7": "finished",
        }
        assert ran.lines[0]["id"] == "nowhere"
        assert "not_found" in run(*line).out


class TestCancel:
    def test_what_waits_and_what_is_ready(self, shop: Path) -> None:
        ran = ok(*words("cancel emails welcome-42 welcome-44 --json"))
        assert [(found["id"], found["outcome"]) for found in ran.lines] == [
            ("welcome-42", "cancelled"),
            ("welcome-44", "cancelled"),
        ]
        assert "welcome-42" not in ids()
        assert claimed(topic="emails") == []
        assert "welcome-43" in ok(*words("cancel emails welcome-43")).out
        assert run(*words("cancel emails welcome-43 nowhere")).code == 1

    def test_what_a_consumer_has_is_told(self, shop: Path) -> None:
        ok(*words("claim emails --keep --consumer me"))
        assert ok(*words("cancel emails welcome-44 --json")).document["outcome"] == "leased"
        assert get("welcome-44")["cancelled"]
        assert "leased, cancelled" in ok(*words("get emails welcome-44")).out
        ok(*words("release --consumer me"))
        assert claimed(topic="emails") == []


class TestGet:
    def test_a_message_in_every_state(self, shop: Path) -> None:
        assert (get("welcome-42")["state"], get("welcome-42")["key"]) == ("waiting", "k")
        assert get("welcome-44")["state"] == "ready"
        assert (get("receipt-7")["state"], get("receipt-7")["history"][0]["reason"]) == ("dead", "no such address")
        ok(*words("claim emails --keep --consumer me"))
        held = get("welcome-44")
        assert (held["state"], held["consumer"]) == ("leased", "me")
        assert ahead(held["lease_expires_at"]) > timedelta()
        assert "lease ends" in ok(*words("get emails welcome-44")).out
        ok(*words("cancel emails welcome-42"))
        finished = ok(*words("get emails welcome-42"))
        assert "finished" in finished.out
        assert "payload" not in get("welcome-42")

    def test_people_see_the_same(self, shop: Path) -> None:
        text = ok(*words("get emails welcome-42")).out
        for part in ("welcome-42", "waiting", "acme", "forty-two", "in 2.8 h", "5"):
            assert part in text
        assert "no such address" in ok(*words("get emails receipt-7")).out

    def test_a_made_id_leads_to_its_message(self, line: str) -> None:
        (made,) = ok(*words("publish line x --json")).document["ids"]
        assert get(made, line)["payload"] == "x"


class TestBrowse:
    @pytest.mark.parametrize(
        ("filters", "found"),
        [
            ("", ["receipt-7", "welcome-42", "welcome-43", "welcome-44"]),
            ("--state waiting", ["welcome-42", "welcome-43"]),
            ("--state ready", ["welcome-44"]),
            ("--state dead", ["receipt-7"]),
            ("--state leased", []),
            ("--state retrying", []),
            ("--lane acme", ["welcome-42"]),
            ("--lane nobody", []),
            ("--priority 5", ["welcome-42"]),
            ("--priority 1-5", ["welcome-42", "welcome-44"]),
            ("--priority 1-5 --state ready", ["welcome-44"]),
            ("--key k", ["welcome-42"]),
            ("--due-from now", ["welcome-42", "welcome-43"]),
            ("--due-before now", ["receipt-7", "welcome-44"]),
            ("--limit 2", ["receipt-7", "welcome-42"]),
        ],
    )
    def test_filters(self, filters: str, found: list[str], shop: Path) -> None:
        assert ids(*filters.split()) == found

    def test_nothing_is_claimed_and_people_are_told_of_more(self, shop: Path) -> None:
        ran = ok(*words("browse emails --limit 3"))
        assert "there may be more" in ran.err
        for part in ("welcome-42", "waiting", "acme", "in 2.8 h", "forty-two", "dead"):
            assert part in ran.out
        assert "No such messages" in ok(*words("browse emails --lane nobody")).err
        assert get("welcome-44")["attempts"] == 0

    def test_pages_follow_each_other_without_a_gap(self, line: str) -> None:
        ok("publish", line, "--lines", stdin="".join(f"{n}\n" for n in range(2300)))
        found = ok(*words("browse line --limit 5000 --json")).lines
        assert [one["payload"] for one in found] == [str(n) for n in range(2300)]
        table = ok(*words("browse line --limit 2200")).out
        assert table.count("payload") == 1
        assert "2199" in table


class TestComing:
    def test_minutes_are_counted_one_by_one(self, line: str) -> None:
        ok(*words("publish line a b c --due 10m"))
        ok(*words("publish line d --due 30m"))
        found = ok(*words("coming line --json")).lines
        assert (len(found), sum(one["messages"] for one in found)) == (60, 4)
        (three,) = (one for one in found if one["messages"] == 3)
        assert timedelta(minutes=8.9) < ahead(three["minute"]) <= timedelta(minutes=10)
        table = ok(*words("coming line --minutes 20")).out
        assert " 3 " in f"{table} "
        assert len(ok(*words("coming line --minutes 20 --json")).lines) == 20
        assert len(table.strip().splitlines()) == 3

    def test_nothing_ahead_is_said(self, line: str) -> None:
        assert "next 60 minutes" in ok("coming", line).err


def test_the_readers_of_a_queue_see_a_store_that_is_in_use(path: str, folder: Path) -> None:
    """Another process has it open; looking changes nothing there."""
    with duly.connect(path, consumer="w") as q:
        q.create_topic("line", kind="queue")
        q.publish("line", [duly.Message(b"x", id="x"), duly.Message(b"y", id="y", due=60)])
        batch = q.claim("line")
        for command in (["get", "line", "x"], ["browse", "line"], ["coming", "line"], ["stats"]):
            ok(*command, "--store", path)
        ok("move", "line", "y", "--due", "now", "--store", path)
        assert q.ack(batch).done == 1
        assert q.claim("line").payloads == [b"y"]
