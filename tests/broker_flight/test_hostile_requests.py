"""Whatever is sent as a request, an error of ours comes back, never one of Python's; and the session goes on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import flight

import duly
from duly.broker.broker import Broker
from duly.errors import every_error
from duly.wire.faults import Fault, decode_fault
from duly.wire.operations import encode
from duly.wire.talk import CONSUME, Answer, Request
from tests.conftest import scaled

from .conftest import Here, Raw
from .test_parity import SAMPLES

CODES = {kind.code for kind in every_error()}
# What a broker says of itself, not of what was sent.
OWN_FAULTS = {"error", "store_error", "corrupt_block", "incompatible_store"}


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


HOSTILE: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 1.5, math.nan, math.inf,
    -math.inf, "", "x", "\0", "x" * 300, "x" * 100_000, "\U0010ffff", "../../etc", "a'; DROP TABLE duly_topic; --",
    "$events", "~zz", b"", b"\xff\xfe", [], [None], [-1, -1], [2**63, 2**63], ["x"] * 2000, [[1, 2]], nested(200),
    {}, {"x": 1}, {"lease": -1}, {"lease": {"a": []}}, {"kind": "log", "partitions": 10**9},
    {"word": "latest", "at_ms": -1}, {"word": "now"}, {"offsets": {-1: -1}},
    {"lease_id": -1, "indexes": [0]}, {"": None},
]  # fmt: skip


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    folder: Path = tmp_path_factory.mktemp("hostile")
    here = Here(str(folder / "app.duly"))
    yield here
    here.close()


@pytest.fixture(scope="module")
def raw(broker: Here) -> Raw:
    return broker.session()


@pytest.fixture(autouse=True)
def stocked(broker: Here) -> Iterator[None]:
    """The topics that samples name, whatever became of them, and a broker that serves others afterwards."""
    with duly.connect(broker.url, timeout=10) as q:
        stock(q)
        yield
        stock(q)
        q.publish("jobs", b"still here")
        assert q.read("orders", max_messages=1)


def stock(q: duly.Client) -> None:
    q.resume_store()
    topics = q.list_topics()
    if "jobs" not in topics:
        q.create_topic("jobs", kind="queue")
    if "orders" not in topics:
        q.create_topic("orders", kind="log")
        q.publish("orders", [b"1", b"2"])
    if "billing" not in q.list_groups("orders"):
        q.create_group("orders", "billing")


def check(fault: Fault | None, sent: object) -> None:
    """An error that a client may see: ours, about what was sent, and telling nothing of the broker's insides."""
    if fault is None:
        return
    assert fault.code in CODES, (fault, sent)
    assert fault.code not in OWN_FAULTS, (fault, sent)
    assert not any(word in fault.message for word in ("Traceback", ".py", "/src/", "Error(")), (fault, sent)
    assert len(fault.message) <= 1000, sent


@pytest.mark.parametrize("name", sorted(set(SAMPLES) - {"publish"}))
def test_any_value_in_any_field_of_a_command_is_accepted_or_refused(raw: Raw, name: str) -> None:
    for field, value in itertools.product(SAMPLES[name], HOSTILE):
        command = SAMPLES[name] | {field: value}
        check(raw.ask(name, command)[0].fault, command)


COLUMNS = ("payload", "id", "key", "headers", "expires_at", "lane", "priority", "due_at", "offset", "nothing")


def test_any_value_in_a_batch_or_its_description_is_accepted_or_refused(raw: Raw) -> None:
    sample = SAMPLES["publish"]
    fields = (*sample, "repeated", "relative", "partitions", "timeout_ms")
    for field, value in itertools.product(fields, HOSTILE):
        check(raw.ask("publish", sample | {field: value})[0].fault, (field, value))
    for topic, column, value in itertools.product(("jobs", "orders"), COLUMNS, HOSTILE):
        lists = {"payload": [b"x"]} | {column: [value]}
        check(raw.ask("publish", sample | {"topic": topic, "publish_id": "p2", "lists": lists})[0].fault, lists)
    for lists in ({"payload": [b"x"] * 3, "id": ["a"]}, {"payload": [b"x"] * 2, "id": ["a", "a"]}, {"id": ["a"]}):
        answer = raw.ask("publish", sample | {"publish_id": "p3", "lists": lists})[0]
        check(answer.fault, lists)


@pytest.mark.parametrize("field", ["name", "body", "timeout_ms", "wait_ms", "arrow"])
def test_any_value_in_a_field_of_a_request_is_accepted_or_refused(raw: Raw, field: str) -> None:
    sample = {"name": "list_topics", "body": SAMPLES["list_topics"]}
    for value in HOSTILE:
        check(raw.send(encode(sample | {field: value}))[0].fault, value)


