"""Profiles: where `duly` goes and for whom, by name, in a file of the user's.

# ~/.config/duly/config.toml
[profiles.default]
url = "duly://127.0.0.1:8471"

[profiles.shop]
store = "~/shop/app.duly"
tenant = "acme"

[profiles.bank]
url = "duly+tls://queue.bank.example:8471"
token_file = "bank.token"
ca = "bank-ca.pem"
cert = "me.pem"
key = "me.key"
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..client.addresses import TLS_SCHEME, is_broker
from ..errors import InvalidArgument, NotFound

DEFAULT_PROFILE = "default"
_TLS_KEYS = ("ca", "cert", "key")
_KEYS = ("url", "store", "tenant", "token", "token_file", *_TLS_KEYS)


@dataclass(frozen=True, slots=True)
class Profile:
    """One table of the file."""

    name: str
    place: str | None = None
    tenant: str | None = None
    # Files for duly+tls://, by what they are of duly.Tls.
    tls: Mapping[str, str] = field(default_factory=dict)
    # A key to show to the broker, or the file that has it.
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None

    def read_token(self) -> str | None:
        """The key, if it has one. Raises NotFound when its file is not there."""
        if self.token_file is None:
            return self.token
        try:
            with open(self.token_file, encoding="utf-8") as file:
                return file.read().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise NotFound(
                f"The token_file of profile {self.name!r} cannot be read: {self.token_file}. Put the key into it, for "
                "its owner's eyes alone."
            ) from error


def config_path() -> str:
    """Where the file is, or would be: DULY_CONFIG, else where XDG puts it."""
    if given := os.environ.get("DULY_CONFIG"):
        return given
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join("~", ".config")
    return os.path.join(os.path.expanduser(home), "duly", "config.toml")


def find_profile(name: str) -> Profile:
    """The profile of that name. Raises NotFound; and InvalidArgument when the file is not as it has to be."""
    profiles = load_profiles()
    if name not in profiles:
        there = f"There are: {', '.join(profiles)}." if profiles else "There are none."
        raise NotFound(f"There is no profile {name!r} in {config_path()}. {there} Add it as [profiles.{name}].")
    return profiles[name]


def default_profile() -> Profile:
    """The profile that is used when none is named; an empty one if there is none."""
    return load_profiles().get(DEFAULT_PROFILE, Profile(DEFAULT_PROFILE))


def load_profiles() -> dict[str, Profile]:
    """All profiles of the file. None if there is no file, unless DULY_CONFIG names it."""
    path = config_path()
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError as error:
        if os.environ.get("DULY_CONFIG"):
            raise NotFound(f"There is no file {path!r}, which DULY_CONFIG names. Make it, or unset DULY_CONFIG.") from (
                error
            )
        return {}
    return _profiles(_decoded(content, path), path)


def _decoded(content: bytes, path: str) -> dict[str, Any]:
    # Only who has a file loads what reads it.
    import tomllib

    try:
        return tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path} is not TOML: {error}. Correct it, or name another with DULY_CONFIG.") from error


def _profiles(document: dict[str, Any], path: str) -> dict[str, Profile]:
    unknown = [key for key in document if key != "profiles"]
    if unknown:
        raise InvalidArgument(f"{path}: there is no setting {unknown[0]!r}. Profiles are tables: [profiles.NAME].")
    tables = document.get("profiles", {})
    if not isinstance(tables, dict):
        raise InvalidArgument(f"{path}: 'profiles' is not a table. Write [profiles.NAME].")
    return {name: _profile(name, table, path) for name, table in tables.items()}


def _profile(name: str, table: Any, path: str) -> Profile:
    where = f"{path}: profile {name!r}"
    if not isinstance(table, dict):
        raise InvalidArgument(f"{where} is not a table. Write [profiles.{name}], and its keys below.")
    for key, value in table.items():
        if key not in _KEYS:
            raise InvalidArgument(f"{where} has a key {key!r}, which means nothing. Keys: {', '.join(_KEYS)}.")
        if not isinstance(value, str) or not value:
            raise InvalidArgument(f'{where}: {key} has to be text. Write {key} = "…".')
    if "url" in table and "store" in table:
        raise InvalidArgument(f"{where} has a url and a store. Keep the one that is meant.")
    if "url" in table and not is_broker(table["url"]):
        raise InvalidArgument(f"{where}: {table['url']!r} is no broker. Write duly://host:port; a file is a store.")
    if any(key in table for key in _TLS_KEYS) and not table.get("url", "").startswith(TLS_SCHEME):
        raise InvalidArgument(f"{where}: ca, cert and key are for {TLS_SCHEME}. Write such a url, or remove them.")
    if "token" in table and "token_file" in table:
        raise InvalidArgument(f"{where} has a token and a token_file. Keep one; the file is the better place.")
    files = {key: _beside(table[key], path) for key in (*_TLS_KEYS, "token_file") if key in table}
    token_file = files.pop("token_file", None)
    place = table.get("url") or _store_path(table, path)
    return Profile(name, place, table.get("tenant"), files, table.get("token"), token_file)


def _store_path(table: dict[str, str], path: str) -> str | None:
    """The store, whose path begins at the file's folder: a profile means the same wherever it is used."""
    if "store" not in table:
        return None
    store = table["store"]
    return store if store == ":memory:" or is_broker(store) else _beside(store, path)


def _beside(file: str, path: str) -> str:
    return os.path.join(os.path.dirname(os.path.abspath(path)), os.path.expanduser(file))
