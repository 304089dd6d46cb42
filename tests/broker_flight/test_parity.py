"""One list of operations: Flight offers every one of them, by action and by session, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_type_hints

import msgspec
import pyarrow as pa
import pytest
from pyarrow import flight

import duly
from duly.broker.authority import RIGHTS
from duly.clock import ClockReading
from duly.engine.claimed import Slice
from duly.engine.operations import READS, WRITES
from duly.engine.retain import Chores
from duly.errors import every_error
from duly.flight.statuses import STATUSES
from duly.health import Finding
from duly.wire.checks import CHECKS
from duly.wire.claims import Handed, delivered_schema, from_wire
from duly.wire.operations import ANSWERS, COMMANDS, NAMES, decode_answer, encode

from .conftest import Here

OPERATIONS = (set(WRITES) | set(READS)) - {Chores}

ACME = {"tenant": "default", "name": "acme"}
HOOK = {"tenant": "default", "name": "hook"}
JOBS = {"tenant": "default", "topic": "jobs"}
ORDERS = {"tenant": "default", "topic": "orders"}
GROUP = ORDERS | {"group": "billing"}
CONSUMER = {"tenant": "default", "consumer": "w1"}
NIGHTLY = {"tenant": "default", "schedule": "nightly"}
PAGE = {"after": [-1, -1], "limit": 10}
CLAIM = JOBS | {"group": "", "consumer": "w1", "max_messages": 10, "max_bytes": 1000}

# A command of each kind, that the store of `stocked` can answer, in an order in which all succeed.
SAMPLES: dict[str, dict[str, Any]] = {
    "publish": JOBS | {"publish_id": "p1", "lists": {"payload": [b"one"]}},
    "stage": JOBS | {"publish_id": "", "stage": "s", "number": 0, "lists": {"payload": [b"one"]}},
    "commit_stages": JOBS | {"job": "j", "version": 1, "stages": [["s", 1]]},
    "drop_stages": JOBS | {"stages": ["unknown"]},
    "claim": CLAIM,
    "held": CONSUMER,
    "settle": JOBS | {"incarnation": "", "group": "", "verdict": "ack", "tokens": [{"lease_id": 1, "indexes": [0]}]},
    "release_consumer": CONSUMER,
    "move": JOBS | {"ids": ["a"], "due": 5},
    "cancel": JOBS | {"ids": ["b"]},
    "redrive": JOBS | {"group": ""},
    "replay": GROUP | {"partition": 0, "incarnation": "", "partition_id": 0, "job": "r", "version": 0, "offsets": [0]},
    "purge_dead": JOBS | {"group": ""},
    "create_topic": {"tenant": "default", "topic": "new", "settings": {"kind": "queue"}, "exist_ok": True},
    "update_topic": JOBS | {"changes": {"lease": 1}},
    "archived": ORDERS | {"partition": 0, "offset": 0},
    "create_group": ORDERS | {"group": "new", "settings": {}, "start": {"word": "earliest"}, "exist_ok": True},
    "update_group": GROUP | {"changes": {"lease": 1}, "paused": True},
    "seek": GROUP | {"start": {"word": "latest"}},
    "pause_store": {"tenant": "default", "paused": False},
    "put_principal": {"tenant": "default", "principal": "shop", "grants": [{"action": "publish"}]},
    "list_principals": {"tenant": "default", "after": "", "limit": 10},
    "create_key": {"tenant": "default", "principal": "shop"},
    "list_keys": {"tenant": "default", "principal": None, "after": "", "limit": 10},
    "rotate_key": {"tenant": "default", "key_id": "aaaaaaaaaaaa", "overlap_ms": 0},
    "revoke_key": {"tenant": "default", "key_id": "aaaaaaaaaaaa"},
    "delete_principal": {"tenant": "default", "principal": "shop"},
    "read": ORDERS | {"partition": 0, "offset": 0, "max_messages": 10, "max_bytes": 1000},
    "tail": ORDERS | {"places": [[0, 0]]},
    "offset_at": ORDERS | {"at_ms": 0},
    "get": JOBS | {"id": "a"},
    "browse": JOBS | PAGE,
    "coming": JOBS | {"minutes": 5},
    "list_events": {"tenant": "default"},
    "list_dead": JOBS | {"group": ""} | PAGE,
    "list_topics": {"tenant": "default", "after": "", "limit": 10},
    "describe_topic": JOBS,
    "list_groups": ORDERS,
    "describe_group": GROUP,
    "check_health": {"tenant": "default", "topic": None, "after": "", "limit": 10},
    "list_audit": {"tenant": "default"},
    "list_forecasts": JOBS | {"group": "", "after": "", "limit": 1, "minutes": 5, "rate_per_s": 0.5},
    "create_tenant": ACME | {"settings": {"topics": 5}, "exist_ok": False},
    "update_tenant": ACME | {"changes": {"publish_per_s": 100}},
    "suspend_tenant": ACME,
    "resume_tenant": ACME,
    "stop_operation": {"tenant": "default", "operation": "orders@1-0"},
    "list_operations": {"tenant": "default", "after": "", "limit": 10, "stopped": True},
    "resume_operation": {"tenant": "default", "operation": "orders@1-0", "messages": 5},
    "create_schedule": JOBS
    | {"schedule": "nightly", "settings": {"topic": "jobs", "cron": "@daily"}, "paused": False, "exist_ok": False},
    "update_schedule": NIGHTLY | {"changes": {"zone": "Europe/Berlin", "payload": b"x"}, "paused": True},
    "describe_schedule": NIGHTLY,
    "list_schedules": {"tenant": "default", "after": "", "limit": 10},
    "delete_schedule": NIGHTLY | {"version": 2},
    "create_push": GROUP | {"name": "hook", "to_http": {"url": "https://example.com/"}},
    "update_push": HOOK | {"changes": {"timeout": 5}, "version": 1},
    "rotate_push_secret": HOOK | {"overlap_ms": 1000},
    "pause_push": HOOK,
    "resume_push": HOOK,
    "describe_push": HOOK,
    "list_pushes": {"tenant": "default", "after": "", "limit": 10},
    "test_push": HOOK,
    "delete_push": HOOK,
    "list_tenants": {"tenant": "default", "after": "", "limit": 10},
    "describe_tenant": ACME,
    "delete_tenant": ACME | {"force": False},
    "purge_group": GROUP,
    "delete_group": GROUP,
    "purge_topic": JOBS,
    "delete_topic": JOBS | {"force": True},
}


@pytest.fixture
def stocked(q: duly.Client) -> duly.Client:
    q.create_topic("jobs", kind="queue")
    q.publish("jobs", [duly.Message(b"one", id="a"), duly.Message(b"two", id="b")])
    q.create_topic("orders", kind="log", archive=True)
    q.create_group("orders", "billing", start="earliest")
    q.publish("orders", [b"1", b"2"])
    return q


def by_session(here: Here) -> Callable[[str, Any], bytes]:
    raw = here.session()

    def ask(name: str, body: Any) -> bytes:
        answer, _ = raw.ask(name, body)
        assert answer.fault is None, answer.fault
        return bytes(answer.body)

    return ask


def by_action(here: Here) -> Callable[[str, Any], bytes]:
    client = here.raw()

    def ask(name: str, body: Any) -> bytes:
        found = list(client.do_action(flight.Action(name, encode(body))))
        return found[0].body.to_pybytes()

    return ask


def test_every_operation_has_a_name_an_answer_and_a_sample_here() -> None:
    assert set(ANSWERS) == OPERATIONS
    assert set(NAMES) == OPERATIONS
    assert set(COMMANDS) == set(SAMPLES)


def test_every_field_of_every_command_is_checked() -> None:
    fields = {field.name for kind in OPERATIONS for field in msgspec.structs.fields(kind)}
    # What brings messages has a form of its own, and checks of its own.
    for name in ("publish", "stage"):
        fields -= {field.name for field in msgspec.structs.fields(COMMANDS[name])} - {"tenant", "topic"}
    assert fields <= set(CHECKS)
    unused = set(CHECKS) - {name for kind in OPERATIONS for name in get_type_hints(kind)}
    assert not unused


def test_every_error_has_a_status_of_flights_and_travels_whole() -> None:
    assert {kind.code for kind in every_error()} == set(STATUSES)


@pytest.mark.parametrize("way", [by_session, by_action])
def test_every_operation_is_answered(here: Here, stocked: duly.Client, way: Any) -> None:
    ask = way(here)
    for name, sample in SAMPLES.items():
        if RIGHTS[COMMANDS[name]].action == "keys" or name == "test_push":
            # An open broker makes no keys: see tests/access. And this one sends nothing: see tests/broker.
            continue
        command = sample | {"incarnation": here.broker.incarnation} if name in ("settle", "replay") else sample
        if name == "replay":
            command |= {"partition_id": stocked.describe_topic("orders").partitions[0].id}
        body = ask(name, command)
        if name == "claim":
            assert msgspec.msgpack.decode(body, type=Handed).leases
        elif name == "held":
            assert len(msgspec.msgpack.decode(body)) == 1
        else:
            decode_answer(COMMANDS[name], body)


@pytest.mark.parametrize("way", [by_session, by_action])
def test_what_concerns_the_whole_store_is_answered(here: Here, way: Any) -> None:
    ask = way(here)
    msgspec.msgpack.decode(ask("clock", None), type=ClockReading)
    msgspec.msgpack.decode(ask("accept_clock", None), type=ClockReading)
    assert msgspec.msgpack.decode(ask("examine", None), type=list[Finding])
    assert msgspec.msgpack.decode(ask("cluster", None), type=list[duly.Member]) == []


def test_the_actions_are_listed(here: Here) -> None:
    listed = {action.type: action.description for action in here.raw().list_actions()}
    assert set(listed) == {"hello", *COMMANDS}
    assert all(listed.values())


@pytest.mark.parametrize(("many", "size"), [(1, 10), (500, 10), (500, 10_000)])
def test_a_claim_by_action_brings_its_messages_however_many(
    here: Here, stocked: duly.Client, many: int, size: int
) -> None:
    stocked.create_topic("many", kind="queue")
    sent = [b"%d" % number + bytes(size) for number in range(many)]
    stocked.publish("many", sent)
    asked = CLAIM | {"topic": "many", "max_messages": many, "max_bytes": 10_000_000}
    found = list(here.raw().do_action(flight.Action("claim", encode(asked))))
    handed = msgspec.msgpack.decode(found[0].body.to_pybytes(), type=Handed)
    batch = pa.ipc.open_stream(found[1].body).read_next_batch() if len(found) > 1 else None
    claimed = from_wire(handed, batch)
    assert [payload for parcel in claimed.parcels for part in parcel.slices for payload in payloads(part)] == sent
    assert (batch is not None) == (many * size > 1024 * 1024)


def payloads(part: Slice) -> list[bytes]:
    return part.block.columns.values("payload", part.start, part.stop) or []


def test_a_claim_in_a_session_brings_arrow_to_one_who_asks_for_it(here: Here, stocked: duly.Client) -> None:
    raw = here.session()
    answer, batch = raw.ask("claim", CLAIM, arrow=True)
    assert answer.fault is None
    assert batch.column("payload").to_pylist() == [b"one", b"two"]


def test_an_unknown_action_exchange_ticket_or_flight_is_refused_with_a_code(here: Here) -> None:
    client = here.raw()
    nothing = flight.FlightDescriptor.for_command(b"nothing")
    asked: list[Callable[[], Any]] = [
        lambda: list(client.do_action(flight.Action("nothing", b""))),
        lambda: client.do_get(flight.Ticket(b"nothing")).read_all(),
        lambda: client.get_flight_info(nothing),
        lambda: list(client.list_flights()),
    ]
    for ask in asked:
        with pytest.raises(flight.FlightError) as caught:
            ask()
        assert b"invalid_argument" in caught.value.extra_info
        assert "Traceback" not in str(caught.value)
    # What is raised there, pyarrow tells with a traceback: so nothing is.
    assert client.get_schema(nothing).schema == delivered_schema()
    for descriptor in (nothing, flight.FlightDescriptor.for_path("duly.session")):
        writer, reader = client.do_exchange(descriptor)
        with pytest.raises(flight.FlightError, match="no such exchange"):
            reader.read_chunk()
        with pytest.raises(flight.FlightError):
            writer.close()
