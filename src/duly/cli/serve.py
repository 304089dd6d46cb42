"""duly serve: a broker on a store, for clients in other processes and languages."""

from __future__ import annotations

import ipaddress
import logging
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ..client.addresses import flight_address
from ..errors import InvalidArgument, NotFound
from ..limits import LIMITS
from .assignment import show_log
from .command import command
from .parse import duration
from .session import Session
from .show import Show
from .text import human_span

if TYPE_CHECKING:
    from ..serve import Served

app = typer.Typer()

_Advertise = Annotated[
    str | None,
    typer.Option(metavar="HOST[:PORT]", help="How others reach it, with the port of Flight's.", show_default=False),
]
_Names = Annotated[
    list[str] | None,
    typer.Option("--allow-host", metavar="NAME", help="Another name that HTTP calls may have for it; repeat for more."),
]


@command(
    app,
    "serve",
    examples=[
        "duly serve",
        "duly serve --store shop.duly --http-port 0 --flight-port 0",
        "duly serve --store :memory: --json",
    ],
)
def serve(
    session: Session,
    host: Annotated[str, typer.Option(help="Where it listens.")] = "127.0.0.1",
    http_port: Annotated[int, typer.Option(min=0, max=65535, help="For REST; 0 takes any that is free.")] = 8470,
    flight_port: Annotated[int, typer.Option(min=0, max=65535, help="For Arrow Flight, duly://.")] = 8471,
    names: _Names = None,
    advertise: _Advertise = None,
    drift_max: Annotated[
        float | None,
        typer.Option(
            parser=duration,
            metavar="DURATION",
            help="Take neither publishes nor claims while the host's clock is further from the store's than this: "
            f"{human_span(LIMITS.drift_ms_max / 1000)}.",
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen beyond this machine, open to everyone who gets there.")
    ] = False,
) -> None:
    """Run a broker on a store, made if it is not there, until SIGTERM or Ctrl-C.

    Clients connect to duly://127.0.0.1:8471; REST is at http://127.0.0.1:8470/v1, and a page of it at /docs.

    Any number of brokers may serve a store: clients learn of the others from each, and go on there when one is gone. To
    them it names the host and port that it listens on, unless --advertise says how others reach it.

    Told to stop, it takes nobody in, answers what is under way, and ends; told twice, it ends at once. With --json its
    first line says where it listens.
    """
    session.must_be_file("A broker serves a file;")
    _check_host(session.show, host, insecure=insecure)
    show_log(as_json=session.as_json, stream=sys.stderr)
    # Its own comings and goings are told by ours.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    # Only who serves loads what serving needs, and has to have it.
    try:
        from ..serve import Address, Served, in_url, run_until_told
    except ModuleNotFoundError as error:
        raise NotFound(f"A broker needs {error.name}. Install it: pip install 'duly[server]'") from error

    address = Address(host, http_port, flight_port, tuple(names or ()), _advertised(advertise))
    served = Served(session.store, address, drift_ms_max=_drift_ms_max(drift_max))
    run_until_told(served, ready=lambda: _say(session, in_url(host), served))


def _say(session: Session, host: str, served: Served) -> None:
    """Where it listens, for whoever waits for that."""
    url, http = f"duly://{host}:{served.flight.port}", f"http://{host}:{served.http.port}"
    document = {
        "store": session.shown,
        "url": url,
        "http_url": http,
        "http_port": served.http.port,
        "flight_port": served.flight.port,
        "pid": os.getpid(),
        "name": served.name,
    }
    session.show.outcome(
        f"Serving {session.shown} at {url} and {http} (its page: {http}/docs). Ctrl-C ends it.", document
    )
    sys.stdout.flush()


def _drift_ms_max(drift_max_s: float | None) -> int:
    return LIMITS.drift_ms_max if drift_max_s is None else round(drift_max_s * 1000)


def _advertised(written: str | None) -> str:
    """How others reach it, checked: they could not make use of anything else."""
    if written is None:
        return ""
    if flight_address(written if ":" in written.rpartition("]")[2] else f"{written}:1") is None:
        raise InvalidArgument(f"{written!r} names no broker. Give --advertise HOST, or HOST:PORT of Flight's.")
    return written


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
