"""Who is served first, and what it costs to find out."""

from __future__ import annotations

import pytest

import duly
from duly.broker.entry import Entry
from duly.clock import monotonic_s
from duly.engine.claimed import Claim, Claimed
from duly.engine.verdict import Settle, Token
from tests.conftest import scaled
from tests.store.patience import eventually

from .conftest import Guest, Place
from .test_room import publish_aside


def names(guests: list[Guest]) -> list[str]:
    return [one.name for one in guests]


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


# In turn


def test_who_came_first_is_served_first(place: Place) -> None:
    waiting = [place.wait(name) for name in "abcde"]
    place.q.publish("jobs", numbered(5))
    assert [one.payloads() for one in waiting] == [[payload] for payload in numbered(5)]
    assert names(place.told) == list("abcde")


def test_those_who_were_asked_for_in_vain_keep_their_places(place: Place) -> None:
    waiting = [place.wait(name) for name in "abcdefgh"]
    for count in (1, 1, 2, 3):
        place.q.publish("jobs", numbered(count))
        place.settle()
    assert [one.told for one in waiting] == [True] * 7 + [False]
    assert names(place.told) == list("abcdefg")


def test_one_who_was_served_and_comes_again_stands_at_the_end(place: Place) -> None:
    first, second = place.wait("a"), place.wait("b")
    place.q.publish("jobs", b"1")
    first.answer()
    again = place.wait("a again")
    place.q.publish("jobs", b"2")
    assert second.payloads() == [b"2"]
    assert not again.told
    place.q.publish("jobs", b"3")
    assert again.payloads() == [b"3"]


def test_one_who_comes_while_others_are_asked_for_stands_behind_them(place: Place) -> None:
    waiting = [place.wait("a")]
    with place.writing():
        # Whoever comes has the first at the desk asked for: nothing can have been forgotten for longer than that.
        waiting += [place.come("b"), place.come("c")]
        publish = publish_aside(place, b"1", b"2", b"3")
    publish.result()
    assert [one.payloads() for one in waiting] == [[b"1"], [b"2"], [b"3"]]
    assert names(place.told) == list("abc")


def test_those_who_name_a_queues_group_and_those_who_do_not_stand_in_one_queue(place: Place) -> None:
    waiting = [place.wait(name, group=group) for name, group in zip("abcd", ("queue", "", "queue", ""), strict=True)]
    for count in (1, 2, 1):
        place.q.publish("jobs", numbered(count))
        place.settle()
    assert [one.told for one in waiting] == [True] * 4
    assert names(place.told) == list("abcd")


def test_one_who_names_no_group_of_a_log_is_told_so_and_nobody_else(place: Place) -> None:
    place.q.create_topic("log", kind="log")
    place.q.create_group("log", "queue")
    waiting = place.wait("a", topic="log")
    nameless = place.come("b", topic="log", group="")
    place.q.publish("log", b"x")
    assert waiting.payloads() == [b"x"]
    assert isinstance(nameless.answer(), duly.InvalidArgument)


def test_two_groups_of_a_log_do_not_stand_in_each_others_way(place: Place) -> None:
    place.q.create_topic("log", kind="log")
    for group in ("one", "two"):
        place.q.create_group("log", group)
    waiting = [place.wait(f"{group} {name}", topic="log", group=group) for group in ("one", "two") for name in "ab"]
    place.q.publish("log", b"x")
    place.settle()
    assert [one.told for one in waiting] == [True, False, True, False]


def test_tenants_do_not_stand_in_each_others_way(place: Place) -> None:
    waiting = place.wait("a")
    other = Entry(place.broker).client("other")
    other.create_topic("jobs", kind="queue")
    other.publish("jobs", b"x")
    assert other.claim("jobs").payloads == [b"x"]
    assert not waiting.told


# Those who will not wait


def test_one_who_will_not_wait_gets_nothing_before_those_who_do(place: Place) -> None:
    waiting = [place.wait("a"), place.wait("b"), place.wait("c")]
    with place.writing():
        publish = publish_aside(place, b"1", b"2", b"3")
        hurried = place.come("hurried", wait=None)
    publish.result()
    assert [one.payloads() for one in waiting] == [[b"1"], [b"2"], [b"3"]]
    assert hurried.payloads() == []


def test_one_who_will_not_wait_gets_what_is_left(place: Place) -> None:
    waiting = [place.wait("a"), place.wait("b"), place.wait("c")]
    with place.writing():
        publish = publish_aside(place, b"1", b"2", b"3", b"4")
        hurried = place.come("hurried", wait=None)
    publish.result()
    assert [one.payloads() for one in waiting] == [[b"1"], [b"2"], [b"3"]]
    assert hurried.payloads() == [b"4"]


def test_one_who_will_not_wait_is_looked_for_after_it_came(place: Place) -> None:
    """A look that was under way may have been before the publish that it knows of."""
    with place.writing():
        first = place.come("a", wait=None)
        publish = publish_aside(place, b"1", b"2")
        second = place.come("b", wait=None)
    publish.result()
    assert first.payloads() == [b"1"]
    assert second.payloads() == [b"2"]
    assert len(place.asked) == 2


def test_many_who_will_not_wait_find_nothing_by_one_look(place: Place) -> None:
    with place.writing():
        place.come("first", wait=None)
        hurried = [place.come(f"h{number}", wait=None) for number in range(100)]
    assert [one.payloads() for one in hurried] == [[]] * 100
    assert len(place.asked) == 2


