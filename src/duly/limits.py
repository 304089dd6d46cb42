"""Every hard limit, with its reason. `duly limits` and the API publish this table as it stands.

Sizes are in bytes, times in milliseconds; the unit is the last word of the name.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS


@dataclass(frozen=True, slots=True)
class Limits:
    """What Duly refuses to go beyond."""

    # A name is shown in tables, metrics and paths; longer ones are never typed by a person.
    name_chars_max: int = 256
    # An id or a key is held in indexes, so it has to be small beside a page.
    id_bytes_max: int = 512
    key_bytes_max: int = 1024
    # Headers travel with every delivery and every browse.
    headers_max: int = 64
    headers_bytes_max: int = 16 * 1024
    # One payload is held in memory a few times over on its way; the topic's own limit starts
    # at the default and may be raised to the ceiling.
    payload_bytes_default: int = 1024 * 1024
    payload_bytes_max: int = 64 * 1024 * 1024
    # A batch is one transaction: it is in memory whole, and everyone waits for it.
    batch_messages_max: int = 100_000
    batch_bytes_max: int = 128 * 1024 * 1024
    # A claim's bookkeeping is per lease; its payloads are in memory at once.
    claim_messages_max: int = 100_000
    # A waiting claim is asked again after this, so that a lost one cannot wait for ever.
    wait_ms_max: int = DAY_MS
    claim_bytes_default: int = 64 * 1024 * 1024
    read_messages_max: int = 100_000
    # A block is read whole to serve one of its messages.
    block_messages_max: int = 1024
    block_bytes_max: int = 8 * 1024 * 1024
    # Slots that keys and lanes hash to (DESIGN.md §6): more partitions than slots would stay empty.
    partitions_max: int = 1024
    groups_per_topic_max: int = 10_000
    consumers_per_topic_max: int = 1_000_000
    priority_max: int = 65_535
    # Leases shorter than this expire while the answer is under way; longer ones hide dead consumers.
    lease_ms_min: int = 100
    lease_ms_max: int = 7 * DAY_MS
    due_ms_ahead_max: int = 3653 * DAY_MS
    ttl_ms_max: int = 3653 * DAY_MS
    attempts_max: int = 10_000
    backoff_ms_max: int = 30 * DAY_MS
    dedupe_ms_max: int = 30 * DAY_MS
    rate_per_s_max: int = 10_000_000
    # A schedule's payload is read with every tick and written with every change: what is bigger is sent as a reference.
    schedule_bytes_max: int = 64 * 1024
    # Ticks that are told ahead: each has to be found.
    schedule_ticks_max: int = 1000
    # What goes back to a group in one transaction, and what may wait there for it: it is looked through each time.
    replay_messages_max: int = 10_000
    replay_waiting_max: int = 100_000
    reason_chars_max: int = 1000
    # The last failures say what is wrong; the first hundred of a thousand say nothing more.
    history_entries_max: int = 16
    # How long a publish id given by the caller is remembered.
    publish_id_ms: int = DAY_MS
    publish_id_chars_max: int = 128
    consumer_chars_max: int = 256
    # A consumer not seen for so long is forgotten: its longest lease has ended by then, and nothing waits for it.
    consumer_forget_ms: int = 8 * DAY_MS
    # Commands waiting for the writer: past this a caller gets Busy instead of growing memory. Of this and of all that
    # follows of a broker's, one tenant has no more than it leaves to the others (engine/allowance.py).
    writer_commands_max: int = 100_000
    writer_bytes_max: int = 256 * 1024 * 1024
    page_max: int = 10_000
    # A host's clock that is kept right is milliseconds off. One that is so far off is not; its broker takes neither
    # publishes nor claims. Not less: where the store's clock is the host's own, a small step back must not end service.
    drift_ms_max: int = 5_000
    # A broker's: claims that wait cost memory and no thread; streams of Flight cost a thread each.
    claims_waiting_max: int = 20_000
    streams_max: int = 1_000
    connections_max: int = 8_000
    # A request is in memory whole: the biggest batch, once more for base64.
    request_bytes_max: int = 192 * 1024 * 1024
    # What all requests under way may hold together.
    requests_bytes_max: int = 1024 * 1024 * 1024
    # Blocking calls at work at once; more of them wait for a thread, and past that they are refused.
    calls_at_once_max: int = 32
    calls_waiting_max: int = 4_096
    # Over HTTP a batch is JSON, in memory several times over; a slow reader holds it while it reads.
    http_bytes_default: int = 8 * 1024 * 1024
    http_bytes_max: int = 64 * 1024 * 1024
    # A client has so long to send its header, and so long for a body, and a second more for so many bytes of it.
    header_ms_max: int = 10_000
    header_bytes_max: int = 64 * 1024
    request_ms_max: int = 30_000
    request_bytes_a_second_min: int = 64 * 1024
    # A client that takes nothing of its answer for so long is cut off; a connection that idles is closed.
    unread_ms_max: int = 30_000
    connection_idle_ms_max: int = 75_000


LIMITS = Limits()


def published() -> dict[str, int]:
    """The limits as a plain table, for the API and the CLI."""
    return asdict(LIMITS)
