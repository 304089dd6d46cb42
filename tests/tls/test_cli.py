"""Where `duly` gets certificates from, and makes some to try."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509

import duly

from ..surface.brokers import DULY
from ..surface.test_cli import folder, ok, refused, run
from .conftest import Folder, TlsBroker

__all__ = ["folder"]
Start = Callable[..., TlsBroker]


def names_of(path: Path) -> list[str]:
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in found]


class TestDevelopment:
    def test_makes_what_a_broker_and_its_clients_need(self, folder: Path) -> None:
        ran = ok("certs", "dev", "certs", "--name", "queue.test", "--name", "192.0.2.7", "--client", "alice")
        assert "DULY_TLS_CA=certs/ca.pem" in ran.out
        assert sorted(path.name for path in Path("certs").iterdir()) == [
            "ca.key",
            "ca.pem",
            "client.key",
            "client.pem",
            "server.key",
            "server.pem",
        ]
        assert names_of(Path("certs/server.pem")) == ["localhost", "127.0.0.1", "::1", "queue.test", "192.0.2.7"]
        assert names_of(Path("certs/client.pem")) == ["alice"]

    def test_openssl_finds_nothing_wrong_with_them(self, folder: Path) -> None:
        ok("certs", "dev", "certs")
        for purpose, name in (("sslserver", "server"), ("sslclient", "client")):
            strict = ["openssl", "verify", "-x509_strict", "-purpose", purpose, "-CAfile", "certs/ca.pem"]
            subprocess.run([*strict, f"certs/{name}.pem"], check=True, capture_output=True)

    def test_replaces_nothing_unless_told_to(self, folder: Path) -> None:
        ok("certs", "dev", "certs")
        before = Path("certs/ca.pem").read_bytes()
        assert "--force" in refused("certs", "dev", "certs").err
        assert Path("certs/ca.pem").read_bytes() == before
        ok("certs", "dev", "certs", "--force")
        assert Path("certs/ca.pem").read_bytes() != before

    @pytest.mark.parametrize("name", ["", "a b", "queue.test/x"])
    def test_a_name_that_is_none(self, folder: Path, name: str) -> None:
        assert "no host's name" in refused("certs", "dev", "certs", "--name", name).err
        assert not Path("certs").exists()


def listed(*args: str, **env: str) -> list[str]:
    ran = run(*args, "topics", "list", "--json", env=env)
    assert ran.code == 0, ran
    return [line["topic"] for line in ran.lines]


def test_a_profile_or_the_environment_names_the_files(folder: Path, start: Start, certs: Folder) -> None:
    broker = start(mutual=True)
    with duly.connect(broker.url, tls=certs.mutual) as q:
        q.create_topic("orders", kind="log")
    (certs.path / "config.toml").write_text(
        f'[profiles.safe]\nurl = "{broker.url}"\nca = "ca.pem"\ncert = "client.pem"\nkey = "client.key"\n'
    )
    assert listed("--profile", "safe", DULY_CONFIG=certs["config.toml"]) == ["orders"]
    variables = {"DULY_TLS_CA": certs["ca.pem"], "DULY_TLS_CERT": certs["client.pem"]}
    variables["DULY_TLS_KEY"] = certs["client.key"]
    assert listed("--url", broker.url, **variables) == ["orders"]


def test_what_is_wrong_is_said_in_one_line(broker: TlsBroker, folder: Path) -> None:
    done = subprocess.run(
        [DULY, "topics", "list", "--url", broker.url], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "is not trusted" in done.stderr


def test_workers_reach_a_broker_by_the_profile_of_duly_work(folder: Path, start: Start, certs: Folder) -> None:
    broker = start(mutual=True)
    with duly.connect(broker.url, tls=certs.mutual) as q:
        q.create_topic("emails", kind="queue")
        q.publish("emails", [b"one", b"two"])
    Path("tasks.py").write_text(
        "import duly\nworkers = duly.Workers()\n@workers.on('emails')\ndef send(d):\n    print(d.payload, flush=True)\n"
    )
    (certs.path / "config.toml").write_text(
        f'[profiles.safe]\nurl = "{broker.url}"\nca = "ca.pem"\ncert = "client.pem"\nkey = "client.key"\n'
    )
    ran = run("--profile", "safe", "work", "tasks:workers", "--drain", env={"DULY_CONFIG": certs["config.toml"]})
    assert ran.code == 0, ran
    with duly.connect(broker.url, tls=certs.mutual) as q:
        assert not q.claim("emails").payloads
