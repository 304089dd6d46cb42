"""The brokers on a file: a row each, written again with every beat, by the store's clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from ...member import FORGET_MS, SEEN_MS_MAX, Member

_decoder = msgspec.json.Decoder(Member)


def put_members(tx: Any, members: Sequence[Member]) -> list[None]:
    """A verb: these are there now. Rows of those who have long been gone go."""
    for member in members:
        tx._rows("member_put", name=member.name, now=tx.now_ms, facts=msgspec.json.encode(member).decode())
    tx._rows("members_forget", before=tx.now_ms - FORGET_MS)
    return [None] * len(members)


def remove_members(tx: Any, names: Sequence[str]) -> list[None]:
    """A verb: these have left."""
    for name in names:
        tx._rows("member_remove", name=name)
    return [None] * len(names)


def list_members(tx: Any) -> list[Member]:
    """Those who were seen lately."""
    rows = tx._rows("members", since=tx.now_ms - SEEN_MS_MAX)
    return [replace(_decoder.decode(facts), seen_at_ms=seen_at_ms) for seen_at_ms, facts in rows]
