"""TLS as a client has it: whom it trusts, and how it shows who it is."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidArgument
from ..trust import system_ca_file

ENVIRONMENT = {"ca": "DULY_TLS_CA", "cert": "DULY_TLS_CERT", "key": "DULY_TLS_KEY"}
_Path = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Tls:
    """Files for `duly+tls://`, PEM: the CA that signed the broker's certificate, else those that this machine trusts;
    and, where the broker asks for one, this client's certificate and its key.

    The broker's certificate must hold for the name or address that is connected to; there is no way to do without.
    They are read anew for each connection, so that a certificate can be replaced while the client runs.
    """

    ca: _Path | None = None
    cert: _Path | None = None
    key: _Path | None = None

    def __post_init__(self) -> None:
        for name in ENVIRONMENT:
            if not isinstance(getattr(self, name), (str, os.PathLike, type(None))):
                raise InvalidArgument(f"{name} must be the path of a file.")
        if (self.cert is None) != (self.key is None):
            raise InvalidArgument("A client's certificate goes with its key: give cert and key.")

    def check(self) -> None:
        """Raises InvalidArgument when a file cannot be read, or is not what it should be."""
        self.context()

    def flight_options(self) -> dict[str, Any]:
        """What a client of Flight's is made with."""
        roots = _system_roots() if self.ca is None else _read(self.ca)
        options: dict[str, Any] = {} if roots is None else {"tls_root_certs": roots}
        if self.cert is not None and self.key is not None:
            options |= {"cert_chain": _read(self.cert), "private_key": _read(self.key)}
        return options

    def context(self) -> ssl.SSLContext:
        """The same for Python's own TLS."""
        context = ssl.create_default_context(cadata=None if self.ca is None else _text(self.ca))
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.cert is not None and self.key is not None:
            _read(self.cert)
            _read(self.key)
            try:
                context.load_cert_chain(self.cert, self.key, password=_no_password)
            except (ssl.SSLError, OSError) as error:
                raise InvalidArgument(
                    f"{self.cert} and {self.key} are no certificate with its key: {error}."
                ) from error
        return context


def from_environment(environ: Mapping[str, str]) -> Tls:
    """What DULY_TLS_CA, DULY_TLS_CERT and DULY_TLS_KEY name."""
    return Tls(**{name: environ.get(variable) or None for name, variable in ENVIRONMENT.items()})


def _read(path: _Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise InvalidArgument(f"{os.fspath(path)} cannot be read: {error.strerror or error}.") from error


def _text(path: _Path) -> str:
    content = _read(path)
    try:
        text = content.decode("ascii")
        ssl.create_default_context(cadata=text)
    except (UnicodeDecodeError, ssl.SSLError) as error:
        raise InvalidArgument(f"{os.fspath(path)} holds no CA's certificate as PEM text.") from error
    return text


def _no_password() -> str:
    raise InvalidArgument("The key is encrypted with a password. Store it without, in a file that its owner may read.")


def _system_roots() -> bytes | None:
    """The CAs that this machine trusts; None where gRPC has to know by itself."""
    if (file := system_ca_file()) is not None:
        return _read(file)
    found = ssl.create_default_context().get_ca_certs(binary_form=True)
    return "".join(map(ssl.DER_cert_to_PEM_cert, found)).encode() or None
