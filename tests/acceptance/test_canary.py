"""Canaries: known secrets and known content go in everywhere, and come out nowhere but where they belong.

A broker, its clients and the command line run as processes. What any of them says is gathered: its standard output and
errors, its traceback, its command line as all users of the machine see it, the bodies of its errors, events, audit,
findings and descriptions. In none of that is a key, a master key, a payload, a header or a message's key.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import duly
from tests.surface.brokers import DULY, Serving, serving

PAYLOAD = "CANARY-payload-7b0f3c"
HEADER = "CANARY-header-91ad22"
KEY = "CANARY-message-key-55e1"
REASON = "CANARY-reason-08c9d4"
# Content of messages; ids, topics and names of principals may be seen.
CONTENT = (PAYLOAD, HEADER, KEY)
# What was said of them. Those who may see events and dead letters may see it; nobody else.
SAID = (REASON,)

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="command lines are looked for in /proc")


def forms(text: str) -> list[str]:
    """How a text could be found in an output: as it is, in base64 (at each of three places), in hex."""
    found = [text, text.encode().hex()]
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + text.encode()).decode()
        found.append(encoded[4 if shift else 0 : len(encoded) - 4])
    return found


class Watch:
    """Everything that processes were seen to say, by where."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []
        self._over = threading.Event()
        self._seen: set[tuple[str, str]] = set()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def heard(self, where: str, text: object) -> None:
        self.said.append((where, text if isinstance(text, str) else repr(text)))

    def _look(self) -> None:
        """The command lines of all processes here, again and again."""
        while not self._over.wait(0.1):
            for entry in Path("/proc").iterdir():
                if entry.name.isdigit():
                    try:
                        line = (entry / "cmdline").read_bytes().decode(errors="replace")
                    except OSError:
                        continue
                    self._seen.add(("the command line of a process", line))

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self.said += sorted(self._seen)

    def holds(self, secret: str) -> list[str]:
        """Where a secret was said."""
        return [where for where, text in self.said if any(form in text for form in forms(secret))]


@pytest.fixture
def watch() -> Iterator[Watch]:
    watching = Watch()
    yield watching
    watching.close()


def cli(watch: Watch, folder: Path, *args: str, token: str | None = None, stdin: bytes | None = None) -> str:
    """Runs the command line; what it says is heard, and answered."""
    env = {**os.environ, **({} if token is None else {"DULY_TOKEN": token})}
    ran = subprocess.run([DULY, *args], capture_output=True, cwd=folder, env=env, input=stdin, timeout=60)
    watch.heard(f"duly {' '.join(args)}: errors", ran.stderr.decode())
    return ran.stdout.decode()


class Shop:
    """A broker with keys, and what is secret in it."""

    def __init__(self, folder: Path, watch: Watch) -> None:
        self.folder = folder
        self.watch = watch
        made = cli(watch, folder, "keys", "create", "--operator", "--store", "app.duly", "--json")
        self.operator = self._key(made)
        self.worker = ""
        self.nobody = ""
        self.broker: Serving

    @staticmethod
    def _key(text: str) -> str:
        for value in json.loads(text).values():
            if isinstance(value, str) and value.startswith("duly_"):
                return value
        raise AssertionError(text)

    def furnish(self) -> None:
        """A tenant with a topic, a worker that may do everything there, and one who may do nothing."""
        store = ("--store", "app.duly", "--json")
        cli(self.watch, self.folder, "tenants", "create", "acme", *store)
        with duly.connect(self.folder / "app.duly", tenant="acme") as q:
            q.create_topic("jobs", kind="queue", lease=30, retry=duly.RetryPolicy(max_attempts=1))
            q.create_topic("orders", kind="log")
        actions = ("publish", "claim", "settle", "read", "browse", "redrive")
        grants = [part for action in actions for part in ("--grant", action)]
        acme = ("--tenant", "acme", *store)
        self.worker = self._key(cli(self.watch, self.folder, "keys", "create", "worker", *grants, *acme))
        self.nobody = self._key(cli(self.watch, self.folder, "keys", "create", "nobody", "--grant", "audit", *acme))

    @property
    def secrets(self) -> dict[str, str]:
        tokens = {"the operator's key": self.operator, "the worker's key": self.worker, "nobody's key": self.nobody}
        secret = {f"the secret of {name}": token.rpartition("_")[2] for name, token in tokens.items()}
        masters = [line for line in self.master.read_text().splitlines() if line and not line.startswith("#")]
        return {**tokens, **secret, "the master key": masters[0]}

    @property
    def master(self) -> Path:
        return self.folder / "app.duly.master"

    def client(self, token: str) -> duly.Client:
        return duly.connect(self.broker.url, token=token)

    def rest(self, token: str | None) -> httpx.Client:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=str(self.broker.document["http_url"]), headers=headers)


