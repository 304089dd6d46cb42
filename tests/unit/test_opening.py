"""Opening a store: where others write all the time, and where a row of its own is damaged."""

from __future__ import annotations

import apsw
import pytest

import duly


@pytest.fixture
def other(path: str) -> apsw.Connection:
    """Another program on a store that is there."""
    with duly.connect(path) as q:
        q.create_topic("orders", kind="log")
    return apsw.Connection(path)


def test_a_store_opens_while_somebody_else_has_the_lock_to_write(path: str, other: apsw.Connection) -> None:
    other.execute("BEGIN IMMEDIATE")
    with duly.connect(path) as q:
        assert q.list_topics() == ["orders"]
        other.execute("ROLLBACK")
        q.publish("orders", b"x")
    other.close()


@pytest.mark.parametrize(
    ("key", "value"),
    [("incarnation", b"\xc3\xb4\xff"), ("schema", b"\xff"), ("schema", b"not a number"), ("clock", b"\xff")],
)
def test_a_damaged_row_of_its_own_is_one_of_our_errors(
    path: str, other: apsw.Connection, key: str, value: bytes
) -> None:
    other.execute("UPDATE duly_meta SET value = cast(? AS TEXT) WHERE key = ?", (value, key))
    other.close()
    with pytest.raises(duly.StoreError, match="Run `duly doctor`"):
        duly.connect(path)
