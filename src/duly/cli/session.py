"""The options that every command takes, and what they open.

Where a command goes, the first of these that names a place:

    --store or --url    on the line
    --profile           on the line
    DULY_STORE or DULY_URL
    DULY_PROFILE, else the profile `default`
    app.duly            here

The tenant is --tenant's, else the profile's that was named; that of `default` counts only for the place it names. So
does a profile's key; otherwise DULY_TOKEN is shown to brokers. No option takes a key: everyone on a machine sees its
command lines.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

import typer

from ..client.addresses import is_broker
from ..errors import Denied, InvalidArgument, NotFound
from ..tenant import DEFAULT_TENANT
from .profiles import Profile, default_profile, find_profile
from .show import Show

if TYPE_CHECKING:
    from ..client.client import Client
    from ..client.tls import Tls

DEFAULT_STORE = "app.duly"
PANEL = "Everywhere"
# Whether a broker is there is told within so many seconds, not after a call's whole patience.
_ANSWERS_S = 3.0

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="PATH",
        help="The store's file: app.duly, or DULY_STORE.",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="A broker instead: duly://host:port, duly+tls://host:port, or DULY_URL.",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="NAME",
        help="A profile of ~/.config/duly/config.toml.",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
TenantOption = Annotated[
    str | None,
    typer.Option("--tenant", help="Whose topics.", rich_help_panel=PANEL, show_default=False),
]
JsonOption = Annotated[
    bool,
    typer.Option("--json", help="For programs: a JSON document, or a line an item.", rich_help_panel=PANEL),
]


# In a URL: behind the name of a user, or as an option.
_PASSWORD = re.compile(r"(://[^/@:]*):[^/@]*(?=@)|(?<=[?&])(?:ssl)?password=[^&]*&?")


@dataclass(frozen=True, slots=True)
class Where:
    """Where to go and for whom, as it stands on the line, before the command's name and after it."""

    store: str | None = None
    url: str | None = None
    profile: str | None = None
    tenant: str | None = None
    as_json: bool = False

    def over(self, before: Where) -> Where:
        """Both together; what is said here wins."""
        names = ("store", "url", "profile", "tenant")
        said = {name: value for name in names if (value := getattr(self, name)) is not None}
        return replace(before, **said, as_json=self.as_json or before.as_json)

    @property
    def place(self) -> str | None:
        """The store or the broker that is named here."""
        return one_place(self.store, self.url, "--store", "--url")


def one_place(store: str | None, url: str | None, store_name: str, url_name: str) -> str | None:
    """The one of both that is given; refuses both, and a url that is none."""
    if store is not None and url is not None:
        raise typer.BadParameter(f"Give {store_name}, a file, or {url_name}, a broker; not both.", param_hint=url_name)
    if url is not None and not is_broker(url):
        raise typer.BadParameter(
            f"{url!r} is no broker. Write duly://host:port, or duly+tls://host:port; a file is --store.",
            param_hint=url_name,
        )
    return store if url is None else url


