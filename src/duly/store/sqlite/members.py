"""The brokers on a file: a row each, written again with every beat, by the store's clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ...member import FORGET_MS, Member


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
