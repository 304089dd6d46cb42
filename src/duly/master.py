"""The master key: it wraps the store's secrets and the tenants' data keys, and nothing else.

It never lies in the store. Where it comes from is said by a reference, or by any object of the application's with the
two methods of `Master` (a key management service):

    file:PATH               a file of keys, one a line
    env:NAME                an environment variable with such lines
    command:PROGRAM ARGS    a program that prints such lines; it is run once, when a key is first needed

The first key is the current one, with which everything is wrapped; the others only unwrap. So a master is rotated by
putting a new line first, `duly master rotate`, and taking the old line away.

A key is 32 random bytes, written in base64 for URLs, as `duly master create` makes it. Empty lines and those that
begin with # say nothing.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import secrets
import shlex
import stat
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol, runtime_checkable

from .errors import InvalidArgument, Sealed
from .events import log

KEY_BYTES = 32
_MARK = b"DM1\0"
KEY_NAME_BYTES = 8
_NONCE_BYTES = 12
_HEAD_BYTES = len(_MARK) + KEY_NAME_BYTES + _NONCE_BYTES
_COMMAND_S = 30
_KINDS = "file:PATH, env:NAME or command:PROGRAM ARGS"


@runtime_checkable
class Master(Protocol):
    """Wraps and unwraps secrets of 32 bytes. What was wrapped for one context is unwrapped for no other.

    A key management service of your own is an object with these two methods. They run while the store is being
    written, seldom: once for each secret and process.
    """

    def wrap(self, secret: bytes, context: bytes) -> bytes: ...

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes: ...


class MasterExists(InvalidArgument):
    """There is a file at that path already. To rotate, add a line to it."""

    code = InvalidArgument.code


class MasterKeys:
    """Keys that are here: the first wraps, all of them unwrap."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        if not keys:
            raise InvalidArgument("There is no master key there. `duly master create PATH` makes one.")
        self._current = _name_of(keys[0])
        self._keys = {_name_of(key): key for key in keys}

    def wrap(self, secret: bytes, context: bytes) -> bytes:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = _cipher(self._keys[self._current]).encrypt(nonce, secret, context)
        return b"".join((_MARK, self._current, nonce, sealed))

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        """Raises Sealed when none of the keys wrapped it, or it is not as it was wrapped."""
        from cryptography.exceptions import InvalidTag

        name = wrapped[len(_MARK) : len(_MARK) + KEY_NAME_BYTES]
        if wrapped[: len(_MARK)] != _MARK or len(wrapped) <= _HEAD_BYTES:
            raise Sealed("A secret of this store is damaged. Restore a backup; run `duly doctor`.")
        key = self._keys.get(name)
        if key is None:
            raise _UnknownKey(
                f"The store's secrets are wrapped under the master key {name.hex()}, which is not among those given "
                f"({', '.join(sorted(known.hex() for known in self._keys))}). Give that one."
            )
        try:
            return _cipher(key).decrypt(
                wrapped[_HEAD_BYTES - _NONCE_BYTES : _HEAD_BYTES], wrapped[_HEAD_BYTES:], context
            )
        except InvalidTag as error:
            raise Sealed("A secret of this store was changed or moved. Restore a backup; run `duly doctor`.") from error

    def wrapped_currently(self, wrapped: bytes) -> bool:
        """Whether it is wrapped under the current key."""
        return wrapped[: len(_MARK) + KEY_NAME_BYTES] == _MARK + self._current

    def derived(self, purpose: bytes) -> dict[bytes, bytes]:
        """For another purpose than wrapping a key of each, by name, the current one's first."""
        return {
            name: hmac.digest(key, b"duly " + purpose + b"\x01", hashlib.sha256) for name, key in self._keys.items()
        }


class _UnknownKey(Sealed):
    """The master key that it was wrapped under is not among those given."""

    code = Sealed.code


