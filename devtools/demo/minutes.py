"""Count archived records by minute with Spark, without a broker.

Usage: `python -m ... CONFIG TOPIC RESULT`. This is a program of its own, because a Spark session
starts a JVM that prints a lot. The result is a JSON object: milliseconds since 1970 at which a
minute begins, and the number of records in it.
"""

import json
import sys
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, unix_millis, window

from sidetier.spark import read

JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""Options of a JVM that runs for seconds: it compiles each method once, and quickly."""


def main() -> None:
    """Count the records, and write the result file atomically."""
    config, topic, result = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    spark = (
        SparkSession.builder.appName("sidetier demo")
        .master("local[2]")
        .config("spark.driver.memory", "700m")
        .config("spark.driver.extraJavaOptions", JVM)
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    try:
        records = read(
            spark, {"tiered.storage.config": config, "subscribe": topic}, columns=["timestamp"]
        )
        minute = window("timestamp", "1 minute")
        rows = records.groupBy(minute).count().select(unix_millis(col("window.start")), "count")
        counts = {str(start): count for start, count in rows.collect()}
    finally:
        spark.stop()
    draft = result.with_suffix(".draft")
    draft.write_text(json.dumps(counts), encoding="utf-8")
    draft.rename(result)


if __name__ == "__main__":
    main()
