"""Reach: which addresses a broker may connect to for a tenant.

A tenant names an endpoint, and the broker connects to it from inside the operator's network: left alone, that is a way
to whatever trusts this machine (its loopback, a cloud's metadata service, a database beside it). So what is judged is
never the text of a URL. It is the address of each socket, at the moment when it is made, and it is that very address
which is connected to:

    host of the URL ──looked up, once a connection──▶ addresses ──every one judged──▶ connected to; the name stays
                                                          │                            for Host, SNI and the certificate
                                                          └─ one may not be reached: none is tried

However a URL spells an address (decimal, octal, hexadecimal, short, mapped into IPv6), it ends at the same judgement. A
name with one address outside and one inside is refused as a whole: nobody who means well has such a name, and which of
the two would be taken is chance.

Reached are public unicast addresses, at the ports 80 and 443. The operator may allow more:

    10.0.0.0/8           a network, at the allowed ports
    10.1.2.3             an address, at the allowed ports
    10.1.2.3:9000        an address at one port;  [fd00::5]:9000
    hooks.internal:9000  whatever this name leads to, at one port

Metadata services are let through only if named as an address: a network that happens to hold one does not open it.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from ...errors import InvalidArgument

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

PORTS = frozenset({80, 443})

# What is special by IANA's registries, and is nobody's endpoint. Written out: what `ipaddress` takes for global differs
# from one patch of Python to the next.
_SPECIAL_4 = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared between a provider and its customers
        "127.0.0.0/8",  # loopback
        "169.254.0.0/16",  # link-local; metadata services are here
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments; another metadata service is here
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # AMT
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",  # private
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarking
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
# Of IPv6 only this is global unicast at all …
_GLOBAL_6 = IPv6Network("2000::/3")
# … without these.
_SPECIAL_6 = tuple(
    IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments: Teredo, benchmarking, ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: leads to an IPv4 address inside it, by a relay
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)
# They lead to the IPv4 address in their last bits: on a network that has IPv6 alone that is the way to all of IPv4.
_CARRIERS = (IPv6Network("::ffff:0:0/96"), IPv6Network("64:ff9b::/96"))
_METADATA = frozenset(
    map(ipaddress.ip_address, ("169.254.169.254", "169.254.170.2", "100.100.100.200", "192.0.0.192", "fd00:ec2::254"))
) | {
    # Azure's looks public, and answers only whoever is inside.
    IPv4Address("168.63.129.16")
}

_HINT = "Give a network like 10.0.0.0/8, an address, or host:port."


class OutOfReach(OSError):
    """The address may not be reached by pushes. Whoever runs the broker can allow it: duly serve --push-allow."""


@dataclass(frozen=True, slots=True)
class Reach:
    """What pushes may connect to."""

    networks: tuple[Network, ...] = ()
    # (address or name, port)
    pairs: frozenset[tuple[str, int]] = frozenset()
    ports: frozenset[int] = PORTS

    @classmethod
    def of(cls, allow: Sequence[str] = (), ports: Sequence[int] = ()) -> Reach:
        """What is public, and what else the operator allows. Raises InvalidArgument for what is neither."""
        networks: list[Network] = []
        pairs: set[tuple[str, int]] = set()
        for text in allow:
            found = _network_in(text)
            if found is None:
                pairs.add(_pair_in(text))
            else:
                networks.append(found)
        for port in ports:
            if not 0 < port < 65_536:
                raise InvalidArgument(f"{port} is no port; a port is 1 to 65535.")
        return cls(tuple(networks), frozenset(pairs), PORTS | frozenset(ports))

    def check(self, address: str, port: int, *, name: str) -> None:
        """Raises OutOfReach unless an address, found for a host of that name, may be connected to.

        It says no more than that: a tenant must not learn from it what names inside stand for.
        """
        if not self._allows(address, port, name):
            raise OutOfReach(
                f"pushes may not connect to {name} at port {port}: it is not public, or not one of the ports allowed. "
                "Whoever runs the broker can allow it: duly serve --push-allow, --push-port"
            )

    def _allows(self, address: str, port: int, name: str) -> bool:
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        if isinstance(found, IPv6Address) and found.scope_id is not None:
            return False
        found = _carried(found)
        if (str(found), port) in self.pairs or (_plain(name), port) in self.pairs:
            return True
        if port not in self.ports:
            return False
        if any(found in network and _opens(network, found) for network in self.networks):
            return True
        return is_public(found) and not _is_ours(found)


def is_public(address: Address) -> bool:
    """Whether an address is global unicast, and nothing that only somebody inside can reach."""
    address = _carried(address)
    if address in _METADATA:
        return False
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _SPECIAL_4)
    return address in _GLOBAL_6 and not any(address in network for network in _SPECIAL_6)


def _carried(address: Address) -> Address:
    """The IPv4 address that one of IPv6 leads to; else itself."""
    if isinstance(address, IPv6Address) and any(address in network for network in _CARRIERS):
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def _opens(network: Network, address: Address) -> bool:
    return network.num_addresses == 1 or address not in _METADATA


def _is_ours(address: Address) -> bool:
    """Whether it is this machine's: from here to there, the system would send from that very address."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as towards:
            # Nothing is sent: the system only chooses from where it would be.
            towards.connect((str(address), 9))
            return bool(towards.getsockname()[0] == str(address))
    except OSError:
        return False


def _network_in(text: str) -> Network | None:
    try:
        return ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        return None


def _pair_in(text: str) -> tuple[str, int]:
    host, colon, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise InvalidArgument(f"{text!r} cannot be allowed to pushes. {_HINT}")
    try:
        return str(_carried(ipaddress.ip_address(host))), int(port)
    except ValueError:
        pass
    if any(c in host for c in "/:@[] ") or host.replace(".", "").isdigit():
        raise InvalidArgument(f"{text!r} cannot be allowed to pushes. {_HINT}")
    return _plain(host), int(port)


def _plain(name: str) -> str:
    return name.rstrip(".").lower()
