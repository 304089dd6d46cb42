"""serve: the composition root of a broker. It opens the store, puts a broker on it, and both surfaces before that.

opening ──▶ serving ──SIGTERM, SIGINT──▶ draining ──▶ gone
                                           │ nobody is taken in; claims that only wait are told to go elsewhere
                                           └ what is under way is finished, for ten seconds at most; a second
                                             signal ends it at once: what was acknowledged is stored anyway
"""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from types import FrameType

from .broker.broker import Broker
from .client.connect import open_home
from .events import Listener
from .flight.server import FlightServer

DRAIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Address:
    """Where a broker listens; port 0 takes any that is free."""

    host: str = "127.0.0.1"
    http_port: int = 8470
    flight_port: int = 8471


class Served:
    """A broker with its surfaces, in this process."""

    def __init__(self, store: str, address: Address, *, on_event: Listener | None = None) -> None:
        self.broker = Broker(open_home(store, on_event=on_event))
        try:
            self.flight = FlightServer(self.broker, address.host, address.flight_port)
        except BaseException:
            self.broker.shut()
            raise

    def drain(self) -> None:
        """Takes nobody in, and waits for what is under way."""
        self.broker.drain()
        self.flight.finish(DRAIN_S)

    def close(self) -> None:
        """Ends in order; everything that was accepted is stored."""
        self.drain()
        self.broker.shut()


def run_until_told(served: Served) -> None:
    """Serves until SIGTERM or SIGINT, then drains and ends the process: streams of Flight's cannot be made to end."""
    told = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        if told.is_set():
            os._exit(1)
        told.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    told.wait()
    served.close()
    os._exit(0)
