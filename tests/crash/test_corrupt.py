"""Corrupt data is reported by claim, read and examine, never served; what is not corrupt goes on."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

import duly
from tests.conftest import scaled

SEED = int(os.environ.get("DULY_TEST_SEED") or random.SystemRandom().randrange(2**32))

# Five batches in partition 0 of `log`; the third is the victim.
BATCHES = [[f"batch{number} message{at}".encode() * 3 for at in range(4)] for number in range(5)]
VICTIM = 8
BEFORE, CORRUPT, BEHIND = BATCHES[0] + BATCHES[1], BATCHES[2], BATCHES[3] + BATCHES[4]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A closed store with two topics, the first of two partitions."""
    path = tmp_path / "app.duly"
    with duly.connect(path) as q:
        q.create_topic("log", kind="log", partitions=2)
        q.create_topic("other", kind="log")
        for topic in ("log", "other"):
            q.create_group(topic, "g")
        for batch in BATCHES:
            q.publish("log", [duly.Message(body, key="k", partition=0, headers={"h": "1"}) for body in batch])
        q.publish("log", duly.Message(b"in partition 1", partition=1))
        q.publish("other", b"in another topic")
    return path


def change(path: Path, sql: str, *values: object) -> None:
    """Alters the closed store behind Duly's back."""
    connection = apsw.Connection(str(path))
    connection.execute(sql, values)
    assert connection.changes() > 0
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()


def victim(path: Path) -> bytes:
    connection = apsw.Connection(str(path))
    (found,) = connection.execute("SELECT data FROM duly_block WHERE partition = 1 AND base = ?", (VICTIM,))
    connection.close()
    return bytes(found[0])


def replace(path: Path, stored: bytes) -> None:
    change(path, "UPDATE duly_block SET data = ? WHERE partition = 1 AND base = ?", stored, VICTIM)


def assert_reported_and_not_served(path: Path) -> None:
    """Nothing of the corrupt block comes out; what lies before it does, and so does everything else."""
    events: list[duly.Event] = []
    with duly.connect(path, on_event=events.append) as q:
        reported = [finding for finding in q.examine() if finding.level in ("alert", "error")]
        assert reported, "examine() found nothing"
        assert_read_stops(q)
        assert_claims_stop(q)
        assert [event.kind for event in events if event.kind == "block_corrupt"]
        q.seek("log", "g", offset={0: VICTIM + len(CORRUPT)})
        assert q.claim("log", group="g", max_messages=100).payloads == BEHIND
        assert q.publish("log", duly.Message(b"more", partition=0)).positions == [(0, 20)]


def assert_read_stops(q: duly.Client) -> None:
    assert [one.payload for one in q.read("log", offset=0)] == BEFORE
    for offset in range(VICTIM, VICTIM + len(CORRUPT)):
        with pytest.raises(duly.CorruptBlock):
            q.read("log", offset=offset)
    assert [one.payload for one in q.read("log", offset=VICTIM + len(CORRUPT))] == BEHIND


def assert_claims_stop(q: duly.Client) -> None:
    """Claims give what is before, then what is in other partitions, and then the error, again and again."""
    served: list[bytes] = []
    while True:
        try:
            batch = q.claim("log", group="g", max_messages=3)
        except duly.CorruptBlock:
            break
        assert batch, "the corrupt block was skipped in silence"
        served += batch.payloads
        q.ack(batch)
    assert sorted(served) == sorted([*BEFORE, b"in partition 1"])
    with pytest.raises(duly.CorruptBlock):
        q.claim("log", group="g")
    assert q.claim("other", group="g").payloads == [b"in another topic"]


