"""The Python API: the same names and meanings whichever store or broker is underneath.

Durations are seconds or timedelta, moments are aware datetimes. Every call takes `timeout`;
without one it takes the client's. A client is thread-safe.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from ..clock import ClockReading, Duration
from ..engine.find import QUEUE_GROUP
from ..engine.forecast import ListForecasts
from ..engine.wellbeing import CheckHealth
from ..errors import Closed, InvalidArgument
from ..forecast import Forecast
from ..health import Finding, GroupHealth
from ..limits import LIMITS
from ..member import Member
from ..store.contract import Backup, Progress
from ..tenant import check_name
from .arguments import (
    after_name,
    bytes_a_second,
    count,
    folder_path,
    group_named,
    named,
    page_size,
    per_second,
    timeout_s,
)
from .consuming import ConsumeCalls
from .definitions import DefinitionCalls
from .keys import KeyCalls
from .messages import MessageCalls
from .port import Port
from .pushes import PushCalls
from .renewal import Renewal
from .schedules import ScheduleCalls
from .tenants import TenantCalls

if TYPE_CHECKING:
    from ..store.sqlite.application import Transaction

# Topics looked at in one transaction.
_TOPICS_A_PAGE = 100

T = TypeVar("T", GroupHealth, Forecast)


class Client(DefinitionCalls, TenantCalls, MessageCalls, ConsumeCalls, PushCalls, KeyCalls, ScheduleCalls):
    """A tenant's way into Duly. Made by `duly.connect`; close it, or use it as a context manager."""

    def __init__(self, port: Port, *, tenant: str, consumer: str | None, timeout: Duration) -> None:
        self._port = port
        # Without one: that of the key which the client shows.
        self._tenant = check_name(tenant, "tenant name") if tenant else ""
        self._consumer = consumer
        self._pid = os.getpid()
        self._timeout_s = timeout_s(timeout)
        self._renewal = Renewal(self._renew)
        self._closed = False
        if consumer is not None:
            check_name(consumer, "consumer name", LIMITS.consumer_chars_max)
        self._own_name = _consumer_name()

    # The application's own transaction

    def transaction(self, *, timeout: Duration | None = None) -> Transaction:
        """A transaction on the store's file for the application's own tables, which commands join with `tx=`.

        `with q.transaction() as tx:` commits when the block ends and undoes everything when it raises. Nobody else
        writes meanwhile: keep it short. Whoever waits for longer than ten seconds gets Busy; and so does this,
        when others write for longer than `timeout`. Reads inside the block answer from before it on a file, and with
        what the transaction did so far in `:memory:`.
        """
        transaction: Transaction = self._alive().transaction(self._timeout_s if timeout is None else timeout_s(timeout))
        return transaction

    # Housekeeping

    @property
    def tenant(self) -> str:
        """The tenant whose topics these are."""
        return self._tenant or self._alive().own_tenant()

    @property
    def consumer(self) -> str:
        """The name under which this client claims."""
        return self._consumer_name(None)

    def examine(self) -> Iterator[Finding]:
        """Looks the whole store over: integrity, checksums, references, clock, disk, settings."""
        return self._alive().examine()

    def clock(self) -> ClockReading:
        """The store's time beside the host's, and whether the store follows it."""
        return self._alive().clock()

    def accept_clock(self, *, timeout: Duration | None = None) -> ClockReading:
        """Confirms the host's clock: the store's time becomes the host's, in every process on the file.

        For a leap ahead that was refused and is right. It takes the store back, too, if the host's clock is behind:
        leases and retries then wait that much longer.
        """
        self._alive().accept_clock(deadline=self._deadline(timeout))
        return self.clock()

    def backup(
        self,
        folder: str | os.PathLike[str],
        *,
        keep: int | None = None,
        rate: float | None = None,
        on_progress: Progress | None = None,
        timeout: Duration | None = None,
    ) -> Backup:
        """Copies the whole store, your own tables included, as it is at one moment, while everyone goes on.

        Backups in one folder share what did not change. `keep` drops all but the newest so many; `rate` bounds the
        bytes read a second; `on_progress` is told the bytes done and all of them. `timeout` is how long it may wait
        for its moment, not how long it may take. `duly.restore` puts one back.
        """
        most = None if keep is None else count(keep, "keep", LIMITS.page_max)
        return self._alive().back_up(
            folder_path(folder),
            keep=most,
            rate=None if rate is None else bytes_a_second(rate),
            on_progress=on_progress,
            deadline=self._deadline(timeout),
        )

    def health(
        self,
        topic: str | None = None,
        *,
        after: str = "",
        limit: int | None = None,
        timeout: Duration | None = None,
    ) -> list[GroupHealth]:
        """How each group does by its topic's thresholds (duly.Health), with reasons and figures.

        Of one topic; of all of them; or of a page of `limit` topics after a name. Each topic is there at least once.
        """
        if topic is not None:
            return self._do(CheckHealth(self._tenant, named(topic), "", 1), timeout)

        def page(after: str, most: int) -> list[GroupHealth]:
            return self._do(CheckHealth(self._tenant, None, after, most), timeout)

        return _by_topics(page, after_name(after), page_size(limit))

    def forecast(
        self,
        topic: str,
        *,
        group: str | None = None,
        minutes: int = 60,
        rate: float | None = None,
        timeout: Duration | None = None,
    ) -> Forecast:
        """What comes to a queue, or to a group of a log, in each of the next minutes, and the consumers that it takes.

        How fast a consumer is is observed, unless `rate` tells it: messages a second that one finishes. Where nothing
        was observed yet `consumers` is None. The first minute is what is left of this one, with all that is ready.
        """
        found = self.forecasts(topic, group=group, minutes=minutes, rate=rate, timeout=timeout)
        if group is None and found[0].group != QUEUE_GROUP:
            raise InvalidArgument("A log is consumed through a group: pass group=, or ask for all with forecasts().")
        return found[0]

    def forecasts(
        self,
        topic: str | None = None,
        *,
        group: str | None = None,
        minutes: int = 60,
        rate: float | None = None,
        after: str = "",
        limit: int | None = None,
        timeout: Duration | None = None,
    ) -> list[Forecast]:
        """The forecasts of every group: of one topic; of all of them; or of a page of `limit` topics after a name."""
        ahead = count(minutes, "minutes", LIMITS.page_max)
        pace = None if rate is None else per_second(rate, "rate")
        if topic is not None:
            return self._do(ListForecasts(self._tenant, named(topic), group_named(group), "", 1, ahead, pace), timeout)
        if group is not None:
            raise InvalidArgument("A group is a topic's: give the topic too.")

        def page(after: str, most: int) -> list[Forecast]:
            return self._do(ListForecasts(self._tenant, None, "", after, most, ahead, pace), timeout)

        return _by_topics(page, after_name(after), page_size(limit))

    def cluster(self, *, timeout: Duration | None = None) -> list[Member]:
        """The brokers that serve the store, by name: where each is, its clock's drift, and whether it is ready.

        None: nobody serves it, or has for the last seconds; whoever has the store open itself needs no broker.
        """
        return self._alive().members(deadline=self._deadline(timeout))

    def limits(self) -> dict[str, int]:
        """The hard limits, published."""
        from ..limits import published

        return published()

    def close(self) -> None:
        """Finishes what was accepted and lets go of the store. Twice does nothing."""
        if not self._closed:
            self._port.check_leaving()
            self._closed = True
            if os.getpid() == self._pid:
                self._renewal.close()
            self._port.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _alive(self) -> Port:
        if self._closed:
            raise Closed()
        if os.getpid() != self._pid:
            # The child of a fork: a consumer of its own, with its own renewals.
            self._pid = os.getpid()
            self._own_name = _consumer_name()
            self._renewal = Renewal(self._renew)
        return self._port

    def _consumer_name(self, consumer: str | None) -> str:
        if consumer is not None:
            return check_name(consumer, "consumer name", LIMITS.consumer_chars_max)
        return self._consumer or self._own_name


def _by_topics(page: Callable[[str, int], list[T]], after: str, most: int) -> list[T]:
    """What is told of up to `most` topics, one or more of each, page by page."""
    seen = 0
    found: list[T] = []
    while seen < most:
        wanted = min(_TOPICS_A_PAGE, most - seen)
        some = page(after, wanted)
        found.extend(some)
        topics = len({one.topic for one in some})
        if topics < wanted:
            break
        seen, after = seen + topics, some[-1].topic
    return found


def _consumer_name() -> str:
    return f"{socket.gethostname()[:64]}-{os.getpid()}-{secrets.token_hex(3)}"
