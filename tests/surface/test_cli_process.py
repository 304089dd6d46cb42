"""`duly` as people run it: a process with pipes, terminals and signals."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import duly

from .brokers import served

DULY = Path(sys.executable).parent / "duly"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("DULY_STORE", "DULY_URL", "DULY_PROFILE", "DULY_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-config-here"))
    return tmp_path


def run(
    *args: str, stdin: bytes = b"", stderr: int = subprocess.PIPE, code: int = 0
) -> subprocess.CompletedProcess[bytes]:
    # pytest-xdist tells its children that the terminal is narrow; there is none.
    env = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run([DULY, *args], input=stdin, stdout=subprocess.PIPE, stderr=stderr, timeout=60, env=env)
    assert done.returncode == code, done
    assert b"Traceback" not in (done.stderr or b"")
    return done


@contextmanager
def running(*args: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([DULY, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def terminal() -> Iterator[tuple[int, int]]:
    """Both ends of a terminal: what is written to the second is read from the first."""
    ours, theirs = pty.openpty()
    try:
        yield ours, theirs
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.fixture(params=["file", "broker"])
def q(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[duly.Client]:
    """A topic and a group in the store that `duly` finds in this folder, or that a broker has."""
    with duly.connect(folder / ("app.duly" if request.param == "file" else "served.duly")) as client, ExitStack() as on:
        client.create_topic("orders", kind="log")
        client.create_group("orders", "billing")
        if request.param == "broker":
            monkeypatch.setenv("DULY_URL", on.enter_context(served(folder / "served.duly")))
        yield client


@pytest.mark.parametrize("through", ["file", "broker"])
def test_the_first_five_minutes(through: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as on:
        if through == "broker":
            monkeypatch.setenv("DULY_URL", on.enter_context(served(folder / "served.duly")))
        five_minutes()


def five_minutes() -> None:
    run("topics", "create", "orders", "--kind", "log")
    run("groups", "create", "orders", "billing")
    run("publish", "orders", "--lines", stdin="grüße\nhello\n".encode())
    claimed = run("claim", "orders", "--group", "billing", "-n", "10", "--wait", "5", "--ack", "--json")
    assert [json.loads(line)["payload"] for line in claimed.stdout.splitlines()] == ["grüße", "hello"]
    assert b"orders" in run("stats").stdout
    refused = run("topics", "delete", "orders", code=1)
    assert (refused.stdout, refused.stderr.count(b"\n")) == (b"", 1)
    run("topics", "create", code=2)


def test_bytes_that_are_no_text_pass_through(q: duly.Client) -> None:
    run("publish", "orders", os.fsdecode(b"\xff\xfe"))
    run("publish", "orders", stdin=b"\xff\xfe")
    assert [message.payload for message in q.read("orders")] == [b"\xff\xfe"] * 2


@pytest.mark.parametrize("more", [["--json"], []])
def test_a_terminal_without_unicode_gets_question_marks(q: duly.Client, more: list[str]) -> None:
    q.publish("orders", "☃".encode())
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([DULY, "read", "orders", *more], env=env, capture_output=True, timeout=60, check=True)
    if more:
        assert json.loads(done.stdout)["payload"] == "☃"
    else:
        assert b"?" in done.stdout


def test_ctrl_c_ends_a_waiting_claim_quietly(q: duly.Client) -> None:
    with running("claim", "orders", "--group", "billing", "--wait", "60", "--consumer", "w") as process:
        _until(lambda: bool(q.describe_group("orders", "billing").consumers))
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30) == (b"", b"")
        assert process.returncode == 130


def test_follow_shows_what_comes_until_ctrl_c(q: duly.Client) -> None:
    q.publish("orders", b"before")
    with running("read", "orders", "--follow", "--json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["payload"] == "before"
        q.publish("orders", b"after")
        assert json.loads(process.stdout.readline())["payload"] == "after"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30) == (b"", b"")
        assert process.returncode == 130


@pytest.mark.parametrize("more", [["--json"], []])
def test_a_reader_that_goes_away_is_met_with_silence(q: duly.Client, more: list[str]) -> None:
    q.publish("orders", [b"some line that fills the pipe"] * 3000)
    with running("read", "orders", *more) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=30) == 1


def test_messages_that_nobody_read_are_not_acked(q: duly.Client) -> None:
    q.publish("orders", [b"x" * 400] * 1000)
    with running("claim", "orders", "--group", "billing", "-n", "1000", "--ack", "--json") as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(timeout=30) == 1
    (first, *rest) = q.claim("orders", group="billing", max_messages=1000)
    assert (len(rest), first.attempt) == (999, 1)


def test_a_progress_bar_is_drawn_on_a_terminal_alone(q: duly.Client) -> None:
    text = b"".join(b"%d\n" % n for n in range(3000))
    assert run("publish", "orders", "--lines", stdin=text).stderr == b""
    with terminal() as (ours, theirs):
        run("publish", "orders", "--lines", stdin=text, stderr=theirs)
        assert b"Publishing to orders" in os.read(ours, 65536)


def test_errors_are_red_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with terminal() as (ours, theirs):
        run("stats", stderr=theirs, code=1)
        assert os.read(ours, 65536).startswith(b"\x1b[31mError: There is no store")


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys, duly.cli.main\n"
        "heavy = {'numpy', 'pyarrow', 'apsw', 'duly.cli.bench', 'rich.table'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_bench_is_there_and_explains_itself() -> None:
    assert b"lifecycle" in run("bench", "--help").stdout
    assert run("bench", "lifecycle", "--nonsense", code=2).stderr.startswith(b"Error: ")


def _until(holds: Callable[[], bool]) -> None:
    for _ in range(300):
        if holds():
            return
        time.sleep(0.05)
    raise AssertionError("it did not come to pass")
