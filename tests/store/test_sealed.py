"""Encryption at rest: what an encrypted tenant stores is sealed, for its place, and nothing else serves it."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import duly
from duly.engine.block import Place, encode
from duly.engine.columns import Columns
from duly.engine.pushes import PushPlace, runnable_push
from duly.engine.tenant_settings import Encrypt, Rotate, Shred, encrypt_tenants, rotate, shred_tenants
from duly.master import MasterKeys, create_master, new_key, parse_keys
from duly.push import read_secret

from .conftest import Home, PostgresHome, SealedHome, SealedPostgresHome, encrypt, sharp
from .patience import eventually

CANARY = "canary-7f3a91"
NEEDLES = (CANARY.encode(), CANARY.encode().hex().encode())
KEY = new_key()
pytestmark = [pytest.mark.embedded, pytest.mark.plain]


def connect(home: Home, *, master: Any = None, tenant: str = "default") -> duly.Client:
    """A client with a master key of the test's own."""
    keys = parse_keys(KEY, "here") if master is None else master
    client = duly.connect(home.address, clock=home.clock, consumer="w1", tenant=tenant, master=keys)
    home._opened.append(client)
    return client


@pytest.fixture
def sealed(home: Home) -> duly.Client:
    client = connect(home)
    encrypt(client, "default")
    return client


def write(client: duly.Client, verb: Any, command: Any) -> Any:
    store = client._port.store  # type: ignore[attr-defined]
    return store.write(verb, command, tenant="default", cost=0, deadline=None)


def tables(home: Home) -> list[str]:
    if isinstance(home, PostgresHome):
        rows = home.ask(f"SELECT tablename FROM pg_tables WHERE schemaname = '{home._schema}'")
        return [f"duly_{name}" for (name,) in rows]
    return [name for (name,) in home.ask("SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'duly%'")]


def everything(home: Home) -> Iterator[tuple[str, bytes]]:
    """All that is stored: of a file its bytes, deleted ones among them; of PostgreSQL every value."""
    if not isinstance(home, PostgresHome):
        for path in home.folder.glob("app.duly*"):
            if not path.name.endswith(".master"):
                yield path.name, path.read_bytes()
        return
    for table in tables(home):
        for row in home.ask(f"SELECT * FROM {table}"):
            for value in row:
                yield table, bytes(value) if isinstance(value, (bytes, memoryview)) else str(value).encode()


def found(home: Home) -> list[str]:
    """Where the canary lies in the clear."""
    return sorted({where for where, content in everything(home) if any(needle in content for needle in NEEDLES)})


def alerts(client: duly.Client) -> list[str]:
    return [finding.what for finding in client.examine() if finding.level == "alert"]


def canaries(count: int = 3) -> list[duly.Message]:
    return [
        duly.Message(f"{CANARY} {number}".encode(), key=CANARY, headers={"secret": CANARY}) for number in range(count)
    ]


def test_nothing_of_a_message_lies_in_the_clear_whatever_becomes_of_it(home: Home, sealed: duly.Client) -> None:
    q = sealed
    q.create_topic("log", kind="log", lease=30, retry=sharp(10, max_attempts=2))
    q.create_group("log", "g")
    q.create_topic("queue", kind="queue", lease=30, retry=sharp(10, max_attempts=2))
    many = [duly.Message(f"{CANARY} {number}".encode(), id=f"{number}") for number in range(2500)]
    q.publish("log", canaries(), publish_id="given")
    q.publish("queue", many)
    for topic, group in (("log", "g"), ("queue", None)):
        batch = q.claim(topic, group=group, max_messages=3)
        first, second, *rest = list(batch)
        q.nack([first], reason=f"failed on {CANARY}")
        q.bury([second], reason=f"no good: {CANARY}")
        q.ack(rest)
    home.clock.advance(11)
    for topic, group in (("log", "g"), ("queue", None)):
        for delivery in list(q.claim(topic, group=group, max_messages=2)):
            q.nack([delivery], reason=f"again: {CANARY}")
    assert len(list(q.dead("log", group="g"))) == 2
    with duly.operation(CANARY):
        q.publish("log", canaries())
    assert [one.id for one in q.operations()] == [CANARY]
    q.stage("log", canaries(), stage="staged", number=0)
    q.create_schedule("s", topic="queue", cron="@every 1s", template=CANARY, headers={"h": CANARY}, key=CANARY)
    q.create_schedule("t", topic="queue", cron="@yearly", payload=CANARY.encode())
    q.update_schedule("t", lane="a")
    assert found(home) == []
    q.commit_stages("log", {"staged": 3}, job="j")
    home.clock.advance(2)
    eventually(lambda: not home.rows("duly_event"))
    assert [message.payload for message in q.read("log")][-1] == f"{CANARY} 2".encode()
    assert {letter.reason for letter in q.dead("log", group="g")} >= {f"no good: {CANARY}"}
    assert any(CANARY in str(event.facts) for event in q.events())
    eventually(lambda: q.describe_schedule("s").published)
    assert q.describe_schedule("s").settings.template == CANARY
    assert found(home) == []
    assert found(home) == []
    assert alerts(q) == []


