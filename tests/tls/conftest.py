"""Brokers with TLS in this process, their certificates in a folder, and what connects to them by hand."""

from __future__ import annotations

import hashlib
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import duly
from duly.broker.certificates import Certificates
from duly.certificates import make_development_certificates
from duly.serve import Address, Served


@dataclass(frozen=True)
class Folder:
    """A folder that `duly certs dev` made."""

    path: Path

    def __getitem__(self, name: str) -> str:
        return str(self.path / name)

    def make(self, **more: Any) -> Folder:
        """Makes all of them, anew if they are there."""
        make_development_certificates(str(self.path), force=True, **more)
        return self

    def certificates(self, *, mutual: bool = False) -> Certificates:
        return Certificates(self["server.pem"], self["server.key"], self["ca.pem"] if mutual else None)

    @property
    def tls(self) -> duly.Tls:
        """A client without a certificate of its own."""
        return duly.Tls(ca=self["ca.pem"])

    @property
    def mutual(self) -> duly.Tls:
        return duly.Tls(ca=self["ca.pem"], cert=self["client.pem"], key=self["client.key"])

    @property
    def fingerprint(self) -> str:
        """The server's certificate."""
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(Path(self["server.pem"]).read_text())).hexdigest()


class TlsBroker:
    """A broker with TLS on both ports."""

    def __init__(self, store: str, certificates: Certificates | None) -> None:
        self.served = Served(store, Address(http_port=0, flight_port=0), certificates=certificates)
        self.ports = {"http": self.served.http.port, "flight": self.served.flight.port}
        scheme = "duly" if certificates is None else "duly+tls"
        self.url = f"{scheme}://127.0.0.1:{self.ports['flight']}"
        self.http = f"https://127.0.0.1:{self.ports['http']}"

    def reload(self) -> None:
        assert self.served.certificates is not None
        self.served.certificates.reload()

    def close(self) -> None:
        if self.served.certificates is not None:
            self.served.certificates.close()
        self.served.broker.shut()
        self.served.flight.shutdown()
        self.served.http.stop()


def shake(port: int, context: ssl.SSLContext, *, alpn: str | None = None) -> ssl.SSLSocket:
    """A handshake by hand."""
    context.set_alpn_protocols([alpn or "h2", "http/1.1"])
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=10), server_hostname="127.0.0.1")


def certificate_at(port: int, tls: duly.Tls | None = None) -> str:
    """The fingerprint of the certificate that a port shows now."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if tls is None else tls.context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with shake(port, context) as line:
        return hashlib.sha256(line.getpeercert(binary_form=True) or b"").hexdigest()


@pytest.fixture
def certs(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "certs").make()


@pytest.fixture
def start(path: str, certs: Folder) -> Iterator[Callable[..., TlsBroker]]:
    """Starts brokers on one store, with certificates of `certs` unless others are given."""
    started: list[TlsBroker] = []

    def make(certificates: Certificates | None = None, *, mutual: bool = False, plain: bool = False) -> TlsBroker:
        given = None if plain else certificates or certs.certificates(mutual=mutual)
        started.append(TlsBroker(path, given))
        return started[-1]

    yield make
    for broker in started:
        broker.close()


@pytest.fixture
def broker(start: Callable[..., TlsBroker]) -> TlsBroker:
    return start()
