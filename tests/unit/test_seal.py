"""Sealing: what is opened is what was sealed, for its place and with its key; anything else is refused."""

from __future__ import annotations

import os

import pytest

import duly
from duly.engine.block import Place, decode, encode
from duly.engine.columns import Columns
from duly.engine.seal import BrokenSeal, Seal, bound_to, is_sealed, open_value, tag_of

PLACE = Place(1, 2, 3)
SEAL = Seal(1, bytes(32))


@pytest.mark.parametrize("content", [b"", b"x", b"x" * 100_000, os.urandom(100_000)], ids=len)
def test_what_was_sealed_is_opened(content: bytes) -> None:
    sealed = SEAL.seal(content, b"here")
    assert SEAL.open(sealed, b"here") == content
    assert SEAL.open(memoryview(sealed), b"here") == content
    assert SEAL.seal(content, b"here") != sealed


def test_what_can_be_compressed_is() -> None:
    assert len(SEAL.seal(b"x" * 100_000, b"")) < 1000
    content = os.urandom(100_000)
    assert len(SEAL.seal(content, b"")) == len(content) + 5 + 12 + 16


@pytest.mark.parametrize("at", [0, 1, 4, 5, 16, 17, 40, -1])
def test_one_bit_is_enough_to_be_refused(at: int) -> None:
    sealed = bytearray(SEAL.seal(os.urandom(100), b"here"))
    sealed[at] ^= 1
    with pytest.raises(BrokenSeal):
        SEAL.open(bytes(sealed), b"here")


def test_another_place_another_key_and_less_of_it_are_refused() -> None:
    sealed = SEAL.seal(b"x" * 10, b"here")
    for seal, given, place in (
        (SEAL, sealed, b"there"),
        (Seal(1, bytes(31) + b"\1"), sealed, b"here"),
        (SEAL, sealed[:-1], b"here"),
        (SEAL, b"", b"here"),
        (SEAL, sealed[:33], b"here"),
    ):
        with pytest.raises(BrokenSeal):
            seal.open(given, place)


def test_a_value_says_that_it_is_sealed_and_with_what() -> None:
    stored = SEAL.seal_value(b"[]", bound_to("events", 7))
    assert is_sealed(stored)
    asked: list[tuple[int, int]] = []

    def unseal(tenant: int, version: int) -> Seal:
        asked.append((tenant, version))
        return SEAL

    assert open_value(stored, 7, bound_to("events", 7), unseal) == b"[]"
    assert asked == [(7, 1)]
    assert open_value(b"[]", 7, b"", unseal) == b"[]"
    with pytest.raises(duly.CorruptBlock, match="seal is broken"):
        open_value(stored, 7, bound_to("events", 8), unseal)
    # Cut off wherever it be, behind the mark too.
    for length in range(4, len(stored)):
        with pytest.raises(duly.CorruptBlock, match="seal is broken"):
            open_value(stored[:length], 7, bound_to("events", 7), unseal)


def test_no_two_places_have_one_name() -> None:
    places: list[tuple[int | str, ...]] = [
        ("a", 1, 23),
        ("a", 12, 3),
        ("a", "1", 23),
        ("a,1", 23),
        ("b", 1, 23),
        ("a", 1, 23, ""),
    ]
    assert len({bound_to(*place) for place in places}) == len(places)


@pytest.mark.parametrize("count", [1, 300])
def test_a_block_comes_back_whole_whatever_its_form(count: int) -> None:
    payloads = [os.urandom(200) for _ in range(count)]
    columns = Columns(count, lists={"payload": payloads})
    stored = encode(PLACE, columns, 5, [("p", count)], seal=SEAL)
    assert payloads[0] not in stored
    block = decode(PLACE, stored, unseal=lambda *_: SEAL)
    assert block.columns.values("payload") == payloads
    assert block.publishes == [("p", count)]
    with pytest.raises(duly.Sealed):
        decode(PLACE, stored, unseal=None)


def test_a_block_of_arrow_that_cannot_be_compressed() -> None:
    from duly.engine.columns import to_arrow

    payloads = [os.urandom(200) for _ in range(300)]
    columns = Columns(300, arrow=to_arrow(Columns(300, lists={"payload": payloads})))
    stored = encode(PLACE, columns, 5, [], seal=SEAL)
    assert decode(PLACE, stored, unseal=lambda *_: SEAL).columns.values("payload") == payloads


def test_a_block_is_of_one_kind_of_place() -> None:
    stored = encode(PLACE, Columns(1, lists={"payload": [b"x"]}), 5, [], seal=SEAL, bound=b"run")
    with pytest.raises(duly.CorruptBlock, match="belongs elsewhere"):
        decode(PLACE, stored, unseal=lambda *_: SEAL)


def test_tags_differ() -> None:
    assert tag_of(SEAL.seal(b"x", b"")) != tag_of(SEAL.seal(b"x", b""))
