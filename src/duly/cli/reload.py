"""--reload: notices when a file of the application has changed."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable

_LOOK_EVERY_S = 1.0

# What is installed is not the application; nor are we.
_NOT_OURS = tuple(
    {os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {os.path.dirname(os.path.dirname(os.path.realpath(__file__))) + os.sep}
)

Stamp = tuple[int, int]
_WRITTEN_SINCE: Stamp = (-1, -1)


def application_files() -> set[str]:
    """The Python files of what has been imported so far and was not installed."""
    named = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return {path for path in named if path is not None and _is_ours(path)}


def _is_ours(path: str) -> bool:
    return path.endswith(".py") and not os.path.realpath(path).startswith(_NOT_OURS)


def watch(changed: Callable[[str], None], *, since_ms: int, also: Iterable[str] = ()) -> None:
    """Calls `changed`, once, with a file that is no longer as it was at a time before it was imported.

    From a thread of its own.
    """
    paths = application_files().union(filter(_is_ours, also))
    stamps = {path: _stamp_before(path, since_ms) for path in paths}
    threading.Thread(target=_watch, args=(stamps, changed), name="duly-reload", daemon=True).start()


def _watch(stamps: dict[str, Stamp], changed: Callable[[str], None]) -> None:
    pause = threading.Event()
    while (path := _changed(stamps)) is None:
        pause.wait(_LOOK_EVERY_S)
    changed(path)


def _changed(stamps: dict[str, Stamp]) -> str | None:
    for path in application_files():
        # Imported since: from now on it is watched.
        stamps.setdefault(path, _stamp(path))
    return next((path for path, before in stamps.items() if _stamp(path) != before), None)


def _stamp_before(path: str, since_ms: int) -> Stamp:
    """The file's stamp; if it was written since, one that no file has: what was imported may be what it was before."""
    stamp = _stamp(path)
    return _WRITTEN_SINCE if stamp[0] >= since_ms * 1_000_000 else stamp


def _stamp(path: str) -> Stamp:
    try:
        found = os.stat(path)
    except OSError:
        # Editors replace files: for a moment there is none.
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)
