"""Encrypted tenants on PostgreSQL: applications' transactions, SQL, and a store that moves there from its file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

import duly
from duly.engine.audit import Denied, NoteDenials, note_denials
from duly.engine.tenant_settings import Encrypt, Shred, encrypt_tenants, shred_tenants
from duly.grants import By
from duly.master import MasterKeys, create_master, read_master_file
from tests import postgres_schemas
from tests.store.patience import eventually

from .conftest import Application

CANARY = b"canary-51ac"
KEYS = MasterKeys([b"tests only, and thirty-two bytes"])

pytestmark = pytest.mark.skipif(postgres_schemas.why_not() is not None, reason=str(postgres_schemas.why_not()))


@pytest.fixture
def q(app: Application) -> duly.Client:
    client = app.client(master=KEYS)
    client.create_topic("jobs", kind="queue", lease=30)
    encrypt(client)
    return client


def encrypt(client: duly.Client) -> None:
    run(client, encrypt_tenants, Encrypt("default"))


def run(client: duly.Client, verb: Any, command: Any) -> None:
    store = client._port.store  # type: ignore[attr-defined]
    store.write(verb, command, tenant="default", cost=0, deadline=None)


def values(app: Application) -> Iterator[tuple[str, bytes]]:
    """Every value that is stored, by its table."""
    for (table,) in app.ask("SELECT tablename FROM pg_tables WHERE schemaname = %s", app.schema):
        for row in app.ask(f"SELECT * FROM duly.{table}"):
            for value in row:
                yield table, bytes(value) if isinstance(value, (bytes, memoryview)) else str(value).encode()


def found(app: Application) -> set[str]:
    return {table for table, value in values(app) if CANARY in value}


def test_what_an_application_publishes_and_settles_in_its_transaction_lies_sealed(
    app: Application, q: duly.Client
) -> None:
    connection = app.connect(autocommit=False)
    with connection.transaction():
        connection.execute("INSERT INTO orders VALUES ('1')")
        q.publish("jobs", [duly.Message(CANARY, key=CANARY.decode(), id="one")], publish_id="p", tx=connection)
    assert app.ask("SELECT kind FROM duly.inbox") == [("publish",)]
    assert found(app) == set()
    (delivery,) = q.claim("jobs")
    assert delivery.payload == CANARY
    with connection.transaction():
        q.bury([delivery], reason=CANARY.decode(), tx=connection)
    assert found(app) == set()
    assert [letter.reason for letter in q.dead("jobs")] == [CANARY.decode()]
    with connection.transaction():
        repeated = [duly.Message(CANARY, key=CANARY.decode(), id="one")]
        assert q.publish("jobs", repeated, publish_id="p", tx=connection).duplicate
    assert found(app) == set()


def test_mail_that_was_changed_or_moved_to_another_topic_is_kept_and_not_taken_in(
    app: Application, q: duly.Client
) -> None:
    q.create_topic("others", kind="queue")
    connection = app.connect(autocommit=False)
    with connection.transaction():
        q.publish("jobs", [CANARY], tx=connection)
    (others,) = [topic for topic, name in app.ask("SELECT id, name FROM duly.topic") if name == "others"]
    assert not [finding for finding in q.examine() if finding.level == "alert"]
    app.ask(f"UPDATE duly.inbox SET topic = {others}")
    assert [finding.what for finding in q.examine() if "× mail is broken" in finding.what]
    assert not list(q.claim("others"))
    assert not list(q.claim("jobs"))
    ((why,),) = app.ask("SELECT why FROM duly.refused")
    assert "seal" in why


def test_sql_publishes_for_plain_tenants_alone(app: Application, q: duly.Client) -> None:
    connection = app.connect()
    plain = app.client(tenant="plain", master=KEYS)
    plain.create_topic("jobs", kind="queue")
    publish = f"SELECT {app.schema}.publish('jobs', 'x'::BYTEA, tenant => %s)".encode()
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="encrypted"):
        connection.execute(publish, ("default",))
    assert app.ask("SELECT count(*) FROM duly.inbox") == [(0,)]
    connection.execute(publish, ("plain",))
    assert [delivery.payload for delivery in plain.claim("jobs")] == [b"x"]
    run(q, shred_tenants, Shred("default"))
    with pytest.raises(psycopg.errors.FeatureNotSupported):
        connection.execute(publish, ("default",))


def test_what_could_not_be_taken_in_goes_with_its_tenant(app: Application, q: duly.Client) -> None:
    plain = app.client(tenant="plain", master=KEYS)
    plain.create_topic("emails", kind="queue")
    with app.connect() as connection:
        connection.execute(
            f"INSERT INTO {app.schema}.inbox (topic, kind, data, payload) "
            f"SELECT id, 'strange', ''::BYTEA, %s FROM {app.schema}.topic WHERE name = 'emails'".encode(),
            (CANARY,),
        )
    plain.claim("emails")
    assert found(app) == {"refused"}
    q.delete_tenant("plain", force=True)
    eventually(lambda: "plain" not in q.list_tenants())
    assert found(app) == set()


def test_many_note_something_at_once_and_whoever_examines_meanwhile_finds_nothing(app: Application) -> None:
    """Each locks the chain of its tenant, some that of the operators, and all of them the sum: in this order."""
    operator = app.client(master=KEYS)
    operator.create_tenant("t0", encrypt=True)

    def act(number: int) -> None:
        client = app.client(master=KEYS, tenant=f"t{number % 3}")
        for turn in range(10):
            client.create_topic(f"topic-{number}-{turn}", kind="log")
            denied = [
                Denied(5, By("p", tenant=f"t{(number + turn + more) % 4}"), "purge", "x", "denied") for more in (0, 2)
            ]
            run(client, note_denials, NoteDenials("$denials", tuple(denied)))

    with ThreadPoolExecutor(6) as threads:
        acting = [threads.submit(act, number) for number in range(6)]
        while not all(one.done() for one in acting):
            assert not [finding for finding in operator.examine() if finding.level == "alert"]
        for one in acting:
            one.result()
    assert not [finding for finding in operator.examine() if finding.level == "alert"]


def test_sql_keeps_its_search_path(app: Application, q: duly.Client) -> None:
    """Without one the caller's own tables would be used, as the schema's owner."""
    ((settings,),) = app.ask(
        "SELECT proconfig FROM pg_proc WHERE proname = 'publish' AND pronamespace = %s::regnamespace", app.schema
    )
    assert settings == [f"search_path={app.schema}, pg_temp"]


@pytest.fixture
def there() -> Iterator[str]:
    schemas = postgres_schemas.schemas()
    url = schemas.take_unmade()
    yield url
    with psycopg.connect(postgres_schemas.database(), autocommit=True) as connection:
        postgres_schemas.drop(connection, url.rpartition("=")[2])


def test_a_store_moves_with_its_secrets_under_the_same_master(
    tmp_path: Path, there: str, fresh_store_url: Callable[[], str]
) -> None:
    path = str(tmp_path / "app.duly")
    with duly.connect(path) as q:
        encrypt(q)
        q.create_topic("jobs", kind="queue")
        q.publish("jobs", [CANARY])
        q.bury(q.claim("jobs"), reason=CANARY.decode())
        q.publish("jobs", [CANARY])
    create_master(str(tmp_path / "another"))
    with pytest.raises(duly.Sealed, match="not among those given"):
        duly.migrate(path, there, master=f"file:{tmp_path / 'another'}")
    duly.migrate(path, there)
    keys = read_master_file(f"{path}.master")
    with duly.connect(there, master=keys) as q:
        assert [delivery.payload for delivery in q.claim("jobs")] == [CANARY]
        assert [letter.reason for letter in q.dead("jobs")] == [CANARY.decode()]
        assert not [finding for finding in q.examine() if finding.level == "alert"]
        q.publish("jobs", [CANARY])
    with duly.connect(there) as q, pytest.raises(duly.Sealed, match="needs a master key"):
        q.publish("jobs", [CANARY])
