"""The examination of a store: integrity, checksums, references, clock, disk, settings.

It only reads, on a connection of its own, while everyone else goes on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import apsw

from ...engine.block import KEPT, Place, decode
from ...engine.secrets import Keyring
from ...errors import CorruptBlock, IncompatibleStore, Sealed
from ...health import Finding
from ..sql import examination as found
from ..sql import sealed_examination as sealed
from ..sql.schedule_examination import schedules
from .queries import queries

_FREE_WARN, FREE_ALERT = 0.10, 0.02
_PREFIX = "duly_"
_WAL_BYTES_WARN = 512 * 1024 * 1024


def examine(connection: apsw.Connection, path: str, now_ms: int, keyring: Keyring) -> Iterator[Finding]:
    """Looks at everything, the quick things first."""
    ask = connection.execute
    opened = sealed.Opening(keyring, ask, _PREFIX)
    checks: list[Callable[[apsw.Connection], Iterator[Finding]]] = [
        _settings,
        _paused,
        partial(_clock, now_ms=now_ms),
        _integrity,
        lambda _: sealed.keys(opened, ask, _PREFIX),
        partial(_blocks, opened=opened),
        _chunks,
        lambda _: schedules(opened, ask, _PREFIX),
        lambda _: sealed.stages(opened, ask, _PREFIX),
        partial(_runs, opened=opened),
        lambda _: sealed.values(opened, ask, _PREFIX),
        _ids,
        _references,
        _ends,
    ]
    if path != ":memory:":
        checks.insert(2, lambda _: _disk(path))
    for check in checks:
        try:
            yield from check(connection)
        except (apsw.Error, *found.NONSENSE) as error:
            # A flipped bit can also leave nothing, or text, where a number belongs.
            yield found.unreadable(error, "The file")


def _value(connection: apsw.Connection, statement: str) -> Any:
    """The one value that a statement answers."""
    ((value,),) = connection.execute(statement)
    return value


def _settings(connection: apsw.Connection) -> Iterator[Finding]:
    mode = _value(connection, "PRAGMA journal_mode")
    if mode in ("wal", "memory"):
        yield Finding("ok", f"SQLite {apsw.sqlite_lib_version()}, journal mode {mode}, synced at every commit")
    else:
        yield Finding(
            "alert",
            f"The journal mode is {mode}.",
            "Another program changed it; acknowledged writes may be lost at power loss.",
            "Close every program on the file and run: PRAGMA journal_mode = WAL",
        )
    if _value(connection, "PRAGMA auto_vacuum") != 2:
        yield Finding(
            "warn",
            "Space does not return to the device.",
            "The file was rebuilt without incremental vacuum.",
            "Close every program on the file and run: PRAGMA auto_vacuum = INCREMENTAL; VACUUM",
        )


def _paused(connection: apsw.Connection) -> Iterator[Finding]:
    row: Any = connection.execute(queries()["store_paused"]).fetchone()
    if row is not None:
        yield found.paused(row[0])


def _clock(connection: apsw.Connection, now_ms: int) -> Iterator[Finding]:
    claimed = _value(connection, "SELECT coalesce(max(claimed_at_ms), 0) FROM duly_lease")
    seen = _value(connection, "SELECT coalesce(max(seen_at_ms), 0) FROM duly_consumer")
    yield found.clock(now_ms=now_ms, newest_ms=max(claimed, seen))


def room_on_device(path: str) -> tuple[int, float]:
    """The bytes that are left on the device, and their share of it."""
    disk = os.statvfs(os.path.dirname(path))
    return disk.f_bavail * disk.f_frsize, disk.f_bavail / max(1, disk.f_blocks)


def _disk(path: str) -> Iterator[Finding]:
    left, share = room_on_device(path)
    free = f"{left / 1e9:.1f} GB free ({share:.0%})"
    if share < _FREE_WARN:
        level = "alert" if share < FREE_ALERT else "warn"
        yield Finding(
            level,
            f"The device is nearly full: {free}.",
            "Publishing stops when it is full.",
            "Free space, or shorten retention.",
        )
    else:
        yield Finding("ok", f"Disk: {free}")
    wal = os.path.getsize(path + "-wal") if os.path.exists(path + "-wal") else 0
    if wal > _WAL_BYTES_WARN:
        yield Finding(
            "warn",
            f"The write-ahead log has {wal / 1e6:.0f} MB.",
            "A reader has kept an old snapshot open, so it cannot be folded in.",
            "Find the process that reads the file for so long and end its transaction.",
        )
    mode = os.stat(path).st_mode & 0o077
    if mode:
        yield Finding(
            "warn",
            "Other users can reach the file.",
            "It holds your messages in the clear.",
            f"Run: chmod 600 {path}",
        )


def _integrity(connection: apsw.Connection) -> Iterator[Finding]:
    try:
        faults = [row[0] for row in connection.execute("PRAGMA integrity_check(20)") if row[0] != "ok"]
    except apsw.Error as error:
        faults = [str(error)]
    for fault in faults:
        yield Finding(
            "alert",
            f"SQLite's integrity check: {fault}",
            "The file is damaged below Duly.",
            "Restore the newest backup.",
        )
    if not faults:
        yield Finding("ok", "SQLite's integrity check finds nothing")


def _blocks(connection: apsw.Connection, opened: sealed.Opening) -> Iterator[Finding]:
    """Every block's checksum and place, and that no offset is missing."""
    sql = queries()
    good = bad = closed = 0
    following: dict[tuple[int, int], int] = {}
    first_offsets = dict(connection.execute("SELECT id, first_offset FROM duly_part"))
    # A queue's log loses blocks in its middle too, once they are settled.
    queues = {partition for (partition,) in connection.execute("SELECT partition FROM duly_queue")}

    def chunk(number: int) -> bytes | None:
        row = connection.execute(sql["chunk"], {"id": number}).fetchone()
        return None if row is None else row[0]

    for query, data_query, third, bound in (
        ("block_places", "block_data", "base", b""),
        ("kept_places", "kept", "offset", KEPT),
    ):
        before: tuple[Any, ...] = ()
        for place in connection.execute(sql[query]):
            # A tree that is damaged can lead in circles, for ever.
            if before and place <= before:
                bad += 1
                yield found.bad_block(f"The blocks of the file are out of order, from {place} on.")
                break
            tenant, partition, at = before = place
            values = {"tenant": tenant, "partition": partition, third: at}
            try:
                ((data,),) = connection.execute(sql[data_query], values)
                block = decode(Place(tenant, partition, at), data, chunk, unseal=opened.unseal, bound=bound)
            except Sealed:
                # Its checksum is right, and there is no key to look further.
                closed += 1
                following.pop((tenant, partition), None)
                continue
            except (CorruptBlock, IncompatibleStore, apsw.Error, ValueError) as error:
                following.pop((tenant, partition), None)
                if _is_gone(connection, data_query, values):
                    continue
                bad += 1
                yield found.bad_block(str(error))
                continue
            good += 1
            if (forged := opened.forged(block.place, data, block.published_at)) is not None:
                yield forged
            if query == "block_places":
                expected = following.get((tenant, partition), first_offsets.get(partition, at))
                if at > expected and partition not in queues:
                    yield found.missing_offsets(partition, expected, at)
                following[tenant, partition] = block.end
    if not bad:
        yield found.good_blocks(good, closed)


