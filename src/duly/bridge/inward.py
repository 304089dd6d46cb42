"""From the other side into a topic.

taken ──published under a name of its own──▶ in Duly ──acknowledged on the other side──▶ done
  └─ killed anywhere: the same is taken again, under the same name, and Duly stores it once (for a day)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import PublishUnknown, QuotaExceeded, Unavailable
from .entry import Shape
from .options import Options
from .patience import Patience
from .sides import Down, Source, Taken

if TYPE_CHECKING:
    from ..client.client import Client

_WAIT_S = 1.0
# What a person has to put right ends the bridge; these are waited for.
_PASSING = (Unavailable, PublishUnknown, QuotaExceeded)


def carry_in(
    source: Source,
    client: Client,
    topic: str,
    shape: Shape,
    patience: Patience,
    options: Options,
    carried: Callable[[int], None],
) -> None:
    """Until it is told to stop, or with `drain` until nothing comes. Raises InvalidArgument for what cannot go on."""
    while not patience.stopping.is_set():
        try:
            taken = source.take(options.batch, _WAIT_S)
            if taken is None:
                patience.over()
                if options.drain:
                    return
                continue
            if not _publish(client, topic, shape, taken, patience):
                return
            source.done(taken)
        except Down as error:
            if not patience.wait("The other side", error):
                return
            continue
        patience.over()
        carried(len(taken.entries))


def _publish(client: Client, topic: str, shape: Shape, taken: Taken, patience: Patience) -> bool:
    """Publishes what was taken, however long Duly cannot take it. False: told to stop before."""
    if not taken.entries:
        return True
    now_ms = client._alive().now_ms()
    messages = [shape.message(entry, topic, now_ms) for entry in taken.entries]
    while True:
        try:
            client.publish(topic, messages, publish_id=taken.publish_id)
        except _PASSING as error:
            if not patience.wait("Duly", error):
                return False
            continue
        return True
