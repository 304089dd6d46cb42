"""Findings: what an examination of a store came upon, what it means, and what to do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    level: str
    what: str
    meaning: str = ""
    advice: str = ""