def sampled(size: int) -> list[int]:
    """Offsets of a block: the header and its borders always, of the rest some."""
    if size <= scaled(0, 1 << 30):
        return list(range(size))
    return sorted({*range(0, 72, 5), 66, 67, 68, 71, 72, size // 2, size - 1})


def test_a_flipped_bit_anywhere_in_a_block_is_reported_and_never_served(store: Path, tmp_path: Path) -> None:
    print(f"DULY_TEST_SEED={SEED}")
    draw = random.Random(SEED)
    whole = victim(store)
    for offset in sampled(len(whole)):
        path = tmp_path / "flipped" / "app.duly"
        path.parent.mkdir()
        shutil.copy(store, path)
        flipped = bytearray(whole)
        flipped[offset] ^= 1 << draw.randrange(8)
        replace(path, bytes(flipped))
        try:
            assert_reported_and_not_served(path)
        except BaseException as error:
            raise AssertionError(f"DULY_TEST_SEED={SEED}: byte {offset} of {len(whole)}") from error
        shutil.rmtree(path.parent)


def test_a_whole_store_is_found_whole(store: Path) -> None:
    with duly.connect(store) as q:
        assert not [finding for finding in q.examine() if finding.level in ("alert", "error")]
        assert [one.payload for one in q.read("log", offset=0)] == BEFORE + CORRUPT + BEHIND


@pytest.mark.parametrize("left", [0, 1, 40, 72, -1])
def test_a_block_cut_short_is_reported_and_never_served(store: Path, left: int) -> None:
    replace(store, victim(store)[:left])
    assert_reported_and_not_served(store)


def test_a_block_with_bytes_behind_it_is_reported_and_never_served(store: Path) -> None:
    replace(store, victim(store) + b"\0")
    assert_reported_and_not_served(store)


def test_a_block_in_the_place_of_another_is_reported_and_never_served(store: Path) -> None:
    change(
        store,
        "UPDATE duly_block SET data = (SELECT data FROM duly_block WHERE partition = 1 AND base = 4)"
        " WHERE partition = 1 AND base = ?",
        VICTIM,
    )
    assert_reported_and_not_served(store)


def test_two_blocks_that_changed_places_are_reported_and_never_served(store: Path) -> None:
    first, second = 4, 12
    connection = apsw.Connection(str(store))
    rows = dict(connection.execute("SELECT base, data FROM duly_block WHERE partition = 1 AND base IN (4, 12)"))
    connection.close()
    for base, stored in ((first, rows[second]), (second, rows[first])):
        change(store, "UPDATE duly_block SET data = ? WHERE partition = 1 AND base = ?", stored, base)
    with duly.connect(store) as q:
        assert q.read("log", offset=0)[-1].offset == first - 1
        for base in (first, second):
            with pytest.raises(duly.CorruptBlock):
                q.read("log", offset=base)
        assert len([finding for finding in q.examine() if finding.level in ("alert", "error")]) >= 2


def test_a_block_missing_in_the_middle_is_reported_and_never_skipped(store: Path) -> None:
    change(store, "DELETE FROM duly_block WHERE partition = 1 AND base = ?", VICTIM)
    assert_reported_and_not_served(store)


def test_the_last_block_missing_under_a_lease_is_reported(store: Path) -> None:
    """Its offsets are not given out again: whoever held them would get other bytes."""
    with duly.connect(store) as q:
        q.claim("log", group="g", max_messages=100, lease=3600)
    change(store, "DELETE FROM duly_block WHERE partition = 1 AND base = 16")
    with duly.connect(store) as q:
        reported = [finding for finding in q.examine() if finding.level in ("alert", "error")]
        assert reported
        with pytest.raises((duly.CorruptBlock, duly.InvalidArgument)):
            q.read("log", offset=17)


def test_retries_of_a_corrupt_block_are_reported_and_others_go_on(store: Path) -> None:
    """Claimed and nacked while whole, corrupt when they are due again."""
    clock = duly.ManualClock()
    with duly.connect(store, clock=clock) as q:
        batch = q.claim("log", group="g", max_messages=100)
        q.nack(batch, delay=1)
    flipped = bytearray(victim(store))
    flipped[-1] ^= 1
    replace(store, bytes(flipped))
    clock.advance(10)
    with duly.connect(store, clock=clock) as q:
        served: list[bytes] = []
        for _ in range(30):
            try:
                again = q.claim("log", group="g", max_messages=100)
            except duly.CorruptBlock:
                break
            served += again.payloads
            q.ack(again)
        assert not set(served) & set(CORRUPT)
        assert set(served) >= {*BEFORE, b"in partition 1"}, "messages before the corrupt ones are held up"
        with pytest.raises(duly.CorruptBlock):
            q.claim("log", group="g")


def test_a_corrupt_dead_letter_is_reported_and_the_others_are_listed(store: Path) -> None:
    with duly.connect(store) as q:
        batch = q.claim("log", group="g", max_messages=100)
        q.bury([delivery for delivery in batch if delivery.payload in (BEFORE[0], CORRUPT[0])], reason="bad")
    flipped = bytearray(victim(store))
    flipped[100] ^= 1
    replace(store, bytes(flipped))
    with duly.connect(store) as q:
        whole, corrupt = q.dead("log", group="g")
        assert (whole.payload, whole.corrupt) == (BEFORE[0], "")
        assert (corrupt.payload, corrupt.reason) == (b"", "bad")
        assert "corrupt" in corrupt.corrupt


def outcomes(path: Path) -> Iterator[str]:
    """Does everything a client may do with a damaged file; right bytes or one of our errors."""
    right = set(BEFORE + CORRUPT + BEHIND) | {b"in partition 1", b"in another topic", b"new"}
    try:
        q = duly.connect(path, timeout=5)
    except duly.Error as error:
        yield type(error).__name__
        return
    with q:
        for topic, partition in (("log", 0), ("log", 1), ("other", 0)):
            try:
                found = q.read(topic, partition=partition)
                assert all(one.payload in right for one in found), f"wrong bytes from {topic}: {found}"
                yield "read"
            except duly.Error as error:
                yield type(error).__name__
        for topic in ("log", "other"):
            try:
                batch = q.claim(topic, group="g", max_messages=100)
                assert all(payload in right for payload in batch.payloads), (
                    f"wrong bytes from {topic}: {batch.payloads}"
                )
                q.ack(batch)
                yield "claimed"
            except duly.Error as error:
                yield type(error).__name__
        for act in (
            lambda: list(q.examine()),
            lambda: q.publish("log", b"new"),
            q.list_topics,
            lambda: q.describe_topic("log"),
            lambda: q.describe_group("log", "g"),
            lambda: list(q.dead("log", group="g")),
        ):
            try:
                act()
                yield "done"
            except duly.Error as error:
                yield type(error).__name__


@pytest.mark.timeout(scaled(300, 3600))
def test_flipped_bits_anywhere_in_the_file_give_right_bytes_or_one_of_our_errors(store: Path, tmp_path: Path) -> None:
    print(f"DULY_TEST_SEED={SEED}")
    change(store, "UPDATE duly_meta SET value = value WHERE key = 'schema'")
    whole = store.read_bytes()
    seen: dict[str, int] = {}
    for turn in range(scaled(120, 5000)):
        draw = random.Random(f"{SEED} {turn}")
        damaged = bytearray(whole)
        # Half of them hit where SQLite keeps its own: the first bytes of a page.
        for _ in range(draw.choice([1, 1, 8])):
            page, within = draw.randrange(len(whole) // 4096), draw.choice([draw.randrange(4096), draw.randrange(40)])
            damaged[page * 4096 + within] ^= 1 << draw.randrange(8)
        path = tmp_path / "damaged" / "app.duly"
        path.parent.mkdir()
        path.write_bytes(damaged)
        try:
            for outcome in outcomes(path):
                seen[outcome] = seen.get(outcome, 0) + 1
        except BaseException as error:
            raise AssertionError(f"DULY_TEST_SEED={SEED}, turn {turn}: {error!r}") from error
        shutil.rmtree(path.parent)
    print(seen)
    assert seen["read"]
    assert any(name.endswith(("Error", "Block", "Store")) for name in seen), "no damage was ever noticed"
