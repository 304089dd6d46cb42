"""A session: requests and answers on one exchange of Flight's, one after the other.

    client                                   broker
    open the exchange                ──▶
                                     ◀──     Hello: who and when it is
    Request (operation, command)     ──▶     with a record batch if it publishes one
                                     ◀──     Answer (or a Fault), with a record batch if it has one
    …

Each is msgpack in the `app_metadata` of a message of the stream. Before the Hello nothing has been asked, so whoever
does not see one may try elsewhere. What was asked and not answered is in doubt.

The Hello names the brokers that serve the same store; an Answer does when they have changed since.
"""

from __future__ import annotations

import msgspec

from .faults import Fault

# What the descriptor of a session's exchange says, and the number that changes when old clients would be misled.
SESSION = b"duly.session"
CONSUME = b"duly.consume"
PROTOCOL = 1


class Hello(msgspec.Struct, frozen=True):
    """The first thing a broker says."""

    protocol: int
    version: str
    incarnation: str
    now_ms: int
    # Where else the store is served, `host:port`; this broker among them.
    peers: tuple[str, ...] = ()
    # Whose the key is that the client showed; "" of an operator.
    tenant: str = ""


class Request(msgspec.Struct, frozen=True):
    """An operation to be done within so long; a claim may wait for so long besides."""

    name: str
    body: msgspec.Raw
    timeout_ms: int = 30_000
    wait_ms: int = 0
    # Deliveries as a record batch, however few.
    arrow: bool = False


class Credit(msgspec.Struct, frozen=True):
    """How many more messages a push may send."""

    messages: int


class Answer(msgspec.Struct, frozen=True):
    """What became of it."""

    body: msgspec.Raw = msgspec.Raw(b"\xc0")
    fault: Fault | None = None
    # As in the Hello, when they have changed.
    peers: tuple[str, ...] | None = None
