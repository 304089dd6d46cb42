"""Duly on Spark: the data source `duly`, a session to use it in, and the jobs of the pipeline.

Nothing here is loaded by `import duly`; it needs `pip install 'duly[spark]'`.
"""

from .session import session

__all__ = ["session"]
