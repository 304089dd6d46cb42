"""A broker's certificate: its files, what is made of them for both ports, and how a new one takes effect by itself.

    loaded ──the files changed, or SIGHUP──▶ read anew, checked ──good──▶ in use at once, for connections from now on
                                                                └─bad───▶ said in the log; the one in use stays

A pair is taken whole or not at all: a certificate whose key has not been written yet is a bad one, and is looked at
again when the files change. What is open stays open under the certificate that it began with; Flight's sessions end
after their present request (flight/port.py).
"""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from cryptography import x509

from ..clock import HOST, from_ms
from ..errors import InvalidArgument, Unavailable
from ..events import log

# How often the files are looked at.
LOOK_S = 2.0
_SOON = timedelta(days=7)
# Of TLS 1.2; 1.3 has none but strong ones. Forward secrecy and authenticated encryption, or nothing.
_SUITES_1_2 = "ECDHE+AESGCM:ECDHE+CHACHA20"
_Seen = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True, repr=False)
class Certificate:
    """A certificate with its chain and its key, PEM, as it was when read; `client_ca` signs those of clients."""

    chain: bytes
    key: bytes
    client_ca: bytes | None
    # For the HTTP port.
    context: ssl.SSLContext

    def __repr__(self) -> str:
        return "Certificate(…)"


class Certificates:
    """The certificate that is in use, which follows its files. Raises InvalidArgument when it cannot be used.

    With a `client_ca`, whoever connects to either port needs a certificate that it has signed.
    """

    def __init__(self, cert: str, key: str, client_ca: str | None = None) -> None:
        self._paths = (cert, key) if client_ca is None else (cert, key, client_ca)
        self._seen = self._look()
        self.current = _load(*self._paths)
        # What not all ports have yet.
        self._untold: Certificate | None = None
        self._wish = threading.Event()
        self._over = False
        self._thread: threading.Thread | None = None

    def server_context(self) -> ssl.SSLContext:
        """For a port that listens as long as it likes: every handshake takes the certificate that is in use then."""
        context = _load(*self._paths).context

        def choose(connection: Any, _name: str | None, _context: ssl.SSLContext) -> None:
            connection.context = self.current.context

        context.sni_callback = choose
        return context

    def follow(self, changed: Callable[[Certificate], None]) -> None:
        """Looks after the files from now on; `changed` is called with each new certificate, on a thread of its own, and
        again while it raises Unavailable.
        """
        self._thread = threading.Thread(target=self._follow, args=(changed,), name="duly-certificates", daemon=True)
        self._thread.start()

    def reload(self) -> None:
        """Has the files read now, changed or not; may be called by a signal's handler."""
        self._wish.set()

    def close(self) -> None:
        """Leaves the files alone."""
        self._over = True
        self._wish.set()
        if self._thread is not None:
            self._thread.join()

    def _follow(self, changed: Callable[[Certificate], None]) -> None:
        while True:
            wished = self._wish.wait(LOOK_S)
            if self._over:
                return
            self._wish.clear()
            if (seen := self._look()) != self._seen or wished:
                self._seen = seen
                self._take()
            if self._untold is not None:
                self._tell(changed, self._untold)

    def _take(self) -> None:
        try:
            found = _load(*self._paths)
        except InvalidArgument as error:
            log.error("the new certificate is not used, the present one stays: %s", error)
            return
        now = self.current
        if (found.chain, found.key, found.client_ca) == (now.chain, now.key, now.client_ca):
            return
        self.current = self._untold = found

    def _tell(self, changed: Callable[[Certificate], None], found: Certificate) -> None:
        try:
            changed(found)
        except Unavailable as error:
            log.error("a port does not have the new certificate yet, and is tried again: %s", error)
            return
        self._untold = None
        log.info("the certificate was changed: new connections get %s", self._paths[0])

    def _look(self) -> _Seen:
        """What tells whether a file is another than before; what is missing is found so when it is read."""
        return tuple(_stamp(path) for path in self._paths)


def _stamp(path: str) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_ino, found.st_size)


def _load(cert: str, key: str, client_ca: str | None = None) -> Certificate:
    chain, secret = _read(cert), _read(key)
    signers = None if client_ca is None else _read(client_ca)
    _check_time(chain, cert)
    context = _context(cert, key, client_ca)
    # OpenSSL has read the files once more: were they others by then, port and port would differ.
    if (chain, secret) != (_read(cert), _read(key)):
        raise InvalidArgument(f"{cert} or {key} was written to while it was read.")
    return Certificate(chain, secret, signers, context)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror or error}.") from error


def _check_time(chain: bytes, path: str) -> None:
    try:
        certificate = x509.load_pem_x509_certificates(chain)[0]
    except ValueError as error:
        raise InvalidArgument(f"{path} holds no certificate as PEM text.") from error
    now = from_ms(HOST.wall_ns() // 1_000_000)
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not begins <= now < ends:
        raise InvalidArgument(f"The certificate in {path} holds from {begins} until {ends}: not now.")
    if ends - now < _SOON:
        log.warning("the certificate in %s ends at %s", path, ends)


def _context(cert: str, key: str, client_ca: str | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_SUITES_1_2)
    context.set_alpn_protocols(["http/1.1"])
    # Tickets would let a client in again that had shown its certificate to an earlier client_ca.
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    context.num_tickets = 0
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except (ssl.SSLError, OSError) as error:
        raise InvalidArgument(f"{cert} and {key} cannot be used together: {_said(error)}.") from error
    if client_ca is not None:
        _require_clients(context, client_ca)
    return context


def _require_clients(context: ssl.SSLContext, client_ca: str) -> None:
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(cafile=client_ca)
    except (ssl.SSLError, OSError) as error:
        raise InvalidArgument(f"{client_ca} holds no CA's certificate as PEM text: {_said(error)}.") from error


def _no_password() -> str:
    """A broker that asked for one would stand still at every start."""
    raise InvalidArgument("The key is encrypted with a password. Store it without, in a file that its owner may read.")


def _said(error: OSError) -> str:
    reason = getattr(error, "reason", None) or error.strerror
    return str(reason or error).replace("_", " ").lower()


def peer_names(certificate: dict[str, Any] | None) -> tuple[str, ...]:
    """Who a verified client certificate (`ssl.SSLSocket.getpeercert`) names: its first alternative name, else its
    subject's common name; () if it has neither. The same as Flight's `peer_identity` has, so that a client is the
    same at both ports.
    """
    if not certificate:
        return ()
    for kind, name in certificate.get("subjectAltName", ()):
        if kind in ("DNS", "URI", "email", "IP Address"):
            return (str(name),)
    common = [name for part in certificate.get("subject", ()) for key, name in part if key == "commonName"]
    return tuple(common[:1])
