"""What docs/postgres.md shows of the application's own transaction is run, from top to bottom."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

import duly
from tests.postgres_server import PostgresServer

ROOT = Path(__file__).parents[2]
SECTION = "## In your own transaction"

# What stands around the page's code: an application with its settings, and somebody to run its SQL.
BEFORE = """
import psycopg
from django.conf import settings
dsn = url = {dsn!r}
settings.configure(DATABASES={{"default": {{"ENGINE": "django.db.backends.postgresql", **{where!r}}}}})
import django
django.setup()
behind = psycopg.connect(dsn, autocommit=True)
"""
AFTER = """
q.close()
connection.close()
engine.dispose()
django_connection.close()
behind.close()
"""


def blocks() -> list[tuple[str, str]]:
    """The blocks of the page's beginning, and of the section."""
    text = (ROOT / "docs" / "postgres.md").read_text(encoding="utf-8")
    begin, _, rest = text.partition(SECTION)
    section = begin.partition("\n## ")[0] + re.split(r"^## ", rest, maxsplit=1, flags=re.MULTILINE)[0]
    return re.findall(r"```(python|sql)\n(.*?)```", section, re.DOTALL)


def test_the_pages_code_runs(postgres_server: Callable[..., PostgresServer], tmp_path: Path) -> None:
    pytest.importorskip("django")
    pytest.importorskip("sqlalchemy")
    dsn = postgres_server(16, fsync=False).dsn()
    parts = urlsplit(dsn)
    where = {"NAME": parts.path[1:], "USER": parts.username, "HOST": parts.hostname, "PORT": parts.port}
    found = blocks()
    assert len([kind for kind, _ in found if kind == "sql"]) == 4
    shown = [block if kind == "python" else f"behind.execute({block.encode()!r})" for kind, block in found]
    script = tmp_path / "page.py"
    script.write_text("\n".join([BEFORE.format(dsn=dsn, where=where), *shown, AFTER]), encoding="utf-8")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (id INT PRIMARY KEY); CREATE TABLE sent (id TEXT PRIMARY KEY)")
        connection.execute("CREATE ROLE shop")
        ran = subprocess.run([sys.executable, "-W", "error", script], capture_output=True, text=True, timeout=120)
        assert ran.returncode == 0, ran.stderr
        orders = connection.execute("SELECT id FROM orders ORDER BY id").fetchall()
        assert orders == [(number,) for number in (1, 2, 3, 4, 6, 7)]
        assert connection.execute("SELECT id FROM sent").fetchall() == [("thanks-1",)]
    with duly.connect(dsn) as q:
        waiting = q.get("emails", "thanks-5")
        assert waiting is not None
        assert (waiting.state, waiting.priority, waiting.lane) == ("waiting", 10, "acme")
        assert waiting.headers == {"lang": "en"}
        assert sorted(q.claim("emails").payloads) == [b"6", b"7", *[b"thank you"] * 3]
