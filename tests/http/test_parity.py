"""One list of operations, one table of errors, one description: nothing is missing in REST."""

from __future__ import annotations

import json
from pathlib import Path

import httpx

import duly
from duly.client.client import Client
from duly.engine.operations import READS, WRITES
from duly.engine.retain import Chores
from duly.errors import every_error
from duly.http import openapi
from duly.http.problems import STATUSES
from duly.http.routes import ENDPOINTS, by_operation

COMMITTED = Path(__file__).parents[2] / "docs" / "openapi.json"

# Calls of the Python API that have no route, and why.
NOT_OFFERED = {
    "transaction": "a store of a broker is not in the caller's process",
    "backup": "it writes to a folder of the broker's machine, that a caller of an open port may not choose",
    "close": "a connection is closed by its client",
    "consume": "an endless claim: a client's loop",
    "producer": "batches gathered in the caller's process: publish a batch",
    "read_arrow": "Arrow batches are read by DoGet of Flight; over HTTP a log is read with `read`",
    "renew": "an extend from time to time: a client's loop",
    "tenant": "the header Duly-Tenant",
    "consumer": "a field of a claim",
}
# Calls of the Python API by another name.
CALLED = {
    "archived": "set_archived",
    "browse": "browse",
    "cancel": "cancel_messages",
    "dead": "list_dead",
    "drop_stages": "drop_stage",
    "events": "list_events",
    "get": "get_message",
    "move": "move_messages",
    "operations": "list_operations",
    "pause": "pause_topic",
    "purge": "purge_topic",
    "resume": "resume_topic",
    "schedules": "list_schedules",
}


def test_every_operation_has_a_route() -> None:
    offered = set(by_operation())
    assert {*WRITES, *READS} - offered == {Chores}
    assert offered <= {*WRITES, *READS}


def test_every_call_of_the_python_api_has_a_route() -> None:
    calls = {name for name in dir(Client) if not name.startswith("_")} - set(NOT_OFFERED)
    names = {one.name.strip("_") for one in ENDPOINTS}
    assert {CALLED.get(name, name) for name in calls} <= names


def test_every_error_has_a_status() -> None:
    ours = {kind.code for kind in every_error() if kind.__module__ == duly.errors.__name__}
    assert ours == set(STATUSES)


def test_every_route_has_a_name_of_its_own() -> None:
    names = [one.name for one in ENDPOINTS]
    assert len(names) == len(set(names))
    assert len({(one.method, one.path) for one in ENDPOINTS}) == len(ENDPOINTS)


def test_every_code_that_a_route_names_exists() -> None:
    for one in ENDPOINTS:
        assert set(one.refuses) <= set(STATUSES), one.name


def test_the_committed_description_is_the_present_one() -> None:
    assert COMMITTED.read_bytes() == openapi.text(), (
        "docs/openapi.json is out of date: python -m duly.http.openapi > docs/openapi.json"
    )


def test_the_served_description_is_the_same(http: httpx.Client) -> None:
    answer = http.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == json.loads(COMMITTED.read_bytes())


def test_every_answer_of_every_route_is_described() -> None:
    for path, methods in openapi.description()["paths"].items():
        for method, operation in methods.items():
            statuses = set(operation["responses"])
            assert {"400", "421", "500", "503"} < statuses, (method, path)
            if "requestBody" in operation:
                assert {"413", "415"} < statuses, (method, path)
