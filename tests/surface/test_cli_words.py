"""What people type and what they are shown: durations, sizes, moments, payloads; completion by a shell."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
import typer

from duly.cli import parse, text
from duly.clock import SystemClock

from .test_cli import folder, refused, run, shop, stocked

__all__ = ["folder", "shop", "stocked"]


@pytest.mark.parametrize(
    ("typed", "seconds"),
    [("30", 30), ("30s", 30), ("5m", 300), ("2h", 7200), ("7d", 604800), ("500ms", 0.5), ("1.5h", 5400), ("0", 0)],
)
def test_durations(typed: str, seconds: float) -> None:
    assert parse.duration(typed) == pytest.approx(seconds)
    assert parse.duration_or_none(f" {typed} ") == pytest.approx(seconds)


@pytest.mark.parametrize("typed", ["", "s", "-1", "5q", "1e3", "inf", "nan", "1h30", "٣", "1 000", "none"])
def test_what_is_no_duration(typed: str) -> None:
    with pytest.raises(typer.BadParameter, match="500ms"):
        parse.duration(typed)


@pytest.mark.parametrize(
    ("typed", "size"),
    [("17", 17), ("17B", 17), ("1k", 1000), ("1GB", 10**9), ("64MiB", 2**26), ("1.5 KiB", 1536), ("2tb", 2 * 10**12)],
)
def test_sizes(typed: str, size: int) -> None:
    assert parse.size(typed) == size
    assert parse.size_or_none(typed) == size


@pytest.mark.parametrize("typed", ["", "GB", "-1", "1iB", "1XB", "0x10", "none"])
def test_what_is_no_size(typed: str) -> None:
    with pytest.raises(typer.BadParameter, match="1GB"):
        parse.size(typed)


def test_none_is_read_where_it_may_be() -> None:
    assert parse.duration_or_none("None") == parse.size_or_none("none") == parse.NONE


def test_moments() -> None:
    assert parse.moment("2026-01-31T12:00:00Z") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    two = timezone(timedelta(hours=2))
    assert parse.moment("2026-01-31T12:00+02:00") == datetime(2026, 1, 31, 12, tzinfo=two)
    assert parse.moment("now").tzinfo is UTC


@pytest.mark.parametrize("typed", ["", "noon", "2026-13-01T00:00Z", "2026-01-31T12:00:00", "2026-01-31"])
def test_what_is_no_moment(typed: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse.moment(typed)


def test_due_times_are_moments_or_durations() -> None:
    assert parse.due("90") == parse.due("1.5m") == 90
    assert parse.due(" 2026-01-31T12:00:00Z") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert isinstance(parse.due("now"), datetime)
    for word in ("", "soon", "-5", "2026-01-31T12:00", "9" * 50):
        with pytest.raises(typer.BadParameter):
            parse.due(word)


def test_priorities_are_one_or_a_span() -> None:
    assert [parse.priorities(word) for word in ("5", "0-9", " 7-7 ")] == [(5, 5), (0, 9), (7, 7)]
    for word in ("", "-", "-1", "1-", "1-2-3", "a", "٣", "1.5", "9" * 50):
        with pytest.raises(typer.BadParameter, match="0-9"):
            parse.priorities(word)


def test_lane_weights() -> None:
    assert parse.weights([]) is None
    assert parse.weights(["a=1", "b=c=0.5"]) == {"a": 1, "b=c": 0.5}
    for pair in ("a", "=1", "a=", "a=x", "1"):
        with pytest.raises(typer.BadParameter, match="lane=3"):
            parse.weights([pair])


def test_numbers_that_may_be_none() -> None:
    assert [parse.number_or_none(word) for word in ("5", "0.5", "None")] == [5, 0.5, parse.NONE]
    for word in ("", "-1", "1e3", "nan", "٣", "9" * 50):
        with pytest.raises(typer.BadParameter, match="none"):
            parse.number_or_none(word)


def test_how_far_off_a_moment_is() -> None:
    now_ms = SystemClock().now_ms()
    assert text.until(now_ms + 7 * 86_400_000 + 5000) == "in 7 d"
    assert text.until(now_ms - 7_200_000) == "2 h ago"


def test_starts() -> None:
    assert [parse.start(word) for word in ("earliest", "latest", "17")] == ["earliest", "latest", 17]
    assert parse.start("2026-01-31T12:00:00Z") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    for word in ("-1", "first", "٣", ""):
        with pytest.raises(typer.BadParameter, match="earliest, latest"):
            parse.start(word)


def test_headers() -> None:
    assert parse.headers([]) is None
    assert parse.headers(["a=1", "b==", "c="]) == {"a": "1", "b": "=", "c": ""}


@pytest.mark.parametrize(
    ("size", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (2**26, "64.0 MiB"), (2**62, "4.0 EiB")],
)
def test_human_sizes(size: int, shown: str) -> None:
    assert text.human_size(size) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "none"),
        (0, "0 ms"),
        (0.5, "500 ms"),
        (30, "30 s"),
        (61.25, "61.2 s"),
        (60, "1 m"),
        (90, "90 s"),
        (3600, "1 h"),
        (9000, "2.5 h"),
        (7 * 86400, "7 d"),
    ],
)
def test_human_spans(seconds: float | None, shown: str) -> None:
    assert text.human_span(seconds) == shown


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        (b"", ""),
        (b"plain", "plain"),
        ("grüße ☃".encode(), "grüße ☃"),
        (b"a\tb\r\n", "a\\tb\\r\\n"),
        (b"\xff\x00", "0xff00"),
        (b"\x1b[2J", "0x1b5b324a"),
        ("é".encode()[:1], "0xc3"),
        ("é".encode() * 300, "é" * 256 + "…"),
        (b"x" + "é".encode() * 300, "x" + "é" * 255 + "…"),
        (b"\xff" * 600, "0x" + "ff" * 512 + "…"),
    ],
)
def test_payloads_as_text_or_hex(payload: bytes, shown: str) -> None:
    assert text.payload_text(payload) == shown


def completions(line: str, words: int) -> list[str]:
    env = {"_DULY_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(words)}
    return run(env=env).out.split()


class TestCompletion:
    def test_commands_and_options(self, shop: Path) -> None:
        assert completions("duly top", 1) == ["topics"]
        assert "--json" in completions("duly topics list --j", 3)

    def test_topics_and_groups_come_from_the_store(self, shop: Path) -> None:
        assert completions("duly read o", 2) == ["orders"]
        assert completions("duly read x", 2) == []
        assert completions("duly groups show orders b", 4) == ["billing"]
        assert completions("duly claim orders --group b", 4) == ["billing"]
        assert completions("duly browse e", 2) == completions("duly move e", 2) == ["emails"]
        assert completions("duly held --topic orders --group b", 5) == ["billing"]

    def test_the_store_on_the_line_is_asked(self, shop: Path) -> None:
        (shop / "app.duly").rename(shop / "other.duly")
        assert completions("duly --store other.duly read o", 4) == ["orders"]
        assert completions("duly --store other.duly --tenant acme read o", 6) == []

    def test_a_missing_store_completes_to_nothing_in_silence(self, folder: Path) -> None:
        assert completions("duly read o", 2) == []
        assert list(folder.iterdir()) == []


HUGE = "9" * 30


@pytest.mark.parametrize(
    "line",
    [
        f"topics create x --kind log --lease {HUGE}",
        f"topics create x --kind log --lease {HUGE * 20}",
        f"topics create x --kind log --retention-bytes {HUGE}TB",
        f"topics create x --kind log --retention-bytes {HUGE * 20}TB",
        f"topics create x --kind log --partitions {HUGE}",
        f"topics create x --kind log --max-attempts {HUGE}",
        f"groups create orders g --start {HUGE}",
        f"groups seek orders billing --offset {HUGE}",
        f"groups seek orders billing --offset 0 --partition {HUGE}",
        f"publish orders x --partition {HUGE}",
        f"publish orders x --ttl {HUGE}",
        f"publish orders x --key {'k' * 2000}",
        f"publish orders x --id {'i' * 2000}",
        f"publish orders x --publish-id {'p' * 2000}",
        f"publish orders x --header {'h' * 40000}=v",
        f"claim orders --group billing -n {HUGE}",
        f"claim orders --group billing --lease {HUGE}",
        f"read orders --offset {HUGE}",
        f"read orders --partition {HUGE}",
        f"dead redrive orders --group billing --limit {HUGE}",
        f"dead redrive orders --group billing --rate {HUGE}",
        f"publish emails x --due {HUGE}",
        f"publish emails x --due {HUGE * 20}",
        f"publish emails x --priority {HUGE}",
        f"publish emails x --lane {'l' * 2000}",
        f"move emails welcome-42 --due {HUGE}",
        f"move emails welcome-42 --priority {HUGE}",
        f"browse emails --priority {HUGE}",
        f"browse emails --priority 0-{HUGE}",
        f"coming emails --minutes {HUGE}",
        f"topics create x --kind queue --lane-rate {HUGE}",
        f"topics create x --kind queue --lane-max-in-flight {HUGE}",
        f"topics create x --kind queue --lane-weight a={HUGE}",
        "topics create x --kind queue --lane-weight a=nan",
    ],
)
def test_numbers_beyond_all_bounds_are_refused(line: str, shop: Path) -> None:
    assert refused(*line.split()).code in (1, 2)


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_the_ends_of_time_are_moments_too(at: str, shop: Path) -> None:
    for line in ("read orders --at", "groups seek orders billing --at", "groups create orders new --start"):
        assert run(*line.split(), at).code == 0


def test_a_file_that_is_no_store_is_refused(folder: Path) -> None:
    Path("notes.txt").write_text("not a database, " * 100)
    assert refused("topics", "list", "--store", "notes.txt").code == 1
    assert Path("notes.txt").read_text() == "not a database, " * 100
