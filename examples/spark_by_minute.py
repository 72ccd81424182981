"""How many records of a topic each minute between two moments has: on Spark, from the store.

    spark-submit examples/spark_by_minute.py /etc/sidetier/sidetier.yaml orders \
        2026-10-01T00:00:00+00:00 2026-11-01T00:00:00+00:00

Runs with PySpark 3.5 and 4, and asks no broker. Only timestamps are decoded.
"""

import sys
from datetime import datetime

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, date_trunc

from sidetier.spark import ReadReport, read

sidecar, topic, start, end = sys.argv[1:]
first, until = (datetime.fromisoformat(moment) for moment in (start, end))
spark = SparkSession.builder.appName(f"{topic} by minute").getOrCreate()
report = ReadReport(spark)
records = read(
    spark,
    {
        "tiered.storage.config": sidecar,
        "subscribe": topic,
        "startingTimestamp": str(round(first.timestamp() * 1000)),
        "endingTimestamp": str(round(until.timestamp() * 1000)),
        "startingOffsetsByTimestampStrategy": "latest",  # a partition may have none so late
        "kafka.isolation.level": "read_committed",
    },
    columns=["timestamp"],
    report=report,
)
within = records.where((col("timestamp") >= first) & (col("timestamp") < until))
minutes = within.groupBy(date_trunc("minute", "timestamp").alias("minute")).count()
with report.shown():
    rows = minutes.orderBy("minute").collect()
for row in rows:
    print(row["minute"].isoformat(), row["count"])
spark.stop()
