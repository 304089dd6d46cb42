"""The examination of a store: integrity, checksums, references, clock, disk, settings.

It only reads, on a connection of its own, while everyone else goes on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import apsw

from ...engine.block import Place, decode
from ...engine.entries import decode_entries, place_of
from ...errors import CorruptBlock, IncompatibleStore
from ...health import Finding
from .queries import queries

_FREE_WARN, FREE_ALERT = 0.10, 0.02
_WAL_BYTES_WARN = 512 * 1024 * 1024
_CLOCK_BEHIND_MS_WARN = 1000


def examine(connection: apsw.Connection, path: str, now_ms: int) -> Iterator[Finding]:
    """Looks at everything, the quick things first."""
    checks: list[Callable[[apsw.Connection], Iterator[Finding]]] = [
        _settings,
        _paused,
        partial(_clock, now_ms=now_ms),
        _integrity,
        _blocks,
        _chunks,
        _runs,
        _references,
        _ends,
    ]
    if path != ":memory:":
        checks.insert(2, lambda _: _disk(path))
    for check in checks:
        try:
            yield from check(connection)
        except (apsw.Error, ValueError, TypeError) as error:
            # A flipped bit can also leave nothing, or text, where a number belongs.
            yield Finding(
                "alert", f"The file cannot be read: {error}", "It is damaged below Duly.", "Restore the newest backup."
            )


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
        yield Finding(
            "warn",
            f"The store is paused: {row[0]}.",
            "Nothing is delivered and nothing is dropped by age. Publishing goes on.",
            "When it may work again, run: duly resume",
        )


def _clock(connection: apsw.Connection, now_ms: int) -> Iterator[Finding]:
    claimed = _value(connection, "SELECT coalesce(max(claimed_at_ms), 0) FROM duly_lease")
    seen = _value(connection, "SELECT coalesce(max(seen_at_ms), 0) FROM duly_consumer")
    behind = max(claimed, seen) - now_ms
    if behind > _CLOCK_BEHIND_MS_WARN:
        yield Finding(
            "warn",
            f"The clock is {behind / 1000:.1f} s behind the newest claim in the store.",
            "It was set back, or another machine wrote here: leases and retries wait that much longer.",
            "Check the host's time synchronisation.",
        )
    else:
        yield Finding("ok", "The clock is not behind the store")


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


def _blocks(connection: apsw.Connection) -> Iterator[Finding]:
    """Every block's checksum and place, and that no offset is missing."""
    sql = queries()
    good = bad = 0
    following: dict[tuple[int, int], int] = {}
    first_offsets = dict(connection.execute("SELECT id, first_offset FROM duly_part"))
    # A queue's log loses blocks in its middle too, once they are settled.
    queues = {partition for (partition,) in connection.execute("SELECT partition FROM duly_queue")}

    def chunk(number: int) -> bytes | None:
        row = connection.execute(sql["chunk"], {"id": number}).fetchone()
        return None if row is None else row[0]

    for query, data_query, third in (
        ("block_places", "block_data", "base"),
        ("kept_places", "kept", "offset"),
    ):
        before: tuple[Any, ...] = ()
        for place in connection.execute(sql[query]):
            # A tree that is damaged can lead in circles, for ever.
            if before and place <= before:
                bad += 1
                yield _bad_block(f"The blocks of the file are out of order, from {place} on.")
                break
            tenant, partition, at = before = place
            values = {"tenant": tenant, "partition": partition, third: at}
            try:
                ((data,),) = connection.execute(sql[data_query], values)
                block = decode(Place(tenant, partition, at), data, chunk)
            except (CorruptBlock, IncompatibleStore, apsw.Error, ValueError) as error:
                following.pop((tenant, partition), None)
                if _is_gone(connection, data_query, values):
                    continue
                bad += 1
                yield _bad_block(str(error))
                continue
            good += 1
            if query == "block_places":
                expected = following.get((tenant, partition), first_offsets.get(partition, at))
                if at > expected and partition not in queues:
                    yield _bad_block(f"Offsets {expected} to {at - 1} of partition {partition} are missing.")
                following[tenant, partition] = block.end
    if not bad:
        yield Finding("ok", f"{good} blocks, every checksum right")


def _chunks(connection: apsw.Connection) -> Iterator[Finding]:
    """That everything that lies outside its block belongs to one, or to a stage."""
    nobodys = """SELECT count(*), coalesce(sum(length(data)), 0) FROM duly_chunk
                  WHERE id NOT IN (SELECT chunk FROM duly_block WHERE chunk IS NOT NULL
                                   UNION ALL SELECT chunk FROM duly_staged)"""
    ((count, size),) = connection.execute(nobodys)
    if count:
        yield Finding(
            "warn",
            f"{count} pieces of the log, {size / 1e6:.1f} MB, belong to no block.",
            "They take space, and nothing else: nobody reads them.",
            "Send this report to us; a backup that is restored keeps them.",
        )


def _is_gone(connection: apsw.Connection, query: str, values: dict[str, Any]) -> bool:
    """Whether what could not be read is not there any more: others go on, and drop what is settled."""
    try:
        return connection.execute(queries()[query], values).fetchone() is None
    except apsw.Error:
        return False


def _runs(connection: apsw.Connection) -> Iterator[Finding]:
    """Every block of the queues' runs: its entries, its messages, and that none is missing."""
    sql = queries()
    good = bad = 0
    runs: list[Any] = connection.execute("SELECT tenant, partition, id, blocks FROM duly_run").fetchall()
    for tenant, partition, run, blocks in runs:
        if not all(isinstance(value, int) for value in (tenant, partition, run, blocks)):
            bad += 1
            yield _bad_run(f"The row of run {run} is damaged.")
            continue
        for index in range(blocks):
            place = {"tenant": tenant, "partition": partition, "run": run, "idx": index}
            try:
                row: Any = connection.execute(sql["run_entries"], place).fetchone()
                entries = decode_entries(row and row[0], place_of(run, index), partition=partition, run=run)
                row = connection.execute(sql["run_data"], place).fetchone()
                block = decode(Place(tenant, partition, place_of(run, index)), row and row[0])
            except (CorruptBlock, IncompatibleStore, apsw.Error, ValueError) as error:
                if _is_gone(connection, "run_still", {"run": run, "idx": index}):
                    break
                bad += 1
                yield _bad_run(str(error))
                continue
            if block.count != len(entries):
                bad += 1
                yield _bad_run(f"Block {index} of run {run} has {len(entries)} entries for {block.count} messages.")
                continue
            good += 1
    if not bad:
        yield Finding("ok", f"{good} blocks of queues' runs, every checksum right")


def _bad_run(what: str) -> Finding:
    return Finding(
        "alert",
        what,
        "Where the log still has the messages they are served from there; else their queue stops before them.",
        "Restore the newest backup.",
    )


def _bad_block(what: str) -> Finding:
    return Finding(
        "alert",
        what,
        "Its messages are refused, and a group that gets there stops.",
        "Restore the newest backup, or give the messages up: duly groups seek TOPIC GROUP --offset N",
    )


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
        if missing:
            yield Finding(
                "alert",
                f"{missing} rows of {table} refer to messages that are gone.",
                "Their payloads cannot be delivered.",
                "Restore the newest backup; please report this.",
            )


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
        yield _bad_block(f"Partition {partition} ends at offset {ends}, but a group has read up to {reached}.")
