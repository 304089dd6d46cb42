"""Flight's port: a server, and another one in its place when the certificate changes.

gRPC reads a server's certificate once, and Arrow has it keep its port to itself (no SO_REUSEPORT). So the old server is
told to end, which closes its port at once, and the new one listens there a millisecond or two later; who connects in
between is refused, and tries again. Streams that are open go on under the old server. On each, what is under way is
answered, and the next request is told that this server is going: clients ask it again on a new connection, as nothing
was done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pyarrow as pa

from ..broker.broker import Broker
from ..broker.certificates import Certificate
from ..clock import monotonic_s
from ..errors import Unavailable
from .server import FlightServer
from .streams import Streams

_AGAIN_S = 0.001
_PATIENCE_S = 10.0
_ENDS_S = 5.0


class FlightPort:
    """Serves one broker on a port until `shutdown`. `is_free` raises Unavailable while somebody listens there."""

    def __init__(
        self,
        broker: Broker,
        host: str,
        port: int,
        *,
        certificate: Certificate | None = None,
        is_free: Callable[[int], None] = lambda _port: None,
    ) -> None:
        self._broker = broker
        self._host = host
        self._is_free = is_free
        self._streams = Streams()
        self._ending: list[threading.Thread] = []
        self._server = self._open(port, certificate)
        self.port: int = self._server.port

    @property
    def streams(self) -> int:
        """How many calls are under way."""
        return self._streams.count

    def renew(self, certificate: Certificate) -> None:
        """Listens with another certificate from now on. Raises Unavailable when somebody else has taken the port
        meanwhile; call it again.
        """
        if not self._server.retired:
            self._end(self._server)
        self._server = self._open_again(certificate)

    def finish(self, seconds: float) -> None:
        """Waits until what is under way is answered, for so long at most. Streams may stay open, idle."""
        self._streams.finish(seconds)

    def shutdown(self) -> None:
        """Ends, when the streams of the present server have; of those before it, only a while is waited for."""
        if not self._server.retired:
            self._server.shutdown()
        until = monotonic_s() + _ENDS_S
        for ending in self._ending:
            ending.join(max(0.0, until - monotonic_s()))

    def _end(self, server: FlightServer) -> None:
        server.retire()
        # Returns when the last stream has ended, which is its client's affair.
        thread = threading.Thread(target=server.shutdown, name="duly-flight-end", daemon=True)
        thread.start()
        self._ending = [ending for ending in self._ending if ending.is_alive()] + [thread]

    def _open_again(self, certificate: Certificate) -> FlightServer:
        until = monotonic_s() + _PATIENCE_S
        while True:
            try:
                self._is_free(self.port)
                return self._open(self.port, certificate)
            except (Unavailable, pa.ArrowException) as error:
                if monotonic_s() >= until:
                    raise Unavailable(f"Nobody can listen at port {self.port} again: {error}") from error
                threading.Event().wait(_AGAIN_S)

    def _open(self, port: int, certificate: Certificate | None) -> FlightServer:
        return FlightServer(self._broker, self._host, port, certificate=certificate, streams=self._streams)
