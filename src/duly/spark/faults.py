"""Our errors on their way through Spark: what went wrong and what to do, not where in whose code.

Spark sends an exception of a Python worker with its traceback, unless its environment says otherwise. The process that
failed ends right after, so the environment of nobody else is meant.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import Error


@contextmanager
def briefly() -> Iterator[None]:
    """What is ours is told without a traceback; anything else is a fault of ours, and needs one."""
    try:
        yield
    except Error:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
