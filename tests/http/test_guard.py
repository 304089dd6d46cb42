"""Whose requests are let in on an open port, and in which form."""

from __future__ import annotations

import httpx
import pytest

from duly.broker.broker import Broker
from duly.http.server import HttpServer

from .conftest import problem, texts
from .raw import answer, dial, request


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8470", "127.0.0.1.evil.example", "10.0.0.1", "", "["])
def test_foreign_host_is_refused(server: HttpServer, host: str) -> None:
    with dial(server.port) as sock:
        sock.sendall(request("GET", "/v1/topics", host=host))
        status, body = answer(sock)
    assert status == 421
    assert b"misdirected_request" in body


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8470", "127.0.0.1:1", "[::1]:8470", "[::1]"])
def test_own_names_are_let_in(server: HttpServer, host: str) -> None:
    with dial(server.port) as sock:
        sock.sendall(request("GET", "/v1/topics", host=host))
        assert answer(sock)[0] == 200


def test_two_host_headers_are_refused(server: HttpServer) -> None:
    with dial(server.port) as sock:
        sock.sendall(b"GET /v1/topics HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n\r\n")
        assert answer(sock)[0] == 421


def test_names_can_be_given(broker: Broker) -> None:
    server = HttpServer(broker, port=0, hosts=["queue.example"]).start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as http:
            assert http.get("/v1/topics", headers={"host": "Queue.Example:8470"}).status_code == 200
            problem(http.get("/v1/topics"), 421, "misdirected_request")
    finally:
        server.stop()


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1", "file://", "http://[", "http://127.0.0.1:1"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_page_of_another_site_is_refused(http: httpx.Client, emails: str, origin: str, method: str) -> None:
    answered = http.request(
        method, f"{emails}/messages", headers={"origin": origin, "access-control-request-method": "POST"}
    )
    problem(answered, 403, "foreign_origin")
    assert not any(name.startswith("access-control") for name in answered.headers)


def test_own_page_is_let_in(http: httpx.Client, url: str, emails: str) -> None:
    assert http.post(f"{emails}/messages", json=texts("x"), headers={"origin": url}).status_code == 201


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "application/jsonp"],
)
def test_other_types_of_body_are_refused(http: httpx.Client, emails: str, kind: str) -> None:
    body = b'{"messages": [{"payload_text": "x"}]}'
    problem(
        http.post(f"{emails}/messages", content=body, headers={"content-type": kind}), 415, "unsupported_media_type"
    )
    assert http.get(emails).json()["messages"] == 0


def test_type_may_have_parameters(http: httpx.Client, emails: str) -> None:
    kind = {"content-type": "Application/JSON; charset=utf-8"}
    assert (
        http.post(f"{emails}/messages", content=b'{"messages":[{"payload_text":"x"}]}', headers=kind).status_code == 201
    )


def test_raw_bytes_are_for_publish_alone(http: httpx.Client, emails: str) -> None:
    kind = {"content-type": "application/octet-stream"}
    problem(http.post(f"{emails}/claim", content=b"x", headers=kind), 415, "unsupported_media_type")


def test_unknown_path_and_method(http: httpx.Client, emails: str) -> None:
    for path in ("/", "/v1", "/v2/topics", "/v1/topics/", "/v1/topics/a/b/c", "//", "/v1/topics//messages"):
        problem(http.get(path), 404, "unknown_path")
    refused = http.put(f"{emails}/messages")
    problem(refused, 405, "method_not_allowed")
    assert set(refused.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}
    problem(http.post("/docs"), 405, "method_not_allowed")
    problem(http.request("TRACE", emails), 405, "method_not_allowed")


def test_body_where_none_belongs_is_refused(http: httpx.Client, emails: str) -> None:
    problem(http.post(f"{emails}/pause", json={}), 400, "malformed_request")
    problem(http.post(f"{emails}/pause", params={"x": "1"}), 400, "malformed_request")


@pytest.mark.parametrize("tenant", [b"\xff\xfe", b"a\tb", b"x" * 257, b""])
def test_bad_tenant_is_refused(http: httpx.Client, tenant: bytes) -> None:
    assert http.get("/v1/topics", headers={b"duly-tenant": tenant}).status_code in (400, 422)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        b"hello\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"POST /v1/topics HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/topics HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999999999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/topics HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET /v1/topics HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
    ],
)
def test_garbage_gets_an_answer_and_never_a_fault(server: HttpServer, garbage: bytes) -> None:
    with dial(server.port) as sock:
        sock.sendall(garbage)
        sock.settimeout(5)
        status, body = answer(sock)
    assert status == 0 or 200 <= status < 500
    assert b"Traceback" not in body
