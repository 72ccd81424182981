"""Functions for `spark_driver`: the command line on an existing session. No pytest here."""

from pyspark.sql import SparkSession

from sidetier.cli.main import run


def command_line(spark: SparkSession, line: list[str]) -> int:
    """Run a command in the driver's process, and return the exit code."""
    del spark
    return run(line)
