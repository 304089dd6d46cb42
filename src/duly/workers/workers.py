"""Workers: an application's handlers, bound when it is imported and run later.

workers = duly.Workers()

@workers.on("emails", concurrency=4)
def send(d): ...

workers.run(client)          # here, or in other processes: duly work app:workers
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ..client.arguments import count, flag
from ..clock import Duration, milliseconds
from ..errors import Conflict, GroupNotFound, InvalidArgument
from .handler import CONCURRENCY_MAX, Function, Handler, make_handler
from .run import Ending, Run, Told
from .signals import on_signals

if TYPE_CHECKING:
    from ..client.client import Client

GRACE_S = 30.0

F = TypeVar("F", bound=Function)


class Workers:
    """Handlers of topics. A return acks the message, an exception nacks it; its lease is renewed meanwhile."""

    def __init__(self) -> None:
        self._handlers: dict[tuple[str, str | None], Handler] = {}
        self._lock = threading.Lock()
        self._run: Run | None = None
        self._stop_wanted = False

    @property
    def handlers(self) -> tuple[Handler, ...]:
        """The handlers, in the order in which they were bound."""
        return tuple(self._handlers.values())

    def on(
        self,
        topic: str,
        *,
        group: str | None = None,
        concurrency: int = 1,
        lease: Duration | None = None,
        time_limit: Duration | None = None,
    ) -> Callable[[F], F]:
        """Binds a function, sync or async, to a queue or to a group of a log. It is called with a Delivery.

        `concurrency` of them run at once in each process. `lease` is how long a message is held between two
        renewals, and so how soon it comes back from a process that died; by default the topic's. `time_limit`
        ends a handler: TimeLimit is raised inside it, an async one is cancelled, and the message is nacked.
        """

        def bind(function: F) -> F:
            handler = make_handler(
                function, topic, group=group, concurrency=concurrency, lease=lease, time_limit=time_limit
            )
            before = self._handlers.setdefault((topic, group), handler)
            if before is not handler:
                raise InvalidArgument(
                    f"{handler.source} has a handler already: {before.name}. Bind one, and call both."
                )
            return function

        return bind

    def run(
        self, client: Client, *, threads: int | None = None, grace: Duration = GRACE_S, drain: bool = False
    ) -> None:
        """Works until `stop`, SIGTERM or SIGINT, then gives running handlers `grace` to end and releases the rest.

        `threads` is how many sync handlers run at once, of all topics together; by default as many as their
        concurrency allows. With `drain` it also ends when nothing is due and nothing runs. On the main
        thread it takes SIGTERM and SIGINT for its time; a second one ends the grace.
        """
        self.run_to_end(client, threads=threads, grace=grace, drain=drain, leave_when_stuck=False)

    def run_to_end(
        self,
        client: Client,
        *,
        threads: int | None,
        grace: Duration,
        drain: bool,
        leave_when_stuck: bool,
        ready: Callable[[], None] = lambda: None,
    ) -> Ending:
        """Like `run`, and says how it ended. With `leave_when_stuck` a stuck handler ends it; `ready` is called
        when everything was found in order.
        """
        if threads is not None:
            count(threads, "threads", CONCURRENCY_MAX)
        grace_s = milliseconds(grace, "grace") / 1000
        if grace_s < 0:
            raise InvalidArgument("grace must be 0 or more seconds.")
        flag(drain, "drain")
        self._check(client)
        run = self._begin(client, threads, grace_s, drain, leave_when_stuck)
        try:
            with on_signals(run.told, lambda _: Told.SIGNAL):
                ready()
                return run.run()
        finally:
            with self._lock:
                self._run, self._stop_wanted = None, False

    def stop(self) -> None:
        """Ends the run: no more claims, running handlers get their grace. One that has yet to begin ends at once.

        From any thread, and from a handler.
        """
        with self._lock:
            self._stop_wanted = True
            if self._run is not None:
                self._run.stop()

    def _begin(self, client: Client, threads: int | None, grace_s: float, drain: bool, leave_when_stuck: bool) -> Run:
        with self._lock:
            if self._run is not None:
                raise Conflict("These workers are running already. Stop them first, or make others.")
            self._run = Run(
                client,
                self.handlers,
                threads=threads,
                grace_s=grace_s,
                drain=drain,
                leave_when_stuck=leave_when_stuck,
            )
            if self._stop_wanted:
                self._run.stop()
            return self._run

    def _check(self, client: Client) -> None:
        """What can be found out before the first message: that every topic and group is there."""
        if not self._handlers:
            raise InvalidArgument("There are no handlers to run. Bind one: @workers.on(topic).")
        for handler in self.handlers:
            found = client.describe_topic(handler.topic)
            if found.kind == "log" and handler.group is None:
                raise InvalidArgument(
                    f"{handler.topic!r} is a log: say for which of its groups {handler.name} works, "
                    f"on({handler.topic!r}, group=…)."
                )
            if handler.group is not None and handler.group not in found.groups:
                raise GroupNotFound(
                    f"There is no group {handler.group!r} on topic {handler.topic!r}. Call create_group first."
                )
