"""Signatures of what is pushed, by the Standard Webhooks specification: any library of theirs verifies them.

The id stays the same however often a message is tried, so that a receiver can tell what it has had already; the
timestamp is that of the try. While secrets are rotated there is a signature for each: a receiver that knows any of them
is content.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Sequence

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
_ID_DIGITS = 40


def id_of(*facts: object) -> str:
    """An id for what these facts tell from everything else. Ids of messages alone would not do: two topics that push
    to one receiver may have the same.
    """
    # Lengths before texts: ("a", "bc") is not ("ab", "c").
    text = "".join(f"{len(str(fact))}:{fact}" for fact in facts)
    return "msg_" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_ID_DIGITS]


def sign(secrets: Sequence[bytes], *, webhook_id: str, at_s: int, body: bytes) -> dict[str, str]:
    """The headers by which a receiver knows who sent this and when, and that nobody changed it."""
    headers = {ID: webhook_id, TIMESTAMP: str(at_s)}
    if secrets:
        signed = f"{webhook_id}.{at_s}.".encode() + body
        headers[SIGNATURE] = " ".join(f"v1,{_mac(secret, signed)}" for secret in secrets)
    return headers


def _mac(secret: bytes, signed: bytes) -> str:
    # Not hmac.digest: that lets go of the interpreter's lock each time, and has to wait for it.
    return base64.b64encode(hmac.new(secret, signed, "sha256").digest()).decode()
