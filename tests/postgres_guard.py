"""Ends what a test process left behind: python postgres_guard.py FOLDER, with its input held open by that process.

A test run that is killed, or that pytest-timeout ends, runs no exit handlers. Its end of the pipe closes all the same:
then every server whose data is below the folder is killed, and the folder is removed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil


def family(pid: int) -> list[psutil.Process]:
    """A postmaster, stopped so that it starts no more, and its children. Empty when it is gone."""
    with suppress(psutil.NoSuchProcess):
        postmaster = psutil.Process(pid)
        postmaster.suspend()
        return [postmaster, *postmaster.children(recursive=True)]
    return []


def kill_at_once(processes: list[psutil.Process]) -> None:
    """SIGKILL to each; returns when none of them runs. A zombie that nobody reaps counts as ended."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                with suppress(psutil.TimeoutExpired):
                    process.wait(timeout=0.01)


def forget_segment(data: Path) -> None:
    """Removes the shared memory by which a server that was killed, and not started again, still keeps its folder."""
    with suppress(OSError, IndexError):
        segment = (data / "postmaster.pid").read_text().splitlines()[6].split()[1]
        subprocess.run(["ipcrm", "-m", segment], stderr=subprocess.DEVNULL, check=False)


def clear(folder: Path) -> None:
    for record in folder.glob("*/data/postmaster.pid"):
        with suppress(OSError, ValueError, IndexError, psutil.Error):
            pid = int(record.read_text().splitlines()[0])
            # Another process may have been given the number since.
            if psutil.Process(pid).cwd() == str(record.parent):
                kill_at_once(family(pid))
        forget_segment(record.parent)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.stdin.read()
    clear(Path(sys.argv[1]))
