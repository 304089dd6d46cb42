"""Settings of topics and groups, of both kinds: checked once, and refused with one of our errors."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import duly
from duly.tenant import check_name

WEEK_S = 7 * 86_400.0


def test_a_logs_defaults_need_no_tuning() -> None:
    settings = duly.TopicSettings(kind="log")
    assert (settings.partitions, settings.lease, settings.ttl) == (1, 30.0, None)
    assert settings.retry == duly.RetryPolicy()
    assert settings.retention == duly.Retention(age=WEEK_S)
    assert (settings.dead_letters, settings.archive, settings.lanes) == (True, False, None)
    assert settings.payload_bytes_max == 1024 * 1024


def test_a_queue_keeps_what_is_not_settled_and_has_lanes() -> None:
    settings = duly.TopicSettings(kind="queue")
    assert settings.retention == duly.Retention(settled=True)
    assert settings.lanes == duly.Lanes()


def test_durations_are_seconds_or_timedeltas_and_read_back_as_seconds() -> None:
    settings = duly.TopicSettings(kind="queue", lease=timedelta(minutes=2), ttl=5, dedupe=timedelta(hours=1))
    assert (settings.lease, settings.ttl, settings.dedupe) == (120.0, 5.0, 3600.0)
    assert duly.Retention(age=timedelta(days=1)).age == 86_400.0


@pytest.mark.parametrize(
    "bad",
    [
        {"kind": "stream"},
        {"kind": None},
        {"partitions": 0},
        {"partitions": 1025},
        {"partitions": 1.0},
        {"partitions": True},
        {"partitions": None},
        {"lease": 0.099},
        {"lease": 7 * 86_400 + 1},
        {"lease": None},
        {"lease": "30"},
        {"lease": float("nan")},
        {"ttl": 0},
        {"ttl": -1},
        {"ttl": 11 * 366 * 86_400},
        {"retry": 3},
        {"retry": None},
        {"dead_letters": 1},
        {"dead_letters": None},
        {"archive": "yes"},
        {"retention": 3600},
        {"rate": 0},
        {"rate": -1},
        {"rate": float("inf")},
        {"rate": 10_000_001},
        {"rate": True},
        {"payload_bytes_max": 0},
        {"payload_bytes_max": 64 * 1024 * 1024 + 1},
        {"payload_bytes_max": 1.5},
        {"health": (1, 2)},
        {"health": None},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["log", "queue"])
def test_a_bad_setting_of_either_kind_is_refused(kind: str, bad: dict[str, Any]) -> None:
    with pytest.raises(duly.InvalidArgument):
        duly.TopicSettings(**{"kind": kind, **bad})


@pytest.mark.parametrize("bad", [{"dedupe": -1}, {"dedupe": 31 * 86_400}, {"lanes": {"a": 1}}, {"lanes": 3}], ids=str)
def test_a_bad_setting_of_a_queue_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(duly.InvalidArgument):
        duly.TopicSettings(kind="queue", **bad)


@pytest.mark.parametrize("queues_own", [{"lanes": duly.Lanes()}, {"dedupe": 60}], ids=["lanes", "dedupe"])
def test_what_belongs_to_queues_is_refused_on_a_log_with_what_to_do_instead(queues_own: dict[str, Any]) -> None:
    with pytest.raises(duly.InvalidArgument, match="On a log"):
        duly.TopicSettings(kind="log", **queues_own)


def test_a_limit_passed_is_limit_exceeded_and_says_which() -> None:
    with pytest.raises(duly.LimitExceeded, match="lease"):
        duly.TopicSettings(kind="log", lease=8 * 86_400)
    with pytest.raises(duly.LimitExceeded, match="partitions"):
        duly.TopicSettings(kind="log", partitions=2000)


@pytest.mark.parametrize(
    "bad",
    [
        {"age": 0},
        {"age": -5},
        {"age": 101 * 366 * 86_400},
        {"bytes": 0},
        {"bytes": 1.5},
        {"bytes": True},
        {"settled": 1},
        {"settled": None},
        {"drop_unsettled": "no"},
    ],
    ids=str,
)
def test_a_bad_retention_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(duly.InvalidArgument):
        duly.Retention(**bad)


@pytest.mark.parametrize(
    "bad",
    [
        {"max_in_flight": 0},
        {"max_in_flight": 1_000_001},
        {"max_in_flight": 1.5},
        {"rate": 0},
        {"rate": float("nan")},
        {"weights": [("a", 1)]},
        {"weights": None},
        {"weights": {"a": 0}},
        {"weights": {"a": -1}},
        {"weights": {"a": 1_000_001}},
        {"weights": {"a": "3"}},
        {"weights": {"a": True}},
        {"weights": {"a": float("nan")}},
        {"weights": {"": 1}},
        {"weights": {"tab\t": 1}},
        {"weights": {7: 1}},
    ],
    ids=str,
)
def test_bad_lanes_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(duly.InvalidArgument):
        duly.Lanes(**bad)


def test_lanes_take_weights_limits_and_rates_together() -> None:
    lanes = duly.Lanes(max_in_flight=1, rate=0.5, weights={"acme": 3, "free-*": 0.1})
    assert (lanes.max_in_flight, lanes.rate, lanes.weights["acme"]) == (1, 0.5, 3)


@pytest.mark.parametrize(
    "bad",
    [
        {"dead": (2, 1)},
        {"dead": 5},
        {"dead": (1,)},
        {"dead": (1, 2, 3)},
        {"dead": (-1, 2)},
        {"dead": (1, float("inf"))},
        {"dead": ("a", "b")},
        {"consumers": (1, 2)},
        {"oldest_age": (60, 30)},
        {"retry_ratio": (float("nan"), 1)},
        {"undelivered": (None, 1)},
    ],
    ids=str,
)
def test_bad_health_thresholds_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(duly.InvalidArgument):
        duly.Health(**bad)


def test_health_thresholds_are_pairs_of_warn_and_alert() -> None:
    health = duly.Health(consumers=(2, 1), undelivered=(1000, 5000), oldest_age=(60, 600), dead=(1, 1))
    assert health.consumers == (2.0, 1.0)
    assert health.undelivered == (1000.0, 5000.0)
    assert health.retry_ratio is None


def test_settings_are_frozen() -> None:
    settings = duly.TopicSettings(kind="log")
    with pytest.raises(AttributeError):
        settings.lease = 5  # type: ignore[misc]
    with pytest.raises(AttributeError):
        duly.Lanes().rate = 1  # type: ignore[misc]


def test_changed_changes_what_is_named() -> None:
    settings = duly.TopicSettings(kind="log", lease=5)
    changed = settings.changed({"ttl": 60})
    assert (changed.lease, changed.ttl) == (5.0, 60.0)
    assert settings.ttl is None
    for bad in ({"kind": "queue"}, {"partitions": 2}, {"nonsense": 1}, {"ttl": -1}):
        with pytest.raises(duly.InvalidArgument):
            settings.changed(bad)
    assert settings.changed({"kind": "log", "partitions": 1}) == settings


@pytest.mark.parametrize("bad", [{"lease": 0}, {"retry": 1}, {"dead_letters": 0}], ids=str)
def test_a_bad_group_setting_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(duly.InvalidArgument):
        duly.GroupSettings(**bad)
    with pytest.raises(duly.InvalidArgument):
        duly.GroupSettings().changed(bad)


def test_a_groups_settings_default_to_the_topics() -> None:
    assert duly.GroupSettings() == duly.GroupSettings(lease=None, retry=None, dead_letters=None)


# Names and limits


@pytest.mark.parametrize("name", ["a", "x" * 256, "with space", "Zoë/日本", "a.b-c_d$"])
def test_printable_names_of_up_to_256_characters_are_good(name: str) -> None:
    assert check_name(name, "topic name") == name


@pytest.mark.parametrize("name", ["", "x" * 257, "\t", "a\nb", "\x00", "\x7f", "\u200b", "\ud800", None, 7, b"bytes"])
def test_other_names_are_refused(name: object) -> None:
    with pytest.raises(duly.InvalidArgument):
        check_name(name, "topic name")


def test_limits_are_published_as_plain_numbers() -> None:
    from duly.limits import published

    table = published()
    assert table["name_chars_max"] == 256
    assert table["payload_bytes_default"] == 1024**2
    assert table["payload_bytes_max"] == 64 * 1024**2
    assert table["consumers_per_topic_max"] == 1_000_000
    assert table["due_ms_ahead_max"] >= 10 * 365 * 86_400_000
    assert all(isinstance(value, int) and value > 0 for value in table.values())


def test_the_client_publishes_the_limits() -> None:
    from duly.limits import published

    with duly.connect(":memory:") as q:
        assert q.limits() == published()


@pytest.mark.parametrize(
    "bad",
    [
        {"failures": 0},
        {"failures": 1.1},
        {"failures": float("nan")},
        {"calls": 0},
        {"calls": 2.0},
        {"window": 0},
        {"window": None},
        {"probe": 61},
        {"probe_max": 0.5},
        {"probe_max": 86_401},
    ],
    ids=str,
)
def test_a_bad_breaker_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(duly.InvalidArgument):
        duly.Breaker(**bad)


@pytest.mark.parametrize(
    "bad",
    [{"max_in_flight": 0}, {"max_in_flight": True}, {"breaker": 3}, {"rate": -1}, {"rate": float("nan")}],
    ids=str,
)
def test_bad_limits_are_refused_of_topics_and_of_groups(bad: dict[str, Any]) -> None:
    for settings in (lambda **given: duly.TopicSettings("log", **given), duly.GroupSettings):
        with pytest.raises(duly.InvalidArgument):
            settings(**bad)


@pytest.mark.parametrize("bad", [-0.1, 101, "1", True, float("nan")], ids=str)
def test_a_bad_budget_of_retries_is_refused(bad: Any) -> None:
    with pytest.raises(duly.InvalidArgument):
        duly.RetryPolicy(budget=bad)
