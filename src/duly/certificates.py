"""Certificates for development: a CA of one's own, a server's certificate and a client's, as files.

They are for trying TLS out on one machine. The CA's key lies beside them, so whoever has the folder can be anybody.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from .clock import HOST, from_ms
from .errors import Conflict, InvalidArgument

CA, SERVER, CLIENT = "ca", "server", "client"
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
CLIENT_NAME = "duly-dev"
_VALID = timedelta(days=365)
# Another machine's clock may be a little behind.
_BEFORE = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class _Issued:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def make_development_certificates(
    folder: str, *, names: Iterable[str] = (), client: str = CLIENT_NAME, force: bool = False
) -> list[str]:
    """Writes `ca`, `server` and `client`, each as .pem and .key, and returns their paths.

    The server's is for localhost, 127.0.0.1, ::1 and `names`. Keys may be read by their owner alone. Raises Conflict
    when one of the files is there, unless `force`; InvalidArgument for a name that is none.
    """
    server_names = [_general(name) for name in dict.fromkeys((*LOOPBACK_NAMES, *names))]
    client_name = [_general(client)]
    paths = [os.path.join(folder, f"{name}.{kind}") for name in (CA, SERVER, CLIENT) for kind in ("pem", "key")]
    there = [path for path in paths if os.path.exists(path)]
    if there and not force:
        raise Conflict(f"{there[0]} is there already. Choose another folder, or add --force to replace what is there.")
    authority = _authority()
    issued = {
        CA: authority,
        SERVER: _issue(authority, "duly development server", server_names, ExtendedKeyUsageOID.SERVER_AUTH),
        CLIENT: _issue(authority, client, client_name, ExtendedKeyUsageOID.CLIENT_AUTH),
    }
    os.makedirs(folder, mode=0o700, exist_ok=True)
    for name, made in issued.items():
        _write(os.path.join(folder, f"{name}.pem"), made.certificate.public_bytes(serialization.Encoding.PEM), 0o644)
        _write(os.path.join(folder, f"{name}.key"), _private(made.key), 0o600)
    return paths


def _general(name: str) -> x509.GeneralName:
    """A name as certificates have it: an address, a URI, or a host's."""
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        return x509.UniformResourceIdentifier(name) if "://" in name else x509.DNSName(_host(name))
    except ValueError as error:
        raise InvalidArgument(f"{name!r} is no host's name or address. Write it as clients connect to it.") from error


def _host(name: str) -> str:
    if not name or any(not (c.isascii() and (c.isalnum() or c in "-._*")) for c in name):
        raise ValueError
    return name


def _authority() -> _Issued:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _named("Duly development CA")
    usage = _usage(signs_certificates=True)
    builder = (
        _builder(name, name, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    return _Issued(builder.sign(key, hashes.SHA256()), key)


def _issue(authority: _Issued, name: str, names: list[x509.GeneralName], purpose: x509.ObjectIdentifier) -> _Issued:
    key = ec.generate_private_key(ec.SECP256R1())
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = (
        _builder(_named(name), authority.certificate.subject, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(identifier, critical=False)
    )
    return _Issued(builder.sign(authority.key, hashes.SHA256()), key)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = from_ms(HOST.wall_ns() // 1_000_000)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: str, content: bytes, mode: int) -> None:
    """Whole or not at all: a broker may be watching the file. Nobody else can read a key, not even meanwhile."""
    fresh = f"{path}.new"
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
        file.write(content)
    os.chmod(fresh, mode)
    os.replace(fresh, path)
