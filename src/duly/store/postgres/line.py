"""A line to PostgreSQL: statements gathered, sent together through libpq's pipeline, and their answers.

A statement that answers nothing costs no round trip: it is put on the line and goes with the next one that is asked. So
a transaction of Duly's takes two trips, its beginning and its end, when what it needs is remembered.

Statements are prepared by name, once a line. Values travel as text or, of bytes, as they are; answers come in binary.

    put ──▶ put ──▶ ask ══▶ (all three are sent; the answers are read up to the last)

An error of one statement is raised by whoever asks next; PostgreSQL leaves out what was sent behind it. A line that
broke is `lost`: what was under way on it may have been done, or not.
"""

from __future__ import annotations

import re
import select
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import pq

from ...clock import monotonic_s

_NAMED = re.compile(r"(?<!:):([a-z_]+)")
_BINARY, _TEXT = 1, 0
# Before the name of a statement that is being prepared.
_PREPARE = b"!"
_READABLE = select.POLLIN | select.POLLHUP | select.POLLERR
_WORDS_OF_WRITES = ("INSERT", "UPDATE", "DELETE")

_int8 = struct.Struct("!q").unpack
_float8 = struct.Struct("!d").unpack

# By type: how a value in binary is read. What is not here is bytes.
_DECODERS: dict[int, Callable[[bytes], Any]] = {
    16: lambda value: value == b"\1",
    20: lambda value: _int8(value)[0],
    21: lambda value: int.from_bytes(value, "big", signed=True),
    23: lambda value: int.from_bytes(value, "big", signed=True),
    25: lambda value: value.decode(),
    26: lambda value: int.from_bytes(value, "big"),
    701: lambda value: _float8(value)[0],
    1043: lambda value: value.decode(),
    5069: lambda value: int.from_bytes(value, "big"),
}

Row = tuple[Any, ...]


class LineLost(Exception):
    """The connection broke, or the server went away. `before_commit`: what was under way was certainly not done."""


class Refused(Exception):
    """PostgreSQL refused a statement; `state` is its SQLSTATE."""

    def __init__(self, state: str, message: str) -> None:
        super().__init__(message)
        self.state = state


class Statement:
    """A statement with named values, as PostgreSQL wants it."""

    __slots__ = ("answers", "name", "names", "text")

    def __init__(self, name: str, text: str) -> None:
        names: list[str] = []

        def numbered(found: re.Match[str]) -> str:
            if found[1] not in names:
                names.append(found[1])
            return f"${names.index(found[1]) + 1}"

        self.name = name.encode()
        self.text = _NAMED.sub(numbered, text).rstrip(";").encode()
        self.names = tuple(names)
        # Whether anybody wants to know what comes back.
        self.answers = ("RETURNING" in text or not text.startswith(_WORDS_OF_WRITES)) and "_leases(" not in text


