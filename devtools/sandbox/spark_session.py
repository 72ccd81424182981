"""A short Spark session, whose classes are archived.

It runs in the environment of a version of Spark, with JVM flags as its only argument.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession


def main(flags: str) -> None:
    """Read and write a few rows, and return once the JVM has ended."""
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-java-options '{flags}' pyspark-shell"
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    with tempfile.TemporaryDirectory() as directory:
        spark = builder.config("spark.local.dir", directory).getOrCreate()
        path = str(Path(directory) / "rows")
        spark.range(1000).selectExpr("id % 3 AS k").groupBy("k").count().write.parquet(path)
        spark.read.parquet(path).collect()
        gateway: Any = SparkContext._gateway  # noqa: SLF001 - the JVM's process has no public name
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()  # the JVM ends with it
        gateway.proc.wait()


if __name__ == "__main__":
    main(sys.argv[1])
