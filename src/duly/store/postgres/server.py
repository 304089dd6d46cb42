"""What the examination says of the server: whether it loses nothing, waits for nobody, cleans up, and keeps time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg

from ...clock import ClockReading
from ...health import Finding

Connection = psycopg.Connection[tuple[Any, ...]]

_TESTED = (15, 16, 18)
_DRIFT_S_WARN = 1.0
_IDLE_S_WARN = 300

# What acknowledged writes are lost by when it is off, and when.
_DURABLE = {
    "fsync": "Acknowledged messages are lost at power loss, and the database may be destroyed.",
    "full_page_writes": "A page that was half written at power loss stays damaged.",
    "synchronous_commit": "Acknowledged messages of the last moments are lost when the server crashes.",
}
_SETTINGS = """
SELECT name, setting
  FROM pg_settings
 WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'autovacuum', 'track_counts',
                'synchronous_standby_names')
"""
_OLD_TRANSACTIONS = """
SELECT pid, coalesce(nullif(application_name, ''), usename, backend_type),
       extract(epoch FROM now() - xact_start)::BIGINT, state
  FROM pg_stat_activity
 WHERE datname = current_database()
   AND pid <> pg_backend_pid()
   AND xact_start < now() - make_interval(secs => %s)
   AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
   AND backend_type = 'client backend'
 ORDER BY xact_start
"""
_PREPARED = """
SELECT gid, extract(epoch FROM now() - prepared)::BIGINT
  FROM pg_prepared_xacts
 WHERE database = current_database()
   AND prepared < now() - make_interval(secs => %s)
"""
_IDLE_SLOTS = """
SELECT slot_name
  FROM pg_replication_slots
 WHERE NOT active
   AND (xmin IS NOT NULL OR catalog_xmin IS NOT NULL OR restart_lsn IS NOT NULL)
"""
_UNFINISHED = """
SELECT c.relname
  FROM pg_index AS i
  JOIN pg_class AS c ON c.oid = i.indexrelid
 WHERE c.relnamespace = current_schema()::REGNAMESPACE
   AND NOT i.indisvalid
"""
_FAILURES = "SELECT coalesce(checksum_failures, 0) FROM pg_stat_database WHERE datname = current_database()"
_OTHERS_TABLES = """
SELECT count(*)
  FROM pg_class
 WHERE relnamespace = current_schema()::REGNAMESPACE
   AND relkind = 'r'
   AND NOT pg_has_role(relowner, 'USAGE')
