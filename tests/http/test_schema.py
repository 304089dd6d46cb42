"""Schemathesis over the description: what fits it is taken, what does not is refused, every answer is described."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, settings

with warnings.catch_warnings():
    # Its own imports warn, and warnings are errors here.
    warnings.simplefilter("ignore")
    import schemathesis
    from schemathesis.config import SchemathesisConfig

import duly
from duly.client.connect import connect
from duly.http import openapi
from duly.http.server import HttpServer
from duly.limits import LIMITS
from tests.conftest import scaled

from .conftest import open_broker, texts

EXAMPLES = scaled(4, 200)
# What every call shows: an operator's key.
SHOWN: dict[str, str] = {}
# What fits the description may still be refused for what it means: 422 and the conflicts.
REFUSED_FOR_MEANING = ["2xx", "401", "403", "404", "409", "410", "412", "422"]

CHECKS = {"positive_data_acceptance": {"expected-statuses": REFUSED_FOR_MEANING}}
schema = schemathesis.openapi.from_dict(openapi.description(), config=SchemathesisConfig.from_dict({"checks": CHECKS}))
fuzzed = schemathesis.openapi.from_dict(
    openapi.description(),
    config=SchemathesisConfig.from_dict({"checks": CHECKS, "phases": {"coverage": {"enabled": False}}}),
)
# Schemathesis does what Hypothesis will not have for ever.
pytestmark = pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with something in it, for all operations together."""
    folder: Path = tmp_path_factory.mktemp("schema")
    broker = open_broker(str(folder / "app.duly"))
    server = HttpServer(broker, port=0).start()
    url = f"http://127.0.0.1:{server.port}"
    # Keys are in use, so that what says that it takes one is seen to.
    with connect(str(folder / "app.duly")) as store:
        store.create_tenant("default")
        store.put_principal("operator", [duly.Grant("*"), duly.Grant("*", tenants="*")], operator=True)
        SHOWN["Authorization"] = f"Bearer {store.create_key('operator', operator=True).secret}"
    with httpx.Client(base_url=url, headers={**SHOWN, "Duly-Tenant": "default"}) as http:
        for name, kind in (("emails", "queue"), ("orders", "log")):
            http.post("/v1/topics", json={"name": name, "kind": kind}).raise_for_status()
            http.post(f"/v1/topics/{name}/messages", json=texts(*map(str, range(20))))
        http.post("/v1/topics/orders/groups", json={"name": "billing"})
    yield url
    broker.drain()
    server.drain(2)
    broker.shut()


def _made_short(case: Any) -> None:
    """A wait of a day fits the description, and nobody waits so long here. Nor can it say that 1.0 is not whole."""
    if isinstance(case.body, (dict, list)):
        case.body = _whole(case.body)
    if isinstance(case.body, dict) and 20 < _number(case.body.get("wait_ms")) <= LIMITS.wait_ms_max:
        case.body["wait_ms"] = 20


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _whole(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _whole(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_whole(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@schema.parametrize()
@settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)
def test_every_answer_is_as_described(case: Any, address: str) -> None:
    _made_short(case)
    case.call_and_validate(base_url=address, headers=SHOWN)


@fuzzed.parametrize()
@settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)
def test_every_answer_about_what_is_there_is_as_described(case: Any, address: str) -> None:
    _made_short(case)
    if case.path_parameters and "topic" in case.path_parameters:
        case.path_parameters["topic"] = "orders" if "log" in case.operation.tags else "emails"
    case.headers = {**(case.headers or {}), "Duly-Tenant": "default"}
    if case.method == "DELETE" and case.operation.path == "/v1/topics/{topic}":
        return
    case.call_and_validate(base_url=address, headers=SHOWN)
