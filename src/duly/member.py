"""A broker as others see it: one of the equal brokers that serve a store."""

from __future__ import annotations

from datetime import datetime

import msgspec

from .clock import from_ms

# How often a broker says that it is there. On a file each time is a commit, so not more often than that.
BEAT_S = 2.0
# One that was not seen for so long (three beats, and a little) is not listed any more; its row goes after a while.
SEEN_MS_MAX = 7_000
FORGET_MS = 600_000


class Member(msgspec.Struct, frozen=True):
    """A broker on a store, as it was when last seen.

    `name` differs from start to start. `url` and `http_url` are what its clients should use. `drift_ms`: its host's
    wall clock less the store's clock. `ready`: it takes publishes and claims; if not, `reason` says why.
    """

    name: str
    url: str
    http_url: str
    # The Duly it runs.
    version: str
    started_at_ms: int
    seen_at_ms: int = 0
    drift_ms: int = 0
    ready: bool = True
    reason: str = ""

    @property
    def started_at(self) -> datetime:
        """When it started, by the store's clock."""
        return from_ms(self.started_at_ms)

    @property
    def seen_at(self) -> datetime:
        """When it last said that it is there, by the store's clock."""
        return from_ms(self.seen_at_ms)