"""


def look_at_server(connection: Connection) -> Iterator[Finding]:
    """Version, settings, standbys, whoever is in the way."""
    settings: dict[str, str] = dict(connection.execute(_SETTINGS).fetchall())
    yield from _version(connection)
    yield from _durable(connection, settings)
    yield from _standbys(connection, settings)
    yield from _damage(connection)
    yield from _room(connection, settings)
    yield from _in_the_way(connection)


def _version(connection: Connection) -> Iterator[Finding]:
    version = connection.info.server_version // 10000
    ((full, standby),) = connection.execute("SELECT current_setting('server_version'), pg_is_in_recovery()")
    if version in _TESTED:
        yield Finding("ok", f"PostgreSQL {full}")
    else:
        tested = ", ".join(map(str, _TESTED))
        yield Finding(
            "warn",
            f"Duly is not tested on PostgreSQL {version}.",
            f"It is tested on {tested}. Most likely it works.",
            "Use one of them where it matters.",
        )
    if standby:
        yield Finding(
            "alert",
            "This server is a standby.",
            "Nothing can be published or claimed here.",
            "Name all hosts in the address, or the primary alone.",
        )


def _durable(connection: Connection, settings: dict[str, str]) -> Iterator[Finding]:
    ((disposable,),) = connection.execute("SELECT coalesce(current_setting('duly.disposable', true), '') = 'on'")
    off = [name for name in _DURABLE if settings.get(name) == "off"]
    for name in off:
        yield Finding(
            # A server for tests says that it is one.
            "warn" if disposable else "alert",
            f"{name} is off.",
            _DURABLE[name],
            f"Run: ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf();  "
            "(a server whose messages may be lost can say so: duly.disposable = on)",
        )
    if not off:
        yield Finding("ok", "Every commit is on the server's disk before it is acknowledged")


def _standbys(connection: Connection, settings: dict[str, str]) -> Iterator[Finding]:
    names = settings.get("synchronous_standby_names", "")
    if not names or settings.get("synchronous_commit") in ("off", "local"):
        return
    asked = "SELECT count(*), count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')) FROM pg_stat_replication"
    ((attached, waited_for),) = connection.execute(asked)
    if waited_for:
        yield Finding("ok", f"Commits wait for a standby ({names}); {waited_for} of {attached} attached")
    else:
        yield Finding(
            "alert",
            f"Commits wait for a standby ({names}), and none is attached.",
            "Every publish and ack hangs until one is.",
            "Start the standby; or, to go on without: ALTER SYSTEM SET synchronous_standby_names = ''; "
            "SELECT pg_reload_conf();",
        )


def _damage(connection: Connection) -> Iterator[Finding]:
    """What PostgreSQL itself came upon."""
    for (failures,) in connection.execute(_FAILURES):
        if failures:
            yield Finding(
                "alert",
                f"PostgreSQL has read {failures} pages of this database with a wrong checksum.",
                "It is damaged below Duly, or was.",
                "Look into the server's log; restore the newest backup.",
            )
    for (index,) in connection.execute(_UNFINISHED):
        yield Finding(
            "warn", f"The index {index} is not valid.", "It was left half built.", f"Run: REINDEX INDEX {index}"
        )


def _room(connection: Connection, settings: dict[str, str]) -> Iterator[Finding]:
    """Whether what was dropped becomes room again."""
    for name in ("autovacuum", "track_counts"):
        if settings.get(name) == "off":
            yield Finding(
                "warn",
                f"{name} is off.",
                "Rows that are deleted take space for ever and make everything slower; in the end the server stops.",
                f"Run: ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf();",
            )
    ((others,),) = connection.execute(_OTHERS_TABLES)
    if others:
        yield Finding(
            "warn",
            f"{others} tables of the store belong to another role.",
            "Duly may not vacuum them: space that was dropped goes back to the device late, or never.",
            "Make Duly's role their owner, or a member of it.",
        )


def _in_the_way(connection: Connection) -> Iterator[Finding]:
    """Whoever holds an old snapshot: what was deleted since stays."""
    for pid, who, seconds, state in connection.execute(_OLD_TRANSACTIONS, (_IDLE_S_WARN,)):
        yield _held(
            f"{who} (process {pid}) has had a transaction open for {seconds // 60} minutes ({state}).",
            f"End it; if nobody knows it: SELECT pg_terminate_backend({pid})",
        )
    for gid, seconds in connection.execute(_PREPARED, (_IDLE_S_WARN,)):
        yield _held(
            f"The prepared transaction {gid!r} has waited for {seconds // 60} minutes.",
            f"Run: COMMIT PREPARED '{gid}', or ROLLBACK PREPARED '{gid}'",
        )
    for (slot,) in connection.execute(_IDLE_SLOTS):
        yield _held(
            f"Nobody uses the replication slot {slot!r}.",
            f"Start whoever it is for, or run: SELECT pg_drop_replication_slot('{slot}')",
        )


def _held(what: str, advice: str) -> Finding:
    meaning = "What is deleted meanwhile takes space and makes claims slower; the write-ahead log may grow as well."
    return Finding("warn", what, meaning, advice)


def drift(reading: ClockReading) -> Iterator[Finding]:
    """How this host's clock stands to the server's."""
    ahead = (reading.host - reading.now).total_seconds()
    if abs(ahead) < _DRIFT_S_WARN:
        yield Finding("ok", "The host's clock goes with PostgreSQL's")
        return
    stands, comes = ("ahead of", "late") if ahead > 0 else ("behind", "early")
    yield Finding(
        "warn",
        f"The host's clock is {abs(ahead):.1f} s {stands} PostgreSQL's.",
        f"What is due is decided by PostgreSQL's: due times reckoned by this host's come that much too {comes}.",
        "Check the time synchronisation of both.",
    )
