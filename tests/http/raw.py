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
    head, body = b"", b""
    # Byte by byte: what comes behind it may belong to the next answer.
    while not head.endswith(b"\r\n\r\n"):
        piece = sock.recv(1)
        if not piece:
            return (int(head.split()[1]) if head else 0), head
        head += piece
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0] or 0)
    while len(body) < length:
        piece = sock.recv(length - len(body))
        if not piece:
            break
        body += piece
    return int(head.split()[1]), body
