"""For `spark_driver`: what the command line does on a session that is there. No pytest here."""

from pyspark.sql import SparkSession

from sidetier.cli.main import run


def command_line(spark: SparkSession, line: list[str]) -> int:
    """A command in the driver's process; the exit code."""
    del spark
    return run(line)
