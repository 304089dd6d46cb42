"""HTTP by hand, for clients that misbehave."""

from __future__ import annotations

import socket


def dial(port: int, timeout: float = 20) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=timeout)


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    """A request; a header given as "" is left out."""
    all_headers = {"host": "127.0.0.1", "content-type": "application/json", "content-length": str(len(body))} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in all_headers.items() if value)]
    return "\r\n".join([*lines, "", ""]).encode() + body


def answer(sock: socket.socket) -> tuple[int, bytes]:
    """The status and all that follows, up to the length announced or the end."""
    got = b""
    while b"\r\n\r\n" not in got:
        piece = sock.recv(65536)
        if not piece:
            return (int(got.split()[1]) if got else 0), got
        got += piece
    head, _, body = got.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0] or 0)
    while len(body) < length:
        piece = sock.recv(65536)
        if not piece:
            break
        body += piece
    return int(head.split()[1]), body