@pytest.fixture
def shop(tmp_path: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    for name in ("DULY_STORE", "DULY_URL", "DULY_PROFILE", "DULY_CONFIG", "DULY_TOKEN", "DULY_MASTER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    place = Shop(tmp_path, watch)
    place.furnish()
    with serving(tmp_path, "--json", "--http-port", "0", "--flight-port", "0") as broker:
        place.broker = broker
        yield place


def test_secrets_and_content_are_in_no_output(shop: Shop, watch: Watch) -> None:
    live(shop)
    go_wrong(shop)
    fall(shop)
    look(shop)
    code, out, err = shop.broker.ended(signal.SIGTERM)
    watch.heard("the broker's output", out + err)
    watch.close()
    assert code == 0
    # That nothing is found must not be because nothing was looked at.
    assert len(watch.said) > 30
    assert any("serve" in text for where, text in watch.said if where == "the command line of a process")
    found = {name: watch.holds(secret) for name, secret in shop.secrets.items()}
    found |= {text: watch.holds(text) for text in CONTENT}
    found |= {text: [where for where in watch.holds(text) if where not in ("events", "duly events")] for text in SAID}
    assert {name: where for name, where in found.items() if where} == {}


def test_what_is_looked_for_would_be_found(watch: Watch) -> None:
    for text in (*CONTENT, "duly_abcdefghijkl_secret"):
        for dressed in (text, base64.b64encode(b"ab" + text.encode()).decode(), text.encode().hex(), f'"{text}"'):
            watch.said[:] = [("here", dressed)]
            assert watch.holds(text) == ["here"], dressed


@pytest.mark.parametrize("headers", [{"h": HEADER.encode()}, {HEADER.encode(): "h"}])
def test_a_header_that_is_refused_is_not_quoted(headers: Any) -> None:
    with duly.connect(":memory:") as q:
        q.create_topic("t", kind="log")
        with pytest.raises(duly.InvalidArgument) as refusal:
            q.publish("t", [duly.Message(PAYLOAD.encode(), headers=headers)])
    assert not any(form in str(refusal.value) for form in forms(HEADER))


def test_a_password_of_postgresql_is_in_no_error() -> None:
    for address in ("postgresql://u:CANARY@[::1/shop", "postgresql://u:CANARY%zz@h/shop"):
        with pytest.raises(duly.InvalidArgument) as refusal:
            duly.connect(address)
        assert "CANARY" not in "".join(traceback.format_exception(refusal.value))


def live(shop: Shop) -> None:
    """Messages are published, failed, buried, and listed by those who may."""
    message = duly.Message(PAYLOAD.encode(), id="m-1", key=KEY, headers={"secret": HEADER})
    with shop.client(shop.worker) as q:
        q.publish("jobs", [message])
        q.publish("orders", [duly.Message(PAYLOAD.encode(), key=KEY, headers={"secret": HEADER})])
        for batch in (q.claim("jobs"),):
            q.nack(batch, reason=REASON)
        assert [letter.message.payload for letter in q.dead("jobs")] == [PAYLOAD.encode()]


def go_wrong(shop: Shop) -> None:
    """Everything that is refused is refused without quoting what was sent."""
    watch = shop.watch
    content = {"payload_text": PAYLOAD, "key": KEY, "headers": {"h": HEADER}}
    bodies: list[Any] = [
        {"messages": [{**content, "nonsense": 1}]},
        {"messages": [{**content, "priority": 10**9}]},
        {"messages": [{**content, "id": PAYLOAD * 1000}]},
        {"messages": [{**content, "payload_base64": PAYLOAD}]},
        {"messages": [content] * 3, "partition": PAYLOAD},
    ]
    for token in (shop.worker, shop.nobody, shop.operator, None, shop.worker[:-1], shop.worker[:-1] + "?"):
        with shop.rest(token) as http:
            for body in bodies:
                for path in ("/v1/topics/jobs/messages", "/v1/topics/nowhere/messages", "/v1/topics/orders/messages"):
                    answer = http.post(path, json=body)
                    assert answer.is_error
                    watch.heard(f"POST {path}", answer.text + str(answer.headers))
            answer = http.post("/v1/topics/jobs/messages", content=PAYLOAD.encode() + b"{", headers=JSON)
            watch.heard("no JSON", answer.text)
            answer = http.get("/v1/topics", headers={"Authorization": f"Basic {shop.worker}"})
            watch.heard("another way of showing a key", answer.text)
    for token in (shop.nobody, shop.worker[:-1] + ("y" if shop.worker.endswith("x") else "x")):
        try:
            with shop.client(token) as q:
                q.publish("jobs", [duly.Message(PAYLOAD.encode(), key=KEY, headers={"h": HEADER})])
        except duly.Error as error:
            watch.heard("Flight", f"{error!r} {error} {error.facts}")
        else:
            raise AssertionError("it was let in")


JSON = {"Content-Type": "application/json"}


def fall(shop: Shop) -> None:
    """Programs that end in a traceback, with a key and a payload in their hands."""
    code = """
        import os, duly
        q = duly.connect(os.environ["WHERE"], token=os.environ["TOKEN"])
        print(repr(q), vars(q) if os.environ.get("ALL") else "")
        payload, key, header = (os.environ[name] for name in ("PAYLOAD", "KEY", "HEADER"))
        q.publish("nowhere", [duly.Message(payload.encode(), key=key, headers={"h": header})])
    """
    given = {"WHERE": shop.broker.url, "PAYLOAD": PAYLOAD, "KEY": KEY, "HEADER": HEADER}
    for token in (shop.worker, shop.nobody, shop.worker[:-1] + "x"):
        env = {**os.environ, **given, "TOKEN": token}
        ran = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, env=env, timeout=60)
        assert ran.returncode == 1
        assert b"Traceback" in ran.stderr
        shop.watch.heard("a client's traceback", ran.stderr.decode() + ran.stdout.decode())
    for args in (
        ["publish", "nowhere", "--file", "-"],
        ["claim", "nowhere"],
        ["publish", "jobs", "--file", "-", "--due", "nonsense"],
    ):
        for token in (shop.worker, shop.nobody, shop.worker[:-1] + "x"):
            out = cli(shop.watch, shop.folder, *args, "--url", shop.broker.url, token=token, stdin=PAYLOAD.encode())
            shop.watch.heard(f"duly {args[0]}", out)


def look(shop: Shop) -> None:
    """What operators and auditors are shown."""
    time.sleep(1.5)
    watch, url = shop.watch, ("--url", shop.broker.url, "--json")
    for token, args in (
        (shop.worker, ("events",)),
        (shop.worker, ("topics", "list")),
        (shop.worker, ("health",)),
        (shop.nobody, ("audit",)),
        (shop.operator, ("audit", "--operators")),
        (shop.operator, ("doctor",)),
        (shop.operator, ("cluster",)),
        (shop.operator, ("tenants", "list")),
        (shop.operator, ("keys", "list", "--operator")),
    ):
        out = cli(watch, shop.folder, *args, *url, token=token)
        watch.heard(f"duly {' '.join(args)}", out)
    audit = cli(watch, shop.folder, "audit", *url, token=shop.nobody)
    assert '"denied"' in audit
    with duly.connect(shop.folder / "app.duly", tenant="acme") as q:
        watch.heard("events", [*q.events()])
        watch.heard("audit", [*q.audit(), *q.audit(operators=True)])
        watch.heard("doctor", list(q.examine()))
        watch.heard("described", (q.describe_topic("jobs"), q.health(), q.list_keys(), q.list_principals()))
        assert any(event.kind == "denied" for event in q.events())
