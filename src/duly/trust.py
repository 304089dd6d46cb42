"""Whom this machine trusts without being told: itself, and the CAs that it came with."""

from __future__ import annotations

import ipaddress
import os

# Where systems keep their CAs in one file.
_CA_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


def is_loopback(host: str) -> bool:
    """Whether only this machine gets there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def system_ca_file() -> str | None:
    """The system's CAs, PEM in one file (SSL_CERT_FILE, where that is set); None where there is no such file."""
    # Commands that need no TLS do not load what it needs.
    import ssl

    known = ssl.get_default_verify_paths().cafile
    return known or next((path for path in _CA_FILES if os.path.isfile(path)), None)