class Line:
    """One connection in pipeline mode. One thread at a time."""

    def __init__(self, connection: psycopg.Connection[Any], patience_s: float) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        # How long the server may be silent.
        self._patience_s = patience_s
        # The server has not gone down since, as long as the line lives.
        self.opened_at = monotonic_s()
        self._prepared: set[bytes] = set()
        self._decoders: dict[bytes, tuple[Callable[[bytes], Any] | None, ...]] = {}
        # Put or sent, and not answered yet: the names of statements.
        self._under_way: list[bytes] = []
        # Warnings that came with the last answers.
        self.warnings: list[str] = []
        self.lost = False
        self._poll = select.poll()
        self._poll.register(self._pgconn.socket, _READABLE)
        self._pgconn.nonblocking = 1
        self._pgconn.enter_pipeline_mode()
        self._pgconn.notice_handler = self._warn

    @property
    def backend(self) -> int:
        """The process that serves it."""
        return self._pgconn.backend_pid

    def is_quiet(self) -> bool:
        """Whether nothing came while nobody asked: the end of the connection, or word of it."""
        return not self.lost and not self._poll.poll(0)

    def put(self, statement: Statement, values: Mapping[str, Any]) -> None:
        """Adds a statement to what goes with the next `ask`."""
        pgconn, name = self._pgconn, statement.name
        params: list[bytes | None] = []
        formats: list[int] = []
        for key in statement.names:
            value = values[key]
            kind = type(value)
            if kind is int:
                params.append(b"%d" % value)
                formats.append(_TEXT)
            elif kind is bytes:
                params.append(value)
                formats.append(_BINARY)
            elif value is None:
                params.append(None)
                formats.append(_TEXT)
            elif kind is str:
                params.append(value.encode())
                formats.append(_TEXT)
            elif kind is bool:
                params.append(b"1" if value else b"0")
                formats.append(_TEXT)
            elif kind is float:
                params.append(repr(value).encode())
                formats.append(_TEXT)
            elif kind is list or kind is tuple:
                params.append(b"{%s}" % b",".join([b"%d" % item for item in value]))
                formats.append(_TEXT)
            elif isinstance(value, int):
                params.append(b"%d" % int(value))
                formats.append(_TEXT)
            else:
                params.append(bytes(value))
                formats.append(_BINARY)
        try:
            if name not in self._prepared:
                pgconn.send_prepare(name, statement.text, None)
                self._under_way.append(_PREPARE + name)
                self._prepared.add(name)
            pgconn.send_query_prepared(name, params, formats, _BINARY)
        except psycopg.Error as error:
            raise self._lose(error) from error
        self._under_way.append(name)

    def command(self, text: bytes) -> None:
        """Adds a command without values: BEGIN, COMMIT and the like."""
        try:
            self._pgconn.send_query_params(text, None, None, None, _BINARY)
        except psycopg.Error as error:
            raise self._lose(error) from error
        self._under_way.append(b"")

    def ask(self, statement: Statement, values: Mapping[str, Any]) -> list[Row]:
        """Sends everything and answers the rows of this one. Raises Refused for the first that was refused."""
        self.put(statement, values)
        return self._rows(self.flush()[-1], statement.name)

    def count(self, statement: Statement, values: Mapping[str, Any]) -> int:
        """The same of one that changes rows: how many."""
        self.put(statement, values)
        return self.flush()[-1].command_tuples or 0

    def ask_all(self, asked: Sequence[tuple[Statement, Mapping[str, Any]]]) -> list[list[Row]]:
        """Several in one trip."""
        before = len(self._under_way)
        at: list[int] = []
        for statement, values in asked:
            self.put(statement, values)
            at.append(len(self._under_way) - 1)
        names = list(self._under_way)
        results = self.flush()
        assert before <= len(results)
        return [self._rows(results[index], names[index]) for index in at]

    def flush(self) -> list[pq.abc.PGresult]:
        """Sends everything and reads all answers. Raises Refused for the first that was refused, or LineLost."""
        if self.lost:
            raise LineLost("The connection is gone.")
        names, self._under_way = self._under_way, []
        self.warnings.clear()
        try:
            self._pgconn.pipeline_sync()
            self._send()
            results = self._receive()
        except psycopg.Error as error:
            raise self._lose(error) from error
        except OSError as error:
            raise self._lose(error) from error
        for at, result in enumerate(results):
            if result.status == pq.ExecStatus.FATAL_ERROR:
                # What was to be prepared behind it was left out, too.
                self._prepared -= {name[1:] for name in names[at:] if name[:1] == _PREPARE}
                raise _refusal(result)
        if len(results) != len(names):
            raise self._lose(RuntimeError("The server left out answers."))
        return results

    def settle(self) -> None:
        """Sends everything, whatever comes of it: the transaction is about to be undone."""
        with suppress(Refused):
            self.flush()

    def _send(self) -> None:
        while self._pgconn.flush() == 1:
            self._poll.modify(self._pgconn.socket, _READABLE | select.POLLOUT)
            try:
                self._await()
            finally:
                self._poll.modify(self._pgconn.socket, _READABLE)
            self._pgconn.consume_input()

    def _receive(self) -> list[pq.abc.PGresult]:
        """Everything up to the end of the pipeline."""
        pgconn = self._pgconn
        results: list[pq.abc.PGresult] = []
        while True:
            while pgconn.is_busy():
                self._await()
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                continue
            status = result.status
            if status == pq.ExecStatus.PIPELINE_SYNC:
                return results
            if status != pq.ExecStatus.PIPELINE_ABORTED:
                results.append(result)

    def _await(self) -> None:
        until = monotonic_s() + self._patience_s
        while not self._poll.poll(max(0.0, until - monotonic_s()) * 1000):
            if monotonic_s() >= until:
                raise OSError(f"The server has been silent for {self._patience_s:g} s.")

    def _rows(self, result: pq.abc.PGresult, name: bytes) -> list[Row]:
        decoders = self._decoders.get(name)
        if decoders is None:
            decoders = tuple(_DECODERS.get(result.ftype(at)) for at in range(result.nfields))
            self._decoders[name] = decoders
        value = result.get_value
        columns = list(enumerate(decoders))
        return [
            tuple(
                [
                    found if decode is None or found is None else decode(found)
                    for found, decode in [(value(row, at), decode) for at, decode in columns]
                ]
            )
            for row in range(result.ntuples)
        ]

    def _warn(self, result: pq.abc.PGresult) -> None:
        severity = result.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED) or b""
        if severity == b"WARNING":
            self.warnings.append((result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode())

    def _lose(self, error: Exception) -> LineLost:
        self.lost = True
        self.close()
        return LineLost(str(error))

    def close(self) -> None:
        """Lets go of the connection. Not politely: the server ends whatever was open on it."""
        self.lost = True
        self._connection.close()


def _refusal(result: pq.abc.PGresult) -> Refused:
    state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    message = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message or b"").decode()
    return Refused(state, message)
