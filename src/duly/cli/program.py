"""The program as a whole: every error is one line on stderr and an exit code, never a traceback.

0 done · 1 Duly refused or found something wrong · 2 not written as it has to be · 130 Ctrl-C
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from typing import Any

from typer import Abort, TyperException
from typer.core import TyperGroup

from ..errors import (
    Error,
    GroupExists,
    GroupNotFound,
    PublishUnknown,
    ScheduleExists,
    ScheduleNotFound,
    StoreExists,
    TopicExists,
    TopicNotEmpty,
    TopicNotFound,
)
from .show import complain

INTERRUPTED = 130

# Events are logged for programs that embed Duly. Here the outcome is told by the command itself.
_UNSEEN = logging.NullHandler()

# The errors speak of the Python API; this is how the same is done here.
_HERE: dict[type[Error], str] = {
    TopicNotFound: "duly topics create NAME --kind log",
    GroupNotFound: "duly groups create TOPIC GROUP",
    TopicExists: "duly topics update NAME, or --exist-ok",
    GroupExists: "duly groups update TOPIC GROUP, or --exist-ok",
    ScheduleNotFound: "duly schedule list",
    ScheduleExists: "duly schedule update NAME, or --exist-ok",
    StoreExists: "--force",
    TopicNotEmpty: "duly topics purge NAME, or --force",
    PublishUnknown: "--publish-id {publish_id}",
}


class Program(TyperGroup):
    """The root of all commands."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        _never_fail_to_encode()
        logging.getLogger("duly").addHandler(_UNSEEN)

        def run() -> Any:
            return super(Program, self).main(
                args,
                prog_name,
                complete_var,
                standalone_mode=False,
                windows_expand_args=windows_expand_args,
                **extra,
            )

        if not standalone_mode:
            return run()
        sys.exit(_exit_code(run))


def _exit_code(run: Callable[[], Any]) -> int:
    try:
        code = run()
        sys.stdout.flush()
    except Error as error:
        complain(with_hint(error))
        return 1
    except TyperException as error:
        complain(_usage(error))
        return error.exit_code
    except Abort:
        return INTERRUPTED
    except BrokenPipeError:
        _close_stdout()
        return 1
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        complain(f"{where}{error.strerror or error}.")
        return 1
    except Exception as error:
        # A fault of ours. People get a line that they can report; the traceback is there for the asking.
        if os.environ.get("DULY_TRACEBACK"):
            raise
        complain(f"{type(error).__name__}: {error}. This is a fault in Duly: report it with DULY_TRACEBACK=1 set.")
        return 1
    return code if isinstance(code, int) else 0


def with_hint(error: Error) -> str:
    """The error's message, and how what it advises is done from a shell."""
    hint = next((text for kind, text in _HERE.items() if isinstance(error, kind)), None)
    return str(error) if hint is None else f"{error} Here: {hint.format_map(error.facts)}."


def _usage(error: TyperException) -> str:
    message = " ".join(error.format_message().split())
    context = getattr(error, "ctx", None)
    if context is None:
        return message
    stop = "" if message.endswith((".", "?")) else "."
    return f"{message}{stop} Try: {context.command_path} --help"


def _never_fail_to_encode() -> None:
    """A character that the terminal's encoding lacks becomes a question mark instead of an exception."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def _close_stdout() -> None:
    """Whoever read us is gone: what is still buffered goes nowhere, quietly."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
