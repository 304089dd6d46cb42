"""A broker on a real store, its way out, and endpoints on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest

import duly
from duly.broker.broker import Broker
from duly.broker.entry import Entry
from duly.broker.pushes.http_runner import HttpRunner
from duly.broker.pushes.lookups import Lookups
from duly.broker.pushes.outbound import Outbound
from duly.broker.pushes.reach import Reach
from duly.client.connect import open_home
from duly.clock import Clock
from duly.push import RunningPush, ToHttp
from tests.push.receiver import Receiver

SECRET = b"a secret that only the two of them know"


class Pushing:
    """What a broker would run, run here."""

    def __init__(
        self,
        path: str,
        *,
        clock: Clock | None = None,
        reach: Reach | None = None,
        lookups: Lookups | None = None,
        **how: Any,
    ) -> None:
        self.broker = Broker(open_home(path, clock=clock))
        self.q: duly.Client = Entry(self.broker).client("default")
        self.out = Outbound(self.broker, reach=reach, lookups=lookups, **how)
        self.told: list[tuple[str, dict[str, Any]]] = []
        self._runners: list[HttpRunner] = []

    def start(
        self,
        topic: str,
        to: ToHttp,
        *,
        group: str = "queue",
        tenant: str = "default",
        secrets: tuple[bytes, ...] = (SECRET,),
    ) -> HttpRunner:
        """Runs a push of the topic."""
        push = RunningPush(tenant, f"push-{topic}", topic, group, to, secrets)
        runner = HttpRunner(self.q, push, self._hear, outbound=self.out)
        self._runners.append(runner)
        return runner

    def _hear(self, push: RunningPush, kind: str, facts: Mapping[str, Any]) -> None:
        self.told.append((kind, dict(facts)))

    def answers(self) -> list[dict[str, Any]]:
        """What the keeper was told of answers."""
        return [facts for kind, facts in self.told if kind == "answered"]

    def counts(self, topic: str, group: str = "queue") -> tuple[int, int, int, int]:
        """Never claimed, leased, retrying, dead."""
        found = self.q.describe_group(topic, group)
        return (found.lag, found.leased, found.retrying, found.dead)

    def q_of(self, tenant: str) -> duly.Client:
        """A client of another tenant's."""
        return Entry(self.broker).client(tenant)

    def close_runners(self) -> None:
        for runner in self._runners:
            with suppress(TimeoutError):
                runner.stop(0)

    def close(self) -> None:
        self.close_runners()
        self.out.close()
        self.broker.shut()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def pushing_with(path: str) -> Iterator[Callable[..., Pushing]]:
    """Makes one with a reach, names or a clock of its own."""
    made: list[Pushing] = []

    def make(**how: Any) -> Pushing:
        made.append(Pushing(f"{path}-{len(made)}", **how))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def pushing(pushing_with: Callable[..., Pushing], receiver: Receiver) -> Pushing:
    """One that may reach the receiver."""
    return pushing_with(reach=Reach.of([f"127.0.0.1:{receiver.port}"]))
