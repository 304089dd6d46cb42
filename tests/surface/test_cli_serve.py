"""`duly serve` as a process: what it says, what it refuses, how it ends."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

import duly
from duly.certificates import make_development_certificates

from .brokers import DULY, serving
from .test_cli import COMMANDS, examples_of, folder, refused, run

__all__ = ["folder"]


def test_its_first_line_says_where_it_listens_and_it_serves_there(folder: Path) -> None:
    with serving(folder, "--json", "--http-port", "0", "--flight-port", "0") as broker:
        told = broker.document
        assert told["store"] == "app.duly"
        assert told["pid"] == broker.process.pid
        assert told["url"] == f"duly://127.0.0.1:{told['flight_port']}"
        assert told["http_url"] == f"http://127.0.0.1:{told['http_port']}"
        assert httpx.get(f"{told['http_url']}/health/ready").status_code == 200
        with duly.connect(told["url"]) as q:
            q.create_topic("orders", kind="log")
            q.publish("orders", b"hello")
        code, out, err = broker.ended(signal.SIGTERM)
    assert (code, out) == (0, "")
    assert "Traceback" not in err
    with duly.connect(folder / "app.duly") as q:
        assert [message.payload for message in q.read("orders")] == [b"hello"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_it(folder: Path, number: int) -> None:
    with serving(folder, "--store", ":memory:", "--http-port", "0", "--flight-port", "0") as broker:
        assert broker.first_line.startswith("Serving :memory: at duly://127.0.0.1:")
        code, out, err = broker.ended(number)
    assert (code, out) == (0, "")
    assert "draining" in err
    assert "Traceback" not in err


def test_on_loopback_without_keys_it_is_open_and_says_so(folder: Path) -> None:
    with serving(folder, "--http-port", "0", "--flight-port", "0") as broker:
        assert "Whoever gets there can do everything: the store has no keys." in broker.first_line
    with serving(folder, "--json", "--http-port", "0", "--flight-port", "0") as broker:
        assert (broker.document["open"], broker.document["tls"]) == (True, False)


def test_it_says_that_it_is_ready_only_once_it_hears_signals(folder: Path) -> None:
    code = (
        "import os, signal; from duly.serve import Address, Served, run_until_told\n"
        "served = Served(':memory:', Address(http_port=0, flight_port=0))\n"
        "run_until_told(served, ready=lambda: [os.kill(os.getpid(), signal.SIGTERM) for _ in range(2)])\n"
    )
    # Twice in a moment is one wish: make passes on what its child got already.
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_a_claim_that_waits_does_not_keep_it_from_ending(folder: Path) -> None:
    with serving(folder, "--json", "--http-port", "0", "--flight-port", "0") as broker:
        with duly.connect(broker.url) as q:
            q.create_topic("emails", kind="queue")
        command: list[str | Path] = [DULY, "claim", "emails", "--wait", "60", "--url", broker.url, "--consumer", "w"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as waiting:
            with duly.connect(broker.url) as q:
                deadline = time.monotonic() + 30
                while not q.describe_group("emails", "queue").consumers:
                    assert time.monotonic() < deadline, "it never claimed"
                    time.sleep(0.05)
            assert broker.ended(signal.SIGTERM)[0] == 0
            waiting.kill()


@pytest.mark.parametrize("example", examples_of(COMMANDS["serve"]))
def test_its_examples_run(folder: Path, example: str) -> None:
    make_development_certificates("certs")
    # The usual ports may be somebody else's here.
    with serving(folder, *shlex.split(example)[2:], "--http-port", "0", "--flight-port", "0") as broker:
        tls = "--tls-cert" in example
        assert f"{'duly+tls' if tls else 'duly'}://127.0.0.1:" in broker.first_line
        assert f"{'https' if tls else 'http'}://127.0.0.1:" in broker.first_line
        assert broker.ended(signal.SIGTERM)[0] == 0


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
def test_it_listens_on_ipv6_too(folder: Path) -> None:
    with serving(folder, "--json", "--host", "::1", "--http-port", "0", "--flight-port", "0") as broker:
        assert broker.url.startswith("duly://[::1]:")
        with duly.connect(broker.url) as q:
            assert q.list_topics() == []


class TestRefused:
    @pytest.mark.parametrize("which", ["--http-port", "--flight-port"])
    def test_a_port_that_is_taken(self, folder: Path, which: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            ran = refused("serve", "--http-port", "0", "--flight-port", "0", which, str(port))
        assert ran.code == 1
        assert f"127.0.0.1:{port}: Address already in use" in ran.err
        assert "another" in ran.err
        assert list(folder.iterdir()) == [], "no store is made for nothing"

    @pytest.mark.parametrize(
        ("store", "told"),
        [("notes.txt", "not an SQLite file"), ("nowhere/app.duly", "No such file"), (".", "is a folder")],
    )
    def test_a_store_that_cannot_be_opened(self, folder: Path, store: str, told: str) -> None:
        Path("notes.txt").write_text("not a database, " * 100)
        ran = refused("serve", "--store", store, "--http-port", "0", "--flight-port", "0")
        assert ran.code == 1
        assert told in ran.err

    @pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "example.com"])
    def test_a_host_that_others_can_reach(self, folder: Path, host: str) -> None:
        ran = refused("serve", "--host", host)
        assert ran.code == 1
        assert "TLS" in ran.err
        assert "--insecure" in ran.err
        assert list(folder.iterdir()) == []

    def test_unless_somebody_insists_and_is_warned(self, folder: Path) -> None:
        with serving(
            folder,
            "--json",
            "--host",
            "0.0.0.0",
            "--insecure",
            "--allow-host",
            "broker",
            "--http-port",
            "0",
            "--flight-port",
            "0",
        ) as broker:
            told = broker.document
            with duly.connect(f"duly://127.0.0.1:{told['flight_port']}") as q:
                assert q.list_topics() == []
            ready = f"http://127.0.0.1:{told['http_port']}/health/ready"
            assert [
                httpx.get(ready, headers={"Host": name}).status_code for name in ("0.0.0.0", "broker", "evil.example")
            ] == [200, 200, 421]
            _, _, err = broker.ended(signal.SIGTERM)
        assert err.startswith("Warning: Whoever reaches 0.0.0.0 can read and write everything")
        assert "there is no TLS" in err

    @pytest.mark.parametrize("store", ["new.duly", "there.duly"])
    def test_a_host_that_others_can_reach_with_tls_but_without_keys(self, folder: Path, store: str) -> None:
        make_development_certificates("certs")
        duly.connect("there.duly").close()
        files = ["--tls-cert", "certs/server.pem", "--tls-key", "certs/server.key"]
        ran = refused("serve", "--store", store, "--host", "0.0.0.0", "--http-port", "0", "--flight-port", "0", *files)
        assert ran.code == 1
        assert "without a key" in ran.err
        assert "TLS" not in ran.err
        assert "--insecure" in ran.err
        assert not Path("new.duly").exists(), "no store is made for nothing"

    @pytest.mark.parametrize(
        "files",
        [["--tls-cert", "c.pem"], ["--tls-key", "c.key"], ["--tls-client-ca", "ca.pem"]],
    )
    def test_half_a_certificate(self, folder: Path, files: list[str]) -> None:
        ran = refused("serve", "--http-port", "0", "--flight-port", "0", *files)
        assert ran.code == 1
        assert "--tls-cert and --tls-key together" in ran.err

    def test_a_certificate_that_cannot_be_used(self, folder: Path) -> None:
        make_development_certificates("certs")
        make_development_certificates("others")
        for cert, told in (("nowhere.pem", "cannot be read"), ("others/server.pem", "cannot be used together")):
            ran = refused("serve", "--http-port", "0", "--tls-cert", cert, "--tls-key", "certs/server.key")
            assert ran.code == 1
            assert told in ran.err
        assert not Path("app.duly").exists()

    def test_a_broker_as_its_store(self, folder: Path) -> None:
        ran = refused("serve", "--url", "duly://127.0.0.1:8471")
        assert ran.code == 1
        assert "--store PATH" in ran.err
        assert run("serve", env={"DULY_URL": "duly://127.0.0.1:8471"}).err.count("which DULY_URL names") == 1

    @pytest.mark.parametrize("port", ["-1", "65536", "http"])
    def test_a_port_that_is_none(self, port: str) -> None:
        assert refused("serve", "--http-port", "0", "--flight-port", port).code == 2


def test_python_m_duly_is_duly(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "duly", "--version"], capture_output=True, text=True, timeout=60, env=os.environ
    )
    assert done.stdout == f"duly {duly.__version__}\n"