def test_a_tenant_is_made_encrypted_or_becomes_so_by_its_setting(home: Home) -> None:
    operator = connect(home)
    operator.create_tenant("acme", encrypt=True)
    operator.create_tenant("acme", encrypt=True, exist_ok=True)
    operator.create_tenant("globex")
    operator.update_tenant("globex", encrypt=True)
    assert operator.describe_tenant("acme").settings.encrypt
    for tenant in ("acme", "globex"):
        q = connect(home, tenant=tenant)
        q.create_topic("t", kind="log")
        q.publish("t", canaries(1))
        assert [message.payload for message in q.read("t")] == [f"{CANARY} 0".encode()]
    assert found(home) == []
    operator.update_tenant("globex", encrypt=False)
    connect(home, tenant="globex").publish("t", [b"in the clear"])
    assert alerts(operator) == []
    operator.delete_tenant("acme", force=True)
    assert home.ask("SELECT count(*) FROM duly_secret WHERE wrapped IS NULL") == [(1,)]


def test_a_plain_tenant_beside_it_lies_as_ever(home: Home, sealed: duly.Client) -> None:
    other = connect(home, tenant="other")
    for client in (sealed, other):
        client.create_topic("t", kind="log")
        client.publish("t", [b"x" * 200])
    assert found(home) == []
    other.publish("t", canaries(1))
    assert found(home) != []


def test_what_was_plain_is_read_on_and_what_follows_is_sealed(home: Home) -> None:
    q = connect(home)
    q.create_topic("t", kind="log")
    q.publish("t", [b"before"])
    encrypt(q, "default")
    q.publish("t", canaries(1))
    assert found(home) == []
    write(q, encrypt_tenants, Encrypt("default", encrypt=False))
    q.publish("t", [b"after"])
    again = connect(home)
    payloads = [message.payload for message in again.read("t")]
    assert payloads == [b"before", f"{CANARY} 0".encode(), b"after"]


def test_reading_and_claiming_go_on_after_reopening(home: Home, sealed: duly.Client) -> None:
    sealed.create_topic("t", kind="log")
    sealed.create_group("t", "g")
    sealed.publish("t", canaries(5))
    sealed.close()
    again = connect(home)
    assert [d.headers["secret"] for d in again.claim("t", group="g", max_messages=9)] == [CANARY] * 5
    assert sum(batch.num_rows for batch in again.read_arrow("t")) == 5


def test_another_master_reads_nothing_and_writes_nothing(home: Home, sealed: duly.Client) -> None:
    sealed.create_topic("t", kind="log")
    sealed.create_group("t", "g")
    sealed.publish("t", canaries(1))
    sealed.close()
    stranger = connect(home, master=MasterKeys([b"another key, of thirty-two bytes"]))
    for attempt in (
        lambda: list(stranger.read("t")),
        lambda: stranger.claim("t", group="g"),
        lambda: stranger.publish("t", [b"x"]),
        lambda: list(stranger.events()),
    ):
        with pytest.raises(duly.Sealed, match="not among those given"):
            attempt()
    findings = list(stranger.examine())
    assert any("cannot be unwrapped" in finding.what for finding in findings)
    assert any("not opened" in finding.what for finding in findings)
    assert not [finding for finding in findings if finding.level == "alert"]


def test_a_rotated_master_opens_everything_and_the_old_one_nothing_new(home: Home, sealed: duly.Client) -> None:
    sealed.create_topic("t", kind="log")
    sealed.publish("t", canaries(1))
    both = parse_keys(f"{new_key()}\n{KEY}", "here")
    rotated = connect(home, master=both)
    assert write(rotated, rotate, Rotate("default")).rewrapped == 2
    rotated.publish("t", canaries(1))
    alone = MasterKeys([next(iter(both._keys.values()))])
    assert len(list(connect(home, master=alone).read("t"))) == 2
    with pytest.raises(duly.Sealed):
        list(connect(home).read("t"))