def test_a_call_that_will_not_wait_does_not_go_before_those_who_do(place: Place) -> None:
    waiting = place.wait("a")
    place.q.pause("jobs")
    place.q.publish("jobs", [b"1", b"2"])
    place.settle()
    place.q.resume("jobs")
    assert place.q.claim("jobs", max_messages=1).payloads == [b"2"]
    assert waiting.payloads() == [b"1"]


# What it costs


def test_one_message_for_thousands_who_wait_costs_three_claims(place: Place) -> None:
    many = 2_000
    waiting = [place.come(f"w{number}") for number in range(many)]
    place.settle()
    place.asked.clear()
    place.q.publish("jobs", b"x")
    assert waiting[0].payloads() == [b"x"]
    place.settle()
    assert place.asked == ["w0", "w1", "w2"]
    assert place.room.count == many - 1


def test_as_many_messages_as_wait_cost_a_claim_each_in_a_few_rounds(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = 1_000
    waiting = [place.come(f"w{number}") for number in range(many)]
    place.settle()
    place.asked.clear()
    rounds: list[int] = []
    desk = next(iter(place.room._desks.values()))
    ask = place.room._ask

    def asking(chosen: list[object]) -> None:
        rounds.append(len(chosen))
        ask(chosen)  # type: ignore[arg-type]

    monkeypatch.setattr(place.room, "_ask", asking)
    place.q.publish("jobs", numbered(many))
    assert [one.payloads() for one in waiting] == [[payload] for payload in numbered(many)]
    assert len(place.asked) == many
    assert [size for size in rounds if size] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 256, 233]
    assert desk.empty


def test_a_desk_that_never_runs_dry_keeps_nothing_of_those_it_served(place: Place) -> None:
    place.q.publish("jobs", numbered(100))
    with place.writing():
        hurried = [place.come(f"h{number}", wait=None) for number in range(100)]
        desk = next(iter(place.room._desks.values()))
    assert [one.payloads() for one in hurried] == [[payload] for payload in numbered(100)]
    assert not desk._hurried
    assert place.is_deserted()


def test_after_some_were_served_the_next_ring_begins_with_one_again(place: Place) -> None:
    for number in range(100):
        place.come(f"w{number}")
    place.settle()
    place.q.publish("jobs", numbered(10))
    place.settle()
    place.asked.clear()
    place.q.publish("jobs", b"x")
    place.settle()
    assert place.asked == ["w10", "w11", "w12"]


def test_thousands_of_desks_are_served_each_in_turn(place: Place) -> None:
    desks, guests = scaled(100, 2_000), 10
    for topic in range(desks):
        place.q.create_topic(f"t{topic}", kind="queue")
    waiting = [
        [place.come(f"{topic} {number}", topic=f"t{topic}") for number in range(guests)] for topic in range(desks)
    ]
    place.settle()
    assert place.room.count == desks * guests
    place.asked.clear()
    for topic in range(desks):
        place.q.publish(f"t{topic}", b"x")
    assert [queue[0].payloads() for queue in waiting] == [[b"x"]] * desks
    place.settle()
    assert not any(one.told for queue in waiting for one in queue[1:])
    # Desks may share a slot of the bell: some are asked for in vain.
    assert len(place.asked) <= 3 * desks + desks * max(1, desks // 256)
    place.broker.drain()
    assert place.is_deserted()


def test_a_busy_desk_does_not_keep_a_quiet_one_from_being_served(place: Place) -> None:
    place.q.create_topic("quiet", kind="queue")
    busy, claimers = 0, 100
    stopped = False

    def again(name: str) -> None:
        def then(answer: Claimed | Exception) -> None:
            nonlocal busy
            if isinstance(answer, Claimed) and answer.parcels:
                busy += 1
                tokens = tuple(Token(parcel.lease_id) for parcel in answer.parcels)
                ack = Settle("default", answer.incarnation, "jobs", "queue", "ack", tokens)
                place.broker.submit(ack, then=lambda _: None if stopped else again(name))

        command = Claim("default", "jobs", "queue", name, 1, 1 << 26)
        place.broker.submit_claim(command, wait_until=monotonic_s() + 60, then=then)

    place.q.publish("jobs", numbered(20_000))
    waiting = place.wait("quiet", topic="quiet")
    for number in range(claimers):
        again(f"busy {number}")
    eventually(lambda: busy > 1_000)
    place.q.publish("quiet", b"x")
    before = busy
    assert waiting.payloads() == [b"x"]
    assert busy - before <= 4 * claimers
    assert busy < 20_000
    stopped = True


def test_a_batch_goes_to_one_and_the_rest_to_the_next(place: Place) -> None:
    waiting = [place.wait(name, most=3) for name in "abc"]
    place.q.publish("jobs", numbered(5))
    place.settle()
    assert [one.payloads() for one in waiting[:2]] == [numbered(3), numbered(5)[3:]]
    assert not waiting[2].told


def test_one_who_left_is_passed_over(place: Place) -> None:
    waiting = [place.wait(name) for name in "abcdef"]
    for index in (0, 2, 3):
        assert waiting[index].leave()
    place.q.publish("jobs", numbered(2))
    place.settle()
    assert names(place.told) == ["b", "e"]
    place.q.publish("jobs", duly.Message(b"last"))
    assert waiting[5].payloads() == [b"last"]
