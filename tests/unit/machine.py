"""A machine as a clock sees it, for tests that step, stop and start it anew."""

from __future__ import annotations

from dataclasses import dataclass

from duly.clock import Sources

MS = 1_000_000
START_MS = 1_790_000_000_000


@dataclass
class Host:
    """A machine: true time, a wall clock that may be wrong, and boot time."""

    true_ms: int = START_MS
    wrong_ms: int = 0
    started_ms: int = START_MS - 5_000_000
    boots: int = 1

    def sources(self) -> Sources:
        return Sources(lambda: self.wall_ms * MS, lambda: (self.true_ms - self.started_ms) * MS, lambda: self.boot)

    @property
    def boot(self) -> str:
        return f"boot-{self.boots}"

    @property
    def wall_ms(self) -> int:
        return self.true_ms + self.wrong_ms

    def reboot(self, off_ms: int = 60_000) -> None:
        self.true_ms += off_ms
        self.started_ms = self.true_ms
        self.boots += 1
