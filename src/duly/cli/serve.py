"""duly serve: a broker on a store, for clients in other processes and languages."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ..broker.exposure import check_closed
from ..client.addresses import flight_address
from ..errors import InvalidArgument, NotFound
from ..limits import LIMITS
from ..trust import is_loopback
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
_TlsCert = Annotated[
    str | None,
    typer.Option("--tls-cert", metavar="FILE", help="TLS on both ports: the certificate, PEM.", show_default=False),
]
_TlsKey = Annotated[
    str | None, typer.Option("--tls-key", metavar="FILE", help="The certificate's key, PEM.", show_default=False)
]
_TlsClientCa = Annotated[
    str | None,
    typer.Option(
        "--tls-client-ca",
        metavar="FILE",
        help="Clients need a certificate that this CA has signed.",
        show_default=False,
    ),
]
_Names = Annotated[
    list[str] | None,
    typer.Option("--allow-host", metavar="NAME", help="Another name that HTTP calls may have for it; repeat for more."),
]
_PushAllow = Annotated[
    list[str] | None,
    typer.Option(
        "--push-allow",
        metavar="WHERE",
        help="What pushes may reach that is not public: a network, an address, or host:port; repeat for more.",
    ),
]
_PushPort = Annotated[
    list[int] | None,
    typer.Option(
        "--push-port", min=1, max=65535, help="Another port that pushes may reach, beside 80 and 443; repeat for more."
    ),
]
_PushCa = Annotated[
    str | None,
    typer.Option(
        "--push-ca",
        metavar="FILE",
        help="Authorities that pushes trust beside the system's, PEM.",
        show_default=False,
    ),
]


@command(
    app,
    "serve",
    examples=[
        "duly serve",
        "duly serve --store shop.duly --http-port 0 --flight-port 0",
        "duly serve --store :memory: --json",
        "duly serve --tls-cert certs/server.pem --tls-key certs/server.key",
        "duly serve --push-allow 10.0.0.0/8 --push-allow hooks.internal:9000 --push-port 8443",
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
    require_keys: Annotated[
        bool, typer.Option("--require-keys", help="Let nobody in without a key, also while the store has none.")
    ] = False,
    master: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="The master key: file:PATH, env:NAME, command:PROGRAM ARGS; or DULY_MASTER.",
            show_default=False,
        ),
    ] = None,
    tls_cert: _TlsCert = None,
    tls_key: _TlsKey = None,
    tls_client_ca: _TlsClientCa = None,
    push_allow: _PushAllow = None,
    push_port: _PushPort = None,
    push_ca: _PushCa = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen beyond this machine without TLS or without keys.")
    ] = False,
) -> None:
    """Run a broker on a store, made if it is not there, until SIGTERM or Ctrl-C.

    Clients connect to duly://127.0.0.1:8471; REST is at http://127.0.0.1:8470/v1, and a page of it at /docs.

    Any number of brokers may serve a store: clients learn of the others from each, and go on there when one is gone. To
    them it names the host and port that it listens on, unless --advertise says how others reach it.

    With --tls-cert and --tls-key both ports speak TLS: duly+tls:// and https://. The files are looked at every two
    seconds, and on SIGHUP: a new certificate is used at once, without a restart. `duly certs dev` makes some to try.

    Beyond this machine it listens only with TLS, and with keys in its store; unless you say --insecure.

    Pushes connect to public addresses alone, at the ports 80 and 443; --push-allow and --push-port add to that.

    Told to stop, it takes nobody in, answers what is under way, and ends; told twice, it ends at once. With --json its
    first line says where it listens.
    """
    session.must_be_file("A broker serves a file;")
    _check_files(tls_cert, tls_key, tls_client_ca)
    _check_host(session, host, tls=tls_cert is not None, keys=require_keys, insecure=insecure)
    show_log(as_json=session.as_json, stream=sys.stderr)
    # Its own comings and goings are told by ours.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    # Only who serves loads what serving needs, and has to have it.
    try:
        from ..broker.certificates import Certificates
        from ..broker.pushes.reach import Reach
        from ..serve import Address, Served, in_url, run_until_told
    except ModuleNotFoundError as error:
        raise NotFound(f"A broker needs {error.name}. Install it: pip install 'duly[server]'") from error

    reach = Reach.of(push_allow or (), push_port or ())
    address = Address(host, http_port, flight_port, tuple(names or ()), _advertised(advertise))
    certificates = Certificates(tls_cert, tls_key, tls_client_ca) if tls_cert and tls_key else None
    served = Served(
        session.store,
        address,
        drift_ms_max=_drift_ms_max(drift_max),
        certificates=certificates,
        insecure=insecure,
        master=master,
        require_keys=require_keys,
        reach=reach,
        push_ca=push_ca,
    )
    _warn(session.show, host, served)
    run_until_told(served, ready=lambda: _say(session, in_url(host), served))


def _say(session: Session, host: str, served: Served) -> None:
    """Where it listens, for whoever waits for that."""
    from ..serve import urls

    url, http = urls(host, http_port=served.http.port, flight_port=served.flight.port, tls=served.tls)
    document = {
        "store": session.shown,
        "url": url,
        "http_url": http,
        "http_port": served.http.port,
        "flight_port": served.flight.port,
        "pid": os.getpid(),
        "name": served.name,
        "tls": served.tls,
        "open": served.open,
    }
    is_open = " Whoever gets there can do everything: the store has no keys." if served.open else ""
    session.show.outcome(
        f"Serving {session.shown} at {url} and {http} (its page: {http}/docs).{is_open} Ctrl-C ends it.", document
    )
    sys.stdout.flush()


def _warn(show: Show, host: str, served: Served) -> None:
    """What somebody has insisted on."""
    if is_loopback(host):
        return
    if served.open:
        show.warn(f"Whoever reaches {host} can read and write everything: the store has no keys.")
    if not served.tls:
        show.warn(f"Whoever is on the way to {host} can read and change everything: there is no TLS.")


def _drift_ms_max(drift_max_s: float | None) -> int:
    return LIMITS.drift_ms_max if drift_max_s is None else round(drift_max_s * 1000)


def _advertised(written: str | None) -> str:
    """How others reach it, checked: they could not make use of anything else."""
    if written is None:
        return ""
    if flight_address(written if ":" in written.rpartition("]")[2] else f"{written}:1") is None:
        raise InvalidArgument(f"{written!r} names no broker. Give --advertise HOST, or HOST:PORT of Flight's.")
    return written


def _check_files(cert: str | None, key: str | None, client_ca: str | None) -> None:
    """A certificate goes with its key; whom to trust among clients is a question only then."""
    if (cert is None) != (key is None) or (client_ca is not None and cert is None):
        raise InvalidArgument(
            "TLS takes --tls-cert and --tls-key together; --tls-client-ca besides, if clients need certificates."
        )


def _check_host(session: Session, host: str, *, tls: bool, keys: bool, insecure: bool) -> None:
    """A broker without TLS and keys is for this machine alone, unless somebody insists.

    What can be told before the store is opened: no file is made for nothing. serve.py asks the store for keys.
    """
    if not insecure:
        check_closed(host, tls=tls, keys=keys or "://" in session.store or os.path.exists(session.store))
