"""`duly cluster`, and what `duly serve` says of itself to others."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import httpx
import pytest

import duly
from duly.serve import Address, reached_at

from .brokers import serving
from .test_cli import folder, ok, refused

__all__ = ["folder"]

ANY_PORTS = ("--http-port", "0", "--flight-port", "0")


def test_a_store_that_nobody_serves_has_no_brokers(folder: Path) -> None:
    assert "no store" in refused("cluster").err
    ok("topics", "create", "t", "--kind", "log")
    assert ok("cluster").err == "No broker serves this store.\n"
    assert ok("cluster", "--json").out == ""


def test_the_brokers_of_a_store_are_shown_from_its_file_and_from_each_of_them(folder: Path) -> None:
    with serving(folder, "--json", *ANY_PORTS) as one, serving(folder, "--json", *ANY_PORTS) as other:
        names = sorted([one.document["name"], other.document["name"]])
        for place in (["--store", "app.duly"], ["--url", one.url], ["--url", other.url]):
            lines = ok("cluster", "--json", *place).lines
            assert [line["name"] for line in lines] == names
        told = next(line for line in lines if line["name"] == one.document["name"])
        assert (told["url"], told["http_url"]) == (one.url, one.document["http_url"])
        assert (told["version"], told["ready"], told["reason"]) == (duly.__version__, True, "")
        assert abs(told["drift_ms"]) < 1000
        shown = ok("cluster").out
        assert one.url in shown
        assert "ready" in shown
        # In order it leaves at once; its row need not grow old.
        assert one.ended(signal.SIGTERM)[0] == 0
        assert [line["name"] for line in ok("cluster", "--json").lines] == [other.document["name"]]


def test_a_broker_is_known_by_what_it_advertises_and_may_be_called_so(folder: Path) -> None:
    with serving(folder, "--json", *ANY_PORTS, "--advertise", "queue.example:9000") as broker:
        told = ok("cluster", "--json").document
        assert told["url"] == "duly://queue.example:9000"
        assert told["http_url"] == f"http://queue.example:{broker.document['http_port']}"
        ready = f"{broker.document['http_url']}/health/ready"
        assert httpx.get(ready, headers={"Host": "queue.example"}).status_code == 200


@pytest.mark.parametrize(
    ("advertise", "url"),
    [
        ("", "duly://127.0.0.1:2"),
        ("queue", "duly://queue:2"),
        ("queue:3", "duly://queue:3"),
        ("[::1]", "duly://[::1]:2"),
        ("[::1]:3", "duly://[::1]:3"),
    ],
)
def test_what_is_advertised(advertise: str, url: str) -> None:
    told, http_url = Address(advertise=advertise).advertised(1, 2)
    assert told == url
    assert http_url == url.rpartition(":")[0].replace("duly", "http") + ":1"


def test_one_that_listens_everywhere_advertises_an_address_of_its_machine() -> None:
    found = reached_at("0.0.0.0")
    assert found != "0.0.0.0"
    with socket.create_server((found, 0)):
        pass
    assert reached_at("::") != "::"


@pytest.mark.parametrize("advertise", ["", ":8471", "::1", "queue:port", "queue:0", "http://queue", "me@queue"])
def test_what_names_no_broker_cannot_be_advertised(folder: Path, advertise: str) -> None:
    assert "--advertise" in refused("serve", *ANY_PORTS, "--advertise", advertise).err
    assert list(folder.iterdir()) == []


def test_the_limit_of_drift_is_a_duration(folder: Path) -> None:
    assert refused("serve", *ANY_PORTS, "--drift-max", "soon").code == 2
    with serving(folder, "--json", *ANY_PORTS, "--drift-max", "500ms") as broker:
        assert broker.url