class LazyMaster:
    """Keys that are looked up when they are first needed, and remembered; and again for one that is new there.

    So a master is rotated while stores are open: what is wrapped is always wrapped under the key that is first now.
    """

    def __init__(self, read: Callable[[], MasterKeys]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._keys: MasterKeys | None = None

    @property
    def keys(self) -> MasterKeys:
        """The keys. Raises InvalidArgument or Sealed when they cannot be had."""
        with self._lock:
            if self._keys is None:
                self._keys = self._read()
            return self._keys

    def wrap(self, secret: bytes, context: bytes) -> bytes:
        return self._again().wrap(secret, context)

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        try:
            return self.keys.unwrap(wrapped, context)
        except _UnknownKey:
            return self._again().unwrap(wrapped, context)

    def _again(self) -> MasterKeys:
        with self._lock:
            self._keys = None
        return self.keys

    def wrapped_currently(self, wrapped: bytes) -> bool:
        """Whether it is wrapped under the current key."""
        return self.keys.wrapped_currently(wrapped)


class FileMaster(LazyMaster):
    """A file of keys beside a store, made on first need."""

    def __init__(self, path: str) -> None:
        super().__init__(lambda: read_master_file(path))
        self._path = path

    def begin(self) -> None:
        """The store has no secret yet: without a file one is made."""
        if not os.path.exists(self._path):
            with suppress(MasterExists):
                create_master(self._path)


def open_master(reference: object) -> Any:
    """What a reference names, or the object itself. Nothing is read yet. Raises InvalidArgument."""
    if not isinstance(reference, str):
        if isinstance(reference, Master):
            return reference
        raise InvalidArgument(f"master is {_KINDS}, or an object with wrap and unwrap; got {type(reference).__name__}.")
    kind, _, rest = reference.partition(":")
    if kind == "file" and rest:
        return LazyMaster(lambda: read_master_file(os.path.expanduser(rest)))
    if kind == "env" and rest:
        return LazyMaster(lambda: _of_environment(rest))
    if kind == "command" and rest.strip():
        return LazyMaster(lambda: _of_command(rest))
    # Not shown: it may be a key.
    raise InvalidArgument(f"A master key is given as {_KINDS}, never as the key itself.")


def create_master(path: str) -> None:
    """Makes a file with a new key, for its owner alone, durably. Raises InvalidArgument if there is a file already."""
    folder = os.path.dirname(os.path.abspath(path))
    written = os.path.join(folder, f".{os.path.basename(path)}.{secrets.token_hex(6)}")
    try:
        _write_private(written, f"{new_key()}\n")
        try:
            # Whole or not at all, and never over another's.
            os.link(written, path)
        finally:
            os.unlink(written)
        _sync_folder(folder)
    except FileExistsError as error:
        raise MasterExists(f"There is a file {path} already. To rotate, add a line to it.") from error
    except OSError as error:
        raise InvalidArgument(f"The master key cannot be written to {path}: {error.strerror}.") from error


def new_key() -> str:
    """A new key as a line of a file."""
    return base64.urlsafe_b64encode(secrets.token_bytes(KEY_BYTES)).decode().rstrip("=")


def parse_keys(text: str, where: str) -> MasterKeys:
    """Keys as a file has them. Raises InvalidArgument, without showing any."""
    lines = [line.strip() for line in text.splitlines()]
    given = [line for line in lines if line and not line.startswith("#")]
    if not given:
        raise InvalidArgument(f"There is no master key in {where}. `duly master create PATH` makes one.")
    return MasterKeys([_parse_key(line, where) for line in given])


def read_master_file(path: str) -> MasterKeys:
    """The keys in a file. Raises Sealed when it is not there, InvalidArgument when it holds none."""
    try:
        with open(path, encoding="ascii") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & stat.S_IRWXO:
                log.warning("everybody on this machine may read the master key in %s: chmod o= %s", path, path)
            return parse_keys(file.read(), path)
    except FileNotFoundError as error:
        raise Sealed(
            f"The master key is not there: {path}. What is sealed in this store cannot be read without it. Put the "
            "file back, or say where it is (master=, --master, DULY_MASTER)."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"The master key in {path} cannot be read: {error}.") from error


def _of_environment(name: str) -> MasterKeys:
    text = os.environ.get(name)
    if text is None:
        raise Sealed(f"The master key should be in the environment variable {name}, which is not set.")
    return parse_keys(text.replace(",", "\n"), f"the environment variable {name}")


def _of_command(line: str) -> MasterKeys:
    try:
        words = shlex.split(line)
        done = subprocess.run(words, capture_output=True, timeout=_COMMAND_S, check=True, stdin=subprocess.DEVNULL)
        return parse_keys(done.stdout.decode("ascii"), f"what {words[0]} printed")
    except subprocess.CalledProcessError as error:
        # What it said may hold a secret: that it failed is told, and no more.
        raise Sealed(f"The command for the master key failed with status {error.returncode}.") from None
    except subprocess.TimeoutExpired:
        raise Sealed(f"The command for the master key took longer than {_COMMAND_S} s.") from None
    except (OSError, ValueError):
        raise Sealed("The command for the master key cannot be run, or printed something else than keys.") from None


def _parse_key(line: str, where: str) -> bytes:
    try:
        key = base64.b64decode(line + "=" * (-len(line) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise InvalidArgument(f"A line of {where} is not a master key: it is {KEY_BYTES} bytes in base64 for URLs.")
    return key


def _name_of(key: bytes) -> bytes:
    """What tells keys apart; nothing can be learnt of a key from it."""
    return hashlib.blake2b(key, digest_size=KEY_NAME_BYTES, person=b"duly master").digest()


def _cipher(key: bytes) -> Any:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV

    return AESGCMSIV(key)


def _write_private(path: str, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: str) -> None:
    held = os.open(folder, os.O_RDONLY)
    try:
        # A secret wrapped under a key that power loss takes away could never be unwrapped.
        os.fsync(held)
    finally:
        os.close(held)
