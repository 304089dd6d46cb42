"""The audit: what administrators do is noted with it; and nobody changes what was noted without being noticed."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import pytest

import duly
from duly.engine.audit import Denied, NoteDenials, note_denials
from duly.engine.secrets import store_secret
from duly.errors import Denied as Refusal
from duly.grants import By
from duly.store.contract import ChainHead

from .conftest import Home


def done(client: duly.Client, *, operators: bool = False) -> list[str]:
    return [entry.action for entry in client.audit(operators=operators)]


def verdicts(client: duly.Client) -> list[duly.Finding]:
    return [found for found in client.examine() if "udit" in found.what]


def is_whole(client: duly.Client) -> bool:
    found = verdicts(client)
    assert found, "the doctor says nothing of the audit"
    return [one.level for one in found] == ["ok"]


def test_every_administrative_action_is_an_entry(q: duly.Client) -> None:
    q.create_topic("orders", kind="log", archive=True)
    q.create_group("orders", "billing")
    q.publish("orders", [b"1", b"2"])
    q.update_topic("orders", lease=60)
    q.pause("orders")
    q.resume("orders")
    q.pause("orders", group="billing")
    q.seek("orders", "billing", to="latest")
    q.archived("orders", offset=2)
    q.purge("orders", group="billing")
    q.purge("orders", group="billing", dead=True)
    q.purge("orders")
    q.delete_group("orders", "billing")
    q.delete_topic("orders")
    assert done(q) == [
        *("create_topic", "create_group", "update_topic", "update_topic", "update_topic", "update_group", "seek"),
        *("archived", "purge_group", "purge_dead", "purge_topic", "delete_group", "delete_topic"),
    ]
    q.pause_store()
    q.resume_store()
    q.create_tenant("acme")
    q.update_tenant("acme", topics=1)
    q.suspend_tenant("acme")
    q.resume_tenant("acme")
    q.delete_tenant("acme")
    # A store that has a secret, as one with an encrypted tenant has, tells when its chains were sealed.
    assert [action for action in done(q, operators=True) if action != "audit_sealed"] == [
        *("audit_begun", "pause_store", "pause_store", "create_tenant", "update_tenant", "suspend_tenant"),
        *("resume_tenant", "delete_tenant"),
    ]
    assert is_whole(q)


def test_an_entry_says_who_what_when_and_nothing_of_messages(q: duly.Client, clock: duly.ManualClock) -> None:
    q.create_topic("orders", kind="log")
    q.publish("orders", b"canary-payload")
    clock.advance(10)
    q.update_topic("orders", lease=timedelta(seconds=60))
    made, changed = q.audit()
    # A broker that is open knows nobody's name.
    assert made.principal.startswith("embedded:") or made.principal == "anyone"
    assert (made.number, made.outcome, made.topic, made.tenant, made.key) == (1, "done", "orders", "", "")
    assert (changed.when - made.when) == timedelta(seconds=10)
    assert changed.facts["changes"] == {"lease": 60.0} or "60" in str(changed.facts["changes"])
    assert "canary" not in str([made, changed])
    assert [entry.number for entry in q.audit(since=changed.when)] == [2]
    assert [entry.number for entry in q.audit(limit=1)] == [1]
    assert [entry.number for entry in q.audit(after=1)] == [2]


def test_what_changed_nothing_and_what_failed_is_no_entry(q: duly.Client) -> None:
    q.create_topic("orders", kind="log")
    q.create_topic("orders", kind="log", exist_ok=True)
    q.create_group("orders", "g")
    q.create_group("orders", "g", exist_ok=True)
    with pytest.raises(duly.TopicExists):
        q.create_topic("orders", kind="queue")
    with pytest.raises(duly.TopicNotFound):
        q.delete_topic("nothing")
    q.publish("orders", b"1")
    with pytest.raises(duly.TopicNotEmpty):
        q.delete_topic("orders")
    assert done(q) == ["create_topic", "create_group"]


def test_each_tenant_has_a_chain_of_its_own(home: Home) -> None:
    acme, globex = home.connect(tenant="acme"), home.connect(tenant="globex")
    acme.create_topic("a", kind="log")
    globex.create_topic("b", kind="log")
    assert [entry.topic for entry in acme.audit()] == ["a"]
    assert [entry.topic for entry in globex.audit()] == ["b"]
    assert list(home.connect(tenant="nobody").audit()) == []
    assert is_whole(acme)


def test_a_chain_goes_on_in_another_client(home: Home, reopen: Callable[[], duly.Client]) -> None:
    home.connect().create_topic("a", kind="log")
    reopen().create_topic("b", kind="log")
    assert [entry.number for entry in reopen().audit()] == [1, 2]
    assert is_whole(home.connect())


# Tampering. With a secret, and without one.


@pytest.fixture(params=["sealed", "unsealed"])
def chained(request: pytest.FixtureRequest, home: Home, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A store whose tenant `default` has a chain of six entries, made before and after it had a secret, if it has."""
    key = home.folder / "master"
    if request.param == "sealed":
        make_master(key)
        monkeypatch.setenv("DULY_MASTER", f"file:{key}")
    q = home.connect()
    for name in "abc":
        q.create_topic(name, kind="log")
    if request.param == "sealed":
        seal(q)
    for name in "def":
        q.create_topic(name, kind="log")
    assert is_whole(q)
    return home


