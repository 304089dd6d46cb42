"""An application's asyncio connection, used from a thread while its loop waits for that thread."""

from __future__ import annotations

import asyncio
from typing import Any

_ASYNC = ("AsyncConnection", "AsyncSession", "async_scoped_session")


class Awaited:
    """A connection whose statements are awaited, and the loop that it belongs to."""

    def __init__(self, connection: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.connection = connection
        self.loop = loop

    def done(self, work: Any) -> Any:
        """What comes of awaiting something there."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()


def is_asyncio(tx: object) -> bool:
    """Whether a connection is one whose statements are awaited: psycopg's, or SQLAlchemy's."""
    return any(kind.__name__ in _ASYNC for kind in type(tx).__mro__)
