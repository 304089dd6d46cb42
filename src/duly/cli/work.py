"""duly work: an application's handlers in worker processes."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from .assignment import Assignment, show_log
from .command import command
from .parse import duration
from .session import Session
from .text import plural

app = typer.Typer()

_GRACE_S = 30.0
_TARGET = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*")


def target(text: str) -> str:
    """`module:attribute`, as it has to be written."""
    if not _TARGET.fullmatch(text):
        raise typer.BadParameter(f"{text!r} names no workers. Write module:attribute, as in app.tasks:workers.")
    return text


@command(
    app,
    "work",
    examples=["duly work tasks:workers --processes 2 --threads 8 --grace 10s --drain"],
)
def work(
    target: Annotated[
        str,
        typer.Argument(metavar="MODULE:WORKERS", parser=target, help="Where the duly.Workers is.", show_default=False),
    ],
    session: Session,
    processes: Annotated[int, typer.Option("--processes", "-p", min=1, max=1000, help="So many processes.")] = 1,
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads",
            "-t",
            min=1,
            max=10_000,
            show_default=False,
            help="So many sync handlers at once in a process; else what their concurrency allows.",
        ),
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option(
            parser=duration,
            metavar="DURATION",
            show_default="30s",
            help="How long running handlers may take when told to stop.",
        ),
    ] = None,
    drain: Annotated[bool, typer.Option("--drain", help="End when nothing is due and nothing runs.")] = False,
    reload: Annotated[
        bool, typer.Option("--reload", help="Start anew when a file of the application changes.")
    ] = False,
) -> None:
    """Run an application's handlers until SIGTERM or Ctrl-C; a process that dies is replaced.

    Told to stop, it claims no more and gives running handlers their grace; what has not ended then is given back
    (release), as it is at once when told a second time.
    """
    session.must_exist()
    if session.store == ":memory:":
        raise typer.BadParameter(
            "A store in memory is one process's own: give a file or a broker.", param_hint="'--store'"
        )
    grace_s = _GRACE_S if grace is None else grace
    # Only who works loads what working needs.
    from .supervisor import Supervisor

    show_log(as_json=session.as_json)
    session.pass_on()
    assignment = Assignment(
        target,
        session.store,
        session.tenant,
        threads,
        grace_s,
        drain,
        reload,
        session.as_json,
        tls=dict(session.tls_files),
    )
    supervisor = Supervisor(assignment, processes)
    code = supervisor.run()
    if code:
        raise typer.Exit(code)
    session.show.outcome(
        f"Stopped {plural(processes, 'worker')}.",
        {"processes": processes, "restarts": supervisor.restarts},
    )
