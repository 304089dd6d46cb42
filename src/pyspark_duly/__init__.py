"""Spark looks for packages named pyspark_…: this one makes `format("duly")` known without being registered."""
