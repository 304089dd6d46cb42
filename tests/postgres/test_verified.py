"""Beyond this machine PostgreSQL is reached by TLS and verified, unless the address says otherwise."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import duly
from duly.certificates import make_development_certificates
from duly.store.postgres import verified
from duly.store.postgres.verified import verification
from duly.trust import system_ca_file
from tests.postgres_server import PostgresServer, version_is_here

Start = Callable[..., PostgresServer]
VERIFIED = {"sslmode": "verify-full", "sslrootcert": system_ca_file() or "system"}


@pytest.fixture(autouse=True)
def _nothing_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in [name for name in os.environ if name.startswith("PG")]:
        monkeypatch.delenv(name)


class TestWhatIsAdded:
    @pytest.mark.parametrize(
        "given",
        [
            {"host": "db.example"},
            {"host": "192.0.2.7"},
            {"host": "localhost,db.example"},
            {"host": "localhost", "hostaddr": "192.0.2.7"},
            {"host": "localhost,db.example", "hostaddr": "127.0.0.1,"},
            {"service": "shop"},
        ],
    )
    def test_beyond_this_machine_the_server_is_verified(self, given: dict[str, Any]) -> None:
        assert verification(given, {}) == VERIFIED

    @pytest.mark.parametrize(
        "given",
        [
            {},
            {"host": "/run/postgresql"},
            {"host": "@abstract"},
            {"host": "localhost"},
            {"host": "127.0.0.1,::1"},
            {"host": "db.example", "sslmode": "require"},
            {"host": "db.example", "sslmode": "disable"},
        ],
    )
    def test_on_this_machine_or_when_the_address_says_otherwise_nothing_is(self, given: dict[str, Any]) -> None:
        assert verification(given, {}) == {}

    def test_libpqs_own_variables_count(self) -> None:
        assert verification({}, {"PGHOST": "db.example"}) == VERIFIED
        assert verification({"host": "localhost"}, {"PGHOSTADDR": "192.0.2.7"}) == VERIFIED
        assert verification({"host": "db.example"}, {"PGSSLMODE": "require"}) == {}
        assert verification({"host": "db.example"}, {"PGSSLROOTCERT": "ca.pem"}) == {"sslmode": "verify-full"}
        assert verification({"host": "db.example", "sslrootcert": "ca.pem"}, {}) == {"sslmode": "verify-full"}
        assert verification({}, {"PGSERVICE": "shop"}) == VERIFIED

    def test_cas_where_libpq_looks_by_itself_are_used(self, tmp_path: Path) -> None:
        (tmp_path / ".postgresql").mkdir()
        (tmp_path / ".postgresql" / "root.crt").write_text("")
        assert verification({"host": "db.example"}, {}) == {"sslmode": "verify-full"}

    def test_an_old_libpq_that_knows_no_system_is_told_nothing_of_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(verified, "system_ca_file", lambda: None)
        assert verification({"host": "db.example"}, {})["sslrootcert"] == "system"
        monkeypatch.setattr("duly.store.postgres.verified.pq.version", lambda: 150_000)
        assert verification({"host": "db.example"}, {}) == {"sslmode": "verify-full"}


# Another way to write 127.0.0.1: nothing here takes it for this machine, and the system does.
ELSEWHERE = "127.1"


def url_of(server: PostgresServer, **options: str) -> str:
    base = server.dsn().replace("127.0.0.1", ELSEWHERE)
    return base + "?" + "&".join(f"{name}={value}" for name, value in {"schema": "shop", **options}.items())


def test_a_server_without_tls_is_refused_and_what_to_do_is_said(postgres_server: Start) -> None:
    server = postgres_server(fsync=False)
    with pytest.raises(duly.Unavailable) as told:
        duly.connect(url_of(server)).list_topics()
    for words in ("does not support SSL", "sslmode=verify-full", "sslrootcert=FILE", "sslmode=require"):
        assert words in str(told.value)
    with duly.connect(url_of(server, sslmode="disable")) as q:
        assert q.list_topics() == []


@pytest.mark.skipif(not version_is_here(15), reason="only Debian's PostgreSQL 15 is built with TLS")
class TestAServerWithTls:
    @pytest.fixture
    def server(self, postgres_server: Start, tmp_path: Path) -> PostgresServer:
        make_development_certificates(str(tmp_path / "certs"))
        server = postgres_server(15, fsync=False)
        server.stop()
        for name in ("server.pem", "server.key"):
            shutil.copy(tmp_path / "certs" / name, server.data / name)
            owner = (server.data / "PG_VERSION").stat()
            os.chown(server.data / name, owner.st_uid, owner.st_gid)
            os.chmod(server.data / name, 0o600)
        with (server.data / "postgresql.conf").open("a") as settings:
            settings.write("\nssl = on\nssl_cert_file = 'server.pem'\nssl_key_file = 'server.key'\n")
        server.start()
        return server

    def test_that_the_named_ca_has_signed_is_used(self, server: PostgresServer, tmp_path: Path) -> None:
        with duly.connect(url_of(server, sslrootcert=str(tmp_path / "certs" / "ca.pem"))) as q:
            q.create_topic("orders", kind="log")
            assert q.publish("orders", b"one").count == 1

    def test_that_nobody_known_has_signed_is_refused(self, server: PostgresServer, tmp_path: Path) -> None:
        make_development_certificates(str(tmp_path / "others"))
        for options in ({}, {"sslrootcert": str(tmp_path / "others" / "ca.pem")}):
            with pytest.raises(duly.Unavailable) as told:
                duly.connect(url_of(server, **options)).list_topics()
            assert "certificate verify failed" in str(told.value)
            assert "sslrootcert=FILE" in str(told.value)