def _chunks(connection: apsw.Connection) -> Iterator[Finding]:
    """That everything that lies outside its block belongs to one, or to a stage."""
    nobodys = """SELECT count(*), coalesce(sum(length(data)), 0) FROM duly_chunk
                  WHERE id NOT IN (SELECT chunk FROM duly_block WHERE chunk IS NOT NULL
                                   UNION ALL SELECT chunk FROM duly_staged)"""
    ((count, size),) = connection.execute(nobodys)
    yield from found.pieces_of_nobody(count, size)


def _is_gone(connection: apsw.Connection, query: str, values: dict[str, Any]) -> bool:
    """Whether what could not be read is not there any more: others go on, and drop what is settled."""
    try:
        return connection.execute(queries()[query], values).fetchone() is None
    except apsw.Error:
        return False


def _runs(connection: apsw.Connection, opened: sealed.Opening) -> Iterator[Finding]:
    """Every block of the queues' runs: its entries, its messages, and that none is missing."""
    sql = queries()
    good = bad = 0
    runs: list[Any] = connection.execute("SELECT tenant, partition, id, blocks FROM duly_run").fetchall()
    for tenant, partition, run, blocks in runs:
        if not all(isinstance(value, int) for value in (tenant, partition, run, blocks)):
            bad += 1
            yield found.bad_run(f"The row of run {run} is damaged.")
            continue
        for index in range(blocks):
            place = {"tenant": tenant, "partition": partition, "run": run, "idx": index}
            try:
                row: Any = connection.execute(sql["run_entries"], place).fetchone()
                entries = row and row[0]
                row = connection.execute(sql["run_data"], place).fetchone()
                fault = found.check_run_block(
                    Place(tenant, partition, 0),
                    run,
                    index,
                    entries=entries,
                    stored=row and row[0],
                    opened=opened,
                )
            except (CorruptBlock, IncompatibleStore, apsw.Error, ValueError) as error:
                if _is_gone(connection, "run_still", {"run": run, "idx": index}):
                    break
                fault = found.bad_run(str(error))
            if fault is None:
                good += 1
            else:
                bad += 1
                yield fault
    if not bad:
        yield found.good_runs(good)


def _ids(connection: apsw.Connection) -> Iterator[Finding]:
    """Every block of the index of ids."""
    yield from found.id_blocks(connection.execute("SELECT topic, run, idx, data FROM duly_id_block"))


def _references(connection: apsw.Connection) -> Iterator[Finding]:
    """Dead letters and retries whose message is neither in the log nor kept."""
    # Of a lease on a queue the row alone does not say which of its messages are left.
    logs = "r.keys IS NULL"
    for table, offset, which in (("duly_dead", '"offset"', "1"), ("duly_lease", "base", logs)):
        missing = _value(
            connection,
            f"""SELECT count(*) FROM {table} AS r JOIN duly_part AS p ON p.id = r.partition
                 WHERE {which} AND r.{offset} < p.first_offset
                   AND NOT EXISTS (SELECT 1 FROM duly_kept AS k WHERE k.tenant = r.tenant
                                    AND k.partition = r.partition AND k."offset" = r.{offset})""",
        )
        yield from found.lost_references(table, missing)


def _ends(connection: apsw.Connection) -> Iterator[Finding]:
    """Groups and references that are beyond the end of their log: its last blocks are missing."""
    beyond = connection.execute(
        """SELECT p.id, max(coalesce((SELECT max(base + count) FROM duly_block AS b
                                       WHERE b.tenant = p.tenant AND b.partition = p.id), 0), p.next_offset) AS ends,
                  max(coalesce((SELECT max(next_offset) FROM duly_cursor AS c
                                 WHERE c.tenant = p.tenant AND c.partition = p.id), 0),
                      coalesce((SELECT max("offset") + 1 FROM duly_dead AS d
                                 WHERE d.tenant = p.tenant AND d.partition = p.id), 0)) AS reached
             FROM duly_part AS p
            WHERE topic IS NOT NULL AND reached > ends"""
    )
    for partition, ends, reached in beyond:
        yield found.read_too_far(partition, ends, reached)
