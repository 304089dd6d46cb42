"""Work off the main thread, as in a server or a worker: there a caller may write by itself (store/sqlite/writer.py)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence


def in_threads(work: Sequence[Callable[[], object]]) -> None:
    """Runs each part in a thread of its own, and returns when all are done."""
    running = [threading.Thread(target=part) for part in work]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