def make_master(path: object) -> None:
    from duly.master import create_master

    create_master(path)  # type: ignore[arg-type]


def seal(q: duly.Client) -> None:
    """Has the store make its secret."""

    def verb(tx: object, commands: list[object]) -> list[object]:
        return [store_secret(tx, b"tests") for _ in commands]  # type: ignore[arg-type]

    q._port.store.write(verb, None, tenant="$tests", cost=0, deadline=None)  # type: ignore[attr-defined]


TAMPERED = {
    "an entry is changed": "UPDATE duly_audit SET entry = (SELECT entry FROM duly_audit WHERE tenant = {t} AND n = 1) "
    "WHERE tenant = {t} AND n = 3",
    "its time is changed": "UPDATE duly_audit SET at_ms = at_ms + 1 WHERE tenant = {t} AND n = 3",
    "its mac is changed": "UPDATE duly_audit SET mac = (SELECT mac FROM duly_audit WHERE tenant = {t} AND n = 1) "
    "WHERE tenant = {t} AND n = 3",
    "one is deleted": "DELETE FROM duly_audit WHERE tenant = {t} AND n = 3",
    "one is deleted and the others close up": "DELETE FROM duly_audit WHERE tenant = {t} AND n = 3;"
    "UPDATE duly_audit SET n = 3 WHERE tenant = {t} AND n = 4;UPDATE duly_audit SET n = 4 WHERE tenant = {t} AND n = 5;"
    "UPDATE duly_audit SET n = 5 WHERE tenant = {t} AND n = 6",
    "the first is deleted": "DELETE FROM duly_audit WHERE tenant = {t} AND n = 1",
    "one is added at the end": "INSERT INTO duly_audit (tenant, n, at_ms, entry, mac) "
    "SELECT tenant, 7, at_ms, entry, mac FROM duly_audit WHERE tenant = {t} AND n = 6",
    "one is added before the first": "INSERT INTO duly_audit (tenant, n, at_ms, entry, mac) "
    "SELECT tenant, -1, at_ms, entry, mac FROM duly_audit WHERE tenant = {t} AND n = 6",
    "one is added for a tenant that has none": "INSERT INTO duly_audit (tenant, n, at_ms, entry, mac) "
    "SELECT 99, 1, at_ms, entry, mac FROM duly_audit WHERE tenant = {t} AND n = 1",
    "two change places": "UPDATE duly_audit SET n = -3 WHERE tenant = {t} AND n = 3;"
    "UPDATE duly_audit SET n = 3 WHERE tenant = {t} AND n = 4;"
    "UPDATE duly_audit SET n = 4 WHERE tenant = {t} AND n = -3",
    "the last ones are cut off": "DELETE FROM duly_audit WHERE tenant = {t} AND n > 4",
    "and the head says so": "DELETE FROM duly_audit WHERE tenant = {t} AND n > 4;UPDATE duly_audit_head SET n = 4, "
    "mac = (SELECT mac FROM duly_audit WHERE tenant = {t} AND n = 4) WHERE tenant = {t}",
    "all are gone": "DELETE FROM duly_audit WHERE tenant = {t}",
    "all are gone and the head": "DELETE FROM duly_audit WHERE tenant = {t};"
    "DELETE FROM duly_audit_head WHERE tenant = {t}",
    "all are gone and the head is as if none had been": "DELETE FROM duly_audit WHERE tenant = {t};"
    "UPDATE duly_audit_head SET n = 0, mac = substr(mac, 1, 0), seal = substr(seal, 1, 0) WHERE tenant = {t}",
    "the head is gone": "DELETE FROM duly_audit_head WHERE tenant = {t}",
    "the seal is another's": "UPDATE duly_audit_head SET seal = (SELECT seal FROM duly_audit_head WHERE tenant = 0) "
    "WHERE tenant = {t}",
    "the operators' is gone": "DELETE FROM duly_audit WHERE tenant = 0;DELETE FROM duly_audit_head WHERE tenant = 0",
    "the sum of all is gone": "DELETE FROM duly_audit_head WHERE tenant = -1",
    "the sum of all is another": "UPDATE duly_audit_head SET mac = (SELECT mac FROM duly_audit_head WHERE tenant = 0) "
    "WHERE tenant = -1",
    "it is led to another tenant": "UPDATE duly_audit SET tenant = 99 WHERE tenant = {t};"
    "UPDATE duly_audit_head SET tenant = 99 WHERE tenant = {t}",
}


