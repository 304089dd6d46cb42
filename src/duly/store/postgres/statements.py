"""The named statements of the .sql files beside this one, as lines send them."""

from __future__ import annotations

from functools import cache, partial

from ..sql.queries import named_queries, numbered_migrations
from .line import Statement

queries = partial(named_queries, __package__)
migrations = partial(numbered_migrations, __package__)


@cache
def statements() -> dict[str, Statement]:
    """Every statement by name."""
    return {name: Statement(name, text) for name, text in queries().items()}
