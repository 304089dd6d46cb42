"""The data source `duly`: what Spark asks for a schema, a reader, a writer, a stream of either.

Spark pickles it and calls it in processes of its own: it holds its options and nothing else, and whatever connects does
so inside the methods of the readers. `import pyspark_duly` is all that makes it known.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from .columns import check_schema, spark_schema
from .faults import briefly
from .options import read_options
from .reading import FilteringReader, LogReader
from .streaming import LogStreamReader
from .writing import StreamWriter, Writer, check_appending, write_options


class DulyDataSource(DataSource):
    """`spark.read.format("duly").option("url", …).option("topic", …)`, and readStream. See options.py."""

    @classmethod
    def name(cls) -> str:
        """What `format` is given."""
        return "duly"

    def schema(self) -> StructType:
        """The columns that are wanted; the options are checked by this, before anything else is done."""
        with briefly():
            return spark_schema(read_options(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads what is there."""
        with briefly():
            options = read_options(self.options)
            return (FilteringReader if options.pushdown else LogReader)(options, check_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Reads what is there, and what comes."""
        with briefly():
            return LogStreamReader(read_options(self.options), check_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Publishes rows."""
        with briefly():
            check_appending(overwrite)
            return Writer(write_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Publishes the rows of a stream, batch by batch."""
        with briefly():
            check_appending(overwrite)
            return StreamWriter(write_options(self.options), schema)