@pytest.mark.embedded
@pytest.mark.parametrize("how", TAMPERED)
def test_whatever_is_done_to_its_rows_is_noticed(home: Home, chained: Home, how: str) -> None:
    ((tenant,),) = chained.ask("SELECT id FROM duly_tenant WHERE name = 'default'")
    q = chained.connect()
    for statement in TAMPERED[how].format(t=tenant).split(";"):
        chained.change(statement)
    found = verdicts(q)
    assert {one.level for one in found} == {"alert"}, found
    # What is done later hides nothing.
    q.create_topic("later", kind="log")
    assert {one.level for one in verdicts(q)} == {"alert"}


@pytest.mark.embedded
@pytest.mark.parametrize("sum_too", [False, True])
def test_a_chain_put_back_to_where_it_once_ended_is_noticed(home: Home, chained: Home, sum_too: bool) -> None:
    """Who has watched the tables has seals of then, and they are good ones."""
    ((tenant,),) = chained.ask("SELECT id FROM duly_tenant WHERE name = 'default'")
    q = chained.connect()
    old = {
        owner: (n, bytes(mac), bytes(seal))
        for owner, n, mac, seal in chained.ask("SELECT tenant, n, mac, seal FROM duly_audit_head")
    }
    q.create_topic("unwanted", kind="log")
    chained.connect(tenant="another").create_topic("t", kind="log")
    chained.change(f"DELETE FROM duly_audit WHERE tenant = {tenant} AND n > {old[tenant][0]}")
    for owner in (tenant, -1) if sum_too else (tenant,):
        n, mac, seal = old[owner]
        chained.change(
            f"UPDATE duly_audit_head SET n = {n}, mac = {blob(home, mac)}, seal = {blob(home, seal)} "
            f"WHERE tenant = {owner}"
        )
    assert {one.level for one in verdicts(q)} == {"alert"}
    q.create_topic("later", kind="log")
    assert {one.level for one in verdicts(q)} == {"alert"}


