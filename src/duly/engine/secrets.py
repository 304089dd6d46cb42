"""The store's own secret and the tenants' data keys: rows of the table `secret`, wrapped under the master key.

    master key ──wraps──▶ the store's secret (tenant 0) ──HKDF──▶ one key a purpose: keys, audit, …
                    └──▶ a tenant's data keys, by version: the newest seals, all of them open

The store's secret is made on first use, and tells whether a master key is the right one: nothing is ever wrapped under
a key that does not unwrap it. A keyring remembers what was unwrapped, by the wrapped bytes: who rewraps or shreds a row
need not tell anybody.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from typing import Any

from ..errors import Sealed
from ..store.contract import SecretRow, Transaction
from .chain import seal_all
from .seal import Seal

# Under which the store's own secret is kept: no tenant has this id.
STORE = 0
_VERSION = 1
# The purpose of the key that seals the audit.
AUDIT = b"audit"
# The version that is named by what the store's own key seals, and no tenant's: their data keys count from 1 on.
OWN = 0
_SEALS = b"seals"
_BYTES = 32
_KEPT_MAX = 10_000


class Shredded(Sealed):
    """The tenant's data keys were shredded: nobody can read what it had stored any more. Delete the tenant."""

    code = Sealed.code


class Keyring:
    """A store's master, and what was unwrapped with it. Thread-safe; it may be shared by all transactions."""

    def __init__(self, master: Any) -> None:
        """`master` is None where none was given."""
        self._master = master
        self._lock = threading.Lock()
        self._unwrapped: dict[tuple[int, int], tuple[bytes, bytes]] = {}
        self._seals: dict[bytes, Seal] = {}

    @property
    def master(self) -> Any:
        """Raises Sealed when there is none."""
        if self._master is None:
            raise Sealed(
                "This store needs a master key: give master='file:PATH' (or --master, or DULY_MASTER). "
                "`duly master create PATH` makes one; every process on the store needs the same."
            )
        return self._master

    @property
    def has_master(self) -> bool:
        """Whether a master key was given, or comes by itself."""
        return self._master is not None

    def begin(self) -> None:
        """The store has no secret yet: a master that makes its key by itself does so now."""
        begin = getattr(self.master, "begin", None)
        if begin is not None:
            begin()

    def wrap(self, tenant_id: int, version: int, secret: bytes) -> bytes:
        """A secret as it may be stored in that row."""
        wrapped: bytes = self.master.wrap(secret, _context(tenant_id, version))
        return wrapped

    def unwrap(self, row: SecretRow) -> bytes:
        """The secret in a row. Raises Sealed when it was shredded, or is not wrapped under this master."""
        if row.wrapped is None:
            raise Shredded()
        place = (row.tenant_id, row.version)
        known = self._unwrapped.get(place)
        if known is not None and known[0] == row.wrapped:
            return known[1]
        secret: bytes = self.master.unwrap(row.wrapped, _context(*place))
        if len(secret) != _BYTES:
            raise Sealed("The master unwrapped something that is no secret of this store's. Is it the right one?")
        with self._lock:
            if len(self._unwrapped) >= _KEPT_MAX:
                self._unwrapped.clear()
            self._unwrapped[place] = (row.wrapped, secret)
        return secret

    def seal(self, row: SecretRow) -> Seal:
        """A data key, ready to seal and open. Raises Sealed as `unwrap` does."""
        secret = self.unwrap(row)
        with self._lock:
            seal = self._seals.get(secret)
            if seal is None:
                if len(self._seals) >= _KEPT_MAX:
                    self._seals.clear()
                seal = self._seals[secret] = Seal(row.version, secret)
        return seal

    def forget(self) -> None:
        """Drops everything that was unwrapped."""
        with self._lock:
            self._unwrapped.clear()
            self._seals.clear()

    def is_current(self, row: SecretRow) -> bool:
        """Whether rewrapping a row would change nothing; where the master cannot tell, it would."""
        told = getattr(self.master, "wrapped_currently", None)
        return row.wrapped is None or (told is not None and bool(told(row.wrapped)))


