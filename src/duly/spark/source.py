"""The data source `duly`: what Spark asks for a schema, a reader, a stream.

Spark pickles it and calls it in processes of its own: it holds its options and nothing else, and whatever connects does
so inside the methods of the readers. `import pyspark_duly` is all that makes it known.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from .columns import check_schema, spark_schema
from .faults import briefly
from .options import read_options
from .reading import LogReader
from .streaming import LogStreamReader


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
            return LogReader(read_options(self.options), check_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Reads what is there, and what comes."""
        with briefly():
            return LogStreamReader(read_options(self.options), check_schema(schema))
