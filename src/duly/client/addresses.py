"""Addresses of brokers: as people write them, and as Flight wants them."""

from __future__ import annotations

BROKER_SCHEME, TLS_SCHEME = "duly://", "duly+tls://"
BROKER_SCHEMES = (BROKER_SCHEME, TLS_SCHEME)
FLIGHT_PORT = 8471


def is_broker(place: object) -> bool:
    """Whether a place is a broker's address, `duly://…` or `duly+tls://…`."""
    return isinstance(place, str) and place.startswith(BROKER_SCHEMES)


def flight_address(written: str, *, tls: bool = False) -> str | None:
    """`host:port`, or a host on the usual port, as Flight wants it; None when it names no broker."""
    host, colon, port = written.strip().rpartition(":")
    if not colon:
        host, port = port, str(FLIGHT_PORT)
    if not host or not port.isdecimal() or not 0 < int(port) < 65536 or any(c in host for c in "/@? "):
        return None
    # An IPv6 address stands in brackets; without, nobody knows where its port begins.
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        return None
    return f"{'grpc+tls' if tls else 'grpc'}://{host}:{port}"
