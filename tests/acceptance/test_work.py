"""`duly work`: real processes, real signals, handlers whose effects outlive them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import duly
from tests.store.patience import eventually

from .duly_work import DULY, alive, notes, work, write_application


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def q(folder: Path) -> Iterator[duly.Client]:
    with duly.connect(folder / "app.duly") as client:
        client.create_topic("emails", kind="queue", lease=1, retry=duly.RetryPolicy(max_attempts=3, base=0.01))
        yield client


def attempts(q: duly.Client) -> dict[bytes, tuple[str, int]]:
    return {m.payload: (m.state, m.attempts) for m in q.browse("emails") if m.payload is not None}


SHORT_AND_LONG = """
@workers.on("emails", concurrency=3)
def handler(d):
    note("start", d)
    wait_for(d.payload.decode())
    note("end", d)
"""


def test_sigterm_gives_what_runs_its_grace_and_releases_the_rest(q: duly.Client, folder: Path) -> None:
    write_application(folder, SHORT_AND_LONG)
    q.publish("emails", [b"short", b"long", b"longer", b"untouched"])
    with work(folder, "--grace", "1s") as running:
        eventually(lambda: len(notes(folder, "start")) == 3)
        running.signal()
        eventually(lambda: "stopping: SIGTERM" in running.log)
        (folder / "short").touch()
        assert running.ended() == 0
    assert [note["payload"] for note in notes(folder, "end")] == ["short"]
    assert attempts(q) == {b"long": ("ready", 0), b"longer": ("ready", 0), b"untouched": ("ready", 0)}
    assert "2 messages are released" in running.log
    assert not alive(notes(folder)[0]["pid"])


def test_an_address_that_the_environment_names_is_on_no_command_line(
    q: duly.Client, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have a password."""
    monkeypatch.setenv("DULY_STORE", str(folder / "app.duly"))
    write_application(folder, SHORT_AND_LONG)
    q.publish("emails", b"short")
    with work(folder) as running:
        eventually(lambda: len(notes(folder, "start")) == 1)
        for pid in (running.process.pid, notes(folder)[0]["pid"]):
            assert b"app.duly" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        (folder / "short").touch()
        running.signal()
        assert running.ended() == 0


def test_ctrl_c_stops_and_a_second_one_releases_at_once(q: duly.Client, folder: Path) -> None:
    write_application(folder, SHORT_AND_LONG)
    q.publish("emails", b"long")
    with work(folder, "--grace", "1h") as running:
        eventually(lambda: len(notes(folder, "start")) == 1)
        running.ctrl_c()
        eventually(lambda: running.log.count("stopping: SIGINT") == 1)
        with pytest.raises(subprocess.TimeoutExpired):
            running.ended(0.5)
        assert attempts(q) == {b"long": ("leased", 1)}, "the first leaves it its grace"
        running.ctrl_c()
        assert running.ended() == 0
    assert attempts(q) == {b"long": ("ready", 0)}


def test_a_process_that_is_killed_is_replaced_and_its_message_has_its_attempt_counted(
    q: duly.Client, folder: Path
) -> None:
    """A message that kills its process each time is buried; the log says what happened."""
    write_application(
        folder,
        """
@workers.on("emails", concurrency=2)
def handler(d):
    note("start", d)
    if d.payload == b"poison":
        os.kill(os.getpid(), 9)
    note("end", d)
""",
    )
    q.publish("emails", b"poison")
    with work(folder) as running:
        (letter,) = eventually(lambda: list(q.dead("emails")))
        q.publish("emails", b"fine")
        eventually(lambda: [note["payload"] for note in notes(folder, "end")] == ["fine"])
        running.signal()
        assert running.ended() == 0
    assert [note["attempt"] for note in notes(folder, "start") if note["payload"] == "poison"] == [1, 2, 3]
    assert (letter.payload, letter.attempts) == (b"poison", 3)
    assert running.log.count("died of signal 9 (SIGKILL); another starts in") == 3
    consumers = {failure.consumer for failure in letter.history}
    assert len(consumers) == 3, "every incarnation has a name of its own"
    assert {int(name.split("-")[-2]) for name in consumers} == {note["pid"] for note in notes(folder, "start")[:3]}


