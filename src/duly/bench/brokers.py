"""A broker to measure: one that runs already, or one started for it on a scratch store.

What is measured through a broker is measured in this process too, in turns, a slice each, so that what else the machine
does falls on both.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import duly

# Turns that the broker and this process take.
SLICES = 20
_ENDS_S = 30


@contextmanager
def own_broker(store: str | Path) -> Iterator[str]:
    """Starts a broker process on a store, on a free port; its address."""
    command = [
        sys.executable,
        "-m",
        "duly",
        "serve",
        "--store",
        str(store),
        "--http-port",
        "0",
        "--flight-port",
        "0",
    ]
    with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            told = process.stdout.readline()
            if not told:
                raise duly.Unavailable(f"The broker did not start: {process.stderr.read().decode().strip()}")
            yield json.loads(told)["url"]
        finally:
            process.terminate()
            try:
                process.communicate(timeout=_ENDS_S)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def own_topics(client: duly.Client, *names: str) -> Iterator[list[str]]:
    """Names of topics that nobody else has, to be made inside; what is there of them afterwards is deleted."""
    mine = [f"bench-{name}-{secrets.token_hex(4)}" for name in names]
    try:
        yield mine
    finally:
        for name in mine:
            with suppress(duly.TopicNotFound):
                client.delete_topic(name, force=True)


def beside(of_broker: dict[str, float], embedded: dict[str, float], ratios: dict[str, str]) -> dict[str, float]:
    """The broker's figures, this process's under names of their own, and by how much they differ, as asked for."""
    named = {f"embedded_{name}": value for name, value in embedded.items()}
    quotients = {name: round(of_broker[of] / max(embedded[of], 0.001), 3) for name, of in ratios.items()}
    return {**of_broker, **named, **quotients}


def share(whole: int, slice_: int, slices: int) -> range:
    """The part of `range(whole)` that is a slice's."""
    return range(whole * slice_ // slices, whole * (slice_ + 1) // slices)
