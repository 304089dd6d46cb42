"""Every command against a broker answers as it does against the file."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import duly

from .brokers import served
from .test_cli import COMMANDS, EXAMPLES, REFUSED, Ran, folder, ok, refused, run, stocked
from .test_cli_words import completions

__all__ = ["folder", "stocked"]

# Only who has the file can do these.
ON_THE_FILE = {"backup", "serve", "master rotate"}
# They speak to others: tests/bridge, tests/push/test_served.py.
OUTWARD = {"bridge", "push test"}
# No store is asked.
ANYWHERE = {"limits", "restore", "migrate", "certs dev", "master create"}
# Where there is a broker, it is told of: test_cli_cluster.py.
ABOUT_BROKERS = {"cluster"}
# An open broker makes no keys, and one with keys wants to see one: test_cli_keys.py.
ABOUT_KEYS = {path for path in COMMANDS if path.startswith(("keys ", "principals "))}
# They start a Java: tests/spark runs them, on files and on brokers.
ON_SPARK = {path for path in COMMANDS if path.startswith("pipeline ")}

# What differs from run to run: moments, who one is, what is made at random, and where it went.
_VARIES = re.compile(
    r"(_at|^at|^due|^minute|idle_ms|oldest_age|publish_id|consumer|store|host|host_ahead_s|lease|facts|bytes|secret|older_secrets_until|next)$"
)
_NUMBER = re.compile(r"\d[\d.,]*")


@pytest.fixture(scope="module")
def broker(stocked: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker on a copy of the stocked store, for what changes nothing."""
    home = tmp_path_factory.mktemp("served")
    shutil.copytree(stocked, home, dirs_exist_ok=True)
    with served(home / "app.duly") as url:
        yield url


def told(document: Any) -> Any:
    """A document without what differs from run to run."""
    if isinstance(document, dict):
        return {name: told(value) for name, value in document.items() if not _VARIES.search(name)}
    return [told(value) for value in document] if isinstance(document, list) else document


def outcome(ran: Ran) -> tuple[int, list[Any], str]:
    documents = [told(json.loads(line)) for line in ran.out.splitlines()]
    # Which of the coming minutes it is may change meanwhile, and so may figures of the disk.
    minutes = [document for document in documents if document != {"messages": 0}]
    return ran.code, [_NUMBER.sub("#", json.dumps(one)) if "advice" in one else one for one in minutes], ran.err


def run_example(example: str, **env: str) -> Ran:
    feed, _, line = example.rpartition("| ")
    stdin = Path(feed.split()[1]).read_bytes() if feed else None
    return run(*shlex.split(line)[1:], "--json", stdin=stdin, env=env)


@pytest.mark.parametrize(
    ("path", "example"),
    [
        (path, example)
        for path, example in EXAMPLES
        if path not in ON_THE_FILE | ANYWHERE | ABOUT_BROKERS | ABOUT_KEYS | OUTWARD | {"work"}
    ],
)
def test_an_example_answers_as_it_does_on_the_file(path: str, example: str, folder: Path, stocked: Path) -> None:
    shutil.copytree(stocked, folder, dirs_exist_ok=True)
    if path == "topics create":
        Path("app.duly").unlink()
    else:
        shutil.copy("app.duly", "served.duly")
        # What pushes are signed with is sealed.
        shutil.copy("app.duly.master", "served.duly.master")
    here = run_example(example)
    assert here.code == 0, here
    # Whoever forgets the broker finds no store. What was written here is written anew there.
    Path("app.duly").unlink()
    for written in folder.glob("*.parquet"):
        written.unlink() if written.name != "old-orders.parquet" else None
    with served(folder / "served.duly") as url:
        there = run_example(example, DULY_URL=url)
    assert outcome(there) == outcome(here)
    assert not Path("app.duly").exists()


@pytest.mark.parametrize("example", [example for path, example in EXAMPLES if path in ANYWHERE])
def test_what_asks_no_store_does_not_ask_the_broker(example: str, folder: Path, stocked: Path) -> None:
    shutil.copytree(stocked, folder, dirs_exist_ok=True)
    assert run_example(example, DULY_URL="duly://127.0.0.1:1").code == 0


@pytest.mark.parametrize(("line", "_why"), REFUSED)
def test_what_is_refused_is_refused_in_the_same_words(
    line: str, _why: str, folder: Path, stocked: Path, broker: str
) -> None:
    shutil.copytree(stocked, folder, dirs_exist_ok=True)
    here = refused(*shlex.split(line))
    Path("app.duly").unlink()
    assert refused(*shlex.split(line), "--url", broker) == here


@pytest.mark.parametrize("line", ["claim orders", "claim emails --group billing", "dead list orders"])
def test_so_is_what_the_store_alone_can_tell_is_badly_written(line: str, broker: str) -> None:
    ran = refused(*line.split(), "--url", broker)
    assert ran.code == 2
    assert "duly groups list orders" in ran.err or "leave it out" in ran.err


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("backup backups", "taken of the store's own file"),
        ("restore backups new.duly", "restored to a file"),
        ("serve", "serves a file"),
    ],
)
def test_what_needs_the_file_says_so(line: str, what: str, broker: str) -> None:
    ran = refused(*line.split(), "--url", broker)
    assert ran.code == 1
    assert what in ran.err
    assert f"{broker} is a broker. Name the file: --store PATH" in ran.err


def test_every_command_is_looked_at_here() -> None:
    """A new command has to have an example that runs through a broker, or to say why it has none."""
    compared = {path for path, _ in EXAMPLES} - ON_THE_FILE - ANYWHERE
    assert compared | ON_THE_FILE | ANYWHERE | ABOUT_KEYS | OUTWARD | ON_SPARK == set(COMMANDS)


def test_no_broker_is_said_within_seconds_with_what_to_do(folder: Path) -> None:
    ran = refused("topics", "list", "--url", "duly://127.0.0.1:1")
    assert ran.code == 1
    assert "No broker answers" in ran.err
    assert "duly serve" in ran.err


@pytest.mark.parametrize("url", ["duly://", "duly://x:y", "duly://x:99999", "duly://a b:1"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    ran = refused("topics", "list", "--url", url)
    assert ran.code == 1
    assert "Give duly://host:port" in ran.err


class TestCompletion:
    def test_names_come_from_the_broker(self, folder: Path, broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
        assert completions(f"duly --url {broker} read o", 4) == ["orders"]
        assert completions(f"duly claim --url {broker} orders --group b", 6) == ["billing"]
        monkeypatch.setenv("DULY_URL", broker)
        assert completions("duly browse e", 2) == ["emails"]
        (folder / "config.toml").write_text(f'[profiles.far]\nurl = "{broker}"\n')
        monkeypatch.delenv("DULY_URL")
        monkeypatch.setenv("DULY_CONFIG", "config.toml")
        assert completions("duly --profile far read o", 4) == ["orders"]

    def test_a_broker_that_is_not_there_completes_to_nothing_in_silence(self) -> None:
        assert completions("duly --url duly://127.0.0.1:1 read o", 4) == []
        assert completions("duly --url nonsense read o", 4) == []
        assert completions("duly --profile nobody read o", 4) == []


def test_export_and_import_go_through_a_broker(folder: Path, stocked: Path, broker: str) -> None:
    ok("export", "orders", "orders.parquet", "--url", broker)
    ok("topics", "create", "copy", "--kind", "log")
    ok("import", "orders.parquet", "copy")
    with duly.connect("app.duly") as q:
        assert [message.payload for message in q.read("copy")] == [b"%d" % n for n in range(20)]
