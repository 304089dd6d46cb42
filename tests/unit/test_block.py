"""Blocks: what goes in comes out, and nothing that was changed or moved ever does."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import duly
from duly.engine.block import Block, Piece, Place, encode, form_blocks
from duly.engine.block import decode as decode_block
from duly.engine.columns import ARROW_FROM, NAMES, Columns
from duly.engine.incoming import check_batch

PLACE = Place(tenant=3, partition=7, base=41)


def decode(place: Place, stored: object) -> Block:
    """A block that is not sealed."""
    return decode_block(place, stored, unseal=None)


def blocks_of(sent: list[Piece]) -> list[tuple[Columns, Any]]:
    return [(columns, publishes) for columns, publishes, _ in form_blocks(sent)]


def columns(count: int, payload_bytes: int = 5) -> Columns:
    messages = [
        duly.Message(bytes([n % 256]) * payload_bytes, id=f"i{n}", key=f"k{n}", headers={"h": str(n)}, ttl=n + 1)
        for n in range(count)
    ]
    return check_batch(messages).columns


def rows(block: Columns) -> list[tuple[Any, ...]]:
    return list(zip(*((block.values(name) or [None] * block.count) for name in NAMES), strict=True))


FORMS = {"listed": columns(3), "arrow": columns(ARROW_FROM)}


@pytest.mark.parametrize("form", FORMS)
def test_a_block_reads_back_as_it_was_written(form: str) -> None:
    stored = encode(PLACE, FORMS[form], 1234, [("p1", 2), ("p2", 1)])
    block = decode(PLACE, stored)
    assert (block.place, block.count, block.published_at) == (PLACE, FORMS[form].count, 1234)
    assert (block.base, block.end) == (41, 41 + FORMS[form].count)
    assert [tuple(entry) for entry in block.publishes] == [("p1", 2), ("p2", 1)]
    assert rows(block.columns) == rows(FORMS[form])


def test_the_two_forms_are_the_two_forms() -> None:
    assert FORMS["listed"].arrow is None
    assert FORMS["arrow"].arrow is not None


@pytest.mark.parametrize("form", FORMS)
def test_every_flipped_bit_is_refused(form: str) -> None:
    stored = encode(PLACE, FORMS[form].slice(0, 3), 1234, [("p1", 3)])
    for bit in range(len(stored) * 8):
        broken = bytearray(stored)
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises(duly.CorruptBlock):
            decode(PLACE, bytes(broken))


@pytest.mark.parametrize("form", FORMS)
def test_every_cut_is_refused(form: str) -> None:
    stored = encode(PLACE, FORMS[form], 1234, [("p1", 1)])
    for length in range(len(stored)):
        with pytest.raises(duly.CorruptBlock):
            decode(PLACE, stored[:length])
    with pytest.raises(duly.CorruptBlock):
        decode(PLACE, stored + b"\0")


@pytest.mark.parametrize(
    "elsewhere",
    [replace(PLACE, tenant=4), replace(PLACE, partition=8), replace(PLACE, base=42)],
    ids=["tenant", "partition", "base"],
)
def test_a_block_in_anothers_place_is_refused(elsewhere: Place) -> None:
    stored = encode(PLACE, FORMS["listed"], 1234, [])
    with pytest.raises(duly.CorruptBlock, match="belongs"):
        decode(elsewhere, stored)


def test_the_error_says_where_it_is_and_what_to_do() -> None:
    with pytest.raises(duly.CorruptBlock, match="doctor") as caught:
        decode(PLACE, b"")
    assert caught.value.facts["base"] == 41


def test_garbage_is_refused() -> None:
    draw = random.Random(1)
    for size in (0, 1, 4, 63, 64, 65, 200):
        with pytest.raises(duly.CorruptBlock):
            decode(PLACE, draw.randbytes(size))
        with pytest.raises(duly.CorruptBlock):
            decode(PLACE, b"DULY" + draw.randbytes(size))


@given(
    st.lists(st.tuples(st.binary(max_size=20), st.none() | st.text(min_size=1, max_size=5)), min_size=1, max_size=130)
)
def test_any_payloads_and_keys_read_back(drawn: list[tuple[bytes, str | None]]) -> None:
    given_columns = check_batch([duly.Message(payload, key=key) for payload, key in drawn]).columns
    block = decode(PLACE, encode(PLACE, given_columns, 1, []))
    assert block.columns.values("payload") == [payload for payload, _ in drawn]
    assert (block.columns.values("key") or [None] * len(drawn)) == [key for _, key in drawn]


# Forming blocks


def pieces(*counts: int, payload_bytes: int = 5) -> list[Piece]:
    return [Piece(f"p{n}", columns(count, payload_bytes), count * payload_bytes) for n, count in enumerate(counts)]


def piece(publish_id: str, messages: Any) -> Piece:
    batch = check_batch(messages)
    return Piece(publish_id, batch.columns, batch.bytes)


def spread(formed: list[tuple[Columns, Any]]) -> list[int]:
    return [part.count for part, _ in formed]


def test_small_neighbours_share_a_block() -> None:
    (formed,) = blocks_of(pieces(1, 2, 3))
    assert formed[0].count == 6
    assert [tuple(entry) for entry in formed[1]] == [("p0", 1), ("p1", 2), ("p2", 3)]


def test_no_block_has_more_messages_than_the_limit() -> None:
    formed = blocks_of(pieces(*[30] * 100, 5000, 30))
    assert max(spread(formed)) <= duly.LIMITS.block_messages_max
    assert sum(spread(formed)) == 8030


def test_no_block_has_more_bytes_than_the_limit_unless_one_message_has() -> None:
    big = duly.LIMITS.block_bytes_max // 3
    formed = blocks_of([piece("a", [bytes(big)] * 8), piece("b", bytes(big * 4))])
    for part, _ in formed:
        assert part.bytes <= duly.LIMITS.block_bytes_max or part.count == 1
    assert sum(spread(formed)) == 9


@given(st.lists(st.integers(1, 200), min_size=1, max_size=20))
def test_forming_blocks_keeps_every_message_in_order_and_says_whose_it_is(counts: list[int]) -> None:
    sent = [piece(f"p{n}", [b"%d-%d" % (n, i) for i in range(count)]) for n, count in enumerate(counts)]
    formed = blocks_of(sent)
    assert [p for part, _ in formed for p in part.values("payload") or ()] == [
        b"%d-%d" % (n, i) for n, count in enumerate(counts) for i in range(count)
    ]
    for part, publishes in formed:
        assert sum(count for _, count in publishes) == part.count
    totals: dict[str, int] = {}
    for _, publishes in formed:
        for publish_id, count in publishes:
            totals[publish_id] = totals.get(publish_id, 0) + count
    assert totals == {f"p{n}": count for n, count in enumerate(counts)}


def test_a_block_knows_where_it_ends() -> None:
    assert Block(PLACE, 4, 0, columns(4), []).end == 45