def test_a_new_data_key_seals_what_is_written_and_folded_and_the_old_ones_open(home: Home, sealed: duly.Client) -> None:
    sealed.create_topic("queue", kind="queue")
    sealed.publish("queue", [duly.Message(b"%d" % number) for number in range(2500)])
    assert write(sealed, rotate, Rotate("default", data_keys=True)).renewed == 1
    other = connect(home)
    other.publish("queue", [duly.Message(b"%d" % number) for number in range(2500, 5000)])
    got = sorted(int(d.payload) for _ in range(5) for d in other.claim("queue", max_messages=1000))
    assert got == list(range(5000))
    assert home.rows("duly_secret") == 3
    assert alerts(other) == []


def test_a_message_kept_after_its_block_is_sealed_anew(home: Home, sealed: duly.Client) -> None:
    sealed.create_topic("t", kind="log", retry=sharp(10, max_attempts=1))
    sealed.create_group("t", "g")
    sealed.publish("t", canaries(1))
    (delivery,) = sealed.claim("t", group="g")
    sealed.bury([delivery], reason="x")
    sealed.purge("t")
    eventually(lambda: not home.rows("duly_block") or home.rows("duly_kept") == 1)
    assert home.rows("duly_kept") == 1
    again = connect(home)
    assert [letter.message.payload for letter in again.dead("t", group="g")] == [f"{CANARY} 0".encode()]
    assert found(home) == []
    assert alerts(again) == []


# Ciphertext that is not where it belongs


def two_topics(home: Home, client: duly.Client) -> None:
    for topic in ("a", "b"):
        client.create_topic(topic, kind="log")
        # Short: on SQLite such a block lies in its row.
        client.publish(topic, [topic.encode()])
    client.close()


def refused(home: Home, topic: str = "b", tenant: str = "default", offset: int = 0) -> None:
    client = connect(home, tenant=tenant)
    with pytest.raises(duly.CorruptBlock):
        client.read(topic, offset=offset)
    assert alerts(client)


def reforge(home: Home, where: str, forge: Any, table: str = "duly_block", column: str = "data") -> None:
    """Changes a stored block as one who writes to the store can: with its checksum made right again."""
    import xxhash

    from duly.engine.block import _CHECKSUM_AT, _HEADER

    ((stored,),) = home.ask(f"SELECT {column} FROM {table} WHERE {where}")
    forged = bytearray(forge(bytes(stored)))
    forged[_CHECKSUM_AT : _HEADER.size] = bytes(8)
    forged[_CHECKSUM_AT : _HEADER.size] = xxhash.xxh3_64_intdigest(bytes(forged)).to_bytes(8, "little")
    put(home, where, bytes(forged), table, column)


def put(home: Home, where: str, content: bytes, table: str = "duly_block", column: str = "data") -> None:
    literal = f"'\\x{content.hex()}'::BYTEA" if isinstance(home, PostgresHome) else f"x'{content.hex()}'"
    home.change(f"UPDATE {table} SET {column} = {literal} WHERE {where}")


def of(home: Home, where: str, table: str = "duly_block", column: str = "data") -> bytes:
    ((stored,),) = home.ask(f"SELECT {column} FROM {table} WHERE {where}")
    return bytes(stored)


def replaced_header(stored: bytes, by: bytes) -> bytes:
    """The place of one block, and what lies behind it of another."""
    from duly.engine.block import _HEADER

    fields, others = list(_HEADER.unpack_from(by)), _HEADER.unpack_from(stored)
    fields[10:12] = others[10:12]
    return _HEADER.pack(*fields) + stored[_HEADER.size :]


def test_a_block_moved_to_another_topic_is_refused(home: Home, sealed: duly.Client) -> None:
    two_topics(home, sealed)
    mine, theirs = of(home, "partition = 1"), of(home, "partition = 2")
    put(home, "partition = 2", mine)
    refused(home)
    # As one does who knows the format: the header says where it lies, and the checksum is right.
    put(home, "partition = 2", theirs)
    reforge(home, "partition = 2", lambda stored: replaced_header(mine, stored))
    refused(home)


def test_a_block_moved_to_another_offset_is_refused(home: Home, sealed: duly.Client) -> None:
    sealed.create_topic("b", kind="log")
    for payload in (b"1", b"2"):
        sealed.publish("b", [payload])
    sealed.close()
    first = of(home, "base = 0")
    reforge(home, "base = 1", lambda stored: replaced_header(first, stored))
    refused(home, offset=1)


