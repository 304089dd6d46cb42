"""The named statements of the .sql files beside this one."""

from __future__ import annotations

from functools import partial

from ..sql.queries import named_queries, numbered_migrations

queries = partial(named_queries, __package__)
migrations = partial(numbered_migrations, __package__)
