"""Everything that is wrong with a key or its grants, one by one: what the matrices of REST and Flight are made of."""

from __future__ import annotations

from collections.abc import Callable

import duly
from duly.grants import TENANT_ACTIONS, TOPIC_ACTIONS
from duly.keys import make_key

from .conftest import ALL, Place

EVERY_ACTION = (*TOPIC_ACTIONS, *TENANT_ACTIONS)


def _expired(place: Place) -> str:
    place.store.put_principal("expired", ALL)
    token = place.store.create_key("expired", ttl=60).secret
    place.clock.advance(61)
    return token


def _revoked(place: Place) -> str:
    place.store.put_principal("revoked", ALL)
    made = place.store.create_key("revoked")
    place.store.revoke_key(made.id)
    return made.secret


def _of_nobody(place: Place) -> str:
    token = place.key("gone", *ALL)
    place.store.delete_principal("gone")
    return token


def _altered(place: Place) -> str:
    """Another secret and check under the id of a key that is there."""
    token, (forged, _) = place.key("altered", *ALL), make_key()
    from duly import keys

    whole = token[:18] + forged[18 : 18 + 43]
    return whole + keys._check(whole)


# What is answered 401 whatever is asked.
NOT_LET_IN: dict[str, Callable[[Place], str | None]] = {
    "missing": lambda _: None,
    "malformed": lambda _: "duly_not-a-key",
    "truncated": lambda place: place.key("cut", *ALL)[:-1],
    "mistyped": lambda place: place.key("typo", *ALL)[:-1] + "!",
    "unknown": lambda _: make_key()[0],
    "altered": _altered,
    "expired": _expired,
    "revoked": _revoked,
    "of a principal that is gone": _of_nobody,
}


def but(action: str) -> tuple[duly.Grant, ...]:
    """Every grant but this one."""
    return tuple(duly.Grant(one) for one in EVERY_ACTION if one != action)


def denied(action: str) -> tuple[duly.Grant, ...]:
    """Every grant, and this one denied."""
    return (*ALL, duly.Grant(action, effect="deny"))
