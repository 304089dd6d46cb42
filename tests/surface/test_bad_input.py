"""Bad input of every kind to every call: one of our errors, a sentence that names the offender, nothing changed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Any

import pytest

import duly

LIMITS = duly.LIMITS
HUGE = 10**400
Refused = duly.InvalidArgument

NOT_NAMES = [5, 1.5, True, b"log", {}, [], object(), "", "x" * (LIMITS.name_chars_max + 1), "a\nb", "a\0b", "\ud800"]
NOT_WHOLE = ["1", b"1", 1.0, True, -1, {}, math.nan, math.inf, object(), -HUGE]
NOT_A_DURATION = ["5", b"5", True, math.nan, math.inf, -math.inf, -1, HUGE, -HUGE, {}, object(), timedelta(-1)]


class NoOffset(tzinfo):
    """A time zone that does not say how far it is from UTC."""

    def utcoffset(self, moment: datetime | None) -> None:
        return None

    def dst(self, moment: datetime | None) -> None:
        return None

    def tzname(self, moment: datetime | None) -> None:
        return None


NOT_A_MOMENT = ["2024-01-01", b"x", True, {}, date(2024, 1, 1), datetime(2024, 1, 1), object()]  # noqa: DTZ001
NOT_A_MOMENT += [datetime(2024, 1, 1, tzinfo=NoOffset()), datetime.min, datetime.max]  # noqa: DTZ901

Call = Callable[[duly.Client, Any], object]


@dataclass
class Stage:
    """A store in which there is something to damage."""

    q: duly.Client
    batch: duly.Batch
    now_ms: int

    def state(self) -> str:
        q = self.q
        read = [q.read("log", partition=p, offset=0) for p in range(3)]
        described = [q.describe_topic(name) for name in q.list_topics()]
        line = (q.browse("line"), list(q.dead("line")), q.coming("line", minutes=5))
        return repr((described, q.describe_group("log", "g"), read, list(q.dead("log", group="g")), line))

    def complaint(self, call: Call, value: object, kind: type[duly.Error], word: str) -> str | None:
        """What is wrong with how a call answered bad input; None when all is well."""
        before = self.state()
        try:
            answer = call(self.q, value)
        except kind as error:
            wrong = None if _teaches(str(error), word) else f"says {str(error)!r}"
        except BaseException as error:
            wrong = f"raised {error!r}"
        else:
            wrong = f"answered {answer!r}"
        if self.state() != before:
            wrong = f"{wrong or 'was refused'} and changed the state"
        return wrong and f"{_short(value)} {wrong}"


def _teaches(text: str, word: str) -> bool:
    """A sentence; it may begin with the argument that it is about."""
    whole = text[:1].isupper() or text[:1] in "'\"" or (word and word in text.split()[0])
    return bool(whole) and word in text and text.endswith(".")


def _short(value: object) -> str:
    return f"{type(value).__name__} {repr(value)[:40]}"


def all_refused(stage: Stage, call: Call, values: list[Any], kind: type[duly.Error], word: str) -> None:
    complaints = [stage.complaint(call, value, kind, word) for value in values]
    assert [complaint for complaint in complaints if complaint] == []


@pytest.fixture
def stage(q: duly.Client, clock: duly.ManualClock) -> Stage:
    q.create_topic("log", kind="log", partitions=3)
    q.create_topic("line", kind="queue")
    q.create_group("log", "g")
    q.publish("log", [duly.Message(b"%d" % n, partition=n % 3, id=f"m{n}") for n in range(9)])
    q.bury(q.claim("log", group="g", max_messages=1), reason="bad")
    q.publish("line", [duly.Message(b"%d" % n, id=f"m{n}", priority=n, lane="a", due=60 * (n // 4)) for n in range(8)])
    q.bury(q.claim("line", max_messages=1), reason="bad")
    q.claim("line", max_messages=1)
    return Stage(q, q.claim("log", group="g", max_messages=2), clock.now_ms())


def a_moment() -> datetime:
    return datetime(2024, 1, 1, tzinfo=UTC)


OF_A_TOPIC: dict[str, Call] = {
    "update_topic": lambda q, v: q.update_topic(v, lease=5),
    "describe_topic": lambda q, v: q.describe_topic(v),
    "delete_topic": lambda q, v: q.delete_topic(v, force=True),
    "pause": lambda q, v: q.pause(v),
    "resume": lambda q, v: q.resume(v),
    "purge": lambda q, v: q.purge(v),
    "purge_group": lambda q, v: q.purge(v, group="g"),
    "purge_dead": lambda q, v: q.purge(v, group="g", dead=True),
    "archived": lambda q, v: q.archived(v, offset=0),
    "create_group": lambda q, v: q.create_group(v, "new"),
    "update_group": lambda q, v: q.update_group(v, "g", lease=3),
    "describe_group": lambda q, v: q.describe_group(v, "g"),
    "list_groups": lambda q, v: q.list_groups(v),
    "delete_group": lambda q, v: q.delete_group(v, "g"),
    "seek": lambda q, v: q.seek(v, "g", to="latest"),
    "publish": lambda q, v: q.publish(v, b"x"),
    "read": lambda q, v: q.read(v),
    "offset_at": lambda q, v: q.offset_at(v, a_moment()),
    "claim": lambda q, v: q.claim(v, group="g"),
    "dead": lambda q, v: list(q.dead(v, group="g")),
    "redrive": lambda q, v: q.redrive(v, group="g"),
    "held": lambda q, v: q.held(topic=v),
    "held_group": lambda q, v: q.held(topic=v, group="g"),
    "release_consumer": lambda q, v: q.release(consumer="w1", topic=v),
    "claim_queue": lambda q, v: q.claim(v),
    "move": lambda q, v: q.move(v, "m5", due=5),
    "cancel": lambda q, v: q.cancel(v, "m5"),
    "get": lambda q, v: q.get(v, "m5"),
    "browse": lambda q, v: q.browse(v),
    "coming": lambda q, v: q.coming(v),
}
OF_A_GROUP: dict[str, Call] = {
    "pause": lambda q, v: q.pause("log", group=v),
    "resume": lambda q, v: q.resume("log", group=v),
    "purge": lambda q, v: q.purge("log", group=v),
    "purge_dead": lambda q, v: q.purge("log", group=v, dead=True),
    "update_group": lambda q, v: q.update_group("log", v, lease=3),
    "describe_group": lambda q, v: q.describe_group("log", v),
    "delete_group": lambda q, v: q.delete_group("log", v),
    "seek": lambda q, v: q.seek("log", v, to="latest"),
    "claim": lambda q, v: q.claim("log", group=v),
    "dead": lambda q, v: list(q.dead("log", group=v)),
    "redrive": lambda q, v: q.redrive("log", group=v),
    "held": lambda q, v: q.held(topic="log", group=v),
    "release_consumer": lambda q, v: q.release(consumer="w1", topic="log", group=v),
}
NUMBERS: dict[str, tuple[str, Call]] = {
    "read_partition": ("partition", lambda q, v: q.read("log", partition=v)),
    "read_offset": ("offset", lambda q, v: q.read("log", offset=v)),
    "read_max_messages": ("max_messages", lambda q, v: q.read("log", max_messages=v)),
    "read_max_bytes": ("max_bytes", lambda q, v: q.read("log", max_bytes=v)),
    "claim_max_messages": ("max_messages", lambda q, v: q.claim("log", group="g", max_messages=v)),
    "claim_max_bytes": ("max_bytes", lambda q, v: q.claim("log", group="g", max_bytes=v)),
    "archived_partition": ("partition", lambda q, v: q.archived("log", partition=v, offset=0)),
    "archived_offset": ("offset", lambda q, v: q.archived("log", offset=v)),
    "list_topics": ("limit", lambda q, v: q.list_topics(limit=v)),
    "dead": ("limit", lambda q, v: list(q.dead("log", group="g", limit=v))),
    "redrive": ("limit", lambda q, v: q.redrive("log", group="g", limit=v)),
    "version": ("version", lambda q, v: q.update_topic("log", version=v, lease=7)),
    "seek": ("ffset", lambda q, v: q.seek("log", "g", offset={0: v})),
    "browse": ("limit", lambda q, v: q.browse("line", limit=v)),
    "coming": ("minutes", lambda q, v: q.coming("line", minutes=v)),
    "move_priority": ("priority", lambda q, v: q.move("line", "m5", priority=v)),
    "browse_priority": ("priority", lambda q, v: q.browse("line", priority=v)),
    "browse_lowest": ("priority", lambda q, v: q.browse("line", priority=(v, 5))),
    "browse_highest": ("priority", lambda q, v: q.browse("line", priority=(0, v))),
    "publish_priority": ("priority", lambda q, v: q.publish("line", duly.Message(b"", priority=v))),
    "seek_partition": ("ffset", lambda q, v: q.seek("log", "g", offset={v: 0} if v.__hash__ else {0: v})),
}


DURATIONS: dict[str, tuple[str, Call]] = {
    "lease": ("lease", lambda q, v: q.claim("log", group="g", lease=v)),
    "wait": ("wait", lambda q, v: q.claim("log", group="g", wait=v)),
    "topic_lease": ("lease", lambda q, v: q.create_topic("new", kind="log", lease=v)),
    "topic_ttl": ("ttl", lambda q, v: q.create_topic("new", kind="log", ttl=v)),
    "topic_dedupe": ("dedupe", lambda q, v: q.create_topic("new", kind="queue", dedupe=v)),
    "update_lease": ("lease", lambda q, v: q.update_topic("log", lease=v)),
    "group_lease": ("lease", lambda q, v: q.create_group("log", "new", lease=v)),
    "age": ("age", lambda q, v: q.update_topic("log", retention=duly.Retention(age=v))),
    "base": ("base", lambda q, v: q.update_topic("log", retry=duly.RetryPolicy(base=v))),
    "cap": ("cap", lambda q, v: q.update_topic("log", retry=duly.RetryPolicy(cap=v))),
    "queue_lease": ("lease", lambda q, v: q.claim("line", lease=v)),
    "queue_wait": ("wait", lambda q, v: q.claim("line", wait=v)),
    "move_due": ("due", lambda q, v: q.move("line", "m5", due=v)),
    "publish_due": ("due", lambda q, v: q.publish("line", duly.Message(b"", due=v))),
}


@pytest.mark.parametrize("name", OF_A_TOPIC)
def test_a_bad_topic_name(stage: Stage, name: str) -> None:
    call = OF_A_TOPIC[name]
    optional = name.startswith(("held", "release"))
    all_refused(stage, call, NOT_NAMES if optional else [None, *NOT_NAMES], Refused, "name")
    all_refused(stage, call, ["nope", "LOG", "log "], duly.TopicNotFound, "'")


@pytest.mark.parametrize("name", OF_A_GROUP)
def test_a_bad_group_name(stage: Stage, name: str) -> None:
    call = OF_A_GROUP[name]
    all_refused(stage, call, NOT_NAMES, Refused, "name")
    all_refused(stage, call, ["nope", "G"], duly.GroupNotFound, "'")


def test_a_bad_name_for_something_new(stage: Stage) -> None:
    all_refused(stage, lambda q, v: q.create_topic(v, kind="log"), [None, *NOT_NAMES, "$own"], Refused, "opic")
    all_refused(stage, lambda q, v: q.create_group("log", v), [None, *NOT_NAMES], Refused, "group")
    all_refused(stage, lambda q, v: q.create_topic(v, kind="log"), ["log", "line"], duly.TopicExists, "exists")
    all_refused(stage, lambda q, v: q.create_group("log", v), ["g"], duly.GroupExists, "exists")
    all_refused(
        stage, lambda q, v: q.create_topic("log", kind="log", lease=v, exist_ok=True), [3], duly.TopicExists, "lease"
    )
    all_refused(stage, lambda q, v: q.create_group("log", "g", lease=v, exist_ok=True), [3], duly.GroupExists, "'g'")


@pytest.mark.parametrize("name", NUMBERS)
def test_a_bad_number(stage: Stage, name: str) -> None:
    word, call = NUMBERS[name]
    kind = duly.Error if name == "version" else Refused
    all_refused(stage, call, NOT_WHOLE, kind, word)


def test_numbers_past_their_limits(stage: Stage) -> None:
    most = LIMITS.claim_messages_max + 1
    all_refused(stage, lambda q, v: q.claim("log", group="g", max_messages=v), [0, most, HUGE], Refused, "max_m")
    all_refused(stage, lambda q, v: q.read("log", max_messages=v), [0, most, HUGE], Refused, "max_messages")
    all_refused(stage, lambda q, v: q.read("log", max_bytes=v), [0, HUGE], Refused, "max_bytes")
    all_refused(stage, lambda q, v: q.read("log", offset=v), [4, 2**63, 2**64, HUGE], Refused, "offset")
    all_refused(stage, lambda q, v: q.read("log", partition=v), [3, 2**63, HUGE], Refused, "partition")
    all_refused(stage, lambda q, v: q.seek("log", "g", offset=v), [4, {}, [0]], Refused, "ffset")
    all_refused(stage, lambda q, v: q.seek("log", "g", offset=v), [{0: 0, 3: 0}], Refused, "partition")
    all_refused(stage, lambda q, v: q.archived("log", offset=v), [4, 2**64], Refused, "offset")
    all_refused(stage, lambda q, v: q.redrive("log", group="g", limit=v), [0, HUGE], Refused, "limit")
    page = [0, LIMITS.page_max + 1, HUGE]
    all_refused(stage, lambda q, v: q.browse("line", limit=v), page, Refused, "limit")
    all_refused(stage, lambda q, v: q.coming("line", minutes=v), page, Refused, "minutes")
    levels = [LIMITS.priority_max + 1, HUGE]
    all_refused(stage, lambda q, v: q.move("line", "m5", priority=v), levels, Refused, "priority")
    all_refused(stage, lambda q, v: q.publish("line", duly.Message(b"", priority=v)), levels, Refused, "priority")


@pytest.mark.parametrize("name", DURATIONS)
def test_a_bad_duration(stage: Stage, name: str) -> None:
    word, call = DURATIONS[name]
    all_refused(stage, call, NOT_A_DURATION, Refused, word)


def test_a_bad_wait_or_lease_for_deliveries(stage: Stage) -> None:
    batch = stage.batch
    bad = NOT_A_DURATION
    all_refused(stage, lambda q, v: q.nack(batch, delay=v), [*bad, timedelta.max], Refused, "delay")
    all_refused(stage, lambda q, v: q.extend(batch, v), [*bad, 0, 0.01, timedelta.max], Refused, "lease")
    all_refused(stage, lambda q, v: batch[0].nack(delay=v), bad, Refused, "delay")
    all_refused(stage, lambda q, v: batch[0].extend(v), bad, Refused, "lease")


def test_a_wait_without_end_is_refused(stage: Stage) -> None:
    stage.q.create_group("log", "empty", start="latest")
    call: Call = lambda q, v: q.claim("log", group="empty", wait=v)  # noqa: E731
    all_refused(stage, call, [1e300, timedelta.max], Refused, "wait")


TIMED: dict[str, Callable[[duly.Client, Stage, Any], object]] = {
    "publish": lambda q, s, v: q.publish("log", b"x", timeout=v),
    "claim": lambda q, s, v: q.claim("log", group="g", timeout=v),
    "ack": lambda q, s, v: q.ack(s.batch, timeout=v),
    "ack_one": lambda q, s, v: s.batch[0].ack(timeout=v),
    "read": lambda q, s, v: q.read("log", timeout=v),
    "purge": lambda q, s, v: q.purge("log", timeout=v),
    "create_topic": lambda q, s, v: q.create_topic("new", kind="log", timeout=v),
    "delete_topic": lambda q, s, v: q.delete_topic("log", force=True, timeout=v),
    "describe_group": lambda q, s, v: q.describe_group("log", "g", timeout=v),
    "dead": lambda q, s, v: list(q.dead("log", group="g", timeout=v)),
    "redrive": lambda q, s, v: q.redrive("log", group="g", timeout=v),
    "release": lambda q, s, v: q.release(consumer="w1", timeout=v),
    "held": lambda q, s, v: q.held(timeout=v),
    "move": lambda q, s, v: q.move("line", "m5", due=5, timeout=v),
    "cancel": lambda q, s, v: q.cancel("line", "m5", timeout=v),
    "get": lambda q, s, v: q.get("line", "m5", timeout=v),
    "browse": lambda q, s, v: q.browse("line", timeout=v),
    "coming": lambda q, s, v: q.coming("line", timeout=v),
}


@pytest.mark.parametrize("name", TIMED)
def test_a_bad_timeout(stage: Stage, name: str) -> None:
    bad = [*NOT_A_DURATION, 0, 3601, timedelta.max]
    all_refused(stage, lambda q, v: TIMED[name](q, stage, v), bad, Refused, "timeout")


def test_a_bad_moment(stage: Stage) -> None:
    bad = NOT_A_MOMENT
    all_refused(stage, lambda q, v: q.offset_at("log", v), [None, 5, *bad], Refused, "when")
    all_refused(stage, lambda q, v: q.seek("log", "g", at=v), [5, *bad], Refused, "")
    all_refused(stage, lambda q, v: q.browse("line", due_from=v), [5, *bad], Refused, "due_from")
    all_refused(stage, lambda q, v: q.browse("line", due_before=v), [5, *bad], Refused, "due_before")
    all_refused(stage, lambda q, v: q.move("line", "m5", due=v), bad, Refused, "due")
    all_refused(stage, lambda q, v: q.publish("line", duly.Message(b"", due=v)), bad, Refused, "due")
    starts = [None, 1.5, "first", {}, {"0": 0}, {0: -1}, {7: 0}, -1, 99, *bad]
    all_refused(stage, lambda q, v: q.create_group("log", "new", start=v), starts, Refused, "")


def test_far_moments_are_moments(stage: Stage) -> None:
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    assert stage.q.offset_at("log", first) == {0: 0, 1: 0, 2: 0}
    assert stage.q.offset_at("log", last) == {0: 3, 1: 3, 2: 3}
    stage.q.publish("log", duly.Message(b"long", expires_at=last, partition=0))
    assert stage.q.read("log", offset=3)[0].expires_at == last.replace(microsecond=999000)
    assert stage.q.browse("line", due_from=last) == stage.q.browse("line", due_before=first) == []
    assert len(stage.q.browse("line", due_from=first, due_before=last)) == 8
    past = stage.q.publish("line", duly.Message(b"long ago", due=first, id="past"))
    assert past.count == 1
    assert stage.q.move("line", "m7", due=first) == {"m7": "moved"}


def test_seek_to_nothing_or_to_two_places(stage: Stage) -> None:
    all_refused(stage, lambda q, v: q.seek("log", "g", **v), [{}, {"offset": 0, "to": "latest"}], Refused, "Seek")
    all_refused(stage, lambda q, v: q.seek("log", "g", to=v), ["first", "", 5, b"latest"], Refused, "")


BAD_SETTINGS: dict[str, list[Any]] = {
    "kind": [None, "", "stream", b"log", 5, [], "Log"],
    "partitions": [None, 0, -1, 1.5, "2", True, LIMITS.partitions_max + 1, HUGE],
    "retry": [None, 5, {}, "exponential", duly.Retention()],
    "dead_letters": [None, 1, "yes", []],
    "retention": [5, {}, "1 week"],
    "archive": [None, 1, "no"],
    "rate": [0, -1, "5", True, math.nan, math.inf, HUGE, LIMITS.rate_per_s_max + 1],
    "payload_bytes_max": [None, 0, -1, 1.5, True, "1", LIMITS.payload_bytes_max + 1, HUGE],
    "lanes": [5, {}, "a", duly.Lanes()],
    "health": [None, 5, {}],
    "dedupe": [5],
    "unknown": [5],
}


@pytest.mark.parametrize("setting", BAD_SETTINGS)
def test_a_bad_setting(stage: Stage, setting: str) -> None:
    def create(q: duly.Client, value: Any) -> object:
        return q.create_topic("new", **{"kind": "log", setting: value})

    word = {"lanes": "anes", "dead_letters": "dead_letters"}.get(setting, setting)
    all_refused(stage, create, BAD_SETTINGS[setting], Refused, word)
    all_refused(stage, lambda q, v: q.update_topic("log", **{setting: v}), BAD_SETTINGS[setting], Refused, word)


def test_bad_parts_of_settings(stage: Stage) -> None:
    bad: list[tuple[Callable[[], object], str]] = [
        (lambda: duly.RetryPolicy(max_attempts=0), "max_attempts"),
        (lambda: duly.RetryPolicy(max_attempts=True), "max_attempts"),
        (lambda: duly.RetryPolicy(max_attempts=1.5), "max_attempts"),  # type: ignore[arg-type]
        (lambda: duly.RetryPolicy(max_attempts=LIMITS.attempts_max + 1), "max_attempts"),
        (lambda: duly.RetryPolicy(shape="cubic"), "shape"),
        (lambda: duly.RetryPolicy(jitter=None), "jitter"),  # type: ignore[arg-type]
        (lambda: duly.RetryPolicy(shape=[]), "shape"),  # type: ignore[arg-type]
        (lambda: duly.Retention(bytes=0), "bytes"),
        (lambda: duly.Retention(bytes=HUGE), "bytes"),
        (lambda: duly.Retention(settled=1), "settled"),  # type: ignore[arg-type]
        (lambda: duly.Retention(drop_unsettled="no"), "drop_unsettled"),  # type: ignore[arg-type]
        (lambda: duly.Lanes(max_in_flight=0), "max_in_flight"),
        (lambda: duly.Lanes(rate=math.nan), "rate"),
        (lambda: duly.Lanes(weights=[]), "weights"),  # type: ignore[arg-type]
        (lambda: duly.Lanes(weights={"a": -1}), "'a'"),
        (lambda: duly.Lanes(weights={"a": math.nan}), "'a'"),
        (lambda: duly.Lanes(weights={"": 1}), "lane"),
        (lambda: duly.Health(dead=(5, 1)), "dead"),
        (lambda: duly.Health(dead=5), "dead"),  # type: ignore[arg-type]
        (lambda: duly.Health(dead=(math.nan, 1)), "dead"),
        (lambda: duly.Health(dead=(HUGE, HUGE)), "dead"),
        (lambda: duly.Health(consumers=(1, 5)), "consumers"),
        (lambda: duly.GroupSettings(lease=0), "lease"),
        (lambda: duly.GroupSettings(retry=5), "retry"),  # type: ignore[arg-type]
        (lambda: duly.GroupSettings(dead_letters=1), "dead_letters"),  # type: ignore[arg-type]
    ]
    for make, word in bad:
        all_refused(stage, lambda q, v: v(), [make], Refused, word)


def test_flags_are_true_or_false(stage: Stage) -> None:
    """ "false" as a string is true to Python: a topic would be deleted by it."""
    not_flags = [None, 1, "false", b"", [], object()]
    calls: dict[str, Call] = {
        "force": lambda q, v: q.delete_topic("line", force=v),
        "exist_ok": lambda q, v: q.create_topic("log", kind="log", partitions=3, exist_ok=v),
        "dead": lambda q, v: q.purge("log", group="g", dead=v),
    }
    for word, call in calls.items():
        all_refused(stage, call, not_flags, Refused, word)


def test_settling_what_was_never_delivered(stage: Stage) -> None:
    not_deliveries = [5, "x", b"x", object(), [5], [None], ["x"], {"a": 1}, [stage.batch[0], 5], [[stage.batch[0]]]]
    for verb in ("ack", "nack", "extend", "bury", "release"):
        all_refused(stage, lambda q, v, verb=verb: getattr(q, verb)(v), not_deliveries, Refused, "eliver")  # type: ignore[misc]
    all_refused(stage, lambda q, v: q.ack(v), [None], Refused, "eliver")
    all_refused(stage, lambda q, v: q.release(v), [None], Refused, "elease")
    all_refused(stage, lambda q, v: q.release(stage.batch, consumer=v), ["w1"], Refused, "elease")
    for settle in (stage.q.nack, stage.q.bury):
        reasons: Call = lambda q, v, settle=settle: settle(stage.batch, reason=v)  # type: ignore[misc]  # noqa: E731
        all_refused(stage, reasons, [None, 5, b"x", {}], Refused, "reason")


def test_deliveries_of_another_tenant_or_store_are_refused(stage: Stage, path: str, clock: duly.ManualClock) -> None:
    """Lease numbers of two stores are alike; a token is good only where it was made."""
    with duly.connect(path, tenant="other", clock=clock) as other, duly.connect(":memory:", clock=clock) as elsewhere:
        for q in (other, elsewhere):
            q.create_topic("log", kind="log")
            q.create_group("log", "g")
            q.publish("log", [b"1", b"2", b"3"])
        foreign = [
            other.claim("log", group="g"),
            *[elsewhere.claim("log", group="g", max_messages=1) for _ in range(3)],
        ]
        before = stage.state()
        for batch in foreign:
            for verb in ("extend", "nack", "ack"):
                settled: duly.Settled = getattr(stage.q, verb)(list(batch))
                assert (settled.done, len(settled.lost)) == (0, len(batch))
        assert stage.state() == before


def test_another_tenant_sees_nothing(stage: Stage, path: str, clock: duly.ManualClock) -> None:
    before = stage.state()
    with duly.connect(path, tenant="other", clock=clock) as other:
        assert other.list_topics() == []
        for call in OF_A_TOPIC.values():
            with pytest.raises(duly.TopicNotFound, match="'log'"):
                call(other, "log")
        assert other.held(consumer="w1") == []
        assert other.release(consumer="w1").done == 0
        with pytest.raises(duly.TopicNotFound):
            other.ack(list(stage.batch))
    assert stage.state() == before


def test_a_bad_place_or_id_of_a_dead_letter(stage: Stage) -> None:
    places = [None, "x", 5, (), (0,), (0, 0, 0), ("0", 0), (0, "0"), (-1, 0), [0, 0], (0, 1.5), (True, 0)]
    all_refused(stage, lambda q, v: list(q.dead("log", group="g", after=v)), places, Refused, "after")
    ids = ["m0", b"m0", 5, [5], [None], [["m0"]], {"m0": 1, 5: 2}]
    all_refused(stage, lambda q, v: q.redrive("log", group="g", ids=v), ids, Refused, "id")
    rates = [0, -1, "5", math.nan, math.inf, HUGE, True, LIMITS.rate_per_s_max + 1, {}]
    all_refused(stage, lambda q, v: q.redrive("log", group="g", rate=v), rates, Refused, "rate")
    all_refused(stage, lambda q, v: q.redrive("line", ids=v), ids, Refused, "id")
    all_refused(stage, lambda q, v: list(q.dead("line", after=v)), places, Refused, "after")
    assert stage.q.redrive("line", ids=[]) == stage.q.redrive("line", ids=["nope"]) == 0
    assert stage.q.redrive("log", group="g", ids=[]) == stage.q.redrive("log", group="g", ids=["nope"]) == 0


def test_a_bad_consumer_name(stage: Stage) -> None:
    for call in (
        lambda q, v: q.claim("log", group="g", consumer=v),
        lambda q, v: q.held(consumer=v),
        lambda q, v: q.release(consumer=v),
        lambda q, v: duly.connect(":memory:", consumer=v),
        lambda q, v: duly.connect(":memory:", tenant=v),
    ):
        all_refused(stage, call, NOT_NAMES, Refused, "name")
    all_refused(stage, lambda q, v: q.list_topics(after=v), [None, 5, b"a", {}], Refused, "after")


def test_a_bad_store(stage: Stage, tmp_path: Any) -> None:
    (tmp_path / "not.duly").write_bytes(b"this is no database, only a text that is long enough to be looked at" * 20)
    all_refused(stage, lambda q, v: duly.connect(v), [None, 5, b"x", "", "a\0b", {}], Refused, "store")
    all_refused(stage, lambda q, v: duly.connect(v), ["mysql://x", "duly://", "duly://x:y"], Refused, "://")
    all_refused(stage, lambda q, v: duly.connect(f"postgresql://x/y?schema={v}"), ["", "A b", "1"], Refused, "schema")
    all_refused(
        stage, lambda q, v: duly.connect(v), [tmp_path, tmp_path / "not.duly"], duly.IncompatibleStore, str(tmp_path)
    )
    all_refused(stage, lambda q, v: duly.connect(v), [tmp_path / "no" / "folder.duly"], duly.StoreError, "folder.duly")
    all_refused(stage, lambda q, v: duly.connect("\ud800.duly"), [0], duly.Error, "")
    bad_timeouts = [*NOT_A_DURATION, 0]
    all_refused(stage, lambda q, v: duly.connect(":memory:", timeout=v), bad_timeouts, Refused, "timeout")


def test_a_closed_client_says_so_to_every_call(stage: Stage, path: str, clock: duly.ManualClock) -> None:
    closed = duly.connect(path, clock=clock)
    closed.close()
    closed.close()
    calls = [*OF_A_TOPIC.values(), lambda q, v: q.create_topic("new", kind="log"), lambda q, v: q.list_topics()]
    calls += [lambda q, v: q.ack(stage.batch), lambda q, v: q.nack(list(stage.batch)), lambda q, v: q.held()]
    for call in calls:
        assert stage.complaint(lambda q, v, call=call: call(closed, v), "log", duly.Closed, "closed") is None  # type: ignore[misc]
