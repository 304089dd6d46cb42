"""A client certificate that a principal names does what a key does, on both ports; another one does nothing."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

import duly

from .conftest import Folder, TlsBroker

Start = Callable[..., TlsBroker]


@pytest.fixture
def mutual(start: Start, path: str, certs: Folder) -> TlsBroker:
    """A broker whose one principal shows the certificate of spiffe://shop."""
    with duly.connect(path) as store:
        for topic in ("orders", "secrets"):
            store.create_topic(topic, kind="queue")
        grants = [duly.Grant("publish", "orders"), duly.Grant("claim", "orders"), duly.Grant("settle", "orders")]
        store.put_principal("shop", grants, certificates=["spiffe://shop"])
    certs.make(client="spiffe://shop")
    return start(mutual=True)


def test_a_certificate_is_a_key(mutual: TlsBroker, certs: Folder) -> None:
    with duly.connect(mutual.url, tls=certs.mutual) as q:
        q.publish("orders", b"one")
        with q.claim("orders") as batch:
            assert batch.payloads == [b"one"]
        with pytest.raises(duly.TopicNotFound):
            q.publish("secrets", b"two")
    with httpx.Client(base_url=mutual.http, verify=certs.mutual.context()) as http:
        assert http.get("/v1/topics").json()["topics"] == ["orders"]
        assert http.get("/v1/topics/secrets").status_code == 404
        assert http.delete("/v1/topics/orders").status_code == 403


def test_a_certificate_that_nobody_names_is_refused(mutual: TlsBroker, certs: Folder, start: Start) -> None:
    # Of a broker that trusts the CA that signs it: it is let in by TLS, and by nobody else.
    certs.make(client="spiffe://depot")
    other = start(mutual=True)
    with duly.connect(other.url, tls=certs.mutual) as q, pytest.raises(duly.Unauthenticated):
        q.list_topics()
    assert httpx.get(f"{other.http}/v1/topics", verify=certs.mutual.context()).status_code == 401


def test_a_key_counts_before_a_certificate(mutual: TlsBroker, certs: Folder, path: str) -> None:
    with duly.connect(path) as store:
        store.put_principal("reader", [duly.Grant("browse", "secrets")])
        token = store.create_key("reader").secret
    with duly.connect(mutual.url, tls=certs.mutual, token=token) as q:
        assert q.list_topics() == ["secrets"]
    shown = {"Authorization": f"Bearer {token}"}
    answer = httpx.get(f"{mutual.http}/v1/topics", verify=certs.mutual.context(), headers=shown)
    assert answer.json()["topics"] == ["secrets"]
