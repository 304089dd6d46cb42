"""duly certs: certificates to try TLS out with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .command import command
from .session import Session

app = typer.Typer(help="Certificates to try TLS out with.", no_args_is_help=True)


@command(app, "dev", examples=["duly certs dev certs", "duly certs dev certs --name queue.test --name 192.0.2.7"])
def dev(
    folder: Annotated[Path, typer.Argument(help="Where they are written; made if need be.", show_default=False)],
    session: Session,
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--name", metavar="NAME", help="Another name or address of the server; repeat for more.", show_default=False
        ),
    ] = None,
    client: Annotated[str, typer.Option(metavar="NAME", help="Whom the client's certificate names.")] = "duly-dev",
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
) -> None:
    """Make a CA for development, and a server's and a client's certificate signed by it, good for a year.

    The server's holds for localhost, 127.0.0.1 and ::1. Do not use them where it matters: the CA's key lies beside
    them.
    """
    from ..certificates import make_development_certificates

    paths = make_development_certificates(str(folder), names=names or (), client=client, force=force)
    session.show.outcome(
        f"Made {', '.join(Path(path).name for path in paths)} in {folder}. Serve with: duly serve "
        f"--tls-cert {folder}/server.pem --tls-key {folder}/server.key. Connect with: "
        f"DULY_TLS_CA={folder}/ca.pem duly topics list --url duly+tls://localhost:8471",
        {"files": paths},
    )
