"""Rows of any table as messages: what a file or a query has in columns of those names, in the sink's types."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, IntegralType, MapType, StringType, StructType

from ..errors import InvalidArgument
from .causes import explained

# What a row may have; `due` and `expires_at` as a time, as text, or as milliseconds since 1970.
COLUMNS = ("payload", "due", "priority", "lane", "id", "key", "headers", "expires_at")
# What the sink calls it.
NAMED = {"due": "due_at"}


def as_messages(rows: DataFrame, *, payload: str | None = None, due: str | None = None) -> DataFrame:
    """The rows with the columns of messages, as the sink takes them; what they have besides is left out.

    Raises InvalidArgument.
    """
    given = with_expressions(rows, payload=payload, due=due)
    if "payload" not in given.columns:
        raise InvalidArgument(f"The rows have no payload, but {', '.join(rows.columns)}. Say what it is: payload.")
    return converted(given, [name for name in COLUMNS if name in given.columns])


def unused(rows: DataFrame) -> list[str]:
    """The columns of rows that are no part of a message."""
    return [name for name in rows.columns if name not in COLUMNS]


def with_expressions(rows: DataFrame, **expressions: str | None) -> DataFrame:
    """The rows with columns that SQL expressions make of those that they have. Raises Error, with what Spark said."""
    try:
        return rows.withColumns({name: f.expr(text) for name, text in expressions.items() if text is not None})
    except Exception as error:
        raise explained(error) from error


def converted(rows: DataFrame, names: list[str]) -> DataFrame:
    """Some of the columns in the types and under the names of the sink. Raises InvalidArgument if one is missing."""
    for name in names:
        if name not in rows.columns:
            raise InvalidArgument(f"The rows have no column {name!r}, but {', '.join(rows.columns)}.")
    return rows.select(*(column_as(rows, name).alias(NAMED.get(name, name)) for name in names))


def column_as(rows: DataFrame, name: str) -> Column:
    """One column in the type of the sink."""
    return _AS[name](name, rows.schema[name].dataType)


def _payload(name: str, kind: DataType) -> Column:
    # An object of a JSON file is meant as it stands there.
    return f.to_json(name) if isinstance(kind, (StructType, MapType, ArrayType)) else f.col(name)


def _text(name: str, kind: DataType) -> Column:
    return f.col(name).cast("string") if isinstance(kind, IntegralType) else f.col(name)


def _number(name: str, kind: DataType) -> Column:
    return _read(name, "int", "a whole number") if isinstance(kind, StringType) else f.col(name)


def _moment(name: str, kind: DataType) -> Column:
    if isinstance(kind, StringType):
        return _read(name, "timestamp", "a time like 2026-01-31T12:00:00Z")
    return f.timestamp_millis(name) if isinstance(kind, IntegralType) else f.col(name).cast("timestamp")


def _headers(name: str, kind: DataType) -> Column:
    if isinstance(kind, (StringType, StructType)):
        text = f.col(name) if isinstance(kind, StringType) else f.to_json(name)
        headers = f.from_json(text, "map<string,string>", {"mode": "FAILFAST"})
    else:
        headers = f.col(name).cast("map<string,string>")
    return f.map_filter(headers, lambda _, value: value.isNotNull())


def _read(name: str, kind: str, what: str) -> Column:
    """Text as something else. What it cannot be is an error, and not nothing: nothing would be due at once."""
    text = f.col(name)
    read = text.try_cast(kind)
    wrong = f.raise_error(f.concat(f.lit(f"{name} is {what}, not "), f.col(name)))
    return f.when(text.isNull() | read.isNotNull(), read).otherwise(wrong)


_AS: dict[str, Callable[[str, DataType], Column]] = {
    "payload": _payload,
    "due": _moment,
    "priority": _number,
    "lane": _text,
    "id": _text,
    "key": _text,
    "headers": _headers,
    "expires_at": _moment,
}
