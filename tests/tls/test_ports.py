"""Both ports speak TLS, to whom they should, and say what is wrong to the others."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import duly
from duly.flight import caller
from duly.flight import server as flight_server
from duly.http.endpoint import PEER
from duly.http.guard import Guard

from .conftest import Folder, TlsBroker

Start = Callable[..., TlsBroker]


def lifecycle(q: duly.Client) -> None:
    q.create_topic("orders", kind="queue")
    q.publish("orders", [b"one", b"two"])
    with q.claim("orders", max_messages=2) as batch:
        assert batch.payloads == [b"one", b"two"]


def test_a_client_publishes_and_claims_through_tls(broker: TlsBroker, certs: Folder) -> None:
    with duly.connect(broker.url, tls=certs.tls) as q:
        lifecycle(q)


def test_the_environment_says_which_files(broker: TlsBroker, certs: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DULY_TLS_CA", certs["ca.pem"])
    with duly.connect(broker.url) as q:
        lifecycle(q)


def test_without_a_ca_the_systems_are_trusted(
    broker: TlsBroker, certs: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", certs["ca.pem"])
    with duly.connect(broker.url) as q:
        lifecycle(q)


def test_rest_answers_over_https_alone_and_tells_browsers_to_stay_there(broker: TlsBroker, certs: Folder) -> None:
    context = ssl.create_default_context(cafile=certs["ca.pem"])
    answer = httpx.get(f"{broker.http}/v1/topics", verify=context)
    assert answer.json()["topics"] == []
    assert answer.headers["strict-transport-security"] == "max-age=31536000"
    missing = httpx.get(f"{broker.http}/v1/topics/none", verify=context)
    assert (missing.status_code, "strict-transport-security" in missing.headers) == (404, True)
    local = httpx.get(f"https://localhost:{broker.ports['http']}/health/ready", verify=context)
    assert "strict-transport-security" not in local.headers, "what else is developed there would be out of reach"
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://127.0.0.1:{broker.ports['http']}/health/ready")


def test_without_tls_nothing_is_said_of_https(start: Start) -> None:
    plain = start(plain=True)
    answer = httpx.get(f"http://127.0.0.1:{plain.ports['http']}/health/ready")
    assert "strict-transport-security" not in answer.headers


def test_brokers_that_are_learnt_are_reached_by_tls(start: Start, certs: Folder) -> None:
    one, other, plain = start(), start(), start(plain=True)
    with duly.connect(one.url, tls=certs.tls) as q:
        deadline = time.monotonic() + 20
        while len(q.cluster()) < 3 or len(one.served.broker.peers) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert {member.url for member in q.cluster()} == {one.url, other.url, plain.url}
        assert {member.http_url.partition(":")[0] for member in q.cluster()} == {"https", "http"}
        q.create_topic("orders", kind="log")
        remote: Any = q._port
        deadline = time.monotonic() + 20
        while remote._lines.brokers < 2:
            assert time.monotonic() < deadline
            q.list_topics()
            time.sleep(0.05)
        assert set(remote._lines._addresses) == {
            broker.url.replace("duly+tls", "grpc+tls") for broker in (one, other)
        }, "never one without TLS"
        one.served.broker.drain()
        assert q.publish("orders", b"goes on elsewhere").count == 1


class TestRefused:
    def test_a_ca_that_did_not_sign(self, broker: TlsBroker, tmp_path: Path) -> None:
        others = Folder(tmp_path / "others").make()
        began = time.monotonic()
        with duly.connect(broker.url, tls=others.tls) as q, pytest.raises(duly.Unavailable) as told:
            q.list_topics()
        assert "is not trusted" in str(told.value)
        assert "DULY_TLS_CA" in str(told.value)
        assert time.monotonic() - began < 10, "to try again would not help"

    def test_a_certificate_for_another_name(self, start: Start, certs: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("duly.certificates.LOOPBACK_NAMES", ("queue.example",))
        certs.make()
        with duly.connect(start().url, tls=certs.tls) as q, pytest.raises(duly.Unavailable) as told:
            q.list_topics()
        assert "certificate is not valid for '127.0.0.1'" in str(told.value)

    def test_a_client_without_tls(self, broker: TlsBroker) -> None:
        with (
            duly.connect(broker.url.replace("duly+tls", "duly")) as q,
            pytest.raises(duly.InvalidArgument, match=r"Connect to duly\+tls://127\.0\.0\.1:"),
        ):
            q.list_topics()

    def test_a_broker_without_tls(self, start: Start, certs: Folder) -> None:
        url = start(plain=True).url.replace("duly://", "duly+tls://")
        with (
            duly.connect(url, tls=certs.tls) as q,
            pytest.raises(duly.InvalidArgument, match=r"does not speak TLS.*duly://127\.0\.0\.1:"),
        ):
            q.list_topics()

    def test_the_other_port(self, broker: TlsBroker, certs: Folder) -> None:
        with (
            duly.connect(f"duly+tls://127.0.0.1:{broker.ports['http']}", tls=certs.tls) as q,
            pytest.raises(duly.InvalidArgument, match="not Flight's port"),
        ):
            q.list_topics()

    def test_nobody_there_is_said_as_ever(self, certs: Folder) -> None:
        with (
            duly.connect("duly+tls://127.0.0.1:1", tls=certs.tls, timeout=1) as q,
            pytest.raises(duly.Unavailable, match="No broker answers"),
        ):
            q.list_topics()

    @pytest.mark.parametrize(
        ("more", "told"),
        [
            ({"ca": "nowhere.pem"}, "nowhere.pem cannot be read"),
            ({"ca": __file__}, "holds no CA's certificate"),
            ({"cert": "c.pem"}, "goes with its key"),
            ({"cert": __file__, "key": __file__}, "no certificate with its key"),
            ({"ca": 3}, "ca must be the path"),
        ],
    )
    def test_files_that_cannot_be_used(self, more: dict[str, Any], told: str) -> None:
        with pytest.raises(duly.InvalidArgument, match=told):
            duly.connect("duly+tls://127.0.0.1:1", tls=duly.Tls(**more))

    def test_tls_where_it_means_nothing(self, path: str, certs: Folder) -> None:
        for place in (path, "duly://127.0.0.1:1"):
            with pytest.raises(duly.InvalidArgument, match=r"duly\+tls://"):
                duly.connect(place, tls=certs.tls)
        with pytest.raises(duly.InvalidArgument, match=r"duly\.Tls"):
            duly.connect("duly+tls://127.0.0.1:1", tls="ca.pem")  # type: ignore[arg-type]
        assert not os.path.exists(path)


class TestClientCertificates:
    def test_both_ports_take_whoever_has_one(self, start: Start, certs: Folder) -> None:
        broker = start(mutual=True)
        with duly.connect(broker.url, tls=certs.mutual) as q:
            lifecycle(q)
        assert httpx.get(f"{broker.http}/v1/topics", verify=certs.mutual.context()).status_code == 200

    @pytest.mark.parametrize("which", ["none", "of another CA"])
    def test_both_ports_refuse_whoever_has_none(self, start: Start, certs: Folder, tmp_path: Path, which: str) -> None:
        broker = start(mutual=True)
        others = Folder(tmp_path / "others").make()
        tls = certs.tls
        if which != "none":
            tls = duly.Tls(ca=certs["ca.pem"], cert=others["client.pem"], key=others["client.key"])
        with duly.connect(broker.url, tls=tls) as q, pytest.raises(duly.Unavailable, match="asks for a client cert"):
            q.list_topics()
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{broker.http}/v1/topics", verify=tls.context())

    @pytest.mark.parametrize("name", ["alice", "spiffe://example/alice", "192.0.2.7"])
    def test_a_client_has_the_same_name_at_both_ports(
        self, start: Start, certs: Folder, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        certs.make(client=name)
        seen: dict[str, Any] = {}
        guarded = Guard.__call__

        async def guard(self: Guard, scope: Any, receive: Any, send: Any) -> None:
            seen["http"] = scope.get("extensions", {}).get(PEER)
            await guarded(self, scope, receive, send)

        def called(broker: Any, context: Any, *more: Any) -> Any:
            seen["flight"] = context.peer_identity()
            return caller.caller_of(broker, context, *more)

        monkeypatch.setattr(Guard, "__call__", guard)
        monkeypatch.setattr(flight_server, "caller_of", called)
        broker = start(mutual=True)
        httpx.get(f"{broker.http}/v1/topics", verify=certs.mutual.context())
        with duly.connect(broker.url, tls=certs.mutual) as q:
            q.list_topics()
        assert seen == {"http": {"names": (name,)}, "flight": name.encode()}
