"""duly: the command line. One file per group of commands; this one puts them together."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from . import (
    audit,
    backup,
    bridge,
    certs,
    claim,
    clock,
    cluster,
    consumers,
    dead,
    doctor,
    events,
    forecast,
    groups,
    health,
    keys,
    master,
    migrate,
    operations,
    pipeline,
    pipeline_replay,
    pipeline_schedule,
    publish,
    pushes,
    queued,
    read,
    schedule,
    serve,
    stats,
    tenants,
    topics,
    transfer,
    work,
)
from .command import show_help_if_alone
from .program import Program
from .session import JsonOption, ProfileOption, StoreOption, TenantOption, UrlOption, Where

app = typer.Typer(
    name="duly",
    cls=Program,
    help="A durable message queue: every message is delivered when it is due.",
    epilog="Begin with:\n\n  duly topics create orders --kind log\n  duly groups create orders billing\n"
    "  duly publish orders hello\n  duly claim orders --group billing --ack",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
)
# Those without a name of their own are commands of the root.
app.add_typer(publish.app)
app.add_typer(claim.app)
app.add_typer(read.app)
app.add_typer(queued.app)
app.add_typer(serve.app)
app.add_typer(work.app)
app.add_typer(transfer.app)
app.add_typer(topics.app, name="topics")
app.add_typer(groups.app, name="groups")
app.add_typer(dead.app, name="dead")
app.add_typer(pushes.app, name="push")
app.add_typer(tenants.app, name="tenants")
app.add_typer(operations.app, name="operations")
app.add_typer(schedule.app, name="schedule")
app.add_typer(consumers.app)
app.add_typer(stats.app)
app.add_typer(health.app)
app.add_typer(forecast.app)
app.add_typer(doctor.app)
app.add_typer(events.app)
app.add_typer(audit.app)
app.add_typer(keys.app, name="keys")
app.add_typer(keys.principals, name="principals")
app.add_typer(clock.app)
app.add_typer(cluster.app)
app.add_typer(backup.app)
app.add_typer(migrate.app)
app.add_typer(bridge.app)
app.add_typer(master.app, name="master")
app.add_typer(certs.app, name="certs")
pipeline.app.add_typer(pipeline_replay.app)
pipeline.app.add_typer(pipeline_schedule.app)
app.add_typer(pipeline.app, name="pipeline")


def _print_version(wanted: bool) -> None:
    if wanted:
        from .. import __version__

        typer.echo(f"duly {__version__}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    store: StoreOption = None,
    url: UrlOption = None,
    profile: ProfileOption = None,
    tenant: TenantOption = None,
    as_json: JsonOption = False,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """The options before a command hold for it, and may stand after it too."""
    # gRPC writes a line for every handshake that fails: what it means is said in our words.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    ctx.obj = Where(store, url, profile, tenant, as_json)
    show_help_if_alone(ctx)


@app.command(
    "bench",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    epilog="Example:\n\n  duly bench latency --json",
)
def bench(ctx: typer.Context) -> None:
    """Measure Duly on this machine."""
    # Only who measures loads what measuring needs.
    from .bench import app as measures

    before: Where = ctx.obj
    args = ctx.args if before.url is None else [*ctx.args, "--url", before.url]
    code = typer.main.get_command(measures).main(args, "duly bench", standalone_mode=False)
    raise typer.Exit(code if isinstance(code, int) else 0)
