"""Rows from files and queries, and what tells one source from another.

A file that is run again is known by its content, wherever it lies on this machine: a copy is the same source, and a new
export under the old name is another. Of files elsewhere the address, the length and the time of the last change count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from ..errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("parquet", "csv", "json")
_READ_AT_ONCE = 1 << 20
_OPTIONS = {
    # As others write it: quotes are doubled, and there may be line breaks between them. Nothing is guessed to be a
    # number, which would lose its zeros.
    "csv": {"header": "true", "mode": "FAILFAST", "escape": '"', "multiLine": "true"},
    "json": {"mode": "FAILFAST"},
}


def format_of(path: str, given: str | None) -> str:
    """The format that is said, or that the path's end says. Raises InvalidArgument."""
    name = path.rstrip("/").lower().removesuffix(".gz").removesuffix(".zst").removesuffix(".bz2")
    ends = {"jsonl": "json", "ndjson": "json"}
    found = given or ends.get(name.rpartition(".")[2], name.rpartition(".")[2])
    if found not in FORMATS:
        raise InvalidArgument(f"The format of {path!r} is none that its name tells. Say which: {', '.join(FORMATS)}.")
    return found


def read_file(spark: SparkSession, path: str, format: str | None = None) -> DataFrame:
    """The rows of a file, a folder of files, or a pattern. CSV has a header, and every column of it is text."""
    kind = format_of(path, format)
    return spark.read.format(kind).options(**_OPTIONS.get(kind, {})).load(path)


def query(spark: SparkSession, text: str, views: Mapping[str, str], format: str | None = None) -> DataFrame:
    """The rows of a SQL query over files, each under a name."""
    for name, path in views.items():
        read_file(spark, path, format).createOrReplaceTempView(name)
    return spark.sql(text)


def fingerprint(spark: SparkSession, paths: Sequence[str], *said: str | None) -> str:
    """What tells files, and what is said of them, from others: 16 characters."""
    digest = hashlib.blake2b(repr(said).encode(), digest_size=8)
    for path in paths:
        files = spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(path)
        for name, length, changed_at in sorted(files.select("path", "length", "modificationTime").toLocalIterator()):
            parts = urlsplit(name)
            if parts.scheme == "file":
                _add_content(digest, unquote(parts.path))
            else:
                digest.update(repr((name, length, changed_at)).encode())
    return digest.hexdigest()


def _add_content(digest: hashlib.blake2b, path: str) -> None:
    with open(path, "rb") as file:
        while some := file.read(_READ_AT_ONCE):
            digest.update(some)
    digest.update(b"\0end of file")