def test_text_that_is_no_utf_8_and_lengths_that_lie_are_refused(raw: Raw) -> None:
    command = SAMPLES["list_topics"]
    for body in (
        encode(command).replace(b"default", b"\xff\xfe\xfd\x80\x80ef"),
        encode(command).replace(b"default", b"\xed\xa0\x80ault"),
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff\xa1x",
        b"\xc6\xff\xff\xff\xff",
        b"\x91" * 100_000,
    ):
        answer, _ = raw.send(b"\x82\xa4name\xablist_topics\xa4body" + body)
        assert answer.fault is not None, body[:40]
        check(answer.fault, body[:40])
        assert answer.fault.code == "invalid_argument"


TICKET = {"tenant": "default", "topic": "orders", "partition": 0, "offset": 0, "end": None}


def test_any_ticket_and_any_descriptor_is_accepted_or_refused(broker: Here) -> None:
    client = broker.raw()
    tickets = [TICKET | {field: value} for field, value in itertools.product(TICKET, HOSTILE)]
    for command in (encode(TICKET), b"", b"\xc1", b"\x91" * 100_000, *map(encode, tickets)):
        for ask in (
            lambda command=command: client.do_get(flight.Ticket(command)).read_all(),
            lambda command=command: client.get_flight_info(flight.FlightDescriptor.for_command(command)),
        ):
            with suppress(StopIteration):
                check(refusal(ask), command[:200])


def refusal(ask: Callable[[], object]) -> Fault | None:
    """The error of ours that a call ended with, if it did."""
    try:
        ask()
    except flight.FlightError as error:
        assert "Traceback" not in str(error)  # noqa: PT017
        return decode_fault(error.extra_info)
    return None


def test_any_claim_and_any_credit_of_a_push_is_accepted_or_refused(broker: Here) -> None:
    client = broker.raw()
    claims = [SAMPLES["claim"] | {field: value} for field in SAMPLES["claim"] for value in HOSTILE]
    pushes = [(SAMPLES["claim"], {"messages": value}) for value in HOSTILE]
    for claim, credit in [*((claim, None) for claim in claims), *pushes]:
        writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(CONSUME))
        writer.write_metadata(encode(claim))
        if credit is not None:
            writer.write_metadata(encode(credit))
        # It ends by itself when it was refused, and here when it was not.
        writer.done_writing()
        with suppress(StopIteration):
            answer = msgspec.msgpack.decode(memoryview(reader.read_chunk().app_metadata), type=Answer)
            check(answer.fault, (claim, credit))
        reader.cancel()
        with suppress(flight.FlightError):
            writer.close()
    broker.settle_streams(3)


def test_random_bytes_are_refused(raw: Raw) -> None:
    @settings(max_examples=scaled(300, 5000), deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.binary(min_size=1, max_size=200))
    def send(metadata: bytes) -> None:
        check(raw.send(metadata)[0].fault, metadata)

    send()


def test_a_message_with_nothing_in_it_ends_the_session_and_no_other(broker: Here, raw: Raw) -> None:
    other = broker.session()
    with pytest.raises(StopIteration):
        other.send(b"")
    assert raw.ask("list_topics", SAMPLES["list_topics"])[0].fault is None


def test_flipped_bits_in_requests_are_survived(raw: Raw) -> None:
    requests = [
        encode(Request(name, msgspec.Raw(encode(command)), 1000, 0))
        for name, command in SAMPLES.items()
        if name not in ("delete_topic", "pause_store")
    ]

    @settings(max_examples=scaled(500, 10_000), deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(requests), st.lists(st.tuples(st.integers(0), st.integers(0, 7)), min_size=1, max_size=4))
    def send(request: bytes, flips: list[tuple[int, int]]) -> None:
        broken = bytearray(request)
        for at, bit in flips:
            broken[at % len(broken)] ^= 1 << bit
        check(raw.send(bytes(broken))[0].fault, bytes(broken))

    send()


def test_what_is_not_ours_is_named_and_no_more(
    raw: Raw, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("secret particulars of /srv/duly")

    monkeypatch.setattr(Broker, "do", fail)
    fault = raw.ask("list_topics", SAMPLES["list_topics"])[0].fault
    assert fault is not None
    assert fault.code == "store_error"
    assert fault.message == "The broker failed (ZeroDivisionError). Its log says more."
    assert "secret particulars" in caplog.text
