"""What went wrong inside Spark, as the error that it was where it happened."""

from __future__ import annotations

import re

from .. import errors
from ..errors import Error

# Spark passes on a task's exception as text, within a longer one.
_OURS = re.compile(r"duly\.errors\.([A-Z]\w+): ([^\n]+)")


def explained(error: Exception) -> Exception:
    """One of Duly's errors, if Spark failed because of one; else an Error that says what Spark said first."""
    if isinstance(error, Error):
        return error
    found = _OURS.search(str(error))
    kind = getattr(errors, found[1], Error) if found is not None else Error
    if found is not None and isinstance(kind, type) and issubclass(kind, Error):
        return kind(found[2].strip())
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return Error(f"Spark failed: {lines[0] if lines else type(error).__name__}")
