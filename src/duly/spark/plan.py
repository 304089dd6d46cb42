"""What a round of the archive takes: from each partition a range that the lake lacks, and together no more than asked.

lake has V, the log begins at F and ends at N, its watermark stands at W

V unknown              from F on: archiving begins here, or in another lake before this one. What lies below F is said
F <= V <= N            [V, N)
V < F, W < F           from F on: archiving was off for a while, and [V, F) was dropped meanwhile. Said
V < F <= W             the lake had [V, F) once, else W would not be there: it lost a version. Refused
V > N                  the log lost its end: its file was put back without `duly restore`. Refused
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ..errors import CorruptLake, LakeError
from .lake import Origin, Range, Version

# A round that is broken off is done again: what is lost is bounded, and so is what a task sorts in memory.
_ROUND_BYTES = 2 * 1024**3
TASK_ROWS = 250_000
_TASK_BYTES = 128 * 1024**2


class Standing(msgspec.Struct, frozen=True):
    """A partition that is to be archived, as it stands in the store."""

    origin: Origin
    queue: bool
    first_offset: int
    next_offset: int
    archived_to: int
    bytes: int
    # Of a queue: below it, what it had settled may be missing.
    archive_from: int = 0

    @property
    def row_bytes(self) -> int:
        """How many bytes a message has, about."""
        return max(1, self.bytes // max(1, self.next_offset - self.first_offset))


class Gap(msgspec.Struct, frozen=True):
    """Offsets [begin, end) that are neither in the log nor in this lake, and never will be in it."""

    origin: Origin
    begin: int
    end: int

    def __str__(self) -> str:
        return (
            f"Offsets {self.begin} to {self.end - 1} of {self.origin} were dropped before this lake got them: it "
            f"begins at {self.end}."
        )


class Plan(msgspec.Struct, frozen=True):
    """The ranges of a round, what of them begins with a gap, and how many messages stay for the next.

    `ends` says of every topic, by tenant and name, where its partitions end.
    """

    ranges: tuple[Range, ...]
    ends: Mapping[tuple[str, str], Mapping[int, int]]
    gaps: tuple[Gap, ...]
    left: int
    task_rows: int = TASK_ROWS

    @property
    def rows(self) -> int:
        """How many offsets it spans."""
        return sum(one.count for one in self.ranges)


def debts(version: Version, standings: Sequence[Standing]) -> list[Range]:
    """What the lake has above the watermarks: an archiver was killed after its commit, and said nothing of it."""
    found = []
    for one in standings:
        has = version.has(one.origin)
        if has is not None and has > one.archived_to:
            found.append(Range(one.origin, one.archived_to, has, version.whole_from(one.origin)))
    return found


def plan(
    version: Version, standings: Sequence[Standing], *, rows_max: int, until: Mapping[Origin, int] | None = None
) -> Plan:
    """A round on a version; with `until` nothing beyond those offsets. Raises LakeError, CorruptLake."""
    wanted: list[tuple[Standing, Range]] = []
    gaps: list[Gap] = []
    for one in standings:
        end = one.next_offset if until is None else min(one.next_offset, until.get(one.origin, 0))
        lacks, gap = _lacks(version, one, end)
        if lacks.begin < lacks.end:
            wanted.append((one, lacks))
            gaps += [gap] if gap is not None else []
    ranges = _shared(wanted, rows_max)
    taken = {one.origin for one in ranges}
    left = sum(one.count for _, one in wanted) - sum(one.count for one in ranges)
    row_bytes = max((one.row_bytes for one, _ in wanted), default=1)
    task_rows = max(1, min(TASK_ROWS, _TASK_BYTES // row_bytes))
    return Plan(tuple(ranges), _ends(standings), tuple(gap for gap in gaps if gap.origin in taken), left, task_rows)


def _ends(standings: Sequence[Standing]) -> dict[tuple[str, str], dict[int, int]]:
    found: dict[tuple[str, str], dict[int, int]] = {}
    for one in standings:
        found.setdefault((one.origin.tenant, one.origin.topic), {})[one.origin.partition] = one.next_offset
    return found


def _lacks(version: Version, one: Standing, end: int) -> tuple[Range, Gap | None]:
    has = version.has(one.origin)
    if has is not None and has > one.next_offset:
        raise LakeError(
            f"The lake has {one.origin} up to offset {has}, and its log ends at {one.next_offset}: an older copy "
            "of the store's file was put back. Use `duly restore`, which makes it another incarnation, or another lake."
        )
    if has is not None and has < one.first_offset <= one.archived_to:
        raise CorruptLake(
            f"The lake has {one.origin} up to offset {has}, its log begins at {one.first_offset}, and its watermark "
            f"says that {one.archived_to} was reached: the lake lost versions. Restore it, or use another lake."
        )
    if has is not None and has >= one.first_offset:
        return Range(one.origin, has, end, max(version.whole_from(one.origin), one.archive_from)), None
    gap = Gap(one.origin, has or 0, one.first_offset) if one.first_offset > (has or 0) else None
    # A queue may have lost blocks out of the middle of what is there now; from now on it does not.
    whole = one.next_offset if one.queue else one.first_offset
    return Range(one.origin, one.first_offset, end, whole), gap


def _shared(wanted: Sequence[tuple[Standing, Range]], rows_max: int) -> list[Range]:
    """Ranges cut so that together they are bounded: the small ones whole, the others share what is left."""
    ranges: list[Range] = []
    rows, room = _not_for_a_few(rows_max, sum(lacks.count for _, lacks in wanted)), _ROUND_BYTES
    by_size = sorted(wanted, key=lambda pair: pair[1].count)
    for at, (one, lacks) in enumerate(by_size):
        waiting = len(by_size) - at
        count = min(lacks.count, max(1, rows // waiting), max(1, room // waiting // one.row_bytes))
        if rows <= 0 or room <= 0:
            break
        ranges.append(_cut(lacks, count))
        rows, room = rows - count, room - count * one.row_bytes
    return ranges


def _not_for_a_few(rows_max: int, rows: int) -> int:
    """A round costs a second or two however little it takes: what is a little over goes along."""
    return rows if rows_max < rows <= rows_max * 5 // 4 else rows_max


def _cut(lacks: Range, count: int) -> Range:
    """The first so many; not across the offset from which on it has to be whole, so that either rule holds for all."""
    end = lacks.begin + count
    if lacks.begin < lacks.whole < end:
        end = lacks.whole
    return msgspec.structs.replace(lacks, end=end)
