"""Master keys: where they come from, what they refuse, and that they are never shown."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

import pytest

import duly
from duly.master import MasterKeys, create_master, new_key, open_master, parse_keys, read_master_file

SECRET = b"s" * 32


@pytest.fixture
def path(tmp_path: Path) -> Path:
    create_master(str(tmp_path / "keys"))
    return tmp_path / "keys"


def test_a_file_is_made_for_its_owner_alone_and_never_over_another(path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_text()
    with pytest.raises(duly.InvalidArgument, match="already"):
        create_master(str(path))
    assert path.read_text() == before
    assert [found.name for found in path.parent.iterdir()] == ["keys"]


def test_what_it_wraps_it_unwraps_for_the_same_context_alone(path: Path) -> None:
    keys = read_master_file(str(path))
    wrapped = keys.wrap(SECRET, b"one")
    assert SECRET not in wrapped
    assert keys.wrap(SECRET, b"one") != wrapped
    assert keys.unwrap(wrapped, b"one") == SECRET
    for damaged, context in ((wrapped, b"two"), (wrapped[:-1], b"one"), (wrapped[:20], b"one"), (b"", b"one")):
        with pytest.raises(duly.Sealed):
            keys.unwrap(damaged, context)


def test_the_first_key_wraps_and_all_unwrap() -> None:
    old, new = new_key(), new_key()
    before, both, after = (parse_keys(text, "here") for text in (old, f"# new\n{new}\n\n# old\n{old}\n", new))
    wrapped = before.wrap(SECRET, b"")
    assert both.unwrap(wrapped, b"") == SECRET
    assert not both.wrapped_currently(wrapped)
    assert after.unwrap(both.wrap(SECRET, b""), b"") == SECRET
    with pytest.raises(duly.Sealed, match="not among those given"):
        after.unwrap(wrapped, b"")


def test_references_name_files_variables_and_commands(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_MASTER", path.read_text())
    wrapped = read_master_file(str(path)).wrap(SECRET, b"")
    for reference in (f"file:{path}", "env:MY_MASTER", f"command:cat {path}"):
        assert open_master(reference).unwrap(wrapped, b"") == SECRET


@pytest.mark.parametrize(
    "reference", ["", "file:", "env:", "command: ", "vault:x", 7, None, pytest.param(new_key(), id="a key")]
)
def test_other_references_are_refused_and_not_shown(reference: object) -> None:
    with pytest.raises(duly.InvalidArgument) as refused:
        open_master(reference)
    assert not isinstance(reference, str) or len(reference) < 20 or reference not in str(refused.value)


@pytest.mark.parametrize(
    "text", ["", "# nothing", "short", "x" * 43 + "!", "é", pytest.param(new_key() + "x", id="too long")]
)
def test_what_is_no_key_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(duly.InvalidArgument) as refused:
        parse_keys(text, "here")
    assert not text or text not in str(refused.value)


def test_what_cannot_be_had_is_said_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_MASTER", raising=False)
    for reference, why in (
        (f"file:{tmp_path / 'nowhere'}", "not there"),
        ("env:NO_MASTER", "not set"),
        ("command:false", "status 1"),
        ("command:/no/such/program", "cannot be run"),
        ("command:sh -c 'echo do not tell >&2; exit 3'", "status 3"),
    ):
        with pytest.raises(duly.Sealed, match=why) as refused:
            open_master(reference).wrap(SECRET, b"")
        assert "do not tell" not in str(refused.value)


def test_a_new_line_in_the_file_is_seen_at_once(path: Path) -> None:
    master = open_master(f"file:{path}")
    old = master.wrap(SECRET, b"")
    path.write_text(f"{new_key()}\n{path.read_text()}")
    new = master.wrap(SECRET, b"")
    path.write_text(path.read_text().splitlines()[0])
    assert master.unwrap(new, b"") == SECRET
    with pytest.raises(duly.Sealed):
        read_master_file(str(path)).unwrap(old, b"")


def test_a_file_that_everybody_may_read_is_warned_of(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.chmod(path, 0o644)
    with caplog.at_level(logging.WARNING):
        read_master_file(str(path))
    assert "chmod o=" in caplog.text
    assert path.read_text().strip() not in caplog.text


def test_keys_are_not_shown(path: Path) -> None:
    keys = read_master_file(str(path))
    assert isinstance(keys, MasterKeys)
    assert path.read_text().strip() not in repr(keys) + str(keys)
