"""Every action of Flight, by action and by session, and its other calls × everything that is wrong with a key."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyarrow import flight

import duly
from duly.broker.authority import ANYONE, RIGHTS, SEE
from duly.client.lines import status_error
from duly.grants import STORE_ACTIONS
from duly.wire.batches import Published
from duly.wire.faults import to_error
from duly.wire.operations import COMMANDS, encode
from duly.wire.talk import CONSUME, SESSION, Answer, Credit, Request

from ..broker_flight.test_parity import SAMPLES as COMMAND_SAMPLES
from .conftest import ALL, OPERATOR, Place, options
from .keys_of_all_kinds import NOT_LET_IN, but, denied

# As a client sends it whose tenant is its key's.
SAMPLES: dict[str, Any] = {name: {**sample, "tenant": ""} for name, sample in COMMAND_SAMPLES.items()}
SAMPLES |= dict.fromkeys(("clock", "accept_clock", "examine", "cluster"))
TOPICS = {"jobs", "orders"}

Ask = Callable[[flight.FlightClient, str | None, str, Any], Any]


def by_action(client: flight.FlightClient, token: str | None, name: str, body: Any) -> Any:
    try:
        return list(client.do_action(flight.Action(name, encode(body)), options(token)))
    except pa.ArrowException as error:
        raise status_error(error) or error from None


def by_session(client: flight.FlightClient, token: str | None, name: str, body: Any) -> Any:
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(SESSION), options(token))
    try:
        reader.read_chunk()
        writer.write_metadata(encode(Request(name, msgspec.Raw(encode(body)))))
        answer = msgspec.msgpack.decode(memoryview(reader.read_chunk().app_metadata), type=Answer)
    except pa.ArrowException as error:
        raise status_error(error) or error from None
    finally:
        leave(writer, reader)
    if answer.fault is not None:
        raise to_error(answer.fault)
    return answer.body


def leave(writer: Any, reader: Any) -> None:
    reader.cancel()
    with suppress(pa.ArrowException):
        writer.close()


WAYS = [by_action, by_session]


def get(client: flight.FlightClient, token: str | None, topic: str) -> Any:
    stretch = {"tenant": "", "topic": topic, "partition": 0, "offset": 0}
    return client.do_get(flight.Ticket(encode(stretch)), options(token)).read_all()


def info(client: flight.FlightClient, token: str | None, topic: str) -> Any:
    wanted = flight.FlightDescriptor.for_command(encode({"tenant": "", "topic": topic}))
    return client.get_flight_info(wanted, options(token))


def put(client: flight.FlightClient, token: str | None, topic: str) -> Any:
    batch = pa.record_batch({"payload": pa.array([b"one"], pa.large_binary())})
    descriptor = flight.FlightDescriptor.for_path("duly")
    writer, reader = client.do_put(descriptor, batch.schema, options(token))
    writer.write_with_metadata(batch, encode(Published("", topic, "p1")))
    told = reader.read()
    # A call that was refused says why at its end.
    writer.close()
    answer = msgspec.msgpack.decode(memoryview(told), type=Answer)
    if answer.fault is not None:
        raise to_error(answer.fault)


def push(client: flight.FlightClient, token: str | None, topic: str) -> Any:
    """A broker that refuses ends the stream; gRPC loses what it said if that happens under our second write."""
    for _ in range(20):
        with suppress(StopIteration):
            return _pushed(client, token, topic)
    raise AssertionError("it neither delivers nor says why")


def _pushed(client: flight.FlightClient, token: str | None, topic: str) -> None:
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(CONSUME), options(token))
    try:
        writer.write_metadata(encode({**SAMPLES["claim"], "topic": topic}))
        writer.write_metadata(encode(Credit(1)))
        answer = msgspec.msgpack.decode(memoryview(reader.read_chunk().app_metadata), type=Answer)
    finally:
        leave(writer, reader)
    if answer.fault is not None:
        raise to_error(answer.fault)


def list_actions(client: flight.FlightClient, token: str | None) -> Any:
    return list(client.list_actions(options(token)))


def list_flights(client: flight.FlightClient, token: str | None) -> Any:
    return list(client.list_flights(options=options(token)))


# Calls that are no actions, and the action of a grant that they take.
OTHERS: dict[str, tuple[Any, str]] = {
    "get": (get, "read"),
    "info": (info, "read"),
    "put": (put, "publish"),
    "push": (push, "claim"),
}


def refusal(call: Callable[..., Any], *given: Any) -> duly.Error:
    """What a call is refused with, and nothing else than a refusal."""
    try:
        call(*given)
    except duly.Error as error:
        return error
    except pa.ArrowException as error:
        found = status_error(error)
        if found is None:
            raise
        return found
    raise AssertionError("it succeeded")


def lacking(action: str) -> list[tuple[duly.Grant, ...]]:
    """Grants that are not enough for an action."""
    if action == SEE:
        return [(), (duly.Grant("keys"),)]
    if action in STORE_ACTIONS:
        return [(), ALL, (duly.Grant("*"),)]
    return [(), but(action), denied(action)]


def stock(place: Place) -> None:
    place.store.create_topic("jobs", kind="queue")
    place.store.publish("jobs", [b"one"])
    place.store.create_topic("orders", kind="log")
    place.store.create_group("orders", "billing", start="earliest")
    place.store.create_push("hook", topic="orders", group="billing", to=duly.ToHttp("https://example.com/"))


def test_every_operation_has_a_sample() -> None:
    assert set(SAMPLES) == set(COMMANDS) | (
        {kind for kind in RIGHTS if isinstance(kind, str)} - {"hello", "limits", "preview"}
    )


@pytest.mark.parametrize("kind", NOT_LET_IN)
def test_nobody_is_let_in_without_a_key_that_holds(place: Place, kind: str) -> None:
    place.key("somebody", *ALL)
    stock(place)
    token = NOT_LET_IN[kind](place)
    with place.raw() as client:
        for name, body in SAMPLES.items():
            assert type(refusal(by_action, client, token, name, body)) is duly.Unauthenticated, name
        assert type(refusal(by_action, client, token, "hello", None)) is duly.Unauthenticated
        assert type(refusal(by_session, client, token, "clock", None)) is duly.Unauthenticated
        for call, _ in OTHERS.values():
            assert type(refusal(call, client, token, "jobs")) is duly.Unauthenticated, call
        assert type(refusal(list_actions, client, token)) is duly.Unauthenticated
        assert type(refusal(list_flights, client, token)) is duly.Unauthenticated
    with pytest.raises(duly.Unauthenticated), place.connect(_shape(token)) as q:
        q.list_topics(timeout=3)
    assert place.store.list_topics() == ["jobs", "orders"]


def _shape(token: str | None) -> str | None:
    """A client of ours refuses what is no key before it is sent."""
    try:
        return None if token is None else duly.keys.check_token(token)
    except duly.InvalidArgument:
        return None


@pytest.mark.parametrize("way", WAYS)
def test_all_grants_but_the_one_are_not_enough(place: Place, way: Ask) -> None:
    stock(place)
    tokens: dict[str, list[str]] = {}
    for name, body in SAMPLES.items():
        right = RIGHTS[COMMANDS.get(name, name)]
        if right.action == ANYONE:
            continue
        if right.action not in tokens:
            tokens[right.action] = [
                place.key(f"{right.action}-{at}", *grants) for at, grants in enumerate(lacking(right.action))
            ]
        with place.raw() as client:
            for token in tokens[right.action]:
                assert type(refusal(way, client, token, name, body)) in (
                    duly.Denied,
                    duly.TopicNotFound,
                    duly.PushNotFound,
                    duly.ScheduleNotFound,
                ), name


@pytest.mark.parametrize("name", OTHERS)
def test_other_calls_take_their_grants_too(place: Place, name: str) -> None:
    stock(place)
    call, action = OTHERS[name]
    with place.raw() as client:
        for at, grants in enumerate([(), but(action), denied(action)]):
            token = place.key(f"p{at}", *grants)
            error = refusal(call, client, token, "jobs")
            assert type(error) in (duly.Denied, duly.TopicNotFound)
        call(client, place.key("right", duly.Grant(action)), "orders" if name == "get" else "jobs")


@pytest.mark.parametrize("way", WAYS)
def test_a_key_of_one_tenant_opens_nothing_of_another(place: Place, way: Ask) -> None:
    stock(place)
    token = place.key("stranger", *ALL, tenant="other")
    with place.raw() as client:
        for name, body in SAMPLES.items():
            if body is None:
                continue
            for tenant in ("default", "nobody"):
                error = refusal(way, client, token, name, {**body, "tenant": tenant})
                assert (type(error), str(error)) == (duly.Denied, str(duly.Denied())), name


def about(body: dict[str, Any], topic: str) -> dict[str, Any]:
    """The same about another topic, which a schedule says twice."""
    inner = {"settings": {**body["settings"], "topic": topic}} if "topic" in body.get("settings", {}) else {}
    return {**body, "topic": topic, **inner}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_not_theirs_is_answered_as_what_is_not_there(place: Place, way: Ask) -> None:
    stock(place)
    place.store.create_topic("theirs", kind="queue")
    grants = [duly.Grant(grant.action, "mine*") for grant in ALL if grant.action not in ("keys", "audit")]
    narrow, wide = place.key("narrow", *grants), place.key("wide", *ALL)
    with place.raw() as client:
        for name, body in SAMPLES.items():
            if body is None or body.get("topic") not in TOPICS:
                continue
            hidden = refusal(way, client, narrow, name, about(body, "theirs"))
            missing = refusal(way, client, wide, name, about(body, "absent"))
            assert type(hidden) is type(missing) is duly.TopicNotFound, name
            assert (str(hidden), hidden.facts) == (str(missing).replace("absent", "theirs"), missing.facts)
        for call, _ in OTHERS.values():
            hidden = refusal(call, client, narrow, "theirs")
            missing = refusal(call, client, wide, "absent")
            assert str(hidden) == str(missing).replace("absent", "theirs")


def test_the_right_grant_is_enough(place: Place) -> None:
    """Or the tests above would prove nothing."""
    stock(place)
    operator = place.key("op", *OPERATOR, operator=True)
    wide = place.key("wide", *ALL)
    with place.raw() as client:
        for name, body in SAMPLES.items():
            about = RIGHTS[COMMANDS.get(name, name)].about
            try:
                by_action(client, operator if about == "store" else wide, name, body)
            except (duly.Denied, duly.Unauthenticated, duly.TopicNotFound) as error:
                raise AssertionError(name) from error
            except duly.Error:
                # There is no such lease, key or job: it got as far as its operation.
                continue


def test_a_session_cannot_say_who_it_is(place: Place) -> None:
    with place.raw() as client:
        token = place.key("shop", *ALL)
        made = {"tenant": "", "principal": "new", "grants": [], "certificates": ["boss.example"]}
        error = refusal(by_session, client, token, "put_principal", {**made, "by": {"tenant": ""}})
        assert type(error) is duly.Denied


def test_the_history_of_a_message_without_its_topic_is_refused(place: Place) -> None:
    with place.raw() as client:
        body = {"tenant": "", "message": "m-1"}
        error = refusal(by_action, client, place.key("shop", *ALL), "list_events", body)
        assert type(error) is duly.InvalidArgument


def test_what_is_shown_in_two_ways_is_not_taken(place: Place) -> None:
    token = place.key("shop", *ALL)
    twice = [(b"authorization", f"Bearer {token}".encode())] * 2
    with place.raw() as client:
        shown = flight.FlightCallOptions(headers=twice)
        error = refusal(list, client.do_action(flight.Action("clock", b"\xc0"), shown))
        assert type(error) is duly.Unauthenticated
