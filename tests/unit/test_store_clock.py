"""The store's clock, by sources that a test steps, stops and starts anew.

What a host can do: time goes by, the wall clock is stepped, the machine sleeps, is switched off and on. `Host` does
all of it and knows the true time, which no clock of it knows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import duly
from duly.clock import HOST, Sources
from duly.limits import DAY_MS, MINUTE_MS
from duly.store.sqlite.store_clock import (
    MARK_EVERY_MS,
    OFF_MS_MAX,
    STEP_MS_MAX,
    Mark,
    StoreClock,
    decode_mark,
    encode_mark,
)
from tests.conftest import scaled
from tests.unit.machine import MS, Host

HOUR_MS = 60 * MINUTE_MS


@dataclass
class File:
    """What survives: the mark. Each process has a clock of its own, and reads and writes the mark in transactions."""

    host: Host
    mark: str | None = None
    committed_ms: int = 0
    _writer: StoreClock | None = field(default=None, repr=False)

    def open(self) -> StoreClock:
        clock = StoreClock(self.host.sources())
        clock.open(self.mark)
        return clock

    def transact(self, clock: StoreClock, *, writes: bool = True) -> int:
        reread = clock is not self._writer
        now_ms = clock.begin(self.mark if reread else None, reread=reread)
        if writes:
            self._writer = clock
            self.mark = clock.mark_due(now_ms) or self.mark
            self.committed_ms = max(self.committed_ms, now_ms)
        return now_ms

    def accept(self, clock: StoreClock) -> None:
        clock.begin(self.mark)
        self.mark = clock.accept()
        self._writer = clock


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def file(host: Host) -> File:
    return File(host)


def test_a_new_store_takes_the_hosts_time(host: Host, file: File) -> None:
    assert file.transact(file.open()) == host.wall_ms


def test_time_goes_on_with_the_host(host: Host, file: File) -> None:
    clock = file.open()
    host.true_ms += 12_345
    assert clock.now_ms() == file.transact(clock) == host.wall_ms
    assert clock.reading().state == "together"


def test_the_hosts_own_sources_tell_its_time() -> None:
    clock = StoreClock(HOST)
    assert abs(clock.now_ms() - duly.SystemClock().now_ms()) <= 50
    assert HOST.boot_id() == HOST.boot_id() != ""
    assert HOST.boot_ns() < HOST.boot_ns() + 1 <= HOST.boot_ns() + 1_000_000_000


@pytest.mark.parametrize("back_ms", [2, 500, HOUR_MS, DAY_MS, 56 * 365 * DAY_MS])
def test_a_wall_clock_set_back_does_not_take_time_back(host: Host, file: File, back_ms: int) -> None:
    clock = file.open()
    host.wrong_ms = -back_ms
    host.true_ms += 30_000
    assert file.transact(clock) == host.true_ms, "time goes on by boot time, neither frozen nor faster"
    assert clock.reading().state == ("behind" if back_ms > 1000 else "together")


def test_a_wall_clock_put_right_again_leaves_no_trace(host: Host, file: File) -> None:
    clock = file.open()
    for wrong_ms in (-DAY_MS, 0, DAY_MS, 0, -HOUR_MS, 0):
        host.wrong_ms = wrong_ms
        host.true_ms += 20_000
        assert file.transact(clock) == host.true_ms


@pytest.mark.parametrize("step_ms", [2, 500, STEP_MS_MAX])
def test_a_small_step_ahead_is_followed_and_recorded_for_the_others(host: Host, file: File, step_ms: int) -> None:
    clock, other = file.open(), file.open()
    file.transact(clock)
    host.wrong_ms = step_ms
    assert file.transact(clock) == host.wall_ms
    host.wrong_ms = 0
    assert file.transact(other) == host.true_ms + step_ms, "it learnt of it from the mark"


def test_a_small_step_while_nobody_has_the_file_open_is_followed_at_once(host: Host, file: File) -> None:
    file.transact(file.open())
    host.wrong_ms = 5000
    assert file.open().now_ms() == host.wall_ms


def test_who_followed_a_step_does_not_go_back_to_those_who_did_not_see_it(host: Host, file: File) -> None:
    clock, other = file.open(), file.open()
    file.transact(other)
    host.wrong_ms = 500
    clock.look(file.mark)
    host.wrong_ms = 0
    file.transact(other)
    assert file.transact(clock) == host.true_ms + 500
    assert file.transact(other) == host.true_ms + 500, "it was recorded, whenever the last mark was"


def test_a_leap_ahead_is_refused_and_told_once(host: Host, file: File) -> None:
    clock = file.open()
    host.wrong_ms = DAY_MS
    told = []
    for _ in range(3):
        host.true_ms += 1000
        assert file.transact(clock) == host.true_ms
        told.append(clock.take_alert())
    assert told[0] is not None
    assert (told[0].kind, told[0].alert, told[0].facts["ahead_s"]) == ("clock_refused", True, 86_400)
    assert "duly clock --accept" in str(told[0].facts["next"])
    assert told[1:] == [None, None]
    assert clock.reading().state == "refused"


def test_a_second_leap_is_told_again(host: Host, file: File) -> None:
    clock = file.open()
    for wrong_ms in (DAY_MS, 0, DAY_MS):
        host.wrong_ms = wrong_ms
        file.transact(clock)
        assert (clock.take_alert() is not None) == (wrong_ms != 0)


def test_a_leap_is_refused_by_a_process_that_starts_after_it(host: Host, file: File) -> None:
    file.transact(file.open())
    host.wrong_ms = DAY_MS
    clock = file.open()
    assert clock.now_ms() == file.transact(clock) == host.true_ms
    assert clock.take_alert() is not None


@pytest.mark.parametrize("wrong_ms", [DAY_MS, -DAY_MS])
def test_what_a_person_confirms_holds_for_every_process(host: Host, file: File, wrong_ms: int) -> None:
    clock, other = file.open(), file.open()
    host.wrong_ms = wrong_ms
    file.transact(other)
    file.accept(clock)
    assert clock.now_ms() == file.transact(other) == file.transact(file.open()) == host.wall_ms
    assert clock.reading().state == other.reading().state == "together"
    host.true_ms += 5000
    assert file.transact(clock) == file.transact(other) == host.wall_ms


def test_confirming_in_a_transaction_that_is_rolled_back_changes_nothing(host: Host, file: File) -> None:
    clock = file.open()
    file.transact(clock)
    host.wrong_ms = DAY_MS
    clock.accept()
    assert clock.begin(file.mark, reread=True) == host.true_ms


def test_an_old_snapshot_does_not_undo_a_confirmation(host: Host, file: File) -> None:
    clock = file.open()
    before = file.mark
    host.wrong_ms = -DAY_MS
    file.accept(clock)
    clock.look(before)
    assert clock.now_ms() == host.wall_ms


def test_sleep_of_the_machine_is_no_leap(host: Host, file: File) -> None:
    clock = file.open()
    host.true_ms += 30 * DAY_MS
    assert file.transact(clock) == host.wall_ms
    assert clock.take_alert() is None


def test_a_machine_that_was_off_has_the_time_when_it_starts(host: Host, file: File) -> None:
    file.transact(file.open())
    host.reboot(off_ms=300 * DAY_MS)
    clock = file.open()
    assert clock.now_ms() == host.wall_ms
    assert clock.reading().state == "together"


def test_a_dead_battery_that_says_2099_is_not_believed(host: Host, file: File) -> None:
    file.transact(file.open())
    host.reboot()
    host.wrong_ms = OFF_MS_MAX
    clock = file.open()
    file.transact(clock)
    assert clock.now_ms() <= host.true_ms
    assert clock.take_alert() is not None
    host.wrong_ms = 0
    assert file.transact(clock) == host.true_ms, "put right, it is followed: it was off for a minute"


def test_a_dead_battery_that_says_1970_neither_takes_time_back_nor_freezes_it(host: Host, file: File) -> None:
    last_ms = file.transact(file.open())
    host.reboot()
    host.wrong_ms = -host.true_ms
    clock = file.open()
    assert clock.now_ms() == last_ms
    host.true_ms += 30_000
    assert file.transact(clock) == file.open().now_ms() == last_ms + 30_000


def test_a_snapshot_that_winds_boot_time_back_does_not_take_time_back(host: Host, file: File) -> None:
    clock = file.open()
    host.true_ms += HOUR_MS
    last_ms = file.transact(clock)
    host.started_ms += HOUR_MS // 2
    host.wrong_ms = -DAY_MS
    assert file.open().now_ms() == last_ms


def test_two_machines_on_one_file_do_not_take_each_other_back(host: Host, file: File) -> None:
    here = file.open()
    there = Host(true_ms=host.true_ms, wrong_ms=90_000, started_ms=host.true_ms - 1000, boots=77)
    elsewhere = StoreClock(there.sources())
    seen = []
    for _ in range(4):
        host.true_ms += 100
        there.true_ms += 100
        seen += [file.transact(here), file.transact(elsewhere)]
    assert seen == sorted(seen)
    assert seen[-1] == there.wall_ms


def test_a_transaction_takes_the_mark_along_once_a_second_and_only_if_it_writes(host: Host, file: File) -> None:
    clock = file.open()
    marks = {file.mark}
    for n in range(100):
        host.true_ms += 100
        file.transact(clock, writes=n % 10 != 0)
        marks.add(file.mark)
    assert 9 <= len(marks) <= 11
    assert file.mark is not None
    assert file.committed_ms - decode_mark(file.mark).at_ms < MARK_EVERY_MS


def test_a_rolled_back_mark_is_written_again(host: Host, file: File) -> None:
    clock = file.open()
    for _ in ("no mark yet", "an old mark"):
        host.true_ms += 5000
        assert clock.mark_due(clock.begin()) is not None, "and this transaction is rolled back"
        assert clock.mark_due(clock.begin(file.mark, reread=True)) is not None
        file.transact(clock)


def test_a_damaged_mark_is_refused_with_what_to_do() -> None:
    stored = encode_mark(Mark(1, 2, "boot", 0))
    flipped = [stored[:at] + chr(ord(stored[at]) ^ 1) + stored[at + 1 :] for at in range(len(stored))]
    for text in ("", "x", "{}", *flipped):
        with pytest.raises(duly.StoreError, match="backup"):
            decode_mark(text)


def test_sleepers_are_woken_when_time_moved_under_them(host: Host, file: File) -> None:
    clock = file.open()
    clock.look(file.mark)
    assert clock.look(file.mark) is False, "nothing happened (but for some microseconds of the real monotonic clock)"
    host.wrong_ms = MINUTE_MS
    assert clock.look(file.mark) is True
    host.true_ms += HOUR_MS
    assert clock.look(file.mark) is True, "the machine slept: the monotonic clock did not count it"


def test_a_thread_put_aside_between_the_two_clocks_is_no_step() -> None:
    moving = Host()

    def slowly(read: int) -> int:
        # Between any two readings 3 ms pass.
        moving.true_ms += 3
        return read

    sources = Sources(
        lambda: slowly(moving.wall_ms * MS), lambda: slowly((moving.true_ms - moving.started_ms) * MS), lambda: "b"
    )
    clock = StoreClock(sources)
    for _ in range(50):
        assert moving.wall_ms - 20 <= clock.begin() <= moving.wall_ms - 3, "3 ms have passed since the last reading"


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("passes"), st.integers(0, 3 * HOUR_MS)),
        st.tuples(st.just("transact"), st.integers(0, 2)),
        st.tuples(st.just("look"), st.integers(0, 2)),
        st.tuples(st.just("restart"), st.integers(0, 2)),
        st.tuples(st.just("accept"), st.integers(0, 2)),
        st.tuples(st.just("step"), st.integers(-2 * DAY_MS, 2 * DAY_MS)),
        st.tuples(st.just("small step"), st.integers(-5000, 5000)),
        st.tuples(st.just("put right"), st.just(0)),
        st.tuples(st.just("reboot"), st.integers(0, 30 * DAY_MS)),
    ),
    max_size=40,
)


@settings(max_examples=scaled(300, 20_000), deadline=None, print_blob=True)
@given(STEPS, st.integers(-2 * DAY_MS, 2 * DAY_MS))
def test_time_never_goes_back_never_freezes_and_is_never_early(steps: list[tuple[str, int]], wrong_ms: int) -> None:
    """Three processes on a file while the host does its worst.

    Early: the store's time is never ahead of the furthest that a wall clock, as it was believed, has been ahead
    of the true time. Belief is: when a store or a machine starts, and in steps of ten minutes at most.
    """
    host = Host(wrong_ms=wrong_ms)
    file = File(host)
    clocks = [file.open() for _ in range(3)]
    last_ms = file.transact(clocks[0])
    believed_ms = wrong_ms
    for what, n in steps:
        true_before = host.true_ms
        before = [clock.now_ms() for clock in clocks]
        if what == "passes":
            host.true_ms += n
        elif what == "transact":
            now_ms = file.transact(clocks[n])
            assert now_ms >= last_ms, "time went back"
            last_ms = now_ms
        elif what == "look":
            clocks[n].look(file.mark)
        elif what == "restart":
            clocks[n] = file.open()
            assert clocks[n].now_ms() >= last_ms, "a new process went back"
        elif what == "accept":
            file.accept(clocks[n])
            last_ms = clocks[n].now_ms()
            assert last_ms == host.wall_ms
            believed_ms = max(believed_ms, host.wrong_ms)
        elif what in ("step", "small step"):
            host.wrong_ms += n
        elif what == "put right":
            host.wrong_ms = 0
        elif what == "reboot":
            host.reboot(n)
            clocks = [file.open() for _ in range(3)]
            # Nobody saw the time between the last commit and the end; a second of what was seen may be repeated.
            last_ms = max(0, last_ms - MARK_EVERY_MS)
            believed_ms = max(believed_ms, host.wrong_ms)
        if host.wall_ms - max(clock.now_ms() for clock in clocks) <= STEP_MS_MAX:
            believed_ms = max(believed_ms, host.wrong_ms)
        for clock, was in zip(clocks, before, strict=True):
            assert clock.now_ms() - host.true_ms <= believed_ms, "it is early"
            if what == "passes":
                assert clock.now_ms() - was >= host.true_ms - true_before, "it is frozen"
    assert max(clock.now_ms() for clock in clocks) >= last_ms


@settings(max_examples=scaled(100, 5000), deadline=None)
@given(st.integers(), st.integers(), st.text(), st.integers())
def test_a_mark_comes_back_as_it_was_stored(at_ms: int, shift_ns: int, boot: str, accepted: int) -> None:
    clip = 2**62
    mark = Mark(at_ms % clip, shift_ns % clip, boot.encode(errors="replace").decode(), accepted % clip)
    assert decode_mark(encode_mark(mark)) == mark
