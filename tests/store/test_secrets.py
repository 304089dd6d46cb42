"""The store's own secret and what it is wrapped under: on both stores, made once, the same for everybody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import duly
from duly.engine.secrets import known_secret, rewrap, store_secret
from duly.master import create_master, new_key

from .conftest import Home, PostgresHome

pytestmark = pytest.mark.embedded


def make(q: duly.Client, purpose: bytes) -> Any:
    """The store's secret for a purpose, made if need be."""
    verb = lambda tx, commands: [store_secret(tx, purpose) for _ in commands]  # noqa: E731
    return q._port.store.write(verb, None, tenant="$secrets", cost=0, deadline=None)  # type: ignore[attr-defined]


def look(q: duly.Client, purpose: bytes) -> bytes | None:
    with q._port.store.read() as tx:  # type: ignore[attr-defined]
        return known_secret(tx, purpose)


def open_with(home: Home, master: Any) -> duly.Client:
    client = duly.connect(home.address, clock=home.clock, master=master)
    home._opened.append(client)
    return client


@pytest.fixture
def master(tmp_path: Path) -> str:
    path = tmp_path / "keys"
    create_master(str(path))
    return f"file:{path}"


def test_a_store_has_no_secret_until_one_is_needed(home: Home, master: str) -> None:
    q = open_with(home, master)
    assert look(q, b"keys") is None
    assert home.rows("duly_secret") == 0


def test_the_store_secret_is_made_once_and_differs_by_purpose(home: Home, master: str) -> None:
    first, second = open_with(home, master), open_with(home, master)
    made = make(first, b"keys")
    assert len(made) == 32
    assert make(second, b"keys") == look(second, b"keys") == look(first, b"keys") == made
    assert make(first, b"audit") != made
    assert home.rows("duly_secret") == 1


def test_the_secret_lies_wrapped(home: Home, master: str) -> None:
    make(open_with(home, master), b"keys")
    ((wrapped,),) = home.ask("SELECT wrapped FROM duly_secret")
    assert len(bytes(wrapped)) == 4 + 8 + 12 + 32 + 16


def test_another_master_is_told_what_is_wrong(home: Home, master: str, tmp_path: Path) -> None:
    make(open_with(home, master), b"keys")
    (tmp_path / "others").write_text(new_key())
    (tmp_path / "others").chmod(0o600)
    with pytest.raises(duly.Sealed, match="not among those given"):
        make(open_with(home, f"file:{tmp_path / 'others'}"), b"keys")


def test_a_secret_moved_to_another_row_is_refused(home: Home, master: str) -> None:
    q = open_with(home, master)
    make(q, b"keys")
    home.change("INSERT INTO duly_secret SELECT 7, version, wrapped, created_at_ms FROM duly_secret")
    with q._port.store.read() as tx, pytest.raises(duly.Sealed, match="changed or moved"):  # type: ignore[attr-defined]
        tx.keyring.unwrap(tx.secret(7, 1))


def test_rotation_rewraps_what_an_older_key_wrapped(home: Home, master: str, tmp_path: Path) -> None:
    made = make(open_with(home, master), b"keys")
    keys, old = tmp_path / "keys", (tmp_path / "keys").read_text()
    keys.write_text(new_key() + "\n" + old)
    q = open_with(home, master)
    run = lambda tx, commands: [rewrap(tx) for _ in commands]  # noqa: E731
    write = q._port.store.write  # type: ignore[attr-defined]
    assert write(run, None, tenant="$secrets", cost=0, deadline=None) == 1
    assert write(run, None, tenant="$secrets", cost=0, deadline=None) == 0
    keys.write_text(keys.read_text().splitlines()[0])
    assert make(open_with(home, master), b"keys") == made


@pytest.mark.plain
def test_without_a_master_one_is_made_beside_a_file_and_asked_for_on_postgresql(home: Home, tmp_path: Path) -> None:
    q = home.connect()
    if isinstance(home, PostgresHome):
        with pytest.raises(duly.Sealed, match="needs a master key"):
            make(q, b"keys")
        return
    made = make(q, b"keys")
    beside = tmp_path / "app.duly.master"
    assert beside.stat().st_mode & 0o777 == 0o600
    q.close()
    again = home.connect()
    assert look(again, b"keys") == made
    again.close()
    beside.rename(tmp_path / "lost")
    with pytest.raises(duly.Sealed, match="not there"):
        make(home.connect(), b"keys")
    assert not beside.exists()
