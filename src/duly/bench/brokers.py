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
def own_broker(store: str | Path, *options: str) -> Iterator[str]:
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
        *options,
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
def own_guarded_broker(store: Path) -> Iterator[duly.Client]:
    """The same with TLS, by certificates made beside the store, and with keys; a client that has what it takes."""
    from duly.certificates import make_development_certificates

    folder = store.parent / "certs"
    make_development_certificates(str(folder))
    with duly.connect(store) as home:
        home.put_principal("bench", [duly.Grant("*")])
        key = home.create_key("bench")
    files = ["--tls-cert", str(folder / "server.pem"), "--tls-key", str(folder / "server.key")]
    with (
        own_broker(store, *files) as url,
        duly.connect(url, tls=duly.Tls(ca=folder / "ca.pem"), token=key.secret) as client,
    ):
        yield client


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


def beside(
    figures: dict[str, float], others: dict[str, float], ratios: dict[str, str], other: str = "embedded"
) -> dict[str, float]:
    """Figures, the other's under names of their own, and by how much they differ, as asked for."""
    named = {f"{other}_{name}": value for name, value in others.items()}
    quotients = {name: round(figures[of] / max(others[of], 0.001), 3) for name, of in ratios.items()}
    return {**figures, **named, **quotients}


def rates_beside(figures: dict[str, float], others: dict[str, float], other: str = "embedded") -> dict[str, float]:
    """The same of a lifecycle's rates."""
    ratios = {f"{name}_to_{other}": f"{name}_per_s" for name in ("publish", "claim_ack", "lifecycle")}
    return beside(figures, others, ratios, other)


def share(whole: int, slice_: int, slices: int) -> range:
    """The part of `range(whole)` that is a slice's."""
    return range(whole * slice_ // slices, whole * (slice_ + 1) // slices)