def test_a_block_of_another_tenant_is_refused(home: Home, sealed: duly.Client) -> None:
    other = connect(home, tenant="other")
    encrypt(other, "other")
    for client in (sealed, other):
        client.create_topic("t", kind="log")
        client.publish("t", [b"x"])
        client.close()
    mine = of(home, "partition = 1")
    reforge(home, "partition = 2", lambda stored: replaced_header(mine, stored))
    refused(home, "t", "other")


@pytest.mark.parametrize("forge", ["cut", "flipped", "time", "key"])
def test_a_block_that_was_changed_is_refused_though_its_checksum_is_right(
    home: Home, sealed: duly.Client, forge: str
) -> None:
    two_topics(home, sealed)

    def forged(stored: bytes) -> bytes:
        from duly.engine.block import _HEADER

        fields = list(_HEADER.unpack_from(stored))
        body = stored[_HEADER.size :]
        if forge == "cut":
            fields[11] -= 1
            body = body[:-1]
        elif forge == "flipped":
            body = body[:-20] + bytes([body[-20] ^ 1]) + body[-19:]
        elif forge == "time":
            fields[9] += 1
        else:
            fields[4] += 1
        return _HEADER.pack(*fields) + body

    reforge(home, "partition = 2", forged)
    client = connect(home)
    with pytest.raises((duly.CorruptBlock, duly.Sealed)):
        list(client.read("b"))
    assert alerts(client)


def test_a_plain_block_in_the_place_of_a_sealed_one_is_reported(home: Home, sealed: duly.Client) -> None:
    sealed.create_topic("t", kind="log")
    write(sealed, encrypt_tenants, Encrypt("default", encrypt=False))
    home.clock.advance(3600)
    sealed.publish("t", [b"plain, and nothing wrong with it"])
    home.clock.advance(3600)
    encrypt(sealed, "default")
    assert alerts(sealed) == []
    home.clock.advance(3600)
    sealed.publish("t", [b"sealed"])
    sealed.close()
    forged = encode(Place(1, 1, 1), Columns(1, lists={"payload": [b"forged"]}), home.clock.now_ms(), [])
    reforge(home, "partition = 1 AND base = 1", lambda _: forged)
    assert [what for what in alerts(connect(home)) if "lies in the clear" in what]


def test_a_plain_block_in_a_run_is_reported(home: Home, sealed: duly.Client) -> None:
    sealed.create_topic("t", kind="queue")
    home.clock.advance(3600)
    sealed.publish("t", [duly.Message(b"%d" % number) for number in range(2500)])
    sealed.claim("t", max_messages=1)
    assert alerts(sealed) == []
    forge_plain(home, sealed, "idx = 0", "duly_run_data", b"run")
    assert [what for what in alerts(connect(home)) if "run in partition 1 lies in the clear" in what]


def test_a_plain_message_kept_after_its_block_is_reported(home: Home, sealed: duly.Client) -> None:
    sealed.create_topic("t", kind="log")
    sealed.create_group("t", "g")
    home.clock.advance(3600)
    sealed.publish("t", [b"x"])
    sealed.bury(sealed.claim("t", group="g", max_messages=1), reason="x")
    sealed.purge("t")
    eventually(lambda: home.rows("duly_kept") == 1)
    assert alerts(sealed) == []
    forge_plain(home, sealed, "TRUE", "duly_kept", b"kept")
    assert [what for what in alerts(connect(home)) if "lies in the clear" in what]


def forge_plain(home: Home, client: duly.Client, where: str, table: str, bound: bytes) -> None:
    """Puts what a sealed block holds into its place, in the clear."""
    opened = opened_block(client, of(home, where, table), bound)
    client.close()
    put(home, where, encode(opened.place, opened.columns, opened.published_at, opened.publishes), table)


def opened_block(client: duly.Client, stored: bytes, bound: bytes) -> Any:
    """A sealed block, opened where it says that it belongs."""
    from duly.engine.block import _HEADER, decode

    place = Place(*_HEADER.unpack_from(stored)[5:8])
    with client._port.store.read() as tx:  # type: ignore[attr-defined]
        return decode(place, stored, unseal=tx.unseal, bound=bound)


def test_a_reason_that_was_put_there_in_the_clear_is_reported(home: Home, sealed: duly.Client) -> None:
    sealed.create_topic("t", kind="queue")
    home.clock.advance(3600)
    sealed.publish("t", [b"x"])
    sealed.bury(sealed.claim("t"), reason="sealed")
    assert alerts(sealed) == []
    put(home, "TRUE", b"forged", "duly_dead", "reason")
    assert any("reason of a dead letter" in what for what in alerts(connect(home)))


