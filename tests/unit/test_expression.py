"""The language of ToTopic's due, priority and lane: what it means, what it refuses, and that it is bounded."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import duly
from duly.expression import EXPRESSION_CHARS_MAX, Subject, check_expression, parse
from duly.push import ToTopic

NOW = 1_800_000_000_000
PUBLISHED = NOW - 60_000
HOUR = 3_600_000
PAYLOAD = {
    "at": NOW + HOUR,
    "iso": "2027-01-15T09:00:00+01:00",
    "seconds": NOW // 1000 + 30,
    "a": {"b": [{"c": "deep"}, 7], "x-y": "dashed"},
    "customer": 42,
    "nothing": None,
    "no": False,
    "delay": 1500,
    "half": 2.5,
    "word": "soon",
}
ISO_MS = 1_800_000_000_000


def subject(payload: Any = PAYLOAD, **more: Any) -> Subject:
    given: dict[str, Any] = {
        "now_ms": NOW,
        "published_ms": PUBLISHED,
        "topic": "orders",
        "id": "order-7",
        "key": "acme",
        "headers": {"lane": "vip", "x-wait": "1m30s", "when": str(NOW + 5), "rank": "12"},
        "lane": "gold",
        "priority": 4,
        "due_ms": NOW - 5_000,
    }
    return Subject(payload if isinstance(payload, bytes) else json.dumps(payload).encode(), **{**given, **more})


@pytest.mark.parametrize(
    ("text", "due_ms"),
    [
        ("now", NOW),
        ("published", PUBLISHED),
        ("due", NOW - 5_000),
        ("30s", NOW + 30_000),
        ("1h30m", NOW + HOUR + HOUR // 2),
        ("1.5s", NOW + 1_500),
        ("250ms", NOW + 250),
        ("2w1d", NOW + 15 * 24 * HOUR),
        ("published + 5m", PUBLISHED + 300_000),
        ("published+5m-1s", PUBLISHED + 299_000),
        ("5m + published", PUBLISHED + 300_000),
        ("json.at", NOW + HOUR),
        ("json.at + 30s", NOW + HOUR + 30_000),
        ("30s + json.at", NOW + HOUR + 30_000),
        ("json.at - 30s", NOW + HOUR - 30_000),
        ("json.iso", ISO_MS),
        ("json.iso + 1h", ISO_MS + HOUR),
        ("seconds(json.seconds)", NOW + 30_000),
        ("seconds(json.seconds) + 1s", NOW + 31_000),
        ("published + seconds(json.half)", PUBLISHED + 2_500),
        ("published + json.delay", PUBLISHED + 1_500),
        ('published + header["x-wait"]', PUBLISHED + 90_000),
        ('header["x-wait"] + published', PUBLISHED + 90_000),
        ("header.when", NOW + 5),
        ('"2027-01-15T08:00:00Z"', ISO_MS),
        ("json.missing ?? json.at", NOW + HOUR),
        ("json.missing + 30s ?? now", NOW),
        ("now + json.missing ?? 1m", NOW + 60_000),
        ("(json.missing ?? published) + 5m", PUBLISHED + 300_000),
        ("json.nothing ?? published", PUBLISHED),
        ("json.at - json.delay", NOW + HOUR - 1_500),
        ("now - published", NOW + 60_000),
        ("published - 100w - 1w", PUBLISHED - 101 * 7 * 24 * HOUR),
        ("now - 5200w", 0),
        ("none", None),
        ("json.missing ?? none", None),
    ],
)
def test_due(text: str, due_ms: int | None) -> None:
    assert check_expression(text, "due").due_ms(subject()) == due_ms


@pytest.mark.parametrize(
    ("text", "lane"),
    [
        ("key", "acme"),
        ("lane", "gold"),
        ("id", "order-7"),
        ("topic", "orders"),
        ('"fixed"', "fixed"),
        ('"with \\"quotes\\" and ü"', 'with "quotes" and ü'),
        ("header.lane", "vip"),
        ('header.nobody ?? "none"', "none"),
        ("json.a.b[0].c", "deep"),
        ('json["a"]["x-y"]', "dashed"),
        ("json.a.b[1]", "7"),
        ("json.customer", "42"),
        ("json.a.b[9] ?? key", "acme"),
        ("json.customer.too.far ?? key", "acme"),
        ("none", None),
    ],
)
def test_lane(text: str, lane: str | None) -> None:
    assert check_expression(text, "lane").lane(subject()) == lane


@pytest.mark.parametrize(
    ("text", "priority"),
    [
        ("5", 5),
        ("0", 0),
        ("65535", 65_535),
        ("priority", 4),
        ("priority + 10", 14),
        ("header.rank", 12),
        ("header.rank - 2", 10),
        ("json.customer - priority - 8", 30),
        ("json.half + 0.5", 3),
        ("none", None),
    ],
)
def test_priority(text: str, priority: int | None) -> None:
    assert check_expression(text, "priority").priority(subject()) == priority


@pytest.mark.parametrize(
    ("what", "text", "position", "hint"),
    [
        ("due", "", 1, "missing"),
        ("due", "jsn.at", 1, "there is no 'jsn'"),
        ("due", "json.at +", 10, "missing"),
        ("due", "json.at 30s", 9, "expected"),
        ("due", "now + 30x", 9, "no such unit"),
        ("due", "now + 30seconds", 9, "no such unit"),
        ("due", "(now + 5m", 10, "closing )"),
        ("due", "now)", 4, "expected"),
        ("due", "seconds json.at", 9, "seconds(json.at)"),
        ("lane", 'header["x', 8, 'closing "'),
        ("lane", "header.x-tenant", 10, 'header["x-tenant"]'),
        ("lane", "json.a-b", 8, 'json["a-b"]'),
        ("lane", "header", 7, "header.NAME"),
        ("lane", "json.a[", 8, "a place or a name"),
        ("lane", "json.a[0", 9, "closing ]"),
        ("lane", "json.", 6, "behind the dot"),
        ("lane", "json.a[99999999999]", 19, "a place or a name"),
        ("lane", '"\\q"', 1, "no text"),
        ("lane", "key; drop", 4, "expected"),
        ("lane", "__import__", 1, "there is no"),
        ("priority", "5 * 3", 3, "expected"),
        ("priority", "-5", 1, "not understood"),
        ("priority", "9" * 40, 41, "too large"),
    ],
)
def test_what_is_no_expression_is_refused_with_the_place(what: str, text: str, position: int, hint: str) -> None:
    with pytest.raises(duly.InvalidArgument) as refused:
        check_expression(text, what)
    assert str(refused.value).startswith(f"{what}: ")
    assert hint in str(refused.value)
    assert f"(character {position} of " in str(refused.value)


@pytest.mark.parametrize(
    ("what", "text", "reason"),
    [
        ("priority", "70000", "0 to 65535"),
        ("priority", "1.5", "0 to 65535"),
        ("priority", '"high"', "not a number"),
        ("priority", "30s", "not a number"),
        ("due", "5", "seconds(…)"),
        ("due", '"tomorrow"', "no ISO 8601 time"),
        ("due", '"2027-01-15T08:00:00"', "zone"),
        ("due", "9999w", "days ahead"),
        ("lane", '""', "1 to 256 characters"),
        ("lane", "30s", "must be a text"),
    ],
)
def test_a_constant_that_can_never_do_is_refused_when_it_is_given(what: str, text: str, reason: str) -> None:
    with pytest.raises(duly.InvalidArgument) as refused:
        ToTopic("later", **{what: text})
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("what", "text", "reason"),
    [
        ("due", "json.missing", "the payload has no json.missing"),
        ("due", "json.word", "no ISO 8601 time"),
        ("due", "json.seconds", "seconds(…)"),
        ("due", "json.a", "an object"),
        ("due", "json.no", "False"),
        ("due", "now + published", "Two moments"),
        ("due", "now + json.word", "a span"),
        ("due", "now + json.iso", "a span"),
        ("due", "json.huge", "too large"),
        ("due", "json.far", "days ahead"),
        ("due", "seconds(json.word)", "not a number"),
        ("priority", "json.word", "not a number"),
        ("priority", "json.minus", "0 to 65535"),
        ("priority", "now", "not a number"),
        ("lane", "json.a", "an object"),
        ("lane", "json.half", "must be a text"),
        ("lane", "json.long", "256 characters"),
        ("lane", "header.nobody", "no header 'nobody'"),
    ],
)
def test_a_message_that_makes_no_sense_is_refused_with_the_reason(what: str, text: str, reason: str) -> None:
    odd = {**PAYLOAD, "huge": 10**40, "far": NOW * 2, "minus": -1, "long": "x" * 300}
    ask = getattr(check_expression(text, what), "due_ms" if what == "due" else what)
    with pytest.raises(duly.InvalidArgument) as refused:
        ask(subject(odd))
    assert reason in str(refused.value)
    assert len(str(refused.value)) < 300


def test_what_a_message_of_a_log_does_not_have_is_missing() -> None:
    plain = subject(b"{}", key=None, lane=None, due_ms=None, headers=None, priority=0)
    for text, why in (("key", "no key"), ("lane", "no lane"), ("header.x", "no header")):
        with pytest.raises(duly.InvalidArgument, match=why):
            parse(text).lane(plain)
    with pytest.raises(duly.InvalidArgument, match=r"no due time.*\?\? none"):
        parse("due").due_ms(plain)
    assert parse("due ?? published").due_ms(plain) == PUBLISHED


@pytest.mark.parametrize("payload", [b"", b"\xff\xfe", b"{", b"[" * 100_000, b'"unpaired \\ud800"'])
def test_a_payload_that_is_no_json_has_nothing(payload: bytes) -> None:
    with pytest.raises(duly.InvalidArgument, match="the payload is no JSON"):
        parse("json.at").due_ms(subject(payload))
    assert parse("json.at ?? published").due_ms(subject(payload)) == PUBLISHED


def test_the_payload_is_read_once_and_only_if_it_is_asked_for() -> None:
    broken = subject(b"no json at all")
    assert parse("key").lane(broken) == "acme"
    one = subject()
    first = one.json()
    assert parse("json.a.b[0].c").lane(one) == "deep"
    assert one.json() is first


def test_depth_and_length_are_bounded() -> None:
    deep = "(" * 16 + "now" + ")" * 16
    with pytest.raises(duly.InvalidArgument, match="deep"):
        parse(deep)
    assert parse(deep[1:-1]).due_ms(subject()) == NOW
    with pytest.raises(duly.LimitExceeded, match=str(EXPRESSION_CHARS_MAX)):
        parse("now" + " + 1s" * 200)
    longest = "now" + "+1s" * ((EXPRESSION_CHARS_MAX - 3) // 3)
    assert parse(longest).due_ms(subject()) == NOW + 1000 * longest.count("+")
    began = time.monotonic()
    for hostile in ('"' + "\\" * 490, "1s" * 249 + "x", "9" * 499 + "w", "?" * 500, "json" + "[0" * 200, " " * 500):
        with pytest.raises(duly.InvalidArgument):
            parse(hostile)
    assert time.monotonic() - began < 1


@given(st.text(max_size=60))
def test_any_text_is_an_expression_or_is_refused(text: str) -> None:
    for what in ("due", "priority", "lane"):
        with suppress(duly.InvalidArgument):
            check_expression(text, what)


WORDS = st.sampled_from(
    ["now", "published", "due", "key", "lane", "priority", "none", "json.a", "json[0]", "header.h", "5", "30s", '"x"']
)
MARKS = st.sampled_from([" + ", " - ", " ?? "])
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
    max_leaves=5,
)


@given(WORDS, st.lists(st.tuples(MARKS, WORDS), max_size=4), ANYTHING, st.text(max_size=10) | st.none())
def test_whatever_a_message_says_the_answer_is_in_bounds_or_a_reason(
    first: str, others: list[tuple[str, str]], payload: Any, header: str | None
) -> None:
    expression = parse(first + "".join(mark + word for mark, word in others))
    one = subject(
        json.dumps(payload).encode(), headers={} if header is None else {"h": header}, key=None, lane=None, due_ms=None
    )
    for ask in (expression.due_ms, expression.priority, expression.lane):
        try:
            value = ask(one)
        except duly.InvalidArgument:
            continue
        if ask == expression.due_ms:
            assert value is None or 0 <= int(value) <= NOW + duly.LIMITS.due_ms_ahead_max
        elif ask == expression.priority:
            assert value is None or 0 <= int(value) <= duly.LIMITS.priority_max
        else:
            assert value is None or (isinstance(value, str) and 1 <= len(value) <= 256)
