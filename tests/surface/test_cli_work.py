"""`duly work` as it is written, and what it says of applications that it cannot find. tests/acceptance runs it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import duly
from duly.cli.worker_process import load

from .test_cli import folder, refused, run

__all__ = ["folder"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("tasks", "Write module:attribute"),
        ("tasks.py:workers:x", "Write module:attribute"),
        (":workers", "Write module:attribute"),
        ("tasks:workers --processes 0", "--processes"),
        ("tasks:workers --threads 0", "--threads"),
        ("tasks:workers --grace soon", "not a duration"),
        ("tasks:workers --store :memory:", "one process's own"),
    ],
)
def test_what_is_not_written_as_it_has_to_be_is_a_usage_error(folder: Path, line: str, told: str) -> None:
    duly.connect("app.duly").close()
    ran = refused("work", *line.split())
    assert ran.code == 2
    assert told in ran.err


def test_the_help_says_how_it_ends(folder: Path) -> None:
    told = run("work", "--help").out
    for word in ("SIGTERM", "--grace", "--drain", "--reload", "release"):
        assert word in told


class TestLoading:
    @pytest.fixture(autouse=True)
    def importable(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """The folder is where modules are found; what is imported here is forgotten afterwards."""
        monkeypatch.syspath_prepend(folder)
        before = set(sys.modules)
        yield
        for name in set(sys.modules) - before:
            del sys.modules[name]

    def test_the_workers_of_a_module_in_a_package(self, folder: Path) -> None:
        (folder / "shop").mkdir()
        (folder / "shop" / "__init__.py").touch()
        (folder / "shop" / "tasks.py").write_text("import duly\nworkers = duly.Workers()\n")
        assert isinstance(load("shop.tasks:workers"), duly.Workers)
        with pytest.raises(duly.NotFound, match=r"no module 'shop.jobs'"):
            load("shop.jobs:workers")

    def test_a_name_that_is_not_there_is_told_those_that_are(self, folder: Path) -> None:
        (folder / "app_one.py").write_text("import duly\nworkers = duly.Workers()\nothers = 7\n")
        (folder / "app_two.py").touch()
        with pytest.raises(duly.NotFound, match=r"'app_one' has no 'wrokers'. Workers in it: workers."):
            load("app_one:wrokers")
        with pytest.raises(duly.InvalidArgument, match=r"'app_one:others' is a int. Name a duly.Workers"):
            load("app_one:others")
        with pytest.raises(duly.NotFound, match=r"Put in it: workers = duly.Workers\(\)"):
            load("app_two:workers")

    def test_a_module_that_is_not_there(self) -> None:
        with pytest.raises(duly.NotFound, match=r"no module 'nowhere'.*PYTHONPATH"):
            load("nowhere.at_all:workers")

    @pytest.mark.parametrize("body", ["import not_installed_here", "1 / 0", "x = (", "import sys; sys.exit(3)"])
    def test_a_module_that_fails(self, folder: Path, body: str, capsys: pytest.CaptureFixture[str]) -> None:
        (folder / "broken.py").write_text(body)
        with pytest.raises(duly.InvalidArgument, match="Importing 'broken' failed"):
            load("broken:workers")
        assert "broken.py" in capsys.readouterr().err, "its traceback"
