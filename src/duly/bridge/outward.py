"""From a topic to the other side.

    claimed ──put, in its order──▶ acknowledged there ──acked here──▶ done
       └─ killed anywhere: whoever is started under the same name is given it back first, under the same lease

What is given back comes before anything is claimed, so the order of a queue survives a kill. A lease has to last until
then: its end makes the messages anybody's, behind others that were due earlier. Told to stop while the other side is
down, it keeps what it holds for the same reason: the next one goes on with it, or the lease ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ..errors import QuotaExceeded, Unavailable
from .options import Options
from .patience import Patience
from .sides import Down, Sink

if TYPE_CHECKING:
    from ..client.batch import Batch
    from ..client.client import Client

_WAIT_S = 1.0
_PASSING = (Unavailable, QuotaExceeded)


class CarryOut:
    """One such bridge."""

    def __init__(
        self,
        client: Client,
        topic: str,
        sink: Sink,
        patience: Patience,
        options: Options,
        carried: Callable[[int], None],
    ) -> None:
        self._client = client
        self._topic = topic
        self._sink = sink
        self._patience = patience
        self._options = options
        self._consumer = f"bridge:{options.name}"
        self._carried = carried

    def run(self) -> None:
        """Until it is told to stop, or with `drain` until nothing is due."""
        for batch in self._asked(self._held):
            if not self._carry(batch):
                return
        while not self._patience.stopping.is_set():
            for batch in self._asked(self._claimed):
                if not batch and self._options.drain:
                    return
                if batch and not self._carry(batch):
                    return

    def _held(self) -> list[Batch]:
        """What one of this name held when it ended."""
        return self._client.held(consumer=self._consumer, topic=self._topic, group=self._options.group)

    def _claimed(self) -> list[Batch]:
        return [
            self._client.claim(
                self._topic,
                group=self._options.group,
                max_messages=self._options.batch,
                wait=_WAIT_S,
                lease=self._options.lease_s,
                consumer=self._consumer,
            )
        ]

    def _asked(self, ask: Callable[[], list[Batch]]) -> Iterator[Batch]:
        """What Duly answers, however long it cannot; nothing: told to stop before."""
        while not self._patience.stopping.is_set():
            try:
                found = ask()
            except _PASSING as error:
                self._patience.wait("Duly", error)
                continue
            self._patience.over()
            yield from found
            return

    def _carry(self, batch: Batch) -> bool:
        """Puts a batch there and acks it here, with its lease kept meanwhile. False: told to stop before."""
        end_renewal = self._client.renew(batch)
        try:
            refused = self._put(batch)
            if refused is None:
                return False
            for index, why in refused.items():
                batch[index].nack(reason=why)
            return self._ack(batch)
        finally:
            end_renewal()

    def _put(self, batch: Batch) -> dict[int, str] | None:
        while True:
            try:
                refused = self._sink.put(batch)
            except Down as error:
                if not self._patience.wait("The other side", error):
                    return None
                continue
            self._patience.over()
            return refused

    def _ack(self, batch: Batch) -> bool:
        while True:
            try:
                done = self._client.ack(batch).done
            except _PASSING as error:
                if not self._patience.wait("Duly", error):
                    return False
                continue
            self._carried(done)
            return True