def store_secret(tx: Transaction, purpose: bytes) -> bytes:
    """The store's key of 32 bytes for a purpose; its secret is made on first use. Raises Sealed without the master."""
    found = known_secret(tx, purpose)
    if found is not None:
        return found
    if lacks_secret(tx):
        # With another one in its place, a forged audit could be sealed as if it were the true one.
        raise Sealed("The store's own secret is gone from its tables. Run `duly doctor`; restore a backup.")
    tx.keyring.begin()
    made = secrets.token_bytes(_BYTES)
    tx.secret_insert(STORE, _VERSION, tx.keyring.wrap(STORE, _VERSION, made))
    # Read back: another process may have been first.
    found = known_secret(tx, purpose)
    assert found is not None
    if found == derive(made, purpose):
        seal_all(tx, derive(made, AUDIT))
    return found


def known_secret(tx: Transaction, purpose: bytes) -> bytes | None:
    """As store_secret, for those that only read. None: the store has no secret yet."""
    row = tx.secret(STORE, _VERSION)
    return None if row is None else derive(tx.keyring.unwrap(row), purpose)


def lacks_secret(tx: Transaction) -> bool:
    """Whether the store's own secret is not there though it once was: no data key and no API key is made before it."""
    return tx.secret(STORE, _VERSION) is None and (bool(tx.secrets(None)) or tx.key_any())


def own_seal(tx: Transaction) -> Seal | None:
    """What seals secrets of tenants that are not encrypted. None: there is no master key, and never was.

    Raises Sealed where the store has one that is not here: nothing of it ever lies in the clear beside what is sealed.
    """
    if tx.secret(STORE, _VERSION) is None and not tx.keyring.has_master:
        return None
    return Seal(OWN, store_secret(tx, _SEALS))


def known_own_seal(tx: Transaction) -> Seal:
    """What opens that which `own_seal` sealed. Raises Sealed."""
    secret = known_secret(tx, _SEALS)
    if secret is None:
        raise Sealed("The store's own secret is gone from its tables. Run `duly doctor`; restore a backup.")
    return Seal(OWN, secret)


def own_seal_of(secret: bytes) -> Seal:
    """The same, made of the store's own secret itself."""
    return Seal(OWN, derive(secret, _SEALS))


def new_data_key(tx: Transaction, tenant_id: int) -> int:
    """Makes a tenant's next data key; answers its version."""
    # Also proves that the master is the store's: what it wraps now must be unwrapped by all others.
    store_secret(tx, b"data keys")
    version = max((row.version for row in tx.secrets(tenant_id)), default=0) + 1
    tx.secret_insert(tenant_id, version, tx.keyring.wrap(tenant_id, version, secrets.token_bytes(_BYTES)))
    return version


def shred(tx: Transaction, tenant_id: int) -> None:
    """Deletes a tenant's data keys, and says so if it has none: whatever is asked of it answers Sealed from now on."""
    if not tx.secrets(tenant_id):
        tx.secret_insert(tenant_id, _VERSION, None)
    tx.secret_shred(tenant_id)
    tx.keyring.forget()


def rewrap(tx: Transaction) -> int:
    """Wraps everything under the master's current key; answers how many rows were not."""
    store_secret(tx, b"data keys")
    rows = [row for row in tx.secrets(None) if not tx.keyring.is_current(row)]
    for row in rows:
        secret = tx.keyring.unwrap(row)
        tx.secret_rewrap(row, tx.keyring.wrap(row.tenant_id, row.version, secret))
    return len(rows)


def derive(secret: bytes, purpose: bytes) -> bytes:
    """A key of 32 bytes for one purpose: HKDF-Expand (RFC 5869) of a secret that is random as it is."""
    return hmac.digest(secret, b"duly " + purpose + b"\x01", hashlib.sha256)


def _context(tenant_id: int, version: int) -> bytes:
    return b"duly secret %d %d" % (tenant_id, version)
