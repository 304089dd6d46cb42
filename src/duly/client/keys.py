"""A client's calls about who may do what: principals, their grants and their keys."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from ..clock import Duration, milliseconds
from ..engine.principals import (
    CreateKey,
    DeletePrincipal,
    ListKeys,
    ListPrincipals,
    PutPrincipal,
    RevokeKey,
    RotateKey,
)
from ..errors import Denied, InvalidArgument, LimitExceeded
from ..grants import OPERATORS, Grant, check_grants, check_principal
from ..keys import Key, NewKey, Principal, check_key_id
from ..limits import DAY_MS, LIMITS
from .arguments import flag, page_size, whole
from .calls import Calls

_PAGE = 1000


class KeyCalls(Calls):
    """Principals and keys: of the client's tenant, or with `operator=True` those of the store's operators."""

    @property
    @abstractmethod
    def tenant(self) -> str:
        """The tenant whose topics these are."""

    def put_principal(
        self,
        name: str,
        grants: Iterable[Grant],
        *,
        certificates: Iterable[str] = (),
        operator: bool = False,
        version: int | None = None,
        timeout: Duration | None = None,
    ) -> Principal:
        """Makes a principal, or replaces its grants and the names of its client certificates.

        With `version` (0: it is new), only if nobody changed it since. Who has a live key of it may do what it then
        says within seconds.
        """
        tenant = self._of(operator)
        wanted = check_grants(_grants(grants), OPERATORS if operator else self.tenant)
        since = None if version is None else whole(version, "version")
        command = PutPrincipal(tenant, check_principal(name), wanted, _texts(certificates), since)
        return self._do(command, timeout)

    def list_principals(
        self, *, operator: bool = False, after: str = "", limit: int | None = None, timeout: Duration | None = None
    ) -> list[Principal]:
        """All principals, or a page of them after a name."""
        tenant = self._of(operator)
        return self._pages(lambda at, most: ListPrincipals(tenant, at, most), "name", after, limit, timeout)

    def delete_principal(self, name: str, *, operator: bool = False, timeout: Duration | None = None) -> None:
        """Removes a principal; its keys end within seconds."""
        self._do(DeletePrincipal(self._of(operator), check_principal(name)), timeout)

    def create_key(
        self,
        principal: str,
        *,
        note: str = "",
        ttl: Duration | None = None,
        operator: bool = False,
        timeout: Duration | None = None,
    ) -> NewKey:
        """Makes a key for a principal and tells it, once. It ends after `ttl`, or when it is revoked.

        A principal has two live keys at most: the one in use, and the next.
        """
        ttl_ms = None if ttl is None else _span_ms(ttl, "ttl", 1)
        return self._do(CreateKey(self._of(operator), check_principal(principal), _note(note), ttl_ms), timeout)

    def rotate_key(
        self,
        key_id: str,
        *,
        overlap: Duration = DAY_MS // 1000,
        operator: bool = False,
        timeout: Duration | None = None,
    ) -> NewKey:
        """Makes the next key of the same principal, and has the old one end after `overlap`."""
        command = RotateKey(self._of(operator), check_key_id(key_id), _span_ms(overlap, "overlap", 0))
        return self._do(command, timeout)

    def revoke_key(self, key_id: str, *, operator: bool = False, timeout: Duration | None = None) -> None:
        """Ends a key for good: every broker on the store refuses it within five seconds, open streams too."""
        self._do(RevokeKey(self._of(operator), check_key_id(key_id)), timeout)

    def list_keys(
        self,
        principal: str | None = None,
        *,
        operator: bool = False,
        after: str = "",
        limit: int | None = None,
        timeout: Duration | None = None,
    ) -> list[Key]:
        """Keys by id, without their secrets, those that have ended among them: all, or those of one principal."""
        of = None if principal is None else check_principal(principal)
        tenant = self._of(operator)
        return self._pages(lambda at, most: ListKeys(tenant, of, at, most), "id", after, limit, timeout)

    def _of(self, operator: bool) -> str:
        """The tenant whose principals are meant. Raises Denied for operators' where the key is a tenant's."""
        if not flag(operator, "operator"):
            return self._tenant
        if self._alive().own_tenant() != OPERATORS:
            raise Denied("This key is of a tenant: it makes no operators. Ask an operator of the store.")
        return OPERATORS

    def _pages(
        self,
        command: Callable[[str, int], Any],
        place: str,
        after: str,
        limit: int | None,
        timeout: Duration | None,
    ) -> list[Any]:
        if not isinstance(after, str):
            raise InvalidArgument(f"after must be a str, not {type(after).__name__}.")
        most = page_size(limit)
        found: list[Any] = []
        while len(found) < most:
            wanted = min(_PAGE, most - len(found))
            page = self._do(command(after, wanted), timeout)
            found += page
            if len(page) < wanted:
                break
            after = getattr(page[-1], place)
        return found


def _grants(grants: object) -> tuple[Grant, ...]:
    if isinstance(grants, (str, bytes)) or not isinstance(grants, Iterable):
        raise InvalidArgument("grants is a list of duly.Grant: pass [duly.Grant('publish')].")
    given = tuple(grants)
    for grant in given:
        if not isinstance(grant, Grant):
            raise InvalidArgument(f"A grant is a duly.Grant, not {type(grant).__name__}.")
    return given


def _texts(names: object) -> tuple[str, ...]:
    if isinstance(names, (str, bytes)) or not isinstance(names, Iterable):
        raise InvalidArgument("certificates is a list of names: pass [name].")
    given = tuple(names)
    if any(not isinstance(name, str) or not name for name in given):
        raise InvalidArgument("A certificate's name is a str that is not empty.")
    return given


def _note(note: object) -> str:
    if not isinstance(note, str) or len(note) > LIMITS.name_chars_max or not note.isprintable():
        raise InvalidArgument(f"note is a str of at most {LIMITS.name_chars_max} printable characters.")
    return note


def _span_ms(span: Duration, name: str, least: int) -> int:
    ms = milliseconds(span, name)
    if not least <= ms <= LIMITS.due_ms_ahead_max:
        raise LimitExceeded(f"{name} must be {least} to {LIMITS.due_ms_ahead_max} milliseconds.")
    return ms
