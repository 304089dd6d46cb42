"""A client's calls on tenants, which are an operator's; and what was done and denied, a tenant's own to see."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from ..audit import AuditEntry
from ..causal import Operation, check_operation
from ..clock import Duration, moment_ms
from ..engine.audit import ListAudit
from ..engine.budget import MESSAGES_MAX, ListOperations, ResumeOperation, StopOperation
from ..engine.tenants import (
    CreateTenant,
    DeleteTenant,
    DescribeTenant,
    ListTenants,
    ResumeTenant,
    SuspendTenant,
    UpdateTenant,
    check_tenant,
)
from ..tenant import TenantDescription, TenantSettings, check_settings
from .arguments import after_name, count, flag, named, page_size, whole
from .calls import Calls

_PAGE = 1000


class TenantCalls(Calls):
    """Tenants."""

    def create_tenant(
        self, name: str, *, exist_ok: bool = False, timeout: Duration | None = None, **settings: Any
    ) -> TenantDescription:
        """Makes a tenant. With `exist_ok` an equal one is left as it is; one with other settings is TenantExists.

        Settings are those of duly.TenantSettings: quotas, `encrypt` and `weight`.
        """
        wanted = TenantSettings(**check_settings(settings))
        command = CreateTenant(self._tenant, check_tenant(name), wanted, flag(exist_ok, "exist_ok"))
        return self._do(command, timeout)

    def list_tenants(self, *, after: str = "", limit: int | None = None, timeout: Duration | None = None) -> list[str]:
        """Names of tenants in order: all of them, or a page of `limit` after a name."""
        most = page_size(limit)
        after = after_name(after)
        found: list[str] = []
        while len(found) < most:
            command = ListTenants(self._tenant, found[-1] if found else after, min(_PAGE, most - len(found)))
            page = self._do(command, timeout)
            found.extend(page)
            if len(page) < command.limit:
                break
        return found

    def describe_tenant(self, name: str, *, timeout: Duration | None = None) -> TenantDescription:
        """A tenant's settings, how it stands, and how much it has."""
        return self._do(DescribeTenant(self._tenant, named(name)), timeout)

    def update_tenant(
        self, name: str, *, version: int | None = None, timeout: Duration | None = None, **changes: Any
    ) -> TenantDescription:
        """Changes quotas (None takes one away), `encrypt` or `weight`. With `version`, only if nobody did since."""
        if version is not None:
            version = whole(version, "version")
        return self._do(UpdateTenant(self._tenant, named(name), changes, version), timeout)

    def suspend_tenant(self, name: str, *, timeout: Duration | None = None) -> TenantDescription:
        """Refuses a tenant everything, on every way in, but to settle what it has leased. Nothing of it is lost."""
        return self._do(SuspendTenant(self._tenant, named(name)), timeout)

    def resume_tenant(self, name: str, *, timeout: Duration | None = None) -> TenantDescription:
        """Lets a suspended tenant go on."""
        return self._do(ResumeTenant(self._tenant, named(name)), timeout)

    def delete_tenant(self, name: str, *, force: bool = False, timeout: Duration | None = None) -> None:
        """Removes a tenant for good: its keys at once, its data soon after. One with topics only with `force`."""
        self._do(DeleteTenant(self._tenant, named(name), flag(force, "force")), timeout)

    # What their operations publish

    def operations(
        self, *, stopped: bool = False, after: str = "", limit: int | None = None, timeout: Duration | None = None
    ) -> list[Operation]:
        """The tenant's operations that are not at rest, or those that are stopped, in an order of their own."""
        most, only = page_size(limit), flag(stopped, "stopped")
        after = after_name(after)
        found: list[Operation] = []
        while len(found) < most:
            asked = min(_PAGE, most - len(found))
            page = self._do(ListOperations(self._tenant, after, asked, only), timeout)
            found.extend(page)
            # A name whose seal is broken leads nowhere: twice at the end of a page, it would for ever.
            if len(page) < asked or page[-1].id == after:
                break
            after = page[-1].id
        return found

    def resume_operation(self, name: str, *, messages: int | None = None, timeout: Duration | None = None) -> Operation:
        """Lets a stopped operation go on, with so many messages, or as many as each has at first.

        NotFound of one that is at rest: it may publish as it is.
        """
        given = None if messages is None else count(messages, "messages", MESSAGES_MAX)
        return self._do(ResumeOperation(self._tenant, check_operation(name), given), timeout)

    def stop_operation(self, name: str, *, timeout: Duration | None = None) -> Operation:
        """Lets an operation publish nothing before it is resumed: what would is OperationExhausted."""
        return self._do(StopOperation(self._tenant, check_operation(name)), timeout)

    def audit(
        self,
        *,
        operators: bool = False,
        after: int = 0,
        since: datetime | None = None,
        limit: int | None = None,
        timeout: Duration | None = None,
    ) -> Iterator[AuditEntry]:
        """What was done and what was denied, in order: to the tenant's own, or (`operators`) to the store as a whole.

        Entries are numbered: those after a number, from a moment on. `examine` says whether anybody has tampered with
        them.
        """
        from_ms = None if since is None else moment_ms(since, "since")
        left, above = page_size(limit), whole(after, "after")
        while left > 0:
            asked = min(_PAGE, left)
            command = ListAudit(self._tenant, flag(operators, "operators"), above, from_ms, asked)
            page: list[AuditEntry] = self._do(command, timeout)
            yield from page
            if len(page) < asked:
                return
            left, above = left - len(page), page[-1].number
