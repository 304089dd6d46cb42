"""serve: the composition root of a broker. It opens the store, puts a broker on it, and both surfaces before that.

opening ──▶ serving ──SIGTERM, SIGINT──▶ draining ──▶ gone
   and it is known to the other brokers    │ it is taken off the list of brokers
                                           │ nobody is taken in; claims that only wait are told to go elsewhere
                                           └ what is under way is finished, for ten seconds at most; a second
                                             signal ends it at once: what was acknowledged is stored anyway
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import FrameType

from . import __version__
from .broker.broker import Broker
from .broker.certificates import Certificates
from .broker.exposure import check_closed
from .broker.pushes.http_runner import HttpRunner
from .broker.pushes.keeper import Makers
from .broker.pushes.outbound import Outbound
from .broker.pushes.reach import Reach
from .broker.pushes.topic_runner import TopicRunner
from .client.addresses import BROKER_SCHEME, TLS_SCHEME
from .client.connect import open_home
from .clock import Clock, monotonic_s
from .engine.principals import has_keys
from .errors import Unavailable
from .events import Listener, log
from .flight.port import FlightPort
from .http.guard import LOOPBACK
from .http.server import HttpServer
from .limits import LIMITS
from .push import ToHttp, ToTopic

DRAIN_S = 10.0
# A parent that passes a signal on to a child who got it, too, wishes nothing twice: make does that.
_SAME_WISH_S = 0.5


@dataclass(frozen=True, slots=True)
class Address:
    """Where a broker listens; port 0 takes any that is free. `names` are what it may be called by over HTTP, too."""

    host: str = "127.0.0.1"
    http_port: int = 8470
    flight_port: int = 8471
    names: tuple[str, ...] = ()
    # What clients are told to use instead, `host` or `host:port` of Flight's.
    advertise: str = ""

    def advertised(self, http_port: int, flight_port: int, *, tls: bool = False) -> tuple[str, str]:
        """Where others reach it, over Flight and over HTTP, given the ports that it listens on."""
        host, port = self._advertised_host_and_port()
        return urls(host, http_port=http_port, flight_port=int(port or flight_port), tls=tls)

    @property
    def advertised_host(self) -> str:
        """The host as others call it."""
        return self._advertised_host_and_port()[0].strip("[]")

    def _advertised_host_and_port(self) -> tuple[str, str]:
        if not self.advertise:
            return in_url(reached_at(self.host)), ""
        host, colon, port = self.advertise.rpartition(":")
        if not colon or self.advertise.endswith("]"):
            return self.advertise, ""
        return host, port


class Served:
    """A broker with its surfaces, in this process. Raises Unavailable when it cannot listen there."""

    def __init__(
        self,
        store: str,
        address: Address,
        *,
        on_event: Listener | None = None,
        drift_ms_max: int = LIMITS.drift_ms_max,
        clock: Clock | None = None,
        certificates: Certificates | None = None,
        insecure: bool = False,
        master: str | None = None,
        require_keys: bool = False,
        reach: Reach | None = None,
        push_ca: str | None = None,
    ) -> None:
        """`reach` and `push_ca`: what pushes may connect to, and a file of further authorities that they trust."""
        check_free(address.host, address.http_port)
        check_free(address.host, address.flight_port)
        home = open_home(store, on_event=on_event, clock=clock, master=master)
        self.certificates = certificates
        try:
            self.open = not (require_keys or home.look(has_keys, None))
            if not insecure:
                check_closed(address.host, tls=certificates is not None, keys=not self.open)
        except BaseException:
            home.close()
            raise
        self.broker = Broker(home, drift_ms_max=drift_ms_max, on_event=on_event, require_keys=require_keys)
        try:
            self.outbound = Outbound(self.broker, reach=reach, ca_file=push_ca)
        except BaseException:
            self.broker.shut()
            raise
        try:
            self.http = self._make_http(address)
            self.flight = self._make_flight(address)
        except BaseException:
            self.outbound.close()
            self.broker.shut()
            raise
        self.http.start()
        if certificates is not None:
            certificates.follow(self.flight.renew)
        url, http_url = address.advertised(self.http.port, self.flight.port, tls=self.tls)
        self.name = self.broker.join(url=url, http_url=http_url, version=__version__)
        makers: Makers = {ToHttp: partial(HttpRunner, outbound=self.outbound), ToTopic: TopicRunner}
        self.broker.keep_pushes(makers, self.outbound.try_out)

    @property
    def tls(self) -> bool:
        """Whether its ports speak TLS."""
        return self.certificates is not None

    def _make_http(self, address: Address) -> HttpServer:
        hosts = {*LOOPBACK, address.host, address.advertised_host, *address.names}
        tls = None if self.certificates is None else self.certificates.server_context()
        return HttpServer(self.broker, address.host, address.http_port, hosts=hosts, tls=tls)

    def _make_flight(self, address: Address) -> FlightPort:
        certificate = None if self.certificates is None else self.certificates.current
        is_free = partial(check_free, address.host)
        return FlightPort(
            self.broker, in_url(address.host), address.flight_port, certificate=certificate, is_free=is_free
        )

    def drain(self) -> None:
        """Takes nobody in, and waits for what is under way."""
        until = monotonic_s() + DRAIN_S
        if self.certificates is not None:
            self.certificates.close()
        self.broker.drain()
        # Its pushes have ended by then.
        self.outbound.close()
        self.flight.finish(DRAIN_S)
        self.http.drain(max(0.0, until - monotonic_s()))

    def close(self) -> None:
        """Ends in order; everything that was accepted is stored."""
        self.drain()
        self.broker.shut()


def urls(host: str, *, http_port: int, flight_port: int, tls: bool) -> tuple[str, str]:
    """A broker's addresses, over Flight and over HTTP."""
    scheme, web = (TLS_SCHEME, "https://") if tls else (BROKER_SCHEME, "http://")
    return f"{scheme}{host}:{flight_port}", f"{web}{host}:{http_port}"


