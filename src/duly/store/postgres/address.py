"""Where a store is: a PostgreSQL URL, and the name of Duly's schema in it."""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import parse_qsl, urlencode

import psycopg
from psycopg import conninfo

from ...errors import InvalidArgument
from .verified import advice, verification

SCHEMES = ("postgresql://", "postgres://")
DEFAULT_SCHEMA = "duly"
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,47}")
_CONNECT_S = 10


class Address:
    """A store's address. `?schema=NAME` says which schema is Duly's; everything else is libpq's."""

    def __init__(self, url: str) -> None:
        self.url, self.schema = _split(url)
        try:
            found = conninfo.conninfo_to_dict(self.url)
        except psycopg.Error as error:
            # What it quotes may be the password, or the whole address with it.
            why = str(error).partition('"')[0].strip(": \n")
            raise InvalidArgument(f"This is no address of a PostgreSQL database: {why}.") from None
        self.database = str(found.get("dbname") or "")
        self.shown = f"postgresql://{found.get('host') or ''}/{self.database}?schema={self.schema}"
        self._given = found

    def connect(self) -> psycopg.Connection[Any]:
        """A connection to the server that takes writes, with Duly's schema as the only one in sight."""
        connection = self._open()
        # Whoever holds a topic's lock and says nothing, because it was stopped or cut off, is thrown out; so is one
        # that does not take the answers it asked for, which counts as neither idle nor silent (tcp_user_timeout).
        connection.execute(
            f"SET search_path = {self.schema}; SET lock_timeout = '10s'; "
            "SET idle_in_transaction_session_timeout = '10s'; SET tcp_user_timeout = '10s'; "
            "SET client_min_messages = warning; SET timezone = 'UTC'; "
            "SET plan_cache_mode = force_generic_plan; SET jit = off"
        )
        return connection

    def _open(self) -> psycopg.Connection[Any]:
        added = verification(self._given, os.environ)
        try:
            return psycopg.connect(
                self.url,
                autocommit=True,
                prepare_threshold=None,
                connect_timeout=self._given.get("connect_timeout", _CONNECT_S),
                target_session_attrs="read-write",
                application_name=self._given.get("application_name", "duly"),
                # A server that vanished without a word is noticed within seconds.
                keepalives_idle=self._given.get("keepalives_idle", 5),
                keepalives_interval=self._given.get("keepalives_interval", 2),
                keepalives_count=self._given.get("keepalives_count", 3),
                **added,
            )
        except psycopg.OperationalError as error:
            if told := advice(error, added):
                raise psycopg.OperationalError(" ".join(str(error).split()) + "." + told) from error
            raise


def is_postgres(store: object) -> bool:
    """Whether an address names a PostgreSQL database."""
    return isinstance(store, str) and store.startswith(SCHEMES)


def _split(url: str) -> tuple[str, str]:
    """The URL without what is ours in it, and the schema."""
    base, mark, query = url.partition("?")
    options = parse_qsl(query, keep_blank_values=True)
    schema = next((value for name, value in options if name == "schema"), DEFAULT_SCHEMA)
    if not _NAME.fullmatch(schema):
        raise InvalidArgument(
            f"schema={schema!r} is no name for Duly's schema: up to 48 small letters, digits and _, not a digit first."
        )
    rest = urlencode([(name, value) for name, value in options if name != "schema"])
    return base + (mark + rest if rest else ""), schema
