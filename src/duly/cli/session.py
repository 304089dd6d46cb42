"""The options that every command takes, and what they open."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import NotFound
from ..tenant import DEFAULT_TENANT
from .show import Show

if TYPE_CHECKING:
    from ..client.client import Client

DEFAULT_STORE = "app.duly"
PANEL = "Everywhere"

StoreOption = Annotated[
    str | None,
    typer.Option("--store", metavar="PATH", help="The store's file.", rich_help_panel=PANEL, show_default=False),
]
TenantOption = Annotated[
    str | None,
    typer.Option("--tenant", help="Whose topics.", rich_help_panel=PANEL, show_default=False),
]
JsonOption = Annotated[
    bool,
    typer.Option("--json", help="For programs: a JSON document, or a line an item.", rich_help_panel=PANEL),
]


@dataclass(frozen=True, slots=True)
class Session:
    """One run of `duly`: which store, whose topics, for whom to print."""

    store: str
    tenant: str
    as_json: bool

    @property
    def show(self) -> Show:
        """Where results go."""
        return Show(as_json=self.as_json)

    @contextmanager
    def client(self, *, create: bool = False, consumer: str | None = None) -> Iterator[Client]:
        """A client of the store. Only `create` makes the file; else a missing one is an error."""
        if not create:
            self.must_exist()
        from ..client.connect import connect

        with connect(self.store, tenant=self.tenant, consumer=consumer) as client:
            yield client

    def must_exist(self) -> None:
        """Refuses a file that is not there."""
        if self.store and self.store != ":memory:" and "://" not in self.store and not os.path.exists(self.store):
            raise NotFound(
                f"There is no store at {self.store!r}. "
                "Make one with: duly topics create NAME --kind log; or name another with --store."
            )


def session(
    ctx: typer.Context, store: StoreOption = None, tenant: TenantOption = None, as_json: JsonOption = False
) -> Session:
    """The session of a command: what stands after its name wins over what stands before."""
    before: Session = ctx.obj
    return Session(
        before.store if store is None else store,
        before.tenant if tenant is None else tenant,
        as_json or before.as_json,
    )


def first_session(store: str | None, tenant: str | None, as_json: bool) -> Session:
    """The session as the options before the command's name describe it."""
    return Session(DEFAULT_STORE if store is None else store, DEFAULT_TENANT if tenant is None else tenant, as_json)