def test_a_kept_message_in_the_place_of_a_block_is_refused(home: Home, sealed: duly.Client) -> None:
    sealed.create_topic("t", kind="log")
    sealed.create_group("t", "g")
    sealed.publish("t", [b"x"])
    (delivery,) = sealed.claim("t", group="g")
    block = of(home, "partition = 1")
    sealed.bury([delivery], reason="x")
    sealed.purge("t")
    sealed.close()
    put(home, "partition = 1", block, "duly_kept")
    client = connect(home)
    assert [letter.corrupt is None for letter in client.dead("t", group="g")] == [False]


def test_reasons_that_were_swapped_are_not_shown(home: Home, sealed: duly.Client) -> None:
    sealed.create_topic("t", kind="log")
    sealed.create_group("t", "g")
    sealed.publish("t", [b"1", b"2"])
    for number, delivery in enumerate(sealed.claim("t", group="g", max_messages=2)):
        sealed.bury([delivery], reason=f"reason {number}")
    sealed.close()
    first = of(home, '"offset" = 0', "duly_dead", "reason")
    put(home, '"offset" = 1', first, "duly_dead", "reason")
    client = connect(home)
    assert next(client.dead("t", group="g")).reason == "reason 0"
    assert "seal" in [letter.reason for letter in client.dead("t", group="g")][1]
    assert any("reason of a dead letter" in what for what in alerts(client))


@pytest.mark.parametrize("length", [4, 7, 8, 30])
def test_a_reason_that_was_cut_off_is_not_shown_and_does_not_end_the_examination(
    home: Home, sealed: duly.Client, length: int
) -> None:
    sealed.create_topic("t", kind="queue")
    sealed.publish("t", [b"x"])
    sealed.bury(sealed.claim("t"), reason="sealed")
    sealed.close()
    put(home, "TRUE", of(home, "TRUE", "duly_dead", "reason")[:length], "duly_dead", "reason")
    client = connect(home)
    assert "seal" in next(client.dead("t")).reason
    assert any("reason of a dead letter" in what for what in alerts(client))
    assert any("Audit: " in finding.what for finding in client.examine())


def test_a_name_of_an_operation_that_was_swapped_is_told_of_and_the_operation_is_still_counted(
    home: Home, sealed: duly.Client
) -> None:
    sealed.create_topic("t", kind="queue")
    for name, count in (("one", 1000), ("other", 1)):
        with duly.operation(name):
            sealed.publish("t", [b"x"] * count)
    sealed.close()
    put(home, "published = 1", of(home, "published = 1000", "duly_operation", "name"), "duly_operation", "name")
    client = connect(home)
    assert sorted((one.id == "one", "seal" in one.id) for one in client.operations()) == [(False, True), (True, False)]
    assert any("name of an operation" in what for what in alerts(client))
    with duly.operation("one"), pytest.raises(duly.OperationExhausted):
        client.publish("t", b"x")


def test_settings_of_a_schedule_that_were_swapped_are_told_of_and_do_not_tick(home: Home, sealed: duly.Client) -> None:
    sealed.create_topic("t", kind="queue")
    for name in ("one", "other", "third"):
        sealed.create_schedule(name, topic="t", cron="@every 1h", payload=name.encode())
    sealed.close()
    put(home, "name = 'one'", of(home, "name = 'other'", "duly_schedule", "settings"), "duly_schedule", "settings")
    client = connect(home)
    assert any("settings of a schedule" in what for what in alerts(client))
    home.clock.advance(3600)
    eventually(lambda: client.describe_schedule("other").published and client.describe_schedule("third").published)
    assert sorted(client.claim("t", max_messages=9).payloads) == [b"other", b"third"]
    assert [event.facts["schedule"] for event in client.events() if event.kind == "tick_failed"] == ["one"]
    with pytest.raises(duly.StoreError, match="doctor"):
        client.describe_schedule("one")
    client.delete_schedule("one")
    assert len(client.schedules()) == 2


def test_without_the_key_nothing_ticks_and_with_it_what_was_missed_is_caught_up_with(
    home: Home, sealed: duly.Client
) -> None:
    sealed.create_topic("t", kind="queue")
    sealed.create_schedule("s", topic="t", cron="@every 1h", missed="all", payload=b"x")
    other = connect(home, tenant="other")
    other.create_topic("t", kind="queue")
    other.create_schedule("o", topic="t", cron="@every 2h")
    home.clock.advance(1)
    sealed.close()
    other.close()
    without = connect(home, master=MasterKeys([b"another key, of thirty-two bytes"]), tenant="other")
    home.clock.advance(2 * 3600)
    # Ten seconds are left to those who may have the key; then it is put off, for the sake of the others.
    eventually(lambda: without.describe_schedule("o").published, within_s=30)
    without.close()
    client = connect(home)
    home.clock.advance(60)
    eventually(lambda: client.describe_schedule("s").published == 2)


