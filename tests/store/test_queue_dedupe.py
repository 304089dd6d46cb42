"""An id is unique among a queue's unsettled messages, and for the topic's dedupe window after."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import duly

from .conftest import sharp

WINDOW = 100.0


def make(q: duly.Client, dedupe: float | None = WINDOW, partitions: int = 1) -> str:
    q.create_topic(
        "jobs", kind="queue", lease=30, retry=sharp(10, max_attempts=5), dedupe=dedupe, partitions=partitions
    )
    return "jobs"


@pytest.fixture
def jobs(q: duly.Client) -> str:
    """A window of 100 s; leases of 30 s, retries after 10 s, 5 attempts."""
    return make(q)


def one(message_id: str | None, payload: bytes = b"", **fields: float | str) -> duly.Message:
    return duly.Message(payload, id=message_id, **fields)  # type: ignore[arg-type]


def taken(q: duly.Client, *ids: str) -> list[bool]:
    """Of each id whether a publish of it is a duplicate."""
    return [bool(q.publish("jobs", one(text, b"again", due=86_400)).duplicates) for text in ids]


def drain(q: duly.Client) -> list[bytes]:
    found: list[bytes] = []
    while batch := q.claim("jobs", max_messages=10_000):
        found += batch.payloads
        batch.ack()
    return found


# In a batch, across batches, across clients


def test_twice_in_a_batch_the_first_is_stored(q: duly.Client, jobs: str) -> None:
    receipt = q.publish(jobs, [one("a", b"0"), one("b", b"1"), one("a", b"2"), one(None, b"3"), one("a", b"4")])
    assert receipt.count == 5
    assert not receipt.duplicate
    assert receipt.positions == [(0, 0), (0, 1), (0, 0), (0, 2), (0, 0)]
    assert dict(receipt.duplicates) == {2: (0, 0), 4: (0, 0)}
    made = q.browse(jobs)[2].id
    assert receipt.ids == ["a", "b", "a", made, "a"]
    assert made.startswith("@")
    assert drain(q) == [b"0", b"1", b"3"]


def test_in_another_batch_it_is_told_where_the_first_is(q: duly.Client, jobs: str) -> None:
    first = q.publish(jobs, [one("a", b"0"), one("b", b"1")])
    second = q.publish(jobs, [one("c", b"2"), one("b", b"3"), one("d", b"4"), one("a", b"5")])
    assert second.positions == [(0, 2), first.positions[1], (0, 3), first.positions[0]]
    assert dict(second.duplicates) == {1: (0, 1), 3: (0, 0)}
    assert second.ids == ["c", "b", "d", "a"]
    assert drain(q) == [b"0", b"1", b"2", b"4"]


def test_a_batch_of_duplicates_alone_stores_nothing(q: duly.Client, jobs: str) -> None:
    first = q.publish(jobs, [one("a"), one("b")])
    second = q.publish(jobs, [one("b"), one("a")])
    assert (second.count, second.spans, second.ids) == (2, (), ["b", "a"])
    assert second.positions == first.positions[::-1]
    assert dict(second.duplicates) == {0: (0, 1), 1: (0, 0)}
    assert len(drain(q)) == 2


def test_nothing_is_a_duplicate_without_an_id(q: duly.Client, jobs: str) -> None:
    for _ in range(3):
        assert not q.publish(jobs, [b"x", duly.Message(b"x")]).duplicates
    assert len(drain(q)) == 6


def test_topics_and_tenants_have_ids_of_their_own(q: duly.Client, jobs: str) -> None:
    q.create_topic("other", kind="queue", dedupe=WINDOW)
    q.publish(jobs, one("a"))
    assert not q.publish("other", one("a")).duplicates


def test_ids_that_look_alike_are_different(q: duly.Client, jobs: str) -> None:
    ids = ["a", "A", "a ", "é", "e\u0301", "鍵", "a\x00", "0", "00"]
    assert not q.publish(jobs, [one(text) for text in ids]).duplicates
    assert len(q.publish(jobs, [one(text) for text in ids]).duplicates) == len(ids)


def test_a_file_opened_again_knows_them(q: duly.Client, jobs: str, reopen: Callable[[], duly.Client]) -> None:
    q.publish(jobs, [one("a"), one("b")])
    q.claim(jobs, max_messages=1).ack()
    q.close()
    again = reopen()
    assert dict(again.publish(jobs, [one("b"), one("a"), one("c")]).duplicates) == {0: (0, 1), 1: (0, 0)}


def test_two_clients_share_them(q: duly.Client, jobs: str, reopen: Callable[[], duly.Client]) -> None:
    other = reopen()
    for n in range(20):
        a, b = (q, other) if n % 2 else (other, q)
        assert not a.publish(jobs, one(f"i{n}")).duplicates
        assert b.publish(jobs, one(f"i{n}")).duplicates
    assert len(drain(q)) == 20


# While it is unsettled, wherever it is


@pytest.mark.parametrize("dedupe", [None, 0, WINDOW])
def test_an_id_is_in_use_until_its_message_is_settled(
    q: duly.Client, clock: duly.ManualClock, dedupe: float | None
) -> None:
    make(q, dedupe)
    q.publish("jobs", one("a", b"first", due=10))
    assert taken(q, "a") == [True]
    clock.advance(10)
    assert taken(q, "a") == [True]
    (d,) = q.claim("jobs")
    assert taken(q, "a") == [True]
    d.nack(delay=1000)
    assert taken(q, "a") == [True]
    q.move("jobs", "a", due=2000)
    assert taken(q, "a") == [True]
    clock.advance(2000)
    assert taken(q, "a") == [True]
    (d,) = q.claim("jobs")
    d.release()
    assert taken(q, "a") == [True]
    q.claim("jobs")
    clock.advance(31)
    assert taken(q, "a") == [True]
    (d,) = q.claim("jobs")
    assert d.payload == b"first"
    d.bury()
    clock.advance(100 * WINDOW)
    assert taken(q, "a") == [True], "a dead letter keeps its id"
    assert q.redrive("jobs") == 1
    assert taken(q, "a") == [True]
    assert drain(q) == [b"first"]
    clock.advance(dedupe or 0)
    assert taken(q, "a") == [False]


def test_a_dead_letter_that_is_purged_lets_its_id_go(q: duly.Client, clock: duly.ManualClock) -> None:
    make(q, None)
    q.publish("jobs", one("a"))
    q.bury(q.claim("jobs"))
    q.purge("jobs", dead=True)
    assert taken(q, "a") == [False]


# How a message ends, and the window after


def by_ack(q: duly.Client, clock: duly.ManualClock) -> None:
    q.publish("jobs", one("a"))
    q.claim("jobs").ack()


def by_ack_of_a_part(q: duly.Client, clock: duly.ManualClock) -> None:
    q.publish("jobs", [one("x", due=0), one("a"), one("y")])
    batch = q.claim("jobs")
    q.ack([d for d in batch if d.id == "a"])


def by_cancel(q: duly.Client, clock: duly.ManualClock) -> None:
    q.publish("jobs", one("a"))
    q.cancel("jobs", "a")


def by_cancel_while_it_waits(q: duly.Client, clock: duly.ManualClock) -> None:
    q.publish("jobs", [one("a", due=500), *(one(f"o{n}", due=500) for n in range(3000))])
    q.cancel("jobs", "a")


def by_cancel_under_a_lease(q: duly.Client, clock: duly.ManualClock) -> None:
    q.publish("jobs", one("a"))
    (d,) = q.claim("jobs")
    q.cancel("jobs", "a")
    d.nack()


def by_cancel_and_lost_lease(q: duly.Client, clock: duly.ManualClock) -> None:
    q.publish("jobs", one("a"))
    q.claim("jobs")
    q.cancel("jobs", "a")
    clock.advance(30)
    assert not len(q.claim("jobs"))


def by_expiry(q: duly.Client, clock: duly.ManualClock) -> None:
    q.publish("jobs", one("a", ttl=5))
    clock.advance(5)
    assert not len(q.claim("jobs"))


def by_expiry_that_nobody_saw(q: duly.Client, clock: duly.ManualClock) -> None:
    q.publish("jobs", one("a", ttl=5))
    clock.advance(5)


def by_expiry_under_a_lease(q: duly.Client, clock: duly.ManualClock) -> None:
    q.publish("jobs", one("a", ttl=5))
    (d,) = q.claim("jobs")
    clock.advance(6)
    d.nack()


def by_ack_after_a_move(q: duly.Client, clock: duly.ManualClock) -> None:
    q.publish("jobs", one("a", due=50))
    q.move("jobs", "a", due=0)
    q.claim("jobs").ack()


def by_ack_after_a_failure(q: duly.Client, clock: duly.ManualClock) -> None:
    q.publish("jobs", one("a"))
    q.claim("jobs").nack(delay=0)
    q.claim("jobs").ack()


ENDS = {
    end.__name__.replace("_", " "): end
    for end in (
        by_ack, by_ack_of_a_part, by_cancel, by_cancel_while_it_waits, by_cancel_under_a_lease,
        by_cancel_and_lost_lease, by_expiry, by_expiry_that_nobody_saw, by_expiry_under_a_lease,
        by_ack_after_a_move, by_ack_after_a_failure,
    )
}  # fmt: skip
however = pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
End = Callable[[duly.Client, duly.ManualClock], None]


@however
def test_for_the_window_after_its_end_an_id_is_in_use(
    q: duly.Client, jobs: str, clock: duly.ManualClock, end: End
) -> None:
    end(q, clock)
    assert q.publish(jobs, one("a")).duplicates
    clock.advance(WINDOW - 0.001)
    assert q.publish(jobs, one("a")).duplicates
    clock.advance(0.001)
    assert not q.publish(jobs, one("a", b"again")).duplicates
    assert b"again" in drain(q)


@however
def test_the_window_outlives_reopening(
    q: duly.Client, jobs: str, clock: duly.ManualClock, reopen: Callable[[], duly.Client], end: End
) -> None:
    end(q, clock)
    q.close()
    clock.advance(WINDOW - 0.001)
    again = reopen()
    assert again.publish(jobs, one("a")).duplicates
    clock.advance(0.001)
    assert not again.publish(jobs, one("a", b"again")).duplicates
    assert b"again" in drain(again)


@however
@pytest.mark.parametrize("dedupe", [None, 0])
def test_without_a_window_an_id_is_free_at_once(
    q: duly.Client, clock: duly.ManualClock, dedupe: float | None, end: End
) -> None:
    make(q, dedupe)
    end(q, clock)
    assert not q.publish("jobs", one("a", b"again")).duplicates
    assert q.publish("jobs", one("a")).duplicates
    found = q.get("jobs", "a")
    assert found is not None
    assert (found.state, found.payload) == ("ready", b"again")
    assert drain(q).count(b"again") == 1


def test_the_window_counts_from_the_last_message_that_had_the_id(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    for n in range(5):
        assert not q.publish(jobs, one("a", b"%d" % n)).duplicates
        assert drain(q) == [b"%d" % n]
        clock.advance(WINDOW / 2)
        assert q.publish(jobs, one("a")).duplicates
        clock.advance(WINDOW / 2)


def test_get_finds_the_newest_of_those_that_had_an_id(q: duly.Client) -> None:
    make(q, None)
    q.publish("jobs", one("keeper", due=500))
    for n in range(5):
        q.publish("jobs", one("a", b"%d" % n))
        found = q.get("jobs", "a")
        assert found is not None
        assert (found.state, found.payload) == ("ready", b"%d" % n)
        q.claim("jobs").ack()
        found = q.get("jobs", "a")
        assert found is not None
        assert found.state == "finished"


def test_a_window_given_or_taken_later_holds_from_then_on(q: duly.Client, clock: duly.ManualClock) -> None:
    make(q, None)
    q.publish("jobs", [one("a"), one("b")])
    q.claim("jobs", max_messages=1).ack()
    q.update_topic("jobs", dedupe=WINDOW)
    q.claim("jobs").ack()
    assert taken(q, "b") == [True]
    q.update_topic("jobs", dedupe=None)
    q.publish("jobs", one("c"))
    q.claim("jobs").ack()
    assert taken(q, "c") == [False]


def test_a_purged_queue_without_a_window_takes_the_same_ids_again(q: duly.Client) -> None:
    make(q, None)
    ids = [f"i{n}" for n in range(3000)]
    q.publish("jobs", [one(text) for text in ids])
    q.purge("jobs")
    assert not q.publish("jobs", [one(text) for text in ids]).duplicates
    assert len(drain(q)) == 3000


def test_a_queue_made_anew_knows_nothing_of_the_old_ids(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, [one(f"i{n}") for n in range(3000)])
    q.delete_topic(jobs, force=True)
    make(q)
    assert not q.publish(jobs, [one(f"i{n}") for n in range(3000)]).duplicates


# Several partitions


def test_an_id_is_one_in_all_partitions(q: duly.Client) -> None:
    make(q, partitions=4)
    first = {f"i{n}": q.publish("jobs", one(f"i{n}", lane=f"l{n}")).positions[0] for n in range(100)}
    assert len({partition for partition, _ in first.values()}) == 4
    again = q.publish("jobs", [one(text, lane=f"l{n + 37}") for n, text in enumerate(first)])
    assert again.positions == list(first.values())
    assert len(again.duplicates) == 100
    assert len(drain(q)) == 100


def test_a_batch_over_partitions_with_duplicates_has_the_right_positions(q: duly.Client) -> None:
    make(q, partitions=4)
    draw = random.Random(17)
    known: dict[str, tuple[int, int]] = {}
    for _ in range(20):
        batch = [one(draw.choice([None, f"i{draw.randrange(300)}"]), lane=f"l{draw.randrange(30)}") for _ in range(50)]
        receipt = q.publish("jobs", batch)
        for message, place, text in zip(batch, receipt.positions, receipt.ids, strict=True):
            assert text == (message.id or text)
            known.setdefault(text, place)
            assert known[text] == place
    there = {m.id: (m.place, m.lane) for m in q.browse("jobs", limit=10_000)}
    assert {text: place for text, (place, _) in there.items()} == known


@pytest.mark.parametrize("bulk", [0, 3000])
def test_an_id_that_changes_its_partition_is_still_one(q: duly.Client, bulk: int) -> None:
    """Free after an ack it may come back in another lane, so in another partition: the newest counts."""
    make(q, None, partitions=4)
    lanes: dict[int, str] = {}
    for n in range(50):
        # These stay, so that nothing is dropped from the log.
        (place,) = q.publish("jobs", one(None, lane=f"l{n}", due=86_400)).positions
        lanes.setdefault(place[0], f"l{n}")
    for old in range(0, 4, 3 if bulk else 1):
        for new in range(0, 4, 3 if bulk else 1):
            text = f"{old}-{new}"
            q.publish("jobs", one(text, lane=lanes[old]))
            q.claim("jobs").ack()
            if bulk:
                q.publish("jobs", [one(f"{text}-{n}", lane=lanes[new], due=86_400) for n in range(bulk)])
            assert not q.publish("jobs", one(text, b"new", lane=lanes[new])).duplicates
            if bulk:
                q.publish("jobs", [one(f"{text}-b{n}", lane=lanes[new], due=86_400) for n in range(bulk)])
            found = q.get("jobs", text)
            assert found is not None
            assert (found.state, found.payload, found.partition) == ("ready", b"new", new)
            assert q.publish("jobs", one(text, b"third", lane=lanes[old])).duplicates
            assert drain(q) == [b"new"]


# Thousands


def test_ids_are_known_across_folds(q: duly.Client, jobs: str, reopen: Callable[[], duly.Client]) -> None:
    """Enough of them for their runs to be folded, with messages acked and cancelled in between."""
    ids = [f"id-{n}" for n in range(50_000)]
    where: dict[str, tuple[int, int]] = {}
    for start in range(0, 50_000, 2500):
        part = ids[start : start + 2500]
        receipt = q.publish(jobs, [one(text) for text in part])
        assert not receipt.duplicates
        where.update(zip(part, receipt.positions, strict=True))
        q.claim(jobs, max_messages=1000).ack()
        q.cancel(jobs, part[-100:])
    q.close()
    again = reopen()
    for chosen in (ids[:10_000], ids[20_000:25_000], random.Random(19).sample(ids, 5000)):
        receipt = again.publish(jobs, [one(text) for text in chosen])
        assert len(receipt.duplicates) == len(chosen)
        assert receipt.positions == [where[text] for text in chosen]
    assert not again.publish(jobs, [one(f"new-{n}") for n in range(1000)]).duplicates


def test_ids_are_free_across_folds_once_their_time_is_over(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    ids = [f"id-{n}" for n in range(9000)]
    q.publish(jobs, one("keeper", due=86_400 * 30))
    for turn in range(4):
        for start in range(0, 9000, 3000):
            assert not q.publish(jobs, [one(text) for text in ids[start : start + 3000]]).duplicates, turn
        assert len(q.publish(jobs, [one(text) for text in ids[::7]]).duplicates) == len(ids[::7])
        assert len(drain(q)) == 9000
        assert len(q.publish(jobs, [one(text) for text in ids[::5]]).duplicates) == 1800
        clock.advance(WINDOW)


# With a publish id


def test_a_repeated_publish_of_a_batch_with_duplicates_answers_the_same(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    q.publish(jobs, one("a"))
    batch = [one("b", b"1"), one("a", b"2"), one(None, b"3"), one("b", b"4")]
    first = q.publish(jobs, batch, publish_id="p")
    for _ in range(2):
        again = q.publish(jobs, batch, publish_id="p")
        assert again.duplicate
        assert (again.positions, again.ids, dict(again.duplicates)) == (
            first.positions, first.ids, dict(first.duplicates),
        )  # fmt: skip
        assert drain(q) in ([b"", b"1", b"3"], [])
        clock.advance(2 * WINDOW)


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_made_publish_id_repeated_stores_nothing_twice(q: duly.Client, partitions: int) -> None:
    """As after PublishUnknown: the batch is repeated with the id that it carried."""
    make(q, partitions=partitions)
    q.publish("jobs", [one("a", lane="x"), one("b", lane="y")])
    batch = [one("c", lane="z"), one("a", lane="z"), one(None, lane="y"), one("d", lane="x"), one("c", lane="x")]
    first = q.publish("jobs", batch)
    again = q.publish("jobs", batch, publish_id=first.publish_id)
    assert again.duplicate
    assert again.positions == first.positions
    assert again.ids == first.ids
    assert len(drain(q)) == 5
    third = q.publish("jobs", batch, publish_id=first.publish_id)
    assert third.duplicate
    assert drain(q) == []


def test_a_batch_of_duplicates_alone_can_be_repeated_by_its_made_id(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, [one("a"), one("b")])
    first = q.publish(jobs, [one("b"), one("a")])
    again = q.publish(jobs, [one("b"), one("a")], publish_id=first.publish_id)
    assert again.positions == first.positions
    assert len(drain(q)) == 2


# Against a plain dictionary


@settings(max_examples=20, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["publish", "ack", "cancel", "wait", "nack"]), st.lists(st.integers(0, 12))),
        max_size=30,
    ),
    window=st.sampled_from([None, 50]),
    partitions=st.sampled_from([1, 3]),
)
def test_whatever_is_done_no_id_is_twice(
    steps: list[tuple[str, list[int]]], window: float | None, partitions: int
) -> None:
    clock = duly.ManualClock()
    with duly.connect(":memory:", clock=clock, consumer="w1") as q:
        q.create_topic(
            "jobs", kind="queue", lease=86_400, dedupe=window, partitions=partitions, retry=sharp(0, max_attempts=9999)
        )
        q.publish("jobs", [duly.Message(b"", lane=str(n), due=86_400) for n in range(9)])
        # Until when an id is in use, in ms; for ever while its message is open.
        until: dict[str, float] = {}
        stored: Counter[str] = Counter()
        ended: Counter[str] = Counter()

        def end(text: str) -> None:
            ended[text] += 1
            until[text] = clock.now_ms() + 1000 * (window or 0)

        for what, numbers in steps:
            ids = [f"i{n}" for n in numbers]
            if what == "publish" and ids:
                batch = [duly.Message(b"", id=text, lane=str(at % 9)) for at, text in enumerate(ids)]
                receipt = q.publish("jobs", batch)
                for at, text in enumerate(ids):
                    used = until.get(text, 0) > clock.now_ms()
                    assert (at in receipt.duplicates) == used, (text, at)
                    if not used:
                        until[text] = float("inf")
                        stored[text] += 1
            elif what == "ack":
                batch_held = q.claim("jobs", max_messages=1 + len(ids))
                for d in batch_held:
                    end(d.id)
                batch_held.ack()
            elif what == "nack":
                q.claim("jobs", max_messages=1 + len(ids)).nack(delay=0)
            elif what == "cancel":
                for text, answer in q.cancel("jobs", ids).items():
                    assert (answer == "cancelled") == (until.get(text) == float("inf")), (text, answer)
                    if answer == "cancelled":
                        end(text)
            elif what == "wait":
                clock.advance(10 * (1 + len(ids)))
        while batch_left := q.claim("jobs"):
            for d in batch_left:
                end(d.id)
            batch_left.ack()
        assert ended == stored
