"""What docs/postgres.md shows of the application's own transaction is run, from top to bottom."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

import duly
from tests.postgres_server import PostgresServer

ROOT = Path(__file__).parents[2]
SECTION = "## In your own transaction"

# Django is set up once in a process, and for another database in the other tests: here it stands beside them.
DJANGO = """
from django.conf import settings
from django.db import connections
from urllib.parse import urlsplit
if not settings.configured:
    settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql"}})
    import django
    django.setup()
parts = urlsplit(dsn)
before = connections["default"].settings_dict
connections["default"].close()
connections["default"].settings_dict = {
    **before, "NAME": "postgres", "USER": parts.username, "HOST": parts.hostname, "PORT": parts.port
}
"""


def blocks() -> list[tuple[str, str]]:
    """The blocks of the page's beginning, and of the section."""
    text = (ROOT / "docs" / "postgres.md").read_text(encoding="utf-8")
    begin, _, rest = text.partition(SECTION)
    section = begin.partition("\n## ")[0] + re.split(r"^## ", rest, maxsplit=1, flags=re.MULTILINE)[0]
    return re.findall(r"```(python|sql)\n(.*?)```", section, re.DOTALL)


def test_the_pages_code_runs(postgres_server: Callable[..., PostgresServer]) -> None:
    pytest.importorskip("django")
    server = postgres_server(16, fsync=False)
    dsn = server.dsn()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (id INT PRIMARY KEY); CREATE TABLE sent (id TEXT PRIMARY KEY)")
        connection.execute("CREATE ROLE shop")
        shown: dict[str, Any] = {"url": dsn, "dsn": dsn}
        exec(DJANGO, shown)
        found = blocks()
        assert len([kind for kind, _ in found if kind == "sql"]) == 4
        for kind, block in found:
            if kind == "python":
                exec(block, shown)
            else:
                connection.execute(block.encode())
        assert connection.execute("SELECT id FROM orders ORDER BY id").fetchall() == [
            (number,) for number in (1, 2, 3, 4, 6, 7)
        ]
        assert connection.execute("SELECT id FROM sent").fetchall() == [("thanks-1",)]
        q: duly.Client = shown["q"]
        with q, closing(shown["connection"]):
            waiting = q.get("emails", "thanks-5")
            assert waiting is not None
            assert (waiting.state, waiting.priority, waiting.lane) == ("waiting", 10, "acme")
            assert waiting.headers == {"lang": "en"}
            assert sorted(q.claim("emails").payloads) == [b"6", b"7", *[b"thank you"] * 3]
        shown["engine"].dispose()
        shown["django_connection"].close()
        shown["connections"]["default"].settings_dict = shown["before"]
