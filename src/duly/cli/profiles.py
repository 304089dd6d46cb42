"""Profiles: where `duly` goes and for whom, by name, in a file of the user's.

# ~/.config/duly/config.toml
[profiles.default]
url = "duly://127.0.0.1:8471"

[profiles.shop]
store = "~/shop/app.duly"
tenant = "acme"
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidArgument, NotFound

# As duly.connect has it, which would load what help does not need.
BROKER_SCHEME = "duly://"
DEFAULT_PROFILE = "default"
_KEYS = ("url", "store", "tenant")


@dataclass(frozen=True, slots=True)
class Profile:
    """One table of the file."""

    name: str
    place: str | None = None
    tenant: str | None = None


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
    if "url" in table and not table["url"].startswith(BROKER_SCHEME):
        raise InvalidArgument(f"{where}: {table['url']!r} is no broker. Write duly://host:port; a file is a store.")
    return Profile(name, table.get("url") or _store_path(table, path), table.get("tenant"))


def _store_path(table: dict[str, str], path: str) -> str | None:
    """The store, whose path begins at the file's folder: a profile means the same wherever it is used."""
    if "store" not in table:
        return None
    store = os.path.expanduser(table["store"])
    if store == ":memory:" or store.startswith(BROKER_SCHEME):
        return store
    return os.path.join(os.path.dirname(os.path.abspath(path)), store)
