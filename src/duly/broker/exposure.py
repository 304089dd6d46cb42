"""Where a broker may listen: on this machine as it is, beyond it with TLS and keys, or when somebody insists."""

from __future__ import annotations

from ..errors import InvalidArgument
from ..trust import is_loopback


def check_closed(host: str, *, tls: bool, keys: bool) -> None:
    """Raises InvalidArgument for a broker that others can reach and that lets everyone in, or be listened to."""
    if is_loopback(host) or (tls and keys):
        return
    without, first = ("TLS", "--tls-cert FILE --tls-key FILE") if not tls else ("a key", "duly keys create --operator")
    if not tls and not keys:
        without = "TLS and without a key"
    raise InvalidArgument(
        f"{host!r} is not this machine's loopback, and the broker would be there without {without}: everyone who gets "
        f"there could read and write everything. Begin with: {first}. Or leave --host away; or, in a network of your "
        "own, add --insecure."
    )
