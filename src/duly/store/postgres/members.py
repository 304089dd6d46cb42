"""The brokers on a PostgreSQL store: a row each, written again with every beat, by PostgreSQL's clock."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec
import psycopg
from msgspec.structs import replace
from psycopg import sql

from ...errors import Unavailable
from ...member import FORGET_MS, SEEN_MS_MAX, Member

Connect = Callable[[], AbstractContextManager["psycopg.Connection[Any]"]]

_NAME = re.compile(r"^-- ([a-z_]+)$", re.MULTILINE)
_decoder = msgspec.json.Decoder(Member)


@cache
def statements() -> dict[str, str]:
    """The statements of members.sql by name, with `{schema}` to be filled in."""
    parts = _NAME.split((files(__package__) / "members.sql").read_text(encoding="utf-8"))
    return dict(zip(parts[1::2], parts[2::2], strict=True))


class Members:
    """The contract's member_put, member_remove and members, in the table `member` of a schema."""

    def __init__(self, connect: Connect, schema: str) -> None:
        """`connect` gives a connection in autocommit to be used in a `with`: a pool's, or one of its own each time."""
        self._connect = connect
        self._statements = {
            name: sql.SQL(text).format(schema=sql.Identifier(schema)) for name, text in statements().items()
        }

    def member_put(self, member: Member) -> None:
        """Notes a broker as seen now, and forgets those long gone."""
        facts = msgspec.json.encode(member).decode()
        self._run("member_put", {"name": member.name, "facts": facts})
        self._run("members_forget", {"forget": FORGET_MS})

    def member_remove(self, name: str) -> None:
        """Notes that a broker has left."""
        self._run("member_remove", {"name": name})

    def members(self) -> list[Member]:
        """The brokers that were seen in the last seconds, by name."""
        rows = self._run("members", {"lately": SEEN_MS_MAX})
        return [replace(_decoder.decode(facts), seen_at_ms=seen_at_ms) for seen_at_ms, facts in rows]

    def _run(self, query: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        try:
            with self._connect() as connection:
                found = connection.execute(self._statements[query], values)
                return found.fetchall() if found.description else []
        except psycopg.OperationalError as error:
            raise Unavailable(f"PostgreSQL does not answer: {error}") from error
