"""How a client comes by its key, and where a key does not belong."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

import duly
from duly.broker.authority import Shown
from duly.cli.session import Where, open_session
from duly.keys import make_key
from duly.wire.operations import encode
from tests.surface.test_cli import ok, refused, run

from .conftest import ALL, Place, options


@pytest.fixture
def token(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.chdir(tmp_path)
    place.store.create_topic("orders", kind="queue")
    return place.key("shop", *ALL)


def test_the_environment_shows_it(place: Place, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DULY_TOKEN", token)
    with place.connect(None) as q:
        assert q.list_topics() == ["orders"]
    # It is for brokers alone.
    duly.connect(":memory:").close()


@pytest.mark.parametrize("wrong", ["", "secret", "duly_abc"])
def test_what_is_no_key_is_refused_and_not_repeated(place: Place, wrong: str) -> None:
    with pytest.raises(duly.InvalidArgument) as caught:
        place.connect(wrong)
    assert not wrong or str(wrong) not in str(caught.value)


def test_what_a_caller_shows_is_not_shown_on(token: str) -> None:
    assert token not in repr(Shown(token))


@pytest.mark.parametrize("misspelt", [{"topic": "orders"}, {"effects": "deny"}, {"only_own": True}, {"tenant": "acme"}])
def test_a_grant_with_a_word_that_nobody_knows_is_refused(place: Place, misspelt: dict[str, object]) -> None:
    token, grant = place.key("boss", duly.Grant("keys")), {"action": "publish", **misspelt}
    with place.http(token) as http:
        told = http.put("/v1/principals/shop", json={"grants": [grant]})
        assert (told.status_code, told.json()["code"]) == (400, "malformed_request")
    body = encode({"tenant": "", "principal": "shop", "grants": [grant]})
    with place.raw() as client, pytest.raises(pa.ArrowException, match="unknown field"):
        list(client.do_action(flight.Action("put_principal", body), options(token)))
    assert "shop" not in [one.name for one in place.store.list_principals()]


def test_a_key_in_a_url_is_refused_and_not_repeated(place: Place, token: str) -> None:
    for url in (f"duly://{token}@127.0.0.1:8471", f"duly://127.0.0.1:8471?token={token}"):
        with pytest.raises(duly.InvalidArgument) as caught:
            duly.connect(url)
        assert token not in str(caught.value)


def test_the_store_itself_takes_no_key(token: str, path: str) -> None:
    with pytest.raises(duly.InvalidArgument):
        duly.connect(path, token=token)


def test_a_profile_has_it_in_a_file(place: Place, token: str, tmp_path: Path) -> None:
    (tmp_path / "shop.token").write_text(token + "\n")
    url = f"duly://127.0.0.1:{place.flight_port}"
    (tmp_path / "config.toml").write_text(f'[profiles.shop]\nurl = "{url}"\ntoken_file = "shop.token"\n')
    env = {"DULY_CONFIG": str(tmp_path / "config.toml")}
    ran = run("topics", "list", "--profile", "shop", "--json", env=env)
    assert [line["topic"] for line in ran.lines] == ["orders"]
    assert run("topics", "list", "--url", url, env=env).code != 0


def test_a_profiles_key_and_certificates_are_passed_on_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DULY_TOKEN", "DULY_TLS_CA", "DULY_URL", "DULY_STORE", "DULY_PROFILE"):
        monkeypatch.setenv(name, "")
    key, url = make_key()[0], "duly+tls://127.0.0.1:8471"
    (tmp_path / "config.toml").write_text(f'[profiles.shop]\nurl = "{url}"\ntoken = "{key}"\nca = "ca.pem"\n')
    monkeypatch.setenv("DULY_CONFIG", str(tmp_path / "config.toml"))
    open_session(Where(url="duly+tls://elsewhere:8471", profile="shop")).pass_on()
    assert os.environ["DULY_TOKEN"] == ""
    open_session(Where(profile="shop")).pass_on()
    assert (os.environ["DULY_TOKEN"], os.environ["DULY_TLS_CA"]) == (key, str(tmp_path / "ca.pem"))


def test_the_tenant_is_the_keys_where_one_has_to_be_named(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DULY_TOKEN", place.key("shop", *ALL, tenant="other"))
    assert open_session(Where(url=f"duly://127.0.0.1:{place.flight_port}")).whose == "other"
    assert open_session(Where(store="app.duly")).whose == "default"


def test_keys_are_made_listed_rotated_and_revoked_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = ok("keys", "create", "--operator", "--json").lines[0]
    assert first["principal"] == "operator"
    assert "Those of operators: --operator" in ok("keys", "list").err
    grants = ("--grant", "publish:orders*", "--own", "cancel")
    made = ok("keys", "create", "shop", *grants, "--ttl", "90d", "--json").lines[0]
    (listed,) = ok("keys", "list", "--json").lines
    assert (listed["id"], listed["principal"], listed["used_at"]) == (made["id"], "shop", None)
    assert made["secret"] not in json.dumps(listed)
    again = ok("keys", "rotate", made["id"], "--overlap", "0s", "--json").lines[0]
    assert again["id"] != made["id"]
    ok("keys", "revoke", again["id"])
    ok("principals", "put", "shop", "--grant", "read", "--deny", "*:secret*")
    (shop,) = ok("principals", "list", "--json").lines
    assert [grant["effect"] for grant in shop["grants"]] == ["allow", "deny"]
    ok("principals", "delete", "shop")
    assert ok("keys", "list", "--json").lines == []
    assert refused("keys", "create", "nobody").code != 0


def test_a_key_that_is_used_is_noted(place: Place, token: str) -> None:
    from tests.store.patience import eventually

    with place.connect(token) as q:
        q.list_topics()
    eventually(lambda: place.store.list_keys()[0].used_at_ms == place.clock.now_ms())
