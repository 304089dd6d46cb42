"""What duly.aio answers with besides plain coroutines: what can be entered, and what comes one by one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from .threads import Line

R = TypeVar("R")
E = TypeVar("E", bound=AbstractAsyncContextManager[Any])

_END = object()


class Entering(Coroutine[Any, Any, E]):
    """What can be awaited or entered: `batch = await q.claim(…)`, or `async with q.claim(…) as batch`."""

    def __init__(self, coroutine: Coroutine[Any, Any, E]) -> None:
        self._coroutine = coroutine

    def send(self, value: Any) -> Any:
        """As any coroutine."""
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        """As any coroutine."""
        return self._coroutine.throw(*error)

    def close(self) -> None:
        """As any coroutine."""
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, E]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> E:
        self._found = await self._coroutine
        # Nothing is awaited in there: no cancellation can come between having it and being inside it.
        await self._found.__aenter__()
        return self._found

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._found.__aexit__(kind, error, trace)


class Stream(AsyncIterator[R]):
    """Answers one by one: `async for`, in an `async with` block or without. However the loop is left, what the
    client's own iterator does at its end is done.
    """

    def __init__(self, ask: Callable[[], Iterator[Any]], line: Callable[[], Line], dressed: Callable[[Any], R]) -> None:
        self._ask = ask
        self._make_line = line
        self._dressed = dressed
        self._answers: Iterator[Any] | None = None
        self._line: Line | None = None
        self._ended = False

    async def __anext__(self) -> R:
        if self._ended:
            raise StopAsyncIteration
        if self._line is None:
            self._line = self._make_line()
        try:
            item = await self._line.run(self._next)
        except BaseException:
            self._leave()
            raise
        if item is _END:
            await self.aclose()
            raise StopAsyncIteration
        return self._dressed(item)

    def _next(self) -> Any:
        if self._answers is None:
            self._answers = self._ask()
        return next(self._answers, _END)

    def _close(self, *error: Any) -> None:
        """What the iterator does at its end: as a block, if it can be one, when it is told how that ended."""
        for name in ("__exit__", "close") if error else ("close",):
            if (end := getattr(self._answers, name, None)) is not None:
                end(*error if name == "__exit__" else ())
                return

    async def aclose(self) -> None:
        """Ends it. Twice does nothing."""
        await self.__aexit__()

    def _leave(self) -> None:
        """Ends it without waiting for that."""
        if not self._ended:
            self._ended = True
            if self._line is not None:
                self._line.let_go(self._close)

    async def __aenter__(self) -> Stream[R]:
        return self

    async def __aexit__(self, *error: Any) -> None:
        ended, self._ended = self._ended, True
        if not ended and self._line is not None:
            await self._line.end(partial(self._close, *error))

    def __del__(self) -> None:
        self._leave()
