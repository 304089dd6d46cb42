"""Where a command goes: the line, the environment, profiles in a file; and what is said when they are wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import duly

from .brokers import served
from .test_cli import Ran, folder, ok, refused, run

__all__ = ["folder"]


@pytest.fixture
def topic_of(folder: Path) -> Iterator[dict[str, str]]:
    """Stores and a broker, each with a topic of its own: what `topics list` shows tells which one was asked."""
    for name in ("app", "line", "around", "profiled"):
        with duly.connect(folder / f"{name}.duly") as q:
            q.create_topic(f"in-{name}", kind="log")
    with duly.connect(folder / "served.duly") as q:
        q.create_topic("in-broker", kind="log")
    with duly.connect(folder / "served.duly", tenant="acme") as q:
        q.create_topic("of-acme", kind="log")
    with served(folder / "served.duly") as url:
        yield {"broker": url}


def shown(*args: str, **env: str) -> list[str]:
    ran = run(*args, "topics", "list", "--json", env=env)
    assert ran.code == 0, ran
    return [line["topic"] for line in ran.lines]


def configured(folder: Path, text: str) -> str:
    path = folder / "config.toml"
    path.write_text(text)
    return str(path)


class TestWhere:
    def test_a_broker_is_named_by_option_before_or_after_or_by_environment(self, topic_of: dict[str, str]) -> None:
        url = topic_of["broker"]
        assert shown("--url", url) == shown(DULY_URL=url) == shown("--store", url) == ["in-broker"]
        assert [line["topic"] for line in ok("topics", "list", "--json", "--url", url).lines] == ["in-broker"]
        assert shown("--url", url, "--tenant", "acme") == ["of-acme"]
        assert shown() == ["in-app"]

    def test_of_several_addresses_the_one_that_answers_is_asked(self, topic_of: dict[str, str]) -> None:
        port = topic_of["broker"].rpartition(":")[2]
        assert shown("--url", f"duly://127.0.0.1:1,127.0.0.1:{port}") == ["in-broker"]

    def test_the_line_wins_over_a_profile_over_the_environment_over_the_default(
        self, folder: Path, topic_of: dict[str, str]
    ) -> None:
        path = configured(
            folder,
            f'[profiles.default]\nurl = "{topic_of["broker"]}"\ntenant = "acme"\n'
            '[profiles.other]\nstore = "profiled.duly"\n',
        )
        assert shown(DULY_CONFIG=path) == ["of-acme"], "default"
        assert shown(DULY_CONFIG=path, DULY_PROFILE="other") == ["in-profiled"]
        assert shown(DULY_CONFIG=path, DULY_STORE="around.duly") == ["in-around"], "default's tenant is not meant"
        assert shown(DULY_CONFIG=path, DULY_STORE="around.duly", DULY_PROFILE="other") == ["in-around"]
        assert shown("--profile", "other", DULY_CONFIG=path, DULY_STORE="around.duly") == ["in-profiled"]
        assert shown("--profile", "other", "--store", "line.duly", DULY_CONFIG=path) == ["in-line"]
        assert shown("--store", "line.duly", DULY_URL=topic_of["broker"]) == ["in-line"]

    def test_a_profile_may_say_the_tenant_alone(self, folder: Path, topic_of: dict[str, str]) -> None:
        path = configured(folder, '[profiles.acme]\ntenant = "acme"\n')
        url = topic_of["broker"]
        assert shown("--profile", "acme", "--url", url, DULY_CONFIG=path) == ["of-acme"]
        assert shown("--profile", "acme", DULY_URL=url, DULY_CONFIG=path) == ["of-acme"]
        assert shown("--profile", "acme", "--tenant", "default", DULY_URL=url, DULY_CONFIG=path) == ["in-broker"]

    def test_the_file_is_where_xdg_puts_it(self, folder: Path, topic_of: dict[str, str]) -> None:
        for home in (folder / ".config", folder / "elsewhere"):
            (home / "duly").mkdir(parents=True)
            (home / "duly" / "config.toml").write_text(
                f'[profiles.default]\nstore = "~/{"profiled" if home.name == ".config" else "around"}.duly"\n'
            )
        assert shown(HOME=str(folder), XDG_CONFIG_HOME="") == ["in-profiled"]
        assert shown(HOME=str(folder), XDG_CONFIG_HOME=str(folder / "elsewhere")) == ["in-around"]

    def test_a_store_in_a_profile_begins_at_the_files_folder(
        self, folder: Path, topic_of: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = configured(folder, '[profiles.default]\nstore = "profiled.duly"\n')
        (folder / "below").mkdir()
        monkeypatch.chdir(folder / "below")
        assert shown(DULY_CONFIG=path) == ["in-profiled"]


def test_a_password_on_the_command_line_is_warned_of_and_not_repeated(folder: Path) -> None:
    address = "postgresql://app:CANARY@127.0.0.1:1/shop?connect_timeout=1"
    for words in (("topics", "list", "--store", address), ("--store", address, "topics", "list")):
        ran = run(*words)
        assert "sees the password on the command line" in ran.err
        assert "CANARY" not in ran.err
    for quiet, env in ((("topics", "list"), {"DULY_STORE": address}), (("--store", "app.duly", "topics", "list"), {})):
        assert "password" not in run(*quiet, env=env).err


class TestRefused:
    @pytest.mark.parametrize(
        ("args", "env", "told"),
        [
            (["--url", "duly://x", "--store", "y"], {}, "not both"),
            ([], {"DULY_URL": "duly://x", "DULY_STORE": "y"}, "Give DULY_STORE, a file, or DULY_URL, a broker"),
            (["--url", "app.duly"], {}, "a file is --store"),
            (["--url", ""], {}, "duly://host:port"),
            ([], {"DULY_URL": "http://x"}, "duly://host:port"),
        ],
    )
    def test_what_is_not_written_as_it_has_to_be(self, args: list[str], env: dict[str, str], told: str) -> None:
        ran = told_of(run(*args, "topics", "list", env=env))
        assert ran.code == 2
        assert told in ran.err

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ('[profiles.x]\nurl = "duly://x"\nca = "ca.pem"\n', "Write such a url"),
            ('[profiles.x]\nstore = "x.duly"\nca = "ca.pem"\n', "Write such a url"),
            ("[profiles.x", "is not TOML"),
            ("\udcff", "is not TOML"),
            ("[profile.x]\n", "no setting 'profile'"),
            ("profiles = 3\n", "Write [profiles.NAME]"),
            ("[profiles]\nx = 3\n", "Write [profiles.x]"),
            ('[profiles.x]\nhost = "y"\n', "Keys: url, store, tenant, token, token_file, ca, cert, key"),
            ("[profiles.x]\nurl = 3\n", 'Write url = "…"'),
            ('[profiles.x]\nurl = "duly://x"\nstore = "y"\n', "a url and a store"),
            ('[profiles.x]\nurl = "http://x"\n', "Write duly://host:port"),
        ],
    )
    def test_a_file_that_is_not_as_it_has_to_be(self, folder: Path, text: str, told: str) -> None:
        (folder / "config.toml").write_bytes(text.encode(errors="surrogateescape"))
        ran = told_of(run("topics", "list", env={"DULY_CONFIG": "config.toml"}))
        assert ran.code == 1
        assert "config.toml" in ran.err
        assert told in ran.err
        assert run("topics", "list", "--help", env={"DULY_CONFIG": "config.toml"}).code == 0

    def test_a_profile_that_is_not_there(self, folder: Path) -> None:
        env = {"DULY_CONFIG": configured(folder, "[profiles.shop]\n[profiles.bank]\n")}
        for ran in (run("stats", "--profile", "shup", env=env), run("stats", env={**env, "DULY_PROFILE": "shup"})):
            assert told_of(ran).code == 1
            assert "There are: shop, bank." in ran.err
            assert "[profiles.shup]" in ran.err
        assert "There are none." in refused("stats", "--profile", "shop").err

    def test_a_file_that_is_not_there(self, folder: Path) -> None:
        assert "unset DULY_CONFIG" in told_of(run("stats", env={"DULY_CONFIG": "nowhere.toml"})).err
        assert "Is a directory" in told_of(run("stats", env={"DULY_CONFIG": "."})).err

    def test_a_store_that_is_not_there_is_said_with_who_named_it(self, folder: Path) -> None:
        env = {"DULY_CONFIG": configured(folder, '[profiles.shop]\nstore = "gone.duly"\n')}
        assert "which profile 'shop' names" in run("stats", "--profile", "shop", env=env).err
        assert "which DULY_STORE names" in run("stats", env={"DULY_STORE": "gone.duly"}).err


def told_of(ran: Ran) -> Ran:
    """A run that ended in one line of error."""
    assert (ran.out, ran.err.count("\n"), ran.err.startswith("Error: ")) == ("", 1, True), ran
    assert "fault in Duly" not in ran.err
    return ran
