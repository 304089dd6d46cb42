"""A topic as a Parquet file: `duly export`, `duly import`, and the same from Python."""

from __future__ import annotations

from .export import Exported, export_topic
from .load import Imported, import_file

__all__ = ["Exported", "Imported", "export_topic", "import_file"]
