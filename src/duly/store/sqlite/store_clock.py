"""The store's clock: the host's time, which neither runs back nor leaps, for every process on the file.

Due times, leases and retries are compared with it. It is the host's *boot time* (it counts from the start of the
machine, through sleep, and nobody can set it) plus a *shift*, which makes it the time of day. On Linux the wall
clock is made of the same counter, so wall minus boot time is constant to the nanosecond until somebody *steps* the
wall clock: by hand, by time synchronisation, by restoring a virtual machine. A step is what this file is about.

The file holds a mark, a key of duly_meta: the shift, the boot it belongs to (an id that the kernel draws), the time
of the newest commit, and how often a person has confirmed the host's clock. All processes of a boot take the shift
from there, so they have one time, and a process that starts anew goes on where the last one was. (Until the first
of them has written in a new boot each has what it found when it opened the file; whoever is ahead is followed.)

Every transaction looks at the wall clock again:

    together ──stepped ahead, up to 10 minutes──▶ together   the shift grows; leases lose that much
       │ ▲ ──stepped back──▶ behind     time goes on by boot time, ahead of the wall
       │ └── the wall is there, or a person confirmed it
       └──stepped ahead by more──▶ refused     time goes on by boot time, behind the wall: an alert, once
            left when a person confirms it (`duly clock --accept`), the wall goes back, or the machine starts anew

So a wall clock that is a day wrong for an hour and is then put right leaves no trace: nothing is early, no lease
ends at once and none is frozen. Ten minutes are more than time synchronisation and a paused virtual machine need,
and less than any mistake with a time zone makes. Sleep of the machine is no step: boot time counts it.

Another boot (another machine, a backup from elsewhere): how long it has been off nobody knows. A wall clock up to a
year ahead of the mark is believed, because being switched off is the usual reason. One that is behind the mark is
not: time goes on from the mark. One further ahead is refused: a dead battery says 2099 as well as 1970.

What is written: the mark goes along with a transaction that writes anyway, once a second at most. So after a start
of the machine with a wall clock that is behind, time may go back by up to a second against what was committed last:
a lease lasts a second longer. In every other case it does not go back at all, unless a person says so by
confirming a wall clock that is behind; leases and retries then wait that much longer.

Who waits, waits by the monotonic clock, for a difference of the store's time; a step or sleep would leave it waiting
too long. The caretaker of each process looks once a minute (`look`), and if time has moved against the monotonic
clock wakes everyone in the process. A confirmation rings in all processes.

The wall is read first, then boot time. A thread that is put aside in between finds the wall further *behind*; the
other way round it would find it ahead, take that for a step, and be early ever after.

Without a boot id (not Linux) every process counts as a boot of its own: time does not run back, and a leap is refused
while a process runs but believed when it starts. Boot time is the monotonic clock then; on macOS it counts sleep too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec
from xxhash import xxh64_hexdigest

from ...clock import ClockReading, Sources, from_ms, monotonic_s
from ...errors import StoreError
from ...events import Event
from ...health import Finding
from ...limits import DAY_MS, MINUTE_MS

# A step ahead that is taken without asking, in a boot and over a start of the machine.
STEP_MS_MAX = 10 * MINUTE_MS
OFF_MS_MAX = 366 * DAY_MS
# How far the newest commit may be ahead of the mark.
MARK_EVERY_MS = 1000

_MS = 1_000_000
# Below this the wall clock is where it was: two clocks cannot be read at the same instant.
_STEP_NS_MIN = _MS
# The store's time against the monotonic clock: moved by more than this, sleepers have to look again.
_MOVED_NS_MIN = 5 * _MS
_BEHIND_NS_SHOWN = 1000 * _MS


class Mark(msgspec.Struct, frozen=True):
    """The clock as the file has it. `shift_ns` is worth something in its boot only."""

    at_ms: int
    shift_ns: int
    boot: str
    accepted: int


_decoder = msgspec.json.Decoder(Mark)


def encode_mark(mark: Mark) -> str:
    """The mark as it is stored, behind its checksum: a flipped bit could deliver a year's messages."""
    text = msgspec.json.encode(mark)
    return f"{xxh64_hexdigest(text)} {text.decode()}"


