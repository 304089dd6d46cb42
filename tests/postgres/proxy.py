"""A small TCP proxy in front of a server: it can stop forwarding without a word, and lose what was under way."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Proxy:
    """Forwards to a port of this machine, until it is told not to."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._flows = threading.Event()
        self._flows.set()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """From now on nothing gets through, either way, and nobody is told; new connections hang, too."""
        self._flows.clear()

    def heal(self) -> None:
        """What comes from now on gets through on new connections. The old ones are reset: their state is gone."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()
        self._flows.set()

    def close(self) -> None:
        self._listener.close()
        self.heal()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                self._flows.wait()
                server = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                return
            with self._lock:
                self._pairs.append((client, server))
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._forward, args=(source, target), daemon=True).start()

    def _passed(self, data: bytes) -> tuple[bytes, bool]:
        """What is forwarded of some bytes, and whether more is."""
        return data, True

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if not self._flows.is_set():
                    # Lost on the way; whatever comes later waits in the sender's buffer.
                    self._flows.wait()
                    return
                passed, goes_on = self._passed(data)
                target.sendall(passed)
                if not goes_on:
                    break
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
