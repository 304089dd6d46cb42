"""The command line, command by command, inside this process."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import typer
from typer.testing import CliRunner

import duly
from duly.cli.main import app
from duly.cli.program import Program
from duly.parquet import export_topic


@dataclass(frozen=True)
class Ran:
    """What a run of `duly` left behind."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Standard output as a JSON document a line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def document(self) -> dict[str, Any]:
        """Standard output as one JSON document."""
        (only,) = self.lines
        return only


# Building the tree of commands takes longer than most of them run.
PROGRAM = typer.main.get_command(app)


def words(line: str) -> list[str]:
    """A line as the shell cuts it."""
    return shlex.split(line)


def run(*args: str, stdin: bytes | str | None = None, env: dict[str, str] | None = None) -> Ran:
    """Runs `duly` in this process, with a terminal wide enough that nothing is cut.

    What it sets in the environment for processes that it starts is gone afterwards, as if it had been one itself.
    """
    with pytest.MonkeyPatch.context() as patched, mock.patch.dict(os.environ):
        patched.setattr("typer.testing._get_command", lambda _: PROGRAM)
        result = CliRunner().invoke(app, args, input=stdin, env={"COLUMNS": "200", **(env or {})})
    return Ran(result.exit_code, result.stdout, result.stderr)


def ok(*args: str, stdin: bytes | str | None = None) -> Ran:
    ran = run(*args, stdin=stdin)
    assert ran.code == 0, ran
    return ran