def decode_mark(stored: str) -> Mark:
    """The mark out of what is stored."""
    checksum, _, text = stored.partition(" ")
    if checksum != xxh64_hexdigest(text.encode()):
        raise StoreError(
            "The mark of the store's clock is damaged. Restore the newest backup; or, if the host's time is right, "
            "run: DELETE FROM duly_meta WHERE key = 'clock'"
        )
    return _decoder.decode(text)


class StoreClock:
    """A clock of one store. Thread-safe; whoever changes it holds the lock, whoever asks needs none."""

    def __init__(self, host: Sources) -> None:
        self._wall_ns = host.wall_ns
        self._boot_ns = host.boot_ns
        self._boot = host.boot_id()
        self._lock = threading.Lock()
        self._shift_ns = self._host_shift_ns()
        self._accepted = 0
        # From when on a transaction that writes takes the mark along; 0: the next one does.
        self._mark_from_ms = 0
        self._refused = False
        self._told = False
        self._lead_ns = self._lead()

    # The clock

    def now_ms(self) -> int:
        return (self._boot_ns() + self._shift_ns) // _MS

    def wait_s(self, until_ms: int) -> float | None:
        # Half a millisecond more: waking a hair early would cost a second, useless look.
        return max(0.0, (until_ms * _MS - self._boot_ns() - self._shift_ns) / 1e9 + 0.0005)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Nothing: `look` says when those who sleep have to look again."""

    # With the store

    def open(self, stored: str | None) -> None:
        """Begins from the file's mark. Nothing is written: a full device must not keep anyone from opening."""
        if stored is None:
            return
        mark = decode_mark(stored)
        self._accepted = mark.accepted
        self._shift_ns = self._shift_of(mark)
        if mark.boot == self._boot:
            self._mark_from_ms = mark.at_ms + MARK_EVERY_MS
            self._step()
        else:
            self._believe_the_wall()

    def begin(self, stored: str | None = None, *, reread: bool = False) -> int:
        """The time of a transaction. `reread`: `stored` is the mark, which another process may have changed."""
        if stored is not None:
            self._follow(decode_mark(stored), authoritative=True)
        elif reread:
            self._mark_from_ms = 0
        ahead_ns = self._wall_ns() - self._boot_ns() - self._shift_ns
        if ahead_ns > _STEP_NS_MIN or self._refused:
            self._step()
        return self.now_ms()

    def mark_due(self, now_ms: int) -> str | None:
        """The mark for a transaction that writes to take along, if it is time."""
        if now_ms < self._mark_from_ms:
            return None
        self._mark_from_ms = now_ms + MARK_EVERY_MS
        return self._mark(now_ms)

    def look(self, stored: str | None) -> bool:
        """Compares with the host and the file, outside of a transaction. True: time has moved under those who sleep."""
        if stored is not None:
            self._follow(decode_mark(stored), authoritative=False)
        self._step()
        lead_ns = self._lead()
        moved = abs(lead_ns - self._lead_ns) > _MOVED_NS_MIN
        self._lead_ns = lead_ns
        return moved

    def accept(self) -> str:
        """Takes the host's time, whatever it is. Returns the mark to store; a rollback brings the old one back."""
        with self._lock:
            self._shift_ns = self._host_shift_ns()
            self._accepted += 1
            self._refused = self._told = False
            now_ms = self.now_ms()
            self._mark_from_ms = now_ms + MARK_EVERY_MS
            return self._mark(now_ms)

    # What people see

    def reading(self) -> ClockReading:
        """The store's time beside the host's."""
        wall_ns, now_ns = self._wall_ns(), self._boot_ns() + self._shift_ns
        state = "together"
        if wall_ns - now_ns > STEP_MS_MAX * _MS:
            state = "refused"
        elif now_ns - wall_ns > _BEHIND_NS_SHOWN:
            state = "behind"
        return ClockReading(from_ms(now_ns // _MS), from_ms(wall_ns // _MS), state)

    def take_alert(self) -> Event | None:
        """The alert that a leap was refused: once, until the clock has been right again."""
        if not self._refused or self._told:
            return None
        self._told = True
        read = self.reading()
        facts: dict[str, object] = {
            "ahead_s": round((read.host - read.now).total_seconds()),
            "what": "The host's clock leapt ahead, and the store does not follow: what is due by it comes late.",
            "next": "Check the host's time. If it is right: duly clock --accept. If not: put it right.",
        }
        return Event("clock_refused", self.now_ms(), facts=facts)

    # Inside

    def _host_shift_ns(self) -> int:
        # The wall first: see above. The best of three, in case the thread was put aside.
        return max(self._wall_ns() - self._boot_ns() for _ in range(3))

    def _lead(self) -> int:
        return self._boot_ns() + self._shift_ns - round(monotonic_s() * 1e9)

    def _mark(self, now_ms: int) -> str:
        return encode_mark(Mark(now_ms, self._shift_ns, self._boot, self._accepted))

    def _shift_of(self, mark: Mark) -> int:
        """The shift with which time goes on from a mark."""
        from_mark = mark.at_ms * _MS - self._boot_ns()
        # The greater one: should boot time have been wound back (a snapshot was restored), time still does not.
        return max(mark.shift_ns, from_mark) if mark.boot == self._boot else from_mark

    def _believe_the_wall(self) -> None:
        """After a start of the machine: a wall clock ahead of the mark is believed, within reason."""
        ahead_ns = self._host_shift_ns() - self._shift_ns
        if 0 < ahead_ns <= OFF_MS_MAX * _MS:
            self._shift_ns += ahead_ns

    def _follow(self, mark: Mark, *, authoritative: bool) -> None:
        """Takes over what another process found. An old snapshot must not undo what a person confirmed since."""
        with self._lock:
            if mark.accepted < self._accepted and not authoritative:
                return
            shift_ns = self._shift_of(mark)
            same = mark.accepted == self._accepted
            self._shift_ns = max(self._shift_ns, shift_ns) if same else shift_ns
            self._accepted = mark.accepted
            as_stored = mark.boot == self._boot and mark.shift_ns == self._shift_ns
            self._mark_from_ms = mark.at_ms + MARK_EVERY_MS if as_stored else 0

    def _step(self) -> None:
        """Follows the wall clock ahead, or refuses to."""
        with self._lock:
            host_ns = self._host_shift_ns()
            ahead_ns = host_ns - self._shift_ns
            self._refused = ahead_ns > STEP_MS_MAX * _MS
            if not self._refused:
                self._told = False
                if ahead_ns > _STEP_NS_MIN:
                    self._shift_ns = host_ns
                    self._mark_from_ms = 0


def clock_findings(reading: ClockReading) -> list[Finding]:
    """What an examination says of the clock, where it does not go with the host's."""
    apart = abs((reading.host - reading.now).total_seconds())
    if reading.state == "refused":
        return [
            Finding(
                "alert",
                f"The host's clock leapt {apart:.0f} s ahead, and the store does not follow.",
                "The store's time goes on at its pace: what is due by the host's clock comes late.",
                "Check the host's time. If it is right, run: duly clock --accept. If not, put it right.",
            )
        ]
    if reading.state == "behind":
        return [
            Finding(
                "warn",
                f"The host's clock is {apart:.1f} s behind the store's.",
                "It was set back. The store's time goes on, ahead of it, until the host's is there.",
                "Check the host's time. If it is right, and the store should go back: duly clock --accept",
            )
        ]
    return []
