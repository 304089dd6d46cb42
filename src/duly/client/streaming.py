"""Reading a stretch through a broker: one DoGet after the other, until all of it has come.

A stream that breaks, or whose broker goes down, is followed by another one from the message after the last that came.
Each is given so long as nothing may come for: whoever takes longer over what it got finds its stream ended, and has
another by the next batch. So nothing waits for ever, though Flight's calls wait in C.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from ..clock import monotonic_s
from ..engine.stretch import READ_COLUMNS, Stretch
from ..errors import Busy, Closed
from ..store.patience import patience_here
from ..wire.operations import encode
from .lines import Broken, elsewhere, status_error, unavailable, why

if TYPE_CHECKING:
    import pyarrow as pa

_OFFSET = "offset"


class Stream:
    """One DoGet."""

    def __init__(self, client: Any, ticket: bytes, deadline: float, headers: Any = ()) -> None:
        from pyarrow import flight

        options = flight.FlightCallOptions(timeout=max(0.001, deadline - monotonic_s()), headers=list(headers))
        self._reader = self._asked(lambda: client.do_get(flight.Ticket(ticket), options), lambda: None)

    def next(self) -> pa.RecordBatch | None:
        """The next batch; None at the end. Raises Broken, and what the broker says."""
        try:
            return self._asked(lambda: self._reader.read_chunk().data, self._reader.cancel)
        except StopIteration:
            return None

    def cancel(self) -> None:
        """Ends it before its end."""
        self._reader.cancel()

    def _asked(self, ask: Any, cancel: Any) -> Any:
        import pyarrow as pa

        try:
            with patience_here().waking(cancel):
                on_main = threading.current_thread() is threading.main_thread()
                return elsewhere(ask, cancel) if on_main else ask()
        except (pa.ArrowException, OSError) as error:
            said = status_error(error)
            if said is not None and not isinstance(said, (Busy, Closed)):
                raise said from None
            raise Broken(str(said or why(error)), asked=False) from error


class Broker(Protocol):
    """Where streams come from."""

    def stream(self, ticket: bytes, deadline: float) -> Stream:
        """Opens one."""
        ...

    def pause(self, tries: int, deadline: float) -> None:
        """Waits a little before the next try."""
        ...


def read_batches(broker: Broker, stretch: Stretch, patience_s: float) -> Iterator[pa.RecordBatch]:
    """All batches of a stretch. Raises Unavailable when nothing came for too long."""
    # Where to go on is told by the offsets: they come along, wanted or not.
    wanted = stretch.columns or READ_COLUMNS
    if _OFFSET not in wanted:
        stretch = replace(stretch, columns=(*wanted, _OFFSET))
    stream: Stream | None = None
    tries, deadline = 0, monotonic_s() + patience_s
    try:
        while stretch.end is None or stretch.offset < stretch.end:
            try:
                stream = stream or broker.stream(encode(stretch), deadline)
                batch = stream.next()
            except Broken as error:
                stream = None
                if monotonic_s() >= deadline:
                    raise unavailable(str(error)) from error
                broker.pause(tries, deadline)
                tries += 1
                continue
            if batch is None:
                return
            stretch = replace(stretch, offset=batch.column(_OFFSET)[-1].as_py() + 1)
            yield batch if _OFFSET in wanted else batch.drop_columns([_OFFSET])
            tries, deadline = 0, monotonic_s() + patience_s
    finally:
        if stream is not None:
            stream.cancel()
