"""duly serve: a broker on a store, for clients in other processes and languages."""

from __future__ import annotations

import ipaddress
import os
import sys
from typing import Annotated

import typer

from ..errors import InvalidArgument
from .assignment import show_log
from .command import command
from .session import Session
from .show import Show

app = typer.Typer()

_Port = typer.Option(min=0, max=65535, help="Where it listens; 0 takes any that is free.")


@command(
    app,
    "serve",
    examples=["duly serve", "duly serve --store shop.duly --flight-port 0", "duly serve --store :memory: --json"],
)
def serve(
    session: Session,
    host: Annotated[str, typer.Option(help="Where it listens.")] = "127.0.0.1",
    flight_port: Annotated[int, _Port] = 8471,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen beyond this machine, open to everyone who gets there.")
    ] = False,
) -> None:
    """Run a broker on a store, made if it is not there, until SIGTERM or Ctrl-C.

    Clients connect to duly://127.0.0.1:8471. Told to stop, it takes nobody in, answers what is under way, and ends;
    told twice, it ends at once. With --json its first line says where it listens.
    """
    session.must_be_file("A broker serves a file;")
    _check_host(session.show, host, insecure=insecure)
    # Only who serves loads what serving needs.
    from ..serve import Address, Served, in_url, run_until_told

    show_log(as_json=session.as_json, stream=sys.stderr)
    served = Served(session.store, Address(host, flight_port=flight_port))
    url = f"duly://{in_url(host)}:{served.flight.port}"

    def say() -> None:
        document = {
            "store": session.store,
            "url": url,
            "host": host,
            "flight_port": served.flight.port,
            "pid": os.getpid(),
        }
        session.show.outcome(f"Serving {session.store} at {url}. Ctrl-C ends it.", document)
        sys.stdout.flush()

    run_until_told(served, ready=say)


def _check_host(show: Show, host: str, *, insecure: bool) -> None:
    """A broker without TLS and keys is for this machine alone, unless somebody insists."""
    if is_loopback(host):
        return
    if not insecure:
        raise InvalidArgument(
            f"{host!r} is not this machine's loopback, and a broker has neither TLS nor keys yet (they come "
            "later): everyone who gets there could read and write everything. Leave --host away; or, in a network "
            "of your own, add --insecure."
        )
    show.warn(f"Whoever reaches {host} can read and write everything: there is neither TLS nor a key.")


def is_loopback(host: str) -> bool:
    """Whether only this machine gets there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
