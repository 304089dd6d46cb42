"""How much of an answer is let in, whoever reads it and whether anybody does.

aiohttp parses what comes as it comes. A server may send any number of interim answers (1xx) before the one that
counts, and anything at all on a connection that nobody uses at the moment: all of it would be parsed on the loop that
every push shares, and kept. So of a connection only so much is taken between one request and the next, a piece at a
time, and only so many answers; what is beyond that is dropped as it is.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler

ANSWER_BYTES_MAX = 64 * 1024
HEADER_BYTES_MAX = 16 * 1024
# The answer and its header, and as much again for how they are framed.
_TAKEN_BYTES_MAX = 2 * (ANSWER_BYTES_MAX + HEADER_BYTES_MAX)
_PIECE_BYTES = 8 * 1024
# The one that counts, and those before it.
_ANSWERS_MAX = 8


class Bounded(ResponseHandler):
    """aiohttp's end of a connection, with bounds."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._begin()

    def _begin(self) -> None:
        self._bytes_left = _TAKEN_BYTES_MAX
        self._answers_left = _ANSWERS_MAX

    def set_response_params(self, **how: Any) -> None:
        """The next request is about to be sent."""
        self._begin()
        super().set_response_params(**how)

    def data_received(self, data: bytes) -> None:
        """Takes no more than may be taken."""
        while data and self._bytes_left > 0:
            piece = data[: min(_PIECE_BYTES, self._bytes_left)]
            data = data[len(piece) :]
            self._bytes_left -= len(piece)
            super().data_received(piece)
        if data and self.transport is not None:
            # Whoever reads may have it go on, to be stopped again: nothing is parsed.
            self.transport.pause_reading()

    def feed_data(self, data: Any, size: int = 0) -> None:
        """An answer has come, or an interim one."""
        self._answers_left -= 1
        if self._answers_left >= 0:
            super().feed_data(data, size)
            return
        self._bytes_left = 0
        if self._answers_left == -1:
            self.set_exception(aiohttp.ClientPayloadError("too many interim answers"))
            if self.transport is not None:
                self.transport.close()


def bound(connector: aiohttp.TCPConnector) -> None:
    """Has a connector make such connections. aiohttp has no public way for that; a test floods them."""
    assert isinstance(connector._factory, partial)
    made: Any = partial(Bounded, loop=asyncio.get_running_loop())
    connector._factory = made
