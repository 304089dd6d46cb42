"""What the commands do to a store, told by what the next command shows."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import duly

from .test_cli import folder, ok, refused, run, shop, stocked, words

__all__ = ["folder", "shop", "stocked"]


def topic(name: str = "orders") -> dict[str, Any]:
    return ok("topics", "show", name, "--json").document


def group(name: str = "billing", of: str = "orders") -> dict[str, Any]:
    return ok("groups", "show", of, name, "--json").document


def payloads(name: str = "t", *more: str) -> list[str]:
    return [line["payload"] for line in ok("read", name, "--json", *more).lines]


@pytest.fixture
def t(folder: Path) -> str:
    """A log with one group, g, and no messages."""
    ok("topics", "create", "t", "--kind", "log", "--backoff-base", "0")
    ok("groups", "create", "t", "g")
    return "t"


class TestEverywhere:
    def test_options_may_stand_before_or_after_the_command(self, shop: Path) -> None:
        before = ok("--json", "--store", "app.duly", "--tenant", "default", "topics", "show", "orders")
        after = ok("topics", "show", "orders", "--json", "--store", "app.duly", "--tenant", "default")
        assert before.document == after.document

    def test_the_store_comes_from_the_environment_unless_it_is_named(self, folder: Path) -> None:
        env = {"DULY_STORE": "env.duly"}
        assert run("topics", "create", "a", "--kind", "log", env=env).code == 0
        assert run("--store", "b.duly", "topics", "create", "b", "--kind", "log", env=env).code == 0
        assert run("topics", "create", "c", "--kind", "log", "--store", "c.duly", env=env).code == 0
        stores = {name: run("topics", "list", "--json", "--store", f"{name}.duly") for name in ("env", "b", "c")}
        assert {name: ran.document["topic"] for name, ran in stores.items()} == {"env": "a", "b": "b", "c": "c"}

    def test_tenants_do_not_see_each_other(self, folder: Path) -> None:
        ok("topics", "create", "a", "--kind", "log", "--tenant", "acme")
        assert [line["topic"] for line in ok("topics", "list", "--json", "--tenant", "acme").lines] == ["a"]
        assert ok("topics", "list", "--json").lines == []

    def test_a_tenants_weight_is_set_shown_and_changed(self, folder: Path) -> None:
        made = ok("tenants", "create", "acme", "--weight", "2.5", "--json").document
        assert made["settings"]["weight"] == 2.5
        ok("tenants", "update", "acme", "--topics", "5")
        assert "2.5" in ok("tenants", "show", "acme").out
        assert ok("tenants", "update", "acme", "--weight", "1", "--json").document["settings"]["weight"] == 1
        assert "weight must be" in refused("tenants", "update", "acme", "--weight", "0").err

    def test_an_empty_list_is_told_to_people_beside_the_result(self, t: str) -> None:
        ran = ok("dead", "list", t, "--group", "g")
        assert (ran.out, "no dead letters" in ran.err) == ("", True)

    def test_unicode_is_kept_in_names_payloads_and_reasons(self, folder: Path) -> None:
        name, crew, text = "bestellungen-é-注文-🛒", "équipe-🦊", "grüße ☃ 你好"
        ok("topics", "create", name, "--kind", "log", "--max-attempts", "1")
        ok("groups", "create", name, crew)
        ok("publish", name, text, "--key", "schlüssel", "--header", "größe=10½", "--id", "id-ß")
        (read,) = ok("read", name, "--json").lines
        assert (read["payload"], read["key"], read["headers"]) == (text, "schlüssel", {"größe": "10½"})
        ok("claim", name, "--group", crew, "--nack", "--reason", "kaputt 💥")
        letter = ok("dead", "show", name, "id-ß", "--group", crew, "--json").document
        assert letter["history"][0]["reason"] == "kaputt 💥"
        table = ok("stats").out
        assert name in table
        assert crew in table

    def test_long_names_are_cut_with_an_ellipsis(self, folder: Path) -> None:
        ok("topics", "create", "x" * 250, "--kind", "log")
        table = run("topics", "list", env={"COLUMNS": "80"}).out
        assert "…" in table
        assert max(map(len, table.splitlines())) <= 80

    def test_a_payload_cannot_write_to_the_terminal(self, t: str) -> None:
        ok("publish", t, "\x1b[2J", "two\nlines")
        table = ok("read", t).out
        assert "\x1b" not in table
        assert "0x1b5b324a" in table
        assert "two\\nlines" in table

    def test_square_brackets_are_text(self, t: str) -> None:
        ok("publish", t, "[bold]x[/bold]", "[/]")
        assert "[bold]x[/bold]" in ok("read", t).out


class TestTopics:
    def test_every_setting_can_be_given(self, folder: Path) -> None:
        line = (
            "topics create t --kind log --partitions 3 --lease 1m --max-attempts 4 --backoff-base 500ms "
            "--backoff-cap 2h --backoff-shape linear --backoff-jitter none --ttl 7d --retention-age 1.5h "
            "--retention-bytes 64MiB --retention-settled --drop-unsettled --archive --payload-bytes-max 2MB "
            "--no-dead-letters"
        )
        made = ok(*line.split(), "--json").document
        settings = made["settings"]
        assert len(made["partitions"]) == 3
        assert (settings["lease"], settings["ttl"], settings["payload_bytes_max"]) == (60, 7 * 86400, 2_000_000)
        assert (settings["archive"], settings["dead_letters"]) == (True, False)
        assert settings["retry"] == asdict(duly.RetryPolicy(4, 0.5, 7200, "linear", "none"))
        assert settings["retention"] == asdict(duly.Retention(5400, 64 * 2**20, True, True))
        assert topic("t") == made

    def test_creating_an_equal_one_again_is_fine_with_exist_ok(self, shop: Path) -> None:
        ok("topics", "create", "orders", "--kind", "log", "--exist-ok")
        ran = refused("topics", "create", "orders", "--kind", "log", "--exist-ok", "--lease", "5s")
        assert "duly topics update" in ran.err

    def test_update_changes_what_is_named_alone(self, folder: Path) -> None:
        ok(*words("topics create t --kind log --backoff-cap 9s --ttl 1h --retention-bytes 1GB"))
        ok(*words("topics update t --max-attempts 2 --ttl none --retention-age none --archive"))
        settings = topic("t")["settings"]
        assert (settings["retry"]["max_attempts"], settings["retry"]["cap"]) == (2, 9)
        assert (settings["retention"]["age"], settings["retention"]["bytes"]) == (None, 10**9)
        assert (settings["ttl"], settings["archive"]) == (None, True)
        ok(*words("topics update t --no-archive"))
        assert topic("t")["settings"] == settings | {"archive": False}

    def test_show_tells_people_the_same(self, shop: Path) -> None:
        ok(*words("topics update orders --lease 90s --retention-bytes 64MiB --ttl 1h"))
        text = ok("topics", "show", "orders").out
        for part in ("orders", "90 s", "64.0 MiB", "1 h", "8 attempts", "Partitions", "billing"):
            assert part in text

    def test_pause_resume_purge_delete(self, shop: Path) -> None:
        assert ok("topics", "pause", "orders", "--json").document == {"topic": "orders", "paused": True}
        assert topic()["paused"]
        assert "paused" in ok("topics", "list").out
        ok("topics", "resume", "orders")
        assert not topic()["paused"]
        assert ok("topics", "purge", "orders", "--json").document == {"topic": "orders", "purged": 20}
        assert topic()["messages"] == 0
        ok("topics", "delete", "orders")
        assert [line["topic"] for line in ok("topics", "list", "--json").lines] == ["emails"]

    def test_delete_with_force_takes_the_messages_along(self, shop: Path) -> None:
        assert refused("topics", "delete", "orders").code == 1
        ok("topics", "delete", "orders", "--force")
        assert refused("topics", "show", "orders").code == 1

    def test_every_setting_of_a_queue_can_be_given_changed_and_switched_off(self, folder: Path) -> None:
        line = (
            "topics create line --kind queue --dedupe 1h --lane-weight acme=3 --lane-weight a=b=0.5 "
            "--lane-max-in-flight 4 --lane-rate 2.5 --lane-breaker calls=5,probe=2s "
            "--rate 100 --max-in-flight 50 --breaker on --retry-budget 0.1"
        )
        settings = ok(*line.split(), "--json").document["settings"]
        assert settings["dedupe"] == 3600
        lanes = {"max_in_flight": 4, "rate": 2.5, "weights": {"acme": 3, "a=b": 0.5}}
        assert settings["lanes"] == {**lanes, "breaker": asdict(duly.Breaker(calls=5, probe=2))}
        assert (settings["rate"], settings["max_in_flight"], settings["retry"]["budget"]) == (100, 50, 0.1)
        assert settings["breaker"] == asdict(duly.Breaker())
        text = ok("topics", "show", "line").out
        for part in ("queue", "4 at once", "2.5 a second", "acme weighs 3", "1 h", "until settled", "50 at once"):
            assert part in text
        ok(*words("topics update line --dedupe none --lane-rate none --lane-max-in-flight none --lane-breaker none"))
        ok(*words("topics update line --rate none --max-in-flight none --breaker none --retry-budget none"))
        settings = topic("line")["settings"]
        assert settings["dedupe"] is None
        assert (settings["rate"], settings["max_in_flight"], settings["breaker"]) == (None, None, None)
        assert settings["lanes"] == {**lanes, "max_in_flight": None, "rate": None, "breaker": None}


class TestGroups:
    @pytest.mark.parametrize(
        ("start", "lag"),
        [("earliest", 20), ("latest", 0), ("15", 5), ("2020-01-01T00:00:00Z", 20), ("2200-01-01T00:00:00+02:00", 0)],
    )
    def test_a_group_starts_where_it_is_told(self, start: str, lag: int, shop: Path) -> None:
        assert ok("groups", "create", "orders", "g", "--start", start, "--json").document["lag"] == lag

    def test_settings_of_its_own(self, shop: Path) -> None:
        ok(*words("groups create orders g --lease 5m --max-attempts 2"))
        assert group("g")["settings"]["retry"]["max_attempts"] == 2
        ok(*words("groups update orders g --backoff-cap 7s --no-dead-letters"))
        settings = group("g")["settings"]
        assert (settings["lease"], settings["dead_letters"]) == (300, False)
        assert (settings["retry"]["max_attempts"], settings["retry"]["cap"]) == (2, 7)
        assert "5 m" in ok("groups", "show", "orders", "g").out
        for _ in range(2):
            ok(*words("groups create orders plain --exist-ok"))
        assert "(the topic's)" in ok("groups", "show", "orders", "plain").out

    def test_show_has_cursor_lag_leases_retries_and_consumers(self, shop: Path) -> None:
        found = group()
        assert (found["lag"], found["leased"], found["retrying"], found["dead"]) == (0, 3, 5, 2)
        assert found["partitions"] == [{"partition": 0, "first_offset": 0, "cursor": 20, "next_offset": 20}]
        (consumer,) = found["consumers"]
        assert (consumer["consumer"], consumer["messages"]) == ("worker-1", 3)
        text = ok("groups", "show", "orders", "billing").out
        assert "worker-1" in text
        assert "retrying" in text

    def test_pause_stops_deliveries_to_this_group_alone(self, shop: Path) -> None:
        ok("groups", "create", "orders", "other")
        ok("groups", "pause", "orders", "other")
        assert ok(*words("claim orders --group other --json")).lines == []
        assert len(ok(*words("claim orders --group billing --json")).lines) == 1
        ok("groups", "resume", "orders", "other")
        assert len(ok(*words("claim orders --group other --json")).lines) == 1

    def test_list_purge_delete(self, shop: Path) -> None:
        ok("groups", "create", "orders", "other")
        assert [line["group"] for line in ok("groups", "list", "orders", "--json").lines] == ["billing", "other"]
        assert ok("groups", "purge", "orders", "other", "--json").document["purged"] == 20
        assert group("other")["lag"] == 0
        ok("groups", "delete", "orders", "other")
        assert [line["group"] for line in ok("groups", "list", "orders", "--json").lines] == ["billing"]

    @pytest.mark.parametrize(
        ("place", "cursor"),
        [
            ("--offset 4", 4),
            ("--offset 4 --partition 0", 4),
            ("--to earliest", 0),
            ("--to latest", 20),
            ("--at 2020-01-01T00:00:00Z", 0),
            ("--at now", 20),
        ],
    )
    def test_seek(self, place: str, cursor: int, shop: Path) -> None:
        assert ok(*f"groups seek orders billing {place} --json".split()).document["cursors"] == {"0": cursor}
        assert group()["partitions"][0]["cursor"] == cursor
        assert group()["leased"] == 0


class TestPublish:
    def test_arguments_are_a_message_each(self, t: str) -> None:
        assert "3 messages" in ok("publish", t, "one", "two", "").out
        assert payloads() == ["one", "two", ""]

    def test_a_single_one_is_told_its_place(self, t: str) -> None:
        assert "at partition 0, offset 0" in ok("publish", t, "one").out
        assert " as one-more at partition 0, offset 1" in ok("publish", t, "two", "--id", "one-more").out

    def test_everything_that_belongs_to_a_message(self, t: str) -> None:
        line = "publish t x --key k --id i --header a=1 --header b=x=y --ttl 1h --partition 0 --publish-id p --json"
        receipt = ok(*line.split()).document
        assert receipt["duplicates"] == []
        assert receipt["spans"] == [{"partition": 0, "first_offset": 0, "count": 1}]
        assert (receipt["ids"], receipt["publish_id"], receipt["duplicate"]) == (["i"], "p", False)
        (read,) = ok("read", t, "--json").lines
        assert (read["id"], read["key"], read["headers"]) == ("i", "k", {"a": "1", "b": "x=y"})
        assert read["expires_at"] > read["published_at"]

    def test_standard_input_is_one_message_or_one_a_line(self, t: str) -> None:
        ok("publish", t, stdin="one\ntwo\n")
        ok("publish", t, "--lines", stdin="three\r\n\nfour")
        assert payloads() == ["one\ntwo\n", "three", "", "four"]

    def test_files_are_read_as_they_are(self, t: str, folder: Path) -> None:
        Path("a.bin").write_bytes(b"\xff\x00")
        Path("b.txt").write_text("x\ny\n")
        ok("publish", t, "first", "--file", "a.bin", "--file", "b.txt")
        ok("publish", t, "--file", "b.txt", "--file", "-", "--lines", stdin="z\n")
        lines = ok("read", t, "--json").lines
        assert base64.b64decode(lines[1]["payload_base64"]) == b"\xff\x00"
        assert [line.get("payload") for line in lines] == ["first", None, "x\ny\n", "x", "y", "z"]

    def test_many_lines_go_in_batches_of_a_thousand(self, t: str) -> None:
        ran = ok("publish", t, "--lines", "--json", stdin="".join(f"{n}\n" for n in range(2500)))
        assert [line["count"] for line in ran.lines] == [1000, 1000, 500]
        assert payloads() == [str(n) for n in range(2500)]

    def test_the_same_input_with_the_same_publish_id_is_stored_once(self, t: str) -> None:
        text = "".join(f"{n}\n" for n in range(1500))
        ok("publish", t, "--lines", "--publish-id", "import", stdin=text)
        again = ok("publish", t, "--lines", "--publish-id", "import", "--json", stdin=text)
        assert [line["duplicate"] for line in again.lines] == [True, True]
        told = ok("publish", t, "--lines", "--publish-id", "import", stdin=text).out
        assert "1,500 of them had been stored before" in told
        assert topic("t")["messages"] == 1500

    def test_a_refused_batch_says_what_was_stored_before_it(self, t: str) -> None:
        ok("topics", "update", t, "--payload-bytes-max", "10")
        ran = run("publish", t, "--lines", stdin="x\n" * 1000 + "much too long for it\n")
        assert ran.code == 1
        assert "first 1,000 messages are stored" in ran.err
        assert topic("t")["messages"] == 1000

    def test_no_lines_are_no_messages(self, t: str) -> None:
        assert "0 messages" in ok("publish", t, "--lines", stdin="").out

    def test_keys_choose_the_partition(self, folder: Path) -> None:
        ok("topics", "create", "wide", "--kind", "log", "--partitions", "4")
        for _ in range(2):
            ok("publish", "wide", "x", "y", "--key", "same")
        assert len({line["partition"] for line in ok("read", "wide", "--json").lines}) == 1


class TestClaim:
    def test_messages_are_given_back_and_that_is_said(self, t: str) -> None:
        ok("publish", t, "one", "two")
        ran = ok("claim", t, "--group", "g", "-n", "5")
        assert "one" in ran.out
        assert "Gave 2 messages back (release)" in ran.err
        assert group("g", t)["leased"] == 0
        again = ok("claim", t, "--group", "g", "-n", "5", "--json").lines
        assert sorted(line["payload"] for line in again) == ["one", "two"]
        assert {line["attempt"] for line in again} == {1}
        assert {line["verdict"] for line in again} == {"release"}

    def test_ack_finishes_them(self, t: str) -> None:
        ok("publish", t, "one", "two")
        assert [line["payload"] for line in ok("claim", t, "--group", "g", "--ack", "--json").lines] == ["one"]
        assert "Acked 1 message" in ok("claim", t, "--group", "g", "--ack").err
        assert "Nothing is due" in ok("claim", t, "--group", "g").err
        assert (group("g", t)["lag"], group("g", t)["retrying"]) == (0, 0)

    def test_nack_counts_an_attempt_and_waits(self, t: str) -> None:
        ok("publish", t, "one")
        ok("claim", t, "--group", "g", "--nack", "--delay", "1h", "--reason", "later")
        assert ok("claim", t, "--group", "g", "--json").lines == []
        assert group("g", t)["retrying"] == 1

    def test_kept_messages_are_shown_by_held_and_freed_by_release(self, t: str) -> None:
        ok("publish", t, "one", "two")
        ran = ok("claim", t, "--group", "g", "-n", "2", "--keep", "--consumer", "me", "--lease", "1h")
        assert "duly release --consumer me" in ran.err
        (held,) = ok("held", "--consumer", "me", "--json").lines
        assert (held["topic"], held["group"], held["messages"]) == ("t", "g", 2)
        assert "me" in ok("held", "--topic", t, "--group", "g").out
        assert ok("held", "--consumer", "another", "--json").lines == []
        assert ok("claim", t, "--group", "g", "--json").lines == []
        assert ok("release", "--consumer", "me", "--topic", t, "--group", "g", "--json").document["released"] == 2
        assert len(ok("claim", t, "--group", "g", "-n", "2", "--json").lines) == 2

    def test_held_only_looks(self, path: str, folder: Path) -> None:
        with duly.connect(path, consumer="w") as q:
            q.create_topic("t", kind="log")
            q.create_group("t", "g")
            q.publish("t", b"x")
            batch = q.claim("t", group="g")
            assert ok("held", "--store", path, "--json").document["messages"] == 1
            assert q.ack(batch).done == 1

    def test_messages_whose_nack_is_refused_go_back(self, t: str) -> None:
        ok("publish", t, "one")
        ran = run("claim", t, "--group", "g", "--nack", "--delay", "9" * 30)
        assert ran.code == 1
        assert "delay" in ran.err
        assert group("g", t)["leased"] == 0

    def test_wait_is_over_when_a_message_comes(self, t: str) -> None:
        assert ok("claim", t, "--group", "g", "--wait", "50ms", "--json").lines == []
        ok("publish", t, "one")
        assert len(ok("claim", t, "--group", "g", "--wait", "30s", "--json").lines) == 1

    def test_messages_that_could_not_be_printed_go_back(self, t: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def gone(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        ok("publish", t, "one")
        with monkeypatch.context() as patched:
            patched.setattr("duly.cli.show.Show.page", gone)
            assert "No space left" in refused("claim", t, "--group", "g", "--ack").err
        (line,) = ok("claim", t, "--group", "g", "--json").lines
        assert (line["payload"], line["attempt"]) == ("one", 1)


class TestRead:
    def test_by_offset_limit_and_time(self, shop: Path) -> None:
        assert payloads("orders", "--offset", "3", "--limit", "2") == ["3", "4"]
        assert len(payloads("orders", "--at", "2020-01-01T00:00:00Z")) == 20
        assert payloads("orders", "--at", "now") == []
        assert payloads("orders", "--offset", "20") == []
        assert "Nothing to read" in ok("read", "orders", "--offset", "20").err

    def test_all_partitions_or_one(self, folder: Path) -> None:
        ok("topics", "create", "t", "--kind", "log", "--partitions", "3")
        for number in range(3):
            ok("publish", "t", f"{number}a", f"{number}b", "--partition", str(number))
        assert payloads() == ["0a", "0b", "1a", "1b", "2a", "2b"]
        assert payloads("t", "--limit", "3") == ["0a", "0b", "1a"]
        assert payloads("t", "--partition", "2", "--offset", "1") == ["2b"]
        assert payloads("t", "--partition", "1") == ["1a", "1b"]
        assert "add --partition" in refused("read", "t", "--offset", "1").err

    def test_pages_follow_each_other_without_a_gap(self, t: str) -> None:
        ok("publish", t, "--lines", stdin="".join(f"{n}\n" for n in range(2100)))
        assert payloads() == [str(n) for n in range(2100)]
        table = ok("read", t).out
        assert table.count("payload") == 1
        assert "2099" in table

    def test_follow_stops_at_its_limit(self, shop: Path) -> None:
        assert payloads("orders", "--follow", "--offset", "18", "--limit", "2") == ["18", "19"]

    def test_a_truncated_offset_is_said(self, shop: Path) -> None:
        ok("topics", "purge", "orders")
        assert refused("read", "orders", "--offset", "3").code == 1
        assert payloads("orders") == []


class TestDead:
    def test_list_and_show(self, shop: Path) -> None:
        lines = ok("dead", "list", "orders", "--group", "billing", "--json").lines
        assert [line["id"] for line in lines] == ["order-13", "order-14"]
        assert [line["reason"] for line in lines] == ["no such customer"] * 2
        assert len(ok("dead", "list", "orders", "--group", "billing", "--limit", "1", "--json").lines) == 1
        assert "no such customer" in ok("dead", "list", "orders", "--group", "billing").out
        letter = ok("dead", "show", "orders", "order-13", "--group", "billing", "--json").document
        assert (letter["payload"], letter["attempts"], letter["history"][0]["consumer"]) == ("13", 1, "worker-1")
        assert "History" in ok("dead", "show", "orders", "order-13", "--group", "billing").out

    def test_redrive_some_by_id_then_the_rest(self, shop: Path) -> None:
        some = ok(*words("dead redrive orders --group billing --id order-14 --id order-99 --json"))
        assert some.document["redriven"] == 1
        assert group()["dead"] == 1
        assert "1 message" in ok(*words("dead redrive orders --group billing --rate 10 --limit 5")).out
        assert group()["dead"] == 0

    def test_purge(self, shop: Path) -> None:
        assert ok(*words("dead purge orders --group billing --json")).document["purged"] == 2
        assert ok(*words("dead list orders --group billing --json")).lines == []


class TestHowThingsStand:
    def test_stats_has_a_document_a_topic_with_its_groups(self, shop: Path) -> None:
        ok("topics", "create", "empty", "--kind", "log")
        emails, empty, orders = ok("stats", "--json").lines
        assert (empty["topic"], empty["groups"]) == ("empty", [])
        (line,) = emails["groups"]
        assert (emails["kind"], line["lag"], line["leased"], line["dead"]) == ("queue", 3, 0, 1)
        assert (orders["messages"], orders["groups"][0]["dead"]) == (20, 2)
        table = ok("stats").out
        for column in ("topic", "messages", "bytes", "lag", "leased", "retrying", "dead"):
            assert column in table

    def test_limits_are_those_of_the_api(self, folder: Path) -> None:
        with duly.connect(":memory:") as q:
            assert ok("limits", "--json").document == q.limits()
        text = ok("limits").out
        assert "64.0 MiB" in text
        assert "7 d" in text

    def test_doctor_finds_a_sound_store_sound(self, shop: Path) -> None:
        findings = ok("doctor", "--json").lines
        assert findings
        assert all(set(found) == {"level", "what", "meaning", "advice"} for found in findings)
        assert "alert" not in {found["level"] for found in findings}

    def test_doctor_exits_with_1_on_an_alert(self, folder: Path) -> None:
        ok("topics", "create", "t", "--kind", "log")
        ok("publish", "t", "a very recognisable payload")
        store = Path("app.duly")
        store.write_bytes(store.read_bytes().replace(b"recognisable", b"recOgnisable"))
        ran = run("doctor", "--json")
        assert ran.code == 1
        assert "alert" in {json.loads(line)["level"] for line in ran.out.splitlines()}
        assert run("doctor").code == 1
        assert "duly doctor" in refused("read", "t").err