@pytest.mark.embedded
@pytest.mark.plain
@pytest.mark.sqlite
def test_without_the_master_it_is_said_that_nothing_can_be_verified(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = home.connect()
    q.create_topic("a", kind="log")
    seal(q)
    q.close()
    (home.folder / "app.duly.master").unlink()
    monkeypatch.setenv("DULY_MASTER", "env:NOT_THERE")
    found = verdicts(home.connect())
    assert [one.level for one in found] == ["warn"]
    assert "cannot be verified" in found[0].what


@pytest.mark.embedded
@pytest.mark.plain
@pytest.mark.sqlite
@pytest.mark.parametrize(
    "how",
    [
        "INSERT INTO duly_audit SELECT 'x', n, at_ms, entry, mac FROM duly_audit WHERE tenant <> 0 AND n = 1",
        "INSERT INTO duly_audit SELECT tenant, 'x', at_ms, entry, mac FROM duly_audit WHERE tenant <> 0 AND n = 1",
        "UPDATE duly_audit SET mac = 'x' WHERE n = 2",
        "UPDATE duly_audit SET at_ms = 'x' WHERE n = 2",
        "UPDATE duly_audit SET entry = 'x' WHERE n = 2",
        "UPDATE duly_audit_head SET mac = 'x'",
        "UPDATE duly_audit_head SET seal = 7",
        "UPDATE duly_audit_head SET n = 'x'",
    ],
)
def test_nothing_that_is_put_into_its_tables_ends_the_examination(home: Home, how: str) -> None:
    q = home.connect()
    for name in "ab":
        q.create_topic(name, kind="log")
    home.change(how)
    assert {one.level for one in verdicts(q)} == {"alert"}


@pytest.mark.embedded
def test_who_has_no_master_can_forge_no_chain(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """All is rewritten as a store without a secret would have it: chained right, and sealed with what everybody has."""
    from duly.engine import chain

    make_master(home.folder / "master")
    monkeypatch.setenv("DULY_MASTER", f"file:{home.folder / 'master'}")
    q = home.connect()
    q.create_topic("a", kind="log")
    seal(q)
    q.create_topic("b", kind="log")
    ((tenant,),) = home.ask("SELECT id FROM duly_tenant WHERE name = 'default'")
    rows = home.ask(f"SELECT n, at_ms, entry FROM duly_audit WHERE tenant = {tenant} ORDER BY n")
    mac = b""
    for n, at_ms, entry in rows:
        forged = bytes(entry).replace(b'"a"', b'"x"')
        mac = chain.mac_of(chain.PUBLIC, tenant, n, at_ms, mac, forged)
        home.change(
            f"UPDATE duly_audit SET entry = {blob(home, forged)}, mac = {blob(home, mac)} "
            f"WHERE tenant = {tenant} AND n = {n}"
        )
    sealed = chain.seal_of(chain.PUBLIC, tenant, len(rows), mac)
    home.change(
        f"UPDATE duly_audit_head SET mac = {blob(home, mac)}, seal = {blob(home, sealed)} WHERE tenant = {tenant}"
    )
    assert {one.level for one in verdicts(q)} == {"alert"}
    q.create_topic("c", kind="log")
    assert {one.level for one in verdicts(q)} == {"alert"}


@pytest.mark.embedded
def test_nor_by_taking_the_secret_of_the_store_away(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the store looks like one that never had any, and all of it can be chained anew; but for its keys."""
    from duly.engine import chain

    make_master(home.folder / "master")
    monkeypatch.setenv("DULY_MASTER", f"file:{home.folder / 'master'}")
    q = home.connect()
    q.create_tenant("acme", encrypt=True)
    q.create_topic("a", kind="log")
    home.change("DELETE FROM duly_secret WHERE tenant = 0")
    heads = {}
    for (tenant,) in home.ask("SELECT DISTINCT tenant FROM duly_audit"):
        rows = home.ask(f"SELECT n, at_ms, entry FROM duly_audit WHERE tenant = {tenant} ORDER BY n")
        mac = b""
        for n, at_ms, entry in rows:
            forged = bytes(entry).replace(b'"audit_sealed"', b'"pause_store"')
            mac = chain.mac_of(chain.PUBLIC, tenant, n, at_ms, mac, forged)
            home.change(
                f"UPDATE duly_audit SET entry = {blob(home, forged)}, mac = {blob(home, mac)} "
                f"WHERE tenant = {tenant} AND n = {n}"
            )
        heads[tenant] = ChainHead(len(rows), mac, b"")
    heads[chain.SUM] = ChainHead(1, chain.sum_of(heads), b"")
    for tenant, head in heads.items():
        sealed = chain.seal_of(chain.PUBLIC, tenant, head.n, head.mac)
        home.change(
            f"UPDATE duly_audit_head SET n = {head.n}, mac = {blob(home, head.mac)}, seal = {blob(home, sealed)} "
            f"WHERE tenant = {tenant}"
        )
    assert {one.level for one in verdicts(q)} == {"alert"}
    # Nor does it get another secret, which would seal what was forged.
    with pytest.raises(duly.Sealed, match="own secret is gone"):
        q.create_tenant("globex", encrypt=True)
    assert {one.level for one in verdicts(q)} == {"alert"}


def blob(home: Home, value: bytes) -> str:
    return f"decode('{value.hex()}', 'hex')" if "postgres" in home.address else f"x'{value.hex()}'"


@pytest.mark.embedded
def test_the_chain_of_an_erased_tenant_ends_where_the_operators_chain_says(home: Home) -> None:
    operator, acme = home.connect(), home.connect(tenant="acme")
    acme.create_topic("a", kind="log")
    acme.delete_topic("a")
    operator.delete_tenant("acme", force=True)
    until = time.monotonic() + 20
    while "acme" in operator.list_tenants():
        home.clock.advance(1.5)
        assert time.monotonic() < until
        time.sleep(0.05)
    ended = list(operator.audit(operators=True))[-1]
    assert (ended.action, ended.facts["tenant"], ended.facts["entries"]) == ("audit_ended", "acme", 2)
    assert home.ask("SELECT count(*) FROM duly_audit WHERE tenant <> 0") == [(0,)]
    assert is_whole(operator)
    # Another of that name has another chain.
    acme.create_topic("b", kind="log")
    assert done(acme) == ["create_topic"]
    assert is_whole(operator)


# What was denied


def refuse(q: duly.Client, *denied: Denied) -> None:
    q._port.store.write(note_denials, NoteDenials("$t", denied), tenant="$t", cost=0, deadline=None)  # type: ignore[attr-defined]


@pytest.mark.embedded
def test_what_was_denied_is_in_the_chain_and_the_events_of_whose_it_was(home: Home) -> None:
    acme, operator = home.connect(tenant="acme"), home.connect()
    acme.create_topic("a", kind="log")
    by = By("worker", "abcdefghijkl", "10.1.2.3", "acme")
    refuse(
        acme,
        Denied(5, by, "purge", "a", "denied"),
        Denied(6, By(key="unknown"), "authenticate", "", "unauthenticated"),
        Denied(7, By("x", tenant="nobody"), "read", "t", "denied"),
    )
    entry = list(acme.audit())[-1]
    assert (entry.at, entry.action, entry.outcome, entry.topic) == (5, "purge", "denied", "a")
    assert (entry.principal, entry.key, entry.address, entry.tenant) == ("worker", "abcdefghijkl", "10.1.2.3", "acme")
    assert [one.outcome for one in operator.audit(operators=True)][-2:] == ["unauthenticated", "denied"]
    told = [event for event in acme.events() if event.kind == "denied"]
    assert [(event.topic, event.facts["action"], event.facts["principal"]) for event in told] == [
        ("a", "purge", "worker")
    ]
    assert is_whole(acme)


@pytest.mark.embedded
def test_a_broker_notes_what_it_refuses_in_groups_and_tells_how_many_more_there_were(home: Home) -> None:
    from duly.broker.denials import _WAITING_MAX, Denials

    q = home.connect()
    q.create_topic("a", kind="log")
    denials = Denials(q._port)
    by = By("worker", "abcdefghijkl", "10.1.2.3", "default")
    began = time.monotonic()
    for _ in range(5 * _WAITING_MAX):
        denials.note(by, "purge", "default", "a", Refusal())
    assert time.monotonic() - began < 2, "whoever is refused does not wait"
    denials.close()
    entries = [entry for entry in q.audit() if entry.outcome == "denied"]
    single = [entry for entry in entries if entry.action == "purge"]
    more = sum(entry.facts["count"] for entry in entries if entry.action == "more")
    assert len(single) + more == 5 * _WAITING_MAX
    assert len(single) < 2 * _WAITING_MAX
    assert is_whole(q)