def test_a_history_that_was_changed_is_told_of_though_it_goes_on(home: Home, sealed: duly.Client) -> None:
    sealed.create_topic("t", kind="queue", retry=sharp(10, max_attempts=3))
    sealed.publish("t", [b"x"])
    sealed.nack(sealed.claim("t"), reason="the first")
    sealed.close()
    (table,) = [table for table in ("duly_loose", "duly_lease") if home.rows(table)]
    history = bytearray(of(home, "TRUE", table, "history"))
    history[-1] ^= 1
    put(home, "TRUE", bytes(history), table, "history")
    again = connect(home)
    assert any("history of a" in what for what in alerts(again))
    home.clock.advance(11)
    again.bury(again.claim("t"), reason="the second")
    (letter,) = again.dead("t")
    assert [failure.what for failure in letter.history][:1] == ["corrupt"]
    assert "seal" in letter.history[0].reason


def test_events_that_were_changed_are_told_of_and_not_left_out_in_silence(home: Home, sealed: duly.Client) -> None:
    other = connect(home, tenant="other")
    encrypt(other, "other")
    for client in (sealed, other):
        client.create_topic("t", kind="log")
        client.publish("t", [b"x"])
    last, theirs = (
        int(home.ask(f"SELECT max(id) FROM duly_event WHERE tenant = {tenant}")[0][0])
        for (tenant,) in home.ask("SELECT id FROM duly_tenant ORDER BY id")
    )
    put(home, f"id = {last}", of(home, f"id = {theirs}", "duly_event"), "duly_event")
    assert [event.kind for event in sealed.events()] == ["topic_created", "events_corrupt"]
    home.clock.advance(2)
    eventually(lambda: not home.rows("duly_event"))
    assert [event.kind for event in sealed.events()] == ["topic_created", "events_corrupt"]


def test_staged_messages_put_into_another_stage_are_refused(home: Home, sealed: duly.Client) -> None:
    sealed.create_topic("t", kind="log")
    for name in ("one", "two"):
        sealed.stage("t", [name.encode() * 300], stage=name, number=0)
    ((stage,),) = home.ask("SELECT max(id) FROM duly_stage")
    chunk = int(home.ask(f"SELECT chunk FROM duly_staged WHERE stage <> {stage}")[0][0])
    piece = of(home, f"stage <> {stage}", "duly_staged", "piece")
    assert alerts(sealed) == []
    put(home, f"stage = {stage}", piece, "duly_staged", "piece")
    home.change(f"UPDATE duly_staged SET chunk = {chunk} WHERE stage = {stage}")
    assert [what for what in alerts(sealed) if "pieces of stages" in what]
    with pytest.raises(duly.CorruptBlock):
        sealed.commit_stages("t", {"two": 1}, job="j")


def test_a_stage_of_a_tenant_that_cannot_be_does_not_end_the_examination(home: Home, sealed: duly.Client) -> None:
    sealed.create_topic("t", kind="log")
    sealed.stage("t", [b"x"], stage="one", number=0)
    home.change("UPDATE duly_staged SET tenant = -1")
    assert any("pieces of stages are corrupt" in what for what in alerts(sealed))
    assert any("Audit: " in finding.what for finding in sealed.examine())


def test_an_old_block_put_back_from_a_copy_is_not_served(home: Home, sealed: duly.Client) -> None:
    """The log was purged and goes on at higher offsets: what comes back lies where nobody reads any more."""
    sealed.create_topic("t", kind="log")
    sealed.publish("t", [b"old"])
    copy = of(home, "base = 0")
    sealed.purge("t")
    sealed.publish("t", [b"new"])
    sealed.close()
    reforge(home, "base = 1", lambda stored: replaced_header(copy, stored))
    client = connect(home)
    with pytest.raises(duly.CorruptBlock):
        list(client.read("t", offset=1))


# Shredded