def test_one_that_is_stuck_past_its_time_limit_is_replaced(q: duly.Client, folder: Path) -> None:
    """The others of its process finish first; what was stuck is nacked and says why."""
    write_application(
        folder,
        """
@workers.on("emails", concurrency=2, time_limit=1)
def handler(d):
    note("start", d)
    time.sleep({b"stuck": 3600, b"beside": 0.5}.get(d.payload, 0))
    note("end", d)
""",
    )
    q.update_topic("emails", retry=duly.RetryPolicy(base=3600, jitter="none"))
    q.publish("emails", [b"stuck", b"beside"])
    with work(folder) as running:
        eventually(lambda: "was stuck past its time limit; another starts" in running.log)
        q.publish("emails", b"after")
        eventually(lambda: {note["payload"] for note in notes(folder, "end")} == {"beside", "after"})
        running.signal()
        assert running.ended() == 0
    (message,) = q.browse("emails")
    assert [failure.reason for failure in message.history] == ["TimeLimit: the handler did not end within 1 s"]
    first, last = notes(folder)[0]["pid"], notes(folder)[-1]["pid"]
    assert first != last
    assert not alive(first)


def test_several_processes_share_the_work_and_drain(q: duly.Client, folder: Path) -> None:
    write_application(
        folder,
        """
@workers.on("emails")
def handler(d):
    note("start", d)
    # Each waits until the other has something too.
    wait_for(d.payload.decode())
""",
    )
    q.publish("emails", [b"1", b"2"])
    with work(folder, "--processes", "2", "--drain") as running:
        eventually(lambda: len(notes(folder, "start")) == 2)
        assert len({note["pid"] for note in notes(folder)}) == 2
        (folder / "1").touch()
        (folder / "2").touch()
        assert running.ended() == 0
    assert q.browse("emails") == []
    assert "Stopped 2 workers." in running.log


def test_processes_end_with_their_supervisor(q: duly.Client, folder: Path) -> None:
    write_application(folder, SHORT_AND_LONG)
    q.publish("emails", b"long")
    with work(folder, "--grace", "0") as running:
        (start,) = eventually(lambda: notes(folder, "start"))
        running.signal(signal.SIGKILL)
        eventually(lambda: not alive(start["pid"]))
    assert attempts(q) == {b"long": ("ready", 0)}, "in good order: what it held was released"


def test_reload_starts_anew_when_a_file_of_the_application_changes(q: duly.Client, folder: Path) -> None:
    """In good order, also when what changed is imported by what was named, and through a mistake and its correction."""
    handler = "import words\n@workers.on('emails')\ndef handler(d):\n    note(words.WORD, d)\n"
    write_application(folder, handler)
    words = folder / "words.py"
    words.write_text("WORD = 'one'\n")
    with work(folder, "--reload") as running:
        q.publish("emails", b"1")
        eventually(lambda: notes(folder, "one"))
        words.write_text("WORD = 'second'\n")
        eventually(lambda: running.log.count("at work as consumer") == 2)
        q.publish("emails", b"2")
        eventually(lambda: notes(folder, "second"))
        words.write_text("WORD = 'a mistake\n")
        eventually(lambda: "SyntaxError" in running.log)
        words.write_text("WORD = 'the third'\n")
        eventually(lambda: running.log.count("at work as consumer") == 3)
        q.publish("emails", b"3")
        eventually(lambda: notes(folder, "the third"))
        running.signal()
        assert running.ended() == 0
    assert q.browse("emails") == []
    assert "died" not in running.log


def refused(folder: Path, *args: str) -> str:
    env = {name: value for name, value in os.environ.items() if name != "DULY_STORE"}
    ran = subprocess.run([DULY, "work", *args], cwd=folder, capture_output=True, text=True, timeout=60, env=env)
    assert (ran.returncode, ran.stdout) == (1, ""), ran
    assert ran.stderr.splitlines()[-1].startswith("Error: "), ran.stderr
    return ran.stderr


def test_a_topic_that_is_not_there_is_said_once_with_what_to_do(q: duly.Client, folder: Path) -> None:
    write_application(folder, "workers.on('nowhere')(print)\n")
    told = refused(folder, "tasks:workers", "--processes", "3")
    assert told.count("\n") == 1
    assert "There is no topic 'nowhere'" in told
    assert "Here: duly topics create" in told


def test_an_application_that_cannot_be_imported_is_said_with_its_traceback(q: duly.Client, folder: Path) -> None:
    (folder / "broken.py").write_text("1 / 0\n")
    told = refused(folder, "broken:workers")
    assert 'broken.py", line 1' in told
    assert "Error: Importing 'broken' failed: ZeroDivisionError: division by zero" in told
