"""One worker process of `duly work`: python -m duly.cli.worker_process. Nobody types it.

Its standard input is a pipe from the supervisor: the first line has its orders, and when it closes, the process stops.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from ..clock import SystemClock
from ..errors import Error, InvalidArgument, NotFound
from ..events import log
from . import reload
from .assignment import EXIT_REFUSED, EXIT_RELOAD, EXIT_STUCK, Assignment, show_log

if TYPE_CHECKING:
    from ..workers.workers import Workers


class ImportFailed(InvalidArgument):
    """The application could not be imported. Correct it and try again."""

    code = InvalidArgument.code

    def __init__(self, message: str, files: list[str]) -> None:
        super().__init__(message)
        self.files = files


def main() -> None:
    """Works, and leaves with a code that says how it ended."""
    assignment = msgspec.json.decode(_orders(), type=Assignment)
    sys.path.insert(0, os.getcwd())
    began_ms = SystemClock().now_ms()
    try:
        code, left_running = _work(assignment, began_ms)
    except Error as error:
        _complain(error)
        if assignment.reload and isinstance(error, ImportFailed):
            _wait_for_change(error.files, began_ms)
        code, left_running = EXIT_REFUSED, False
    if left_running:
        # A handler's thread cannot be ended, and what it started might be waited for, for ever.
        _leave_at_once(code)
    sys.exit(code)


def _orders() -> bytes:
    """The first line. Without a buffer: whoever waits for the end asks the system."""
    line = b""
    while not line.endswith(b"\n") and (more := os.read(sys.stdin.fileno(), 1)):
        line += more
    return line


def _complain(error: Error) -> None:
    # Only who complains loads what that needs.
    from .program import with_hint
    from .show import complain

    complain(with_hint(error))


def _work(assignment: Assignment, began_ms: int) -> tuple[int, bool]:
    """The exit code, and whether handlers are still running."""
    from ..client.connect import connect
    from ..client.tls import Tls
    from ..workers.run import Told

    workers = load(assignment.target)
    show_log(as_json=assignment.as_json)
    changed = threading.Event()
    if assignment.reload:
        reload.watch(lambda path: _reload(path, changed, workers.stop), since_ms=began_ms)
    threading.Thread(target=_stop_with_supervisor, args=(workers.stop,), name="duly-parent", daemon=True).start()
    tls = Tls(**assignment.tls) if assignment.tls else None
    with connect(assignment.store, tenant=assignment.tenant, tls=tls) as client:
        ending = workers.run_to_end(
            client,
            threads=assignment.threads,
            grace=assignment.grace_s,
            drain=assignment.drain,
            leave_when_stuck=True,
            ready=lambda: _say_ready(assignment.ready_fd, client.consumer),
        )
    if ending.why is Told.STUCK:
        return EXIT_STUCK, True
    return EXIT_RELOAD if changed.is_set() else 0, ending.left_running


def load(target: str) -> Workers:
    """The Workers that `module:attribute` names."""
    from ..workers.workers import Workers

    module_name, _, attribute = target.partition(":")
    module = _import(module_name)
    names = [name for name, value in vars(module).items() if isinstance(value, Workers)]
    if not hasattr(module, attribute):
        found = f"Workers in it: {', '.join(names)}." if names else "Put in it: workers = duly.Workers()."
        raise NotFound(f"The module {module_name!r} has no {attribute!r}. {found}")
    workers = getattr(module, attribute)
    if not isinstance(workers, Workers):
        raise InvalidArgument(f"{target!r} is a {type(workers).__name__}. Name a duly.Workers.")
    return workers


def _import(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name + ".").startswith(error.name + "."):
            raise NotFound(
                f"There is no module {error.name!r}. Run duly work where it can be imported from, or set PYTHONPATH."
            ) from error
        raise _failed(name, error) from error
    except (Exception, SystemExit) as error:
        raise _failed(name, error) from error


def _failed(name: str, error: BaseException) -> ImportFailed:
    traceback.print_exception(error)
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename is not None:
        files.append(error.filename)
    return ImportFailed(f"Importing {name!r} failed: {type(error).__name__}: {error}. Its traceback is above.", files)


def _say_ready(fd: int, consumer: str) -> None:
    log.info("at work as consumer %s", consumer)
    if fd >= 0:
        os.write(fd, b"r")
        os.close(fd)


def _stop_with_supervisor(stop: Callable[[], None]) -> None:
    """Waits until the supervisor is gone. It writes nothing more."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    stop()


def _reload(path: str, changed: threading.Event, stop: Callable[[], None]) -> None:
    log.info("%s has changed: starting anew", path)
    changed.set()
    stop()


def _wait_for_change(files: list[str], began_ms: int) -> None:
    """Waits until the application may be importable, and leaves to be started again; or with the supervisor."""
    reload.watch(lambda _: _leave_at_once(EXIT_RELOAD), since_ms=began_ms, also=files)
    _stop_with_supervisor(lambda: _leave_at_once(0))


def _leave_at_once(code: int) -> None:
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