def test_a_shredded_tenant_answers_sealed_and_others_go_on(home: Home, sealed: duly.Client) -> None:
    other = connect(home, tenant="other")
    encrypt(other, "other")
    for client in (sealed, other):
        client.create_topic("t", kind="log")
        client.create_group("t", "g")
        client.publish("t", canaries(2))
    list(sealed.read("t"))
    elsewhere = connect(home)
    list(elsewhere.read("t"))
    write(elsewhere, shred_tenants, Shred("default"))
    for client in (sealed, elsewhere, connect(home)):
        for attempt in (
            lambda c=client: list(c.read("t")),
            lambda c=client: c.claim("t", group="g"),
            lambda c=client: c.publish("t", [b"x"]),
            lambda c=client: list(c.dead("t", group="g")),
        ):
            with pytest.raises(duly.Sealed, match="shredded"):
                attempt()
    with pytest.raises(duly.Sealed):
        write(sealed, encrypt_tenants, Encrypt("default"))
    assert len(list(other.read("t"))) == 2
    assert home.ask("SELECT count(*) FROM duly_secret WHERE wrapped IS NULL") == [(1,)]
    assert alerts(other) == []
    sealed.delete_topic("t", force=True)
    with pytest.raises(duly.TopicNotFound):
        list(sealed.read("t"))


def hook(client: duly.Client) -> duly.NewPush:
    client.create_topic("t", kind="queue")
    to = duly.ToHttp(f"https://example.com/{CANARY}", headers={"Authorization": CANARY})
    return client.create_push("hook", topic="t", to=to)


def runs(client: duly.Client) -> Any:
    return client._port.look(runnable_push, PushPlace("default", "hook")).push  # type: ignore[attr-defined]


def test_nothing_of_a_push_lies_in_the_clear(home: Home, sealed: duly.Client) -> None:
    made = hook(sealed)
    sealed.update_push("hook", concurrency=3)
    sealed.rotate_push_secret("hook", secret=made.secret)
    assert runs(sealed).to.headers == {"Authorization": CANARY}
    assert found(home) == []
    raw = read_secret(made.secret)
    assert not [where for where, content in everything(home) if raw in content or raw.hex().encode() in content]
    assert alerts(sealed) == []


def test_of_a_tenant_in_the_clear_what_a_push_signs_with_is_sealed_all_the_same(home: Home) -> None:
    client = connect(home)
    client.create_topic("t", kind="queue")
    to = duly.ToHttp("https://example.com/", headers={"Authorization": CANARY})
    made = client.create_push("hook", topic="t", to=to)
    raw = read_secret(made.secret)
    needles = (*NEEDLES, raw, raw.hex().encode(), base64.b64encode(raw))
    assert not [where for where, content in everything(home) if any(needle in content for needle in needles)]
    assert runs(client).to == to
    assert alerts(client) == []
    client.close()
    stranger = connect(home, master=parse_keys(new_key(), "elsewhere"))
    with pytest.raises(duly.Sealed):
        stranger.describe_push("hook")


def test_what_lies_in_the_clear_is_sealed_with_the_next_change(home: Home) -> None:
    client = connect(home)
    made = hook(client)
    encrypt(client, "default")
    assert runs(client).secrets == (read_secret(made.secret),)
    client.update_push("hook", url="https://example.com/elsewhere")
    assert runs(client).to.headers == {"Authorization": CANARY}
    assert alerts(client) == []


def test_a_push_in_anothers_place_is_told_of_and_does_not_run(home: Home, sealed: duly.Client) -> None:
    hook(sealed)
    sealed.create_topic("u", kind="queue")
    sealed.create_push("other", topic="u", to=duly.ToHttp("https://example.com/"))
    sealed.close()
    for column in ("settings", "secrets"):
        put(home, "name = 'hook'", of(home, "name = 'other'", "duly_push", column), "duly_push", column)
    client = connect(home)
    assert [(push.name, push.to is None) for push in client.pushes()] == [("hook", True), ("other", False)]
    with pytest.raises(duly.Sealed, match="cannot be read"):
        runs(client)
    told = " ".join(alerts(client))
    assert "settings of a push" in told
    assert "secrets of a push" in told
    client.delete_push("hook")
    assert alerts(client) == []


def test_a_push_of_a_shredded_tenant_is_seen_and_does_not_run(home: Home, sealed: duly.Client) -> None:
    hook(sealed)
    write(sealed, shred_tenants, Shred("default"))
    assert [(push.name, push.to) for push in sealed.pushes()] == [("hook", None)]
    with pytest.raises(duly.Sealed):
        runs(sealed)
    with pytest.raises(duly.Sealed):
        sealed.rotate_push_secret("hook")
    sealed.delete_push("hook")


