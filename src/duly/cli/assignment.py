"""What `duly work` tells the processes it starts, and what their exit codes tell it."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import msgspec

from ..clock import SystemClock
from .text import iso, json_line

# 0 is an end that was asked for. Whatever else a process ends with, it died.
EXIT_REFUSED = 78  # It could not begin, and has said why.
EXIT_STUCK = 75  # A handler is blocked past its time limit: only a new process gets rid of it.
EXIT_RELOAD = 79  # The application's code has changed.


class Assignment(msgspec.Struct, frozen=True):
    """One worker process's orders: the first line of its standard input. Command lines are seen by everybody on the
    machine, and an address of PostgreSQL may have a password.
    """

    target: str
    store: str
    # None: the key's, which comes by DULY_TOKEN.
    tenant: str | None
    threads: int | None
    grace_s: float
    drain: bool
    reload: bool
    as_json: bool
    # Written to when the process has begun to work.
    ready_fd: int = -1
    # The files of a duly.Tls, by what they are; empty: the environment's.
    tls: dict[str, str] = {}


class JsonFormatter(logging.Formatter):
    """A log record as one JSON document."""

    def format(self, record: logging.LogRecord) -> str:
        document = {
            "at": iso(SystemClock().now_ms()),
            "pid": record.process,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            document["traceback"] = self.formatException(record.exc_info)
        return json_line(document).decode().rstrip("\n")


def show_log(*, as_json: bool, stream: TextIO | None = None) -> None:
    """Sends the log to stderr, or as JSON to stdout, or to another stream; unless the application has set it up."""
    handler = logging.StreamHandler(stream or (sys.stdout if as_json else sys.stderr))
    lines = logging.Formatter("%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if as_json else lines)
    logging.basicConfig(level=logging.INFO, handlers=[handler])
