"""Tenants own topics. Until keys arrive (issue 7) a client simply names its tenant."""

from __future__ import annotations

from .errors import InvalidArgument
from .limits import LIMITS

DEFAULT_TENANT = "default"


def check_name(name: object, what: str, chars_max: int = LIMITS.name_chars_max) -> str:
    """A name of 1 to `chars_max` printable characters; anything else is refused."""
    if not isinstance(name, str):
        raise InvalidArgument(f"A {what} must be a str, not {type(name).__name__}.")
    if not 1 <= len(name) <= chars_max:
        raise InvalidArgument(f"A {what} has 1 to {chars_max} characters; this one has {len(name)}.")
    if not name.isprintable():
        raise InvalidArgument(f"A {what} has printable characters only; got {name!r}.")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"A {what} must be valid Unicode; got {name!r}.") from error
    return name