def refused(*args: str, stdin: bytes | str | None = None) -> Ran:
    """A run that ends in one line of error, and nothing else."""
    ran = run(*args, stdin=stdin)
    assert ran.out == ""
    assert ran.err.startswith("Error: ")
    assert ran.err.count("\n") == 1
    assert "Traceback" not in ran.err
    assert "fault in Duly" not in ran.err
    return ran


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every run has a folder of its own, with no store yet."""
    monkeypatch.chdir(tmp_path)
    for name in ("DULY_STORE", "DULY_URL", "DULY_PROFILE", "DULY_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-config-here"))
    return tmp_path


@pytest.fixture(scope="module")
def stocked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a log, a group that holds, retries and has given up messages; a queue; and files to publish."""
    home = tmp_path_factory.mktemp("stocked")
    with duly.connect(home / "app.duly", consumer="worker-1") as q:
        q.create_topic("orders", kind="log")
        q.create_group("orders", "billing")
        q.publish("orders", [duly.Message(f"{n}".encode(), id=f"order-{n}", key="k") for n in range(20)])
        letters = q.claim("orders", group="billing", max_messages=20)
        q.bury(letters[13:15], reason="no such customer")
        q.ack(letters[:10])
        q.release(letters[15:])
        q.create_topic("emails", kind="queue")
        q.publish("emails", duly.Message(b"7", id="receipt-7"))
        q.bury(q.claim("emails"), reason="no such address")
        q.publish(
            "emails",
            [
                duly.Message(b"forty-two", id="welcome-42", due=10_000, lane="acme", priority=5, key="k"),
                duly.Message(b"forty-three", id="welcome-43", due=90),
                duly.Message(b"now", id="welcome-44", lane="globex", priority=1),
            ],
        )
        q.create_schedule("reminders", topic="emails", cron="0 8 * * MON", zone="Europe/Berlin", payload=b"hello")
        for name in ("orders@12-345", "import"):
            q.stop_operation(name)
        q.create_push("billing-hook", topic="orders", group="billing", to=duly.ToHttp("https://example.com/"))
        export_topic(q, "orders", home / "old-orders.parquet")
        q.backup(home / "backups")
    (home / "tasks.py").write_text(
        "import duly\nworkers = duly.Workers()\n"
        "workers.on('emails')(lambda d: None)\nworkers.on('orders', group='billing')(lambda d: None)\n"
    )
    (home / "invoice.pdf").write_bytes(b"%PDF\xff\x00")
    (home / "events.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
    (home / "campaign.jsonl").write_text('{"payload": "hi", "id": "hi-1"}\n{"payload": {"n": 2}, "due": 60}\n')
    return home


@pytest.fixture
def shop(folder: Path, stocked: Path) -> Path:
    """A copy of the stocked store in the present folder."""
    shutil.copytree(stocked, folder, dirs_exist_ok=True)
    return folder


def every_command() -> Iterator[tuple[str, Any]]:
    """(path, command) of each command that is not a group, bench apart: it is measured, not tested, here."""

    def walk(path: str, command: Any) -> Iterator[tuple[str, Any]]:
        below = getattr(command, "commands", None)
        if below is None:
            yield path, command
            return
        for name, child in below.items():
            yield from walk(f"{path} {name}".strip(), child)

    yield from (entry for entry in walk("", PROGRAM) if entry[0] != "bench")


def examples_of(command: Any) -> list[str]:
    text = str(command.epilog or "").replace("\\[", "[")
    return [line.strip() for line in text.splitlines() if " duly " in f" {line}"]


COMMANDS = dict(every_command())
# One that serves does not end by itself: test_cli_serve.py runs its examples.
# Those that go on for ever, start a Java or need PostgreSQL are run elsewhere: test_cli_serve.py, tests/spark and
# tests/postgres.
EXAMPLES = [
    (path, example)
    for path, command in COMMANDS.items()
    # Those of keys need one's id: tests/access/test_tokens.py.
    # That which sends a request: tests/push/test_served.py. Those to other servers: tests/bridge.
    if path not in ("serve", "bridge", "migrate", "keys rotate", "keys revoke", "principals delete", "push test")
    and not path.startswith("pipeline ")
    for example in examples_of(command)
]


def run_example(example: str, *more: str) -> Ran:
    feed, _, line = example.rpartition("| ")
    stdin = Path(feed.split()[1]).read_bytes() if feed else None
    return run(*shlex.split(line)[1:], *more, stdin=stdin)


class TestHelp:
    def test_the_commands_are_these(self) -> None:
        assert sorted(COMMANDS) == sorted(
            words("publish claim read move cancel get browse coming work held release stats limits doctor clock")
            + words("backup restore migrate pause resume serve bridge")
            + words("health forecast export import events audit cluster")
            + [f"topics {verb}" for verb in words("create list show update delete pause resume purge")]
            + [f"groups {verb}" for verb in words("create list show update delete pause resume purge seek")]
            + [f"tenants {verb}" for verb in words("create list show update suspend resume delete")]
            + [f"operations {verb}" for verb in words("list resume stop")]
            + [f"schedule {verb}" for verb in words("create list show update pause resume delete next")]
            + [f"push {verb}" for verb in words("create list show update pause resume rotate test delete")]
            + [f"dead {verb}" for verb in words("list show redrive purge")]
            + [f"keys {verb}" for verb in words("create list rotate revoke")]
            + [f"principals {verb}" for verb in words("put list delete")]
            + [f"master {verb}" for verb in words("create rotate")]
            + [f"pipeline {job}" for job in words("archive replay schedule")]
            + ["certs dev"]
        )

    @pytest.mark.parametrize("path", COMMANDS)
    def test_every_command_explains_itself_with_an_example(self, path: str) -> None:
        ran = run(*path.split(), "--help", env={"COLUMNS": "80"})
        assert examples_of(COMMANDS[path])
        assert "Example" in ran.out
        assert f"duly {path}" in ran.out
        assert "--json" in ran.out
        assert COMMANDS[path].help
        assert "…" not in ran.out

    @pytest.mark.parametrize(
        "group",
        ["", *words("topics groups tenants operations schedule push dead keys principals master pipeline")],
    )
    def test_a_group_alone_shows_its_help(self, group: str) -> None:
        assert "Usage: duly" in ok(*group.split()).out.replace("root", "duly")

    def test_version(self) -> None:
        assert ok("--version").out == f"duly {duly.__version__}\n"

    @pytest.mark.parametrize(("path", "example"), EXAMPLES)
    def test_every_example_runs(self, path: str, example: str, folder: Path, request: pytest.FixtureRequest) -> None:
        if path != "topics create":
            request.getfixturevalue("shop")
        ran = run_example(example)
        assert (ran.code, ran.err.startswith("Error")) == (0, False), ran

    @pytest.mark.parametrize(("path", "example"), EXAMPLES)
    def test_every_example_speaks_json(self, path: str, example: str, request: pytest.FixtureRequest) -> None:
        if path != "topics create":
            request.getfixturevalue("shop")
        ran = run_example(example, "--json")
        assert ran.code == 0
        assert ran.err == ""
        assert all(isinstance(document, dict) for document in ran.lines)

    def test_a_misspelt_command_is_corrected(self) -> None:
        ran = refused("topics", "craete")
        assert ran.code == 2
        assert "Did you mean 'create'?" in ran.err


TOPIC_COMMANDS = {
    "topics show": "T",
    "topics update": "T --lease 5s",
    "topics delete": "T",
    "topics pause": "T",
    "topics resume": "T",
    "topics purge": "T",
    "groups create": "T other",
    "groups list": "T",
    "publish": "T x",
    "read": "T",
    "held": "--topic T",
    "move": "T id --due 5m",
    "cancel": "T id",
    "get": "T id",
    "browse": "T",
    "coming": "T",
    "health": "T",
    "forecast": "T",
    "events": "T",
    "push create": "hook T --to-http https://example.com/",
    "export": "T new.parquet",
    "import": "old-orders.parquet T",
    "schedule create": "new --topic T --cron @daily",
    "pipeline schedule": "--to T --file rows.csv",
}
GROUP_COMMANDS = {
    "groups show": "T G",
    "groups update": "T G --lease 5s",
    "groups delete": "T G",
    "groups pause": "T G",
    "groups resume": "T G",
    "groups purge": "T G",
    "groups seek": "T G --to latest",
    "claim": "T --group G",
    "held": "--topic T --group G",
    "dead list": "T --group G",
    "dead show": "T some-id --group G",
    "dead redrive": "T --group G",
    "dead purge": "T --group G",
    "pipeline replay": "--lake lake --topic T --group G",
}


# These name no topic themselves.
WITHOUT_NAMES = {
    "release": "--consumer c",
    "tenants show": "acme",
    "tenants update": "acme --topics 5",
    "tenants suspend": "acme",
    "tenants resume": "acme",
    "tenants delete": "acme",
    "operations resume": "import",
    "operations stop": "import",
    "schedule show": "reminders",
    "schedule update": "reminders --zone UTC",
    "schedule pause": "reminders",
    "schedule resume": "reminders",
    "schedule delete": "reminders",
    "push show": "billing-hook",
    "push update": "billing-hook --concurrency 4",
    "push pause": "billing-hook",
    "push resume": "billing-hook",
    "push rotate": "billing-hook",
    "push test": "billing-hook",
    "push delete": "billing-hook",
    "work": "tasks:workers",
    "bridge": "duly:orders nats://127.0.0.1:1/ORDERS/orders",
    "backup": "backups",
    "keys create": "shop --grant read",
    "keys rotate": "aaaaaaaaaaaa",
    "keys revoke": "aaaaaaaaaaaa",
    "principals put": "shop --grant read",
    "principals delete": "shop",
    "pipeline archive": "--lake lake --once",
    "master create": "app.master",
}

# These make a store, or ask none.
MADE_OR_NOT_ASKED = [
    *words("limits restore migrate serve"),
    *["topics create", "tenants create", "schedule next", "certs dev", "master create"],
]


# What is written well and cannot be done, and what the error says.
REFUSED = [
    ("topics create orders --kind log", "exists"),
    ("topics create $mine --kind log", "Duly's own"),
    ("topics create x --kind log --lease 1ms", "lease"),
    ("topics create x --kind log --partitions 0", "partitions"),
    ("topics create x --kind log --payload-bytes-max 1TB", "payload_bytes_max"),
    ("topics create x --kind log --max-attempts 10001", "max_attempts"),
    ("topics delete orders", "--force"),
    ("groups create orders billing", "exists"),
    ("groups create orders g --start 999", "999"),
    ("groups update orders billing --lease 100d", "lease"),
    ("groups seek orders billing --offset 999", "999"),
    ("groups seek orders billing --offset 0 --partition 7", "partition"),
    ("publish orders x --partition 7", "partition"),
    ("publish orders x --ttl 0", "ttl"),
    ("publish orders --file missing.txt", "missing.txt"),
    ("publish orders --file .", "directory"),
    ("claim orders --group billing -n 1000000", "max_messages"),
    ("claim orders --group billing --lease 1ms", "lease"),
    ("read orders --partition 7", "partition"),
    ("read orders --offset 999", "999"),
    ("dead show orders order-1 --group billing", "duly dead list orders --group billing"),
    ("dead redrive orders --group billing --rate 0", "rate"),
    ("dead redrive orders --group billing --rate nan", "rate"),
    ("dead show emails welcome-42", "duly dead list emails"),
    ("publish orders x --due 5m", "due"),
    ("publish orders x --priority 5", "priority"),
    ("publish orders x --lane acme", "lane"),
    ("publish emails x --partition 0", "partition"),
    ("publish emails x --due 4000d", "due"),
    ("topics create x --kind log --dedupe 5m", "queues"),
    ("topics create x --kind log --lane-weight acme=3", "queues"),
    ("topics create x --kind queue --lane-weight acme=0", "weight"),
    ("topics create x --kind queue --lane-max-in-flight 0", "max_in_flight"),
    ("topics update orders --lane-rate 5", "queues"),
    ("read emails", "queue"),
    ("groups create emails g", "queue"),
    ("groups seek emails queue --to latest", "queue"),
    ("groups delete emails queue", "queue"),
    ("move orders order-1 --due 5m", "log"),
    ("move emails welcome-42 --due 4000d", "due"),
    ("cancel orders order-1", "log"),
    ("get orders order-1", "log"),
    ("get emails nothing", "duly browse emails"),
    ("browse orders", "log"),
    ("browse emails --priority 9-0", "priority"),
    ("browse emails --priority 70000", "priority"),
    ("coming orders", "log"),
]


def filled(path: str, template: str, topic: str, group: str) -> list[str]:
    names = {"T": topic, "G": group}
    return path.split() + [names.get(word, word) for word in template.split()]


class TestErrors:
    def test_every_command_is_covered(self) -> None:
        """A new command has to say what it does with a topic or a group that is not there."""
        without_names = {"topics create", "topics list", "stats", "limits", "doctor", "clock", *WITHOUT_NAMES}
        without_names |= {*words("restore migrate pause resume serve cluster audit"), "master rotate", "certs dev"}
        without_names |= {
            "keys list",
            "principals list",
            "tenants create",
            "tenants list",
            "operations list",
            "schedule list",
            "schedule next",
            "push list",
        }
        assert without_names | set(TOPIC_COMMANDS) | set(GROUP_COMMANDS) == set(COMMANDS)

    @pytest.mark.parametrize("path", TOPIC_COMMANDS | GROUP_COMMANDS)
    def test_an_unknown_topic_is_said_with_what_to_do(self, path: str, shop: Path) -> None:
        template = GROUP_COMMANDS.get(path) or TOPIC_COMMANDS[path]
        ran = refused(*filled(path, template, "nowhere", "billing"))
        assert ran.code == 1
        assert "no topic 'nowhere'" in ran.err
        assert "duly topics create" in ran.err

    @pytest.mark.parametrize("path", GROUP_COMMANDS)
    def test_an_unknown_group_is_said_with_what_to_do(self, path: str, shop: Path) -> None:
        ran = refused(*filled(path, GROUP_COMMANDS[path], "orders", "nobody"))
        assert ran.code == 1
        assert "no group 'nobody'" in ran.err
        assert "duly groups create" in ran.err

    @pytest.mark.parametrize("path", [path for path in COMMANDS if path not in MADE_OR_NOT_ASKED])
    def test_a_missing_store_is_said_and_not_made(self, path: str, folder: Path) -> None:
        template = (TOPIC_COMMANDS | GROUP_COMMANDS).get(path, WITHOUT_NAMES.get(path, ""))
        ran = refused(*filled(path, template, "orders", "billing"))
        assert ran.code == 1
        assert "no store at 'app.duly'" in ran.err
        assert "duly topics create" in ran.err
        assert list(folder.iterdir()) == []

    @pytest.mark.parametrize("path", COMMANDS)
    def test_an_unknown_option_is_a_usage_error(self, path: str) -> None:
        ran = refused(*path.split(), "--nonsense")
        assert ran.code == 2
        assert "--nonsense" in ran.err
        assert f"{path} --help" in ran.err

    @pytest.mark.parametrize(
        "path",
        [*sorted((TOPIC_COMMANDS | GROUP_COMMANDS).keys() - {"held", "health", "forecast", "events"}), *WITHOUT_NAMES],
    )
    def test_a_missing_argument_is_a_usage_error(self, path: str) -> None:
        ran = refused(*path.split())
        assert ran.code == 2
        assert "Missing" in ran.err

    @pytest.mark.parametrize(
        ("line", "told"),
        [
            ("topics create x", "--kind"),
            ("topics create x --kind heap", "'heap'"),
            ("topics create x --kind log --lease soon", "not a duration"),
            ("topics create x --kind log --lease -5", "not a duration"),
            ("topics create x --kind log --retention-bytes 3miles", "not a size"),
            ("topics create x --kind log --partitions many", "--partitions"),
            ("topics create x --kind log --backoff-shape square", "'square'"),
            ("topics create x --kind log --max-attempts -1", "--max-attempts"),
            ("topics update orders", "Nothing to change"),
            ("topics update orders --kind queue", "No such option"),
            ("topics list extra", "extra"),
            ("groups create orders g --start yesterday", "not a place"),
            ("groups create orders g --start 2026-01-31T12:00:00", "not a place"),
            ("groups update orders billing", "Nothing to change"),
            ("groups seek orders billing", "one of --offset, --at and --to"),
            ("groups seek orders billing --offset 1 --to latest", "one of --offset, --at and --to"),
            ("groups seek orders billing --offset -1", "--offset"),
            ("groups seek orders billing --to nowhere", "neither earliest nor latest"),
            ("groups seek orders billing --at 2026-01-31", "time zone"),
            ("publish orders x --header novalue", "name=value"),
            ("publish orders x --header a=1 --header a=2", "twice"),
            ("publish orders x --ttl long", "not a duration"),
            ("publish orders x y --id one", "one message"),
            ("publish orders --lines --id one", "one message"),
            ("publish orders", "Standard input is empty"),
            ("publish orders x --partition -1", "--partition"),
            ("publish emails x --due soon", "not a time"),
            ("publish emails x --due 2027-01-31T12:00:00", "time zone"),
            ("publish emails x --due -5", "not a time"),
            ("publish emails x --priority high", "--priority"),
            ("publish emails x --priority -1", "--priority"),
            ("publish emails x --priority 65536", "--priority"),
            ("publish emails --lines --json-lines", "not both"),
            ("publish emails --json-lines --id one", "one message"),
            ("topics create x --kind queue --dedupe long", "not a duration"),
            ("topics create x --kind queue --lane-weight acme", "lane=3"),
            ("topics create x --kind queue --lane-weight acme=heavy", "lane=3"),
            ("topics create x --kind queue --lane-max-in-flight few", "not a number"),
            ("topics create x --kind queue --lane-rate -1", "not a number"),
            ("move emails welcome-42", "--due or --priority"),
            ("move emails --due 5m", "Missing"),
            ("move emails welcome-42 --due soon", "tomorrow 9:00"),
            ("move emails welcome-42 --priority 70000", "--priority"),
            ("cancel emails", "Missing"),
            ("get emails", "Missing"),
            ("get emails one two", "two"),
            ("browse emails --state lost", "'lost'"),
            ("browse emails --priority high", "neither a priority"),
            ("browse emails --priority 1-2-3", "neither a priority"),
            ("browse emails --due-from 5m", "not a time"),
            ("browse emails --due-before 2027-01-31", "time zone"),
            ("browse emails --limit 0", "--limit"),
            ("coming emails --minutes 0", "--minutes"),
            ("coming emails --minutes 100000", "--minutes"),
            ("claim orders", "duly groups list orders"),
            ("claim emails --group billing", "leave it out"),
            ("dead list orders", "duly groups list orders"),
            ("dead show orders order-13", "duly groups list orders"),
            ("dead redrive orders", "duly groups list orders"),
            ("dead purge orders", "duly groups list orders"),
            ("dead list emails --group billing", "leave it out"),
            ("dead show emails receipt-7 --group billing", "leave it out"),
            ("dead redrive emails --group billing", "leave it out"),
            ("dead purge emails --group billing", "leave it out"),
            ("claim orders --group billing -n 0", "--max-messages"),
            ("claim orders --group billing --wait long", "not a duration"),
            ("claim orders --group billing --ack --nack", "one of --ack"),
            ("claim orders --group billing --ack --delay 5", "belong to --nack"),
            ("claim orders --group billing --reason why", "belong to --nack"),
            ("read orders --offset 1 --at now", "not both"),
            ("read orders --limit 0", "--limit"),
            ("read orders --offset minus", "--offset"),
            ("dead list orders --group billing --limit none", "--limit"),
            ("dead redrive orders --group billing --rate fast", "--rate"),
            ("limits extra", "extra"),
            ("doctor extra", "extra"),
            ("clock extra", "extra"),
            ("stats extra", "extra"),
        ],
    )
    def test_bad_usage_exits_with_2_and_says_what_to_write(self, line: str, told: str, shop: Path) -> None:
        ran = refused(*words(line))
        assert ran.code == 2
        assert told in ran.err
        assert "--help" in ran.err

    @pytest.mark.parametrize("line", ["topics delete orders --force=1", "topics update orders --lease"])
    def test_an_option_with_too_much_or_too_little_is_a_usage_error(self, line: str, shop: Path) -> None:
        assert refused(*words(line)).code == 2

    @pytest.mark.parametrize(("line", "told"), REFUSED)
    def test_what_duly_refuses_exits_with_1(self, line: str, told: str, shop: Path) -> None:
        ran = refused(*words(line))
        assert ran.code == 1
        assert told in ran.err

    @pytest.mark.parametrize("name", ["", "a\nb", "x" * 257, "\x1b[31mred"])
    def test_names_that_cannot_be_are_refused(self, name: str, shop: Path) -> None:
        for args in (
            ("topics", "create", name, "--kind", "log"),
            ("groups", "create", "orders", name),
            ("claim", "orders", "--group", "billing", "--consumer", name),
            ("topics", "list", "--tenant", name),
        ):
            ran = refused(*args)
            assert ran.code == 1
            assert "\x1b" not in ran.err

    @pytest.mark.parametrize("store", ["", ".", "duly://", "postgresql://x"])
    def test_a_store_that_is_no_file_is_refused(self, store: str) -> None:
        assert refused("topics", "list", "--store", store).code == 1

    def test_a_fault_of_ours_is_one_line_too(self, shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object, **__: object) -> None:
            raise RuntimeError("boom\nbang")

        monkeypatch.setattr("duly.client.client.Client.list_topics", fail)
        ran = run("topics", "list")
        assert ran.code == 1
        assert ran.err.startswith("Error: RuntimeError: boom")
        assert ran.err.count("\n") == 1

    def test_the_program_inside_another_raises_as_it_is(self, folder: Path) -> None:
        assert isinstance(PROGRAM, Program)
        with pytest.raises(duly.NotFound):
            PROGRAM.main(["topics", "list"], "duly", standalone_mode=False)