@pytest.mark.sqlite
def test_what_was_shredded_is_in_no_byte_of_the_file_and_its_log(home: Home) -> None:
    """Else whoever has the file and the master key goes on reading."""
    operator = connect(home)
    for number in range(40):
        operator.create_tenant(f"t{number}", encrypt=True)
    keys = {
        name: bytes(wrapped)
        for name, wrapped in home.ask(
            "SELECT t.name, s.wrapped FROM duly_secret AS s JOIN duly_tenant AS t ON t.id = s.tenant"
        )
    }
    gone = [f"t{number}" for number in range(0, 40, 3)]
    for name in gone:
        operator.delete_tenant(name)
    home.clock.advance(100)
    eventually(lambda: not set(gone) & set(operator.list_tenants()))
    stored = b"".join(content for _, content in everything(home))
    assert [name for name in gone if keys[name] in stored] == []
    assert keys["t1"] in stored


# The master key


def test_a_master_is_rotated_while_the_store_is_open(tmp_path: Path) -> None:
    path, keys = str(tmp_path / "app.duly"), tmp_path / "app.duly.master"
    with duly.connect(path) as q:
        encrypt(q, "default")
        q.create_topic("t", kind="log")
        q.publish("t", [b"before"])
        old = keys.read_text()
        keys.write_text(new_key() + "\n" + old)
        with duly.connect(path) as other:
            assert write(other, rotate, Rotate("default", data_keys=True)).rewrapped == 2
            other.publish("t", [b"by another"])
        keys.write_text(keys.read_text().splitlines()[0])
        q.publish("t", [b"after"])
        assert [message.payload for message in q.read("t")] == [b"before", b"by another", b"after"]


def test_an_encrypted_store_without_its_master_file_says_where_it_should_be(tmp_path: Path) -> None:
    path = str(tmp_path / "app.duly")
    with duly.connect(path) as q:
        encrypt(q, "default")
        q.create_topic("t", kind="log")
        q.publish("t", [b"x"])
    (tmp_path / "app.duly.master").unlink()
    with duly.connect(path) as q, pytest.raises(duly.Sealed, match=r"app\.duly\.master"):
        list(q.read("t"))


def test_the_master_may_come_from_the_environment_or_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = tmp_path / "keys"
    create_master(str(keys))
    monkeypatch.setenv("A_MASTER", keys.read_text())
    path = str(tmp_path / "app.duly")
    with duly.connect(path, master=f"file:{keys}") as q:
        encrypt(q, "default")
        q.create_topic("t", kind="log")
        q.publish("t", [b"x"])
    for reference in ("env:A_MASTER", f"command:cat {keys}"):
        with duly.connect(path, master=reference) as q:
            assert [message.payload for message in q.read("t")] == [b"x"]
    monkeypatch.setenv("DULY_MASTER", "env:A_MASTER")
    with duly.connect(path) as q:
        assert [message.payload for message in q.read("t")] == [b"x"]
    assert not (tmp_path / "app.duly.master").exists()


def test_a_master_may_be_any_object(tmp_path: Path) -> None:
    class Service:
        """A key management service: here, all it does is remember."""

        def __init__(self) -> None:
            self.known: dict[bytes, tuple[bytes, bytes]] = {}

        def wrap(self, secret: bytes, context: bytes) -> bytes:
            token = b"token %d" % len(self.known)
            self.known[token] = secret, context
            return token

        def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
            secret, meant = self.known[wrapped]
            assert meant == context
            return secret

    service = Service()
    with duly.connect(str(tmp_path / "app.duly"), master=service) as q:
        encrypt(q, "default")
        q.create_topic("t", kind="log")
        q.publish("t", canaries(1))
    with duly.connect(str(tmp_path / "app.duly"), master=service) as q:
        assert len(list(q.read("t"))) == 1


def test_homes_that_are_sealed_really_are(tmp_path: Path, clock: duly.ManualClock, events: list[duly.Event]) -> None:
    home = SealedHome(tmp_path, clock, events)
    q = home.connect()
    q.create_topic("t", kind="log")
    q.publish("t", canaries(1))
    assert found(home) == []
    home.close()
    assert issubclass(SealedPostgresHome, PostgresHome)


def test_without_the_key_a_chore_is_put_off_and_others_are_done(home: Home, sealed: duly.Client) -> None:
    other = connect(home, tenant="other")
    other.create_topic("t", kind="log", retention=duly.Retention(age=10))
    other.publish("t", [b"x"])
    # Packing events, which is due first, needs the key.
    sealed.create_topic("t", kind="log")
    sealed.publish("t", [b"x"])
    sealed.close()
    other.close()
    without = connect(home, master=MasterKeys([b"another key, of thirty-two bytes"]), tenant="other")
    home.clock.advance(30)
    eventually(lambda: without.describe_topic("t").messages == 0)
    without.close()
    again = connect(home)
    home.clock.advance(100)
    eventually(lambda: not home.rows("duly_event"))
    assert [event.kind for event in again.events()][-1] == "published"
