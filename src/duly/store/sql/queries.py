"""Named statements and numbered migrations, read from the .sql files of a store's package."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"^-- ([a-z_]+)$", re.MULTILINE)


@cache
def named_queries(package: str) -> dict[str, str]:
    """Every statement by name. A name alone on a comment line begins a statement."""
    found: dict[str, str] = {}
    for path in sorted((files(package) / "sql").iterdir(), key=lambda path: path.name):
        parts = _NAME.split(path.read_text(encoding="utf-8"))
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            if name in found:
                raise RuntimeError(f"Query {name} is defined twice.")
            # Statement caches look up by text: one stripped string, made once.
            found[name] = "\n".join(line for line in text.splitlines() if not line.startswith("--")).strip()
    return found


@cache
def numbered_migrations(package: str) -> list[tuple[int, str]]:
    """Numbered migrations, in order."""
    folder = files(package) / "migrations"
    found = [(int(path.name[:4]), path.read_text(encoding="utf-8")) for path in folder.iterdir()]
    return sorted(found)
