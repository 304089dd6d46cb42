"""Work off the main thread, as in a server or a worker: there a caller may write by itself (store/sqlite/writer.py)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def in_threads(work: Sequence[Callable[[], object]]) -> None:
    """Runs each part in a thread of its own, and returns when all are done. The first error of one is raised here."""
    errors: list[BaseException] = []

    def run(part: Callable[[], object]) -> None:
        try:
            part()
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=run, args=(part,)) for part in work]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if errors:
        raise errors[0]


def in_a_thread(work: Callable[[], T]) -> T:
    """Runs something in a thread of its own, and answers what it answered."""
    answers: list[T] = []
    in_threads([lambda: answers.append(work())])
    return answers[0]