def check_free(host: str, port: int) -> None:
    """Raises Unavailable when nobody can listen there. gRPC itself would not say why."""
    try:
        family, kind, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(where)
            # A port that another listens on can be bound, but not listened on.
            tried.listen(1)
    except OSError as error:
        raise Unavailable(
            f"Nobody can listen at {in_url(host)}:{port}: {error.strerror or error}. "
            "Is another broker there? Choose another host or port; 0 takes any that is free."
        ) from error


def reached_at(host: str) -> str:
    """A host as others reach it: of one that listens everywhere, the address that this machine has among others."""
    if host not in ("0.0.0.0", "::"):
        return host
    family, beyond = (socket.AF_INET6, "2001:db8::1") if host == "::" else (socket.AF_INET, "192.0.2.1")
    try:
        # Nothing is sent: the system only chooses from where it would be.
        with socket.socket(family, socket.SOCK_DGRAM) as towards:
            towards.connect((beyond, 9))
            found: str = towards.getsockname()[0]
            return found
    except OSError:
        return "::1" if host == "::" else "127.0.0.1"


def in_url(host: str) -> str:
    """A host as addresses have it: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def run_until_told(served: Served, *, ready: Callable[[], None] = lambda: None) -> None:
    """Serves until SIGTERM or SIGINT, then drains and ends the process: streams of Flight's cannot be made to end.

    `ready` is called once signals are heard: whoever is told by it may send one at once.
    """
    told = threading.Event()
    told_at = 0.0

    def end(_number: int, _frame: FrameType | None) -> None:
        nonlocal told_at
        if not told.is_set():
            told_at = monotonic_s()
            told.set()
        elif monotonic_s() - told_at > _SAME_WISH_S:
            os._exit(1)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    if served.certificates is not None:
        reload = served.certificates.reload
        signal.signal(signal.SIGHUP, lambda _number, _frame: reload())
    # What was loaded stays for good. To look through it for garbage, as the collector does now and then, took 45 ms,
    # during which nobody is served.
    gc.collect()
    gc.freeze()
    ready()
    told.wait()
    log.info("told to stop: draining")
    served.close()
    log.info("stopped")
    os._exit(0)