@dataclass(frozen=True, slots=True)
class Session:
    """One run of `duly`: which store or broker, whose topics, for whom to print."""

    # A file's path, or a broker's address.
    store: str
    # None: the key's; of a store that is open to everyone, the default one.
    tenant: str | None
    as_json: bool
    # Who named the place, for messages: an option, a variable, a profile.
    named_by: str = ""
    # The profile's files for duly+tls://; else the environment's are used.
    tls_files: Mapping[str, str] = field(default_factory=dict)

    @property
    def tls(self) -> Tls | None:
        """The same as duly.connect takes it."""
        if not self.tls_files:
            return None
        # Only who uses TLS loads what it needs.
        from ..client.tls import Tls

        return Tls(**self.tls_files)

    # The key of the profile; None: DULY_TOKEN's, if there is one.
    token: str | None = field(default=None, repr=False)

    @property
    def show(self) -> Show:
        """Where results go."""
        return Show(as_json=self.as_json)

    @property
    def shown(self) -> str:
        """The place as it may be printed: without a password."""
        return _PASSWORD.sub(lambda found: found[1] or "", self.store)

    @property
    def whose(self) -> str:
        """The tenant, where one has to be named. A broker is asked whose the key is."""
        if self.tenant is not None or not self.on_broker:
            return self.tenant or DEFAULT_TENANT
        with self.client() as client:
            return client.tenant

    @property
    def on_broker(self) -> bool:
        """Whether it goes to a broker."""
        return is_broker(self.store)

    @contextmanager
    def client(
        self, *, create: bool = False, consumer: str | None = None, patience_s: float = _ANSWERS_S
    ) -> Iterator[Client]:
        """A client of the store, or of the broker. Only `create` makes the file; else a missing one is an error."""
        if not create:
            self.must_exist()
        from ..client.connect import connect

        token = self.token if self.on_broker else None
        with connect(self.store, tenant=self.tenant, token=token, consumer=consumer, tls=self.tls) as client:
            if self.on_broker:
                # One that refuses answers, too.
                with suppress(Denied):
                    client.list_topics(limit=1, timeout=patience_s)
            yield client

    def pass_on(self) -> None:
        """Gives the profile's key and certificates to what connects by itself from here on: this process and those that
        it starts. By the environment, which others on the machine do not see.
        """
        from ..client.connect import TOKEN_VARIABLE
        from ..client.tls import ENVIRONMENT

        if self.token is not None:
            os.environ[TOKEN_VARIABLE] = self.token
        for name, path in self.tls_files.items():
            os.environ[ENVIRONMENT[name]] = path

    def must_exist(self) -> None:
        """Refuses a file that is not there."""
        if self.store and self.store != ":memory:" and "://" not in self.store and not os.path.exists(self.store):
            raise NotFound(
                f"There is no store at {self.store!r}{self._so_named()}. "
                "Make one with: duly topics create NAME --kind log; or name another with --store, or a broker with "
                "--url."
            )

    def must_answer(self) -> None:
        """Refuses a broker that is not there."""
        with self.client():
            pass

    def must_be_file(self, why: str) -> None:
        """Refuses a broker, for what only the store's own file can be used for."""
        if self.on_broker:
            raise InvalidArgument(f"{why} {self.store}{self._so_named()} is a broker. Name the file: --store PATH.")

    def _so_named(self) -> str:
        return f", which {self.named_by} names," if self.named_by else ""


def session(
    ctx: typer.Context,
    store: StoreOption = None,
    url: UrlOption = None,
    profile: ProfileOption = None,
    tenant: TenantOption = None,
    as_json: JsonOption = False,
) -> Session:
    """The session of a command: what stands after its name wins over what stands before."""
    before: Where = ctx.obj
    given = Where(store, url, profile, tenant, as_json).over(before)
    warn_of_password(given.place, as_json=given.as_json)
    return open_session(given)


def warn_of_password(address: str | None, *, as_json: bool) -> None:
    """Says so when an address that stands on the command line has a password in it."""
    if address is not None and _PASSWORD.search(address):
        Show(as_json=as_json).warn(
            "Everybody on this machine sees the password on the command line. Leave it to ~/.pgpass, or give the "
            "address as DULY_STORE."
        )


def open_session(given: Where) -> Session:
    """The session that the line, the environment and the profiles make together."""
    place, named_by, profile = _place(given)
    tenant = profile.tenant if given.tenant is None else given.tenant
    if profile.place not in (None, place):
        # Its key is for its own broker's eyes, and so are its certificates.
        return Session(place, tenant, given.as_json, named_by)
    return Session(place, tenant, given.as_json, named_by, profile.tls, profile.read_token())


def _place(given: Where) -> tuple[str, str, Profile]:
    """A place, who named it, and the profile whose tenant counts."""
    environ = {name: os.environ.get(name) or None for name in ("DULY_STORE", "DULY_URL", "DULY_PROFILE")}
    wanted = given.profile or environ["DULY_PROFILE"]
    profile = find_profile(wanted) if wanted else Profile("")
    if given.place is not None:
        return given.place, "", profile
    if given.profile and profile.place is not None:
        return profile.place, f"profile {profile.name!r}", profile
    around = one_place(environ["DULY_STORE"], environ["DULY_URL"], "DULY_STORE", "DULY_URL")
    if around is not None:
        return around, "DULY_STORE" if environ["DULY_URL"] is None else "DULY_URL", profile
    chosen = profile if wanted else default_profile()
    if chosen.place is not None:
        return chosen.place, f"profile {chosen.name!r}", chosen
    return DEFAULT_STORE, "", chosen
