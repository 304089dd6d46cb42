"""Chance, from a seed that is printed: DULY_TEST_SEED replays it."""

from __future__ import annotations

import os
import random
from pathlib import Path

SEED = int(os.environ.get("DULY_TEST_SEED") or random.SystemRandom().randrange(2**32))
DICE = random.Random(SEED)
print(f"tests/backup: DULY_TEST_SEED={SEED}")


def flip(path: Path, at: int | None = None) -> None:
    """Turns one bit of a file."""
    content = bytearray(path.read_bytes())
    content[DICE.randrange(len(content)) if at is None else at] ^= 1 << DICE.randrange(8)
    path.write_bytes(content)
