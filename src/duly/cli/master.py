"""duly master: the key that the store's secrets are wrapped under."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import InvalidArgument
from .command import command, group
from .session import Session
from .text import plural

app = group("The master key, under which the store's secrets and the tenants' data keys are wrapped.")


@command(app, "create", examples=["duly master create app.master"])
def create(
    path: Annotated[str, typer.Argument(metavar="PATH", help="The file to be made.", show_default=False)],
    session: Session,
) -> None:
    """Make a file with a new master key, for its owner alone. Keep a copy where the backups are not."""
    from ..master import create_master

    create_master(path)
    session.show.outcome(
        f"A master key is in {path}. Give it as DULY_MASTER=file:{path}; without it, what is sealed is lost.",
        {"path": path},
    )


@command(app, "rotate", examples=["duly master rotate", "duly master rotate --data-keys"])
def rotate(
    session: Session,
    data_keys: Annotated[
        bool,
        typer.Option("--data-keys", help="Give every encrypted tenant a new data key, too, for what comes."),
    ] = False,
) -> None:
    """Wrap all secrets of a store under the master key that comes first in its file.

    To rotate: put a new line first (duly master create makes one), run this, take the old line away. Nothing stops.
    """
    session.must_exist()
    if session.on_broker:
        raise InvalidArgument("A master key is rotated where it lies: name the store, --store PATH or postgresql://….")
    from ..client.connect import open_home
    from ..engine.tenant_settings import Rotate
    from ..engine.tenant_settings import rotate as verb

    home = open_home(session.store)
    try:
        done = home.store.write(verb, Rotate("", data_keys), tenant="$master", cost=0, deadline=None)
        home.note("rotate_master", rewrapped=done.rewrapped, renewed=done.renewed)
    finally:
        home.close()
    renewed = f"; {plural(done.renewed, 'new data key')}" if data_keys else ""
    said = f"{plural(done.rewrapped, 'secret')} wrapped anew" if done.rewrapped else "Nothing to wrap anew"
    session.show.outcome(f"{said}{renewed}.", {"rewrapped": done.rewrapped, "renewed": done.renewed})
