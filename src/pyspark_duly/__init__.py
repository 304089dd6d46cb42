"""Spark looks for packages named pyspark_…: this one makes `format("duly")` known without being registered."""

from duly.spark.source import DulyDataSource as DefaultSource

__all__ = ["DefaultSource"]
