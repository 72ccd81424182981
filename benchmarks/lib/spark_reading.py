"""Reads on Spark in a separate session: `python spark_reading.py '{"master": ..., ...}'`.

Writes its result as JSON to the given file. CPU time includes all processes in its kernel
session: the driver, the JVM, and Python workers.
"""

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from lib.spark_runs import SparkRead
from sidetier.spark import read, register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WARM_UPS = 2
_TICKS = os.sysconf("SC_CLK_TCK")
# fields of /proc/PID/stat after the command's closing parenthesis
_SESSION, _TIMES = 3, slice(11, 15)


def main() -> None:
    """Read every topic in every way, first to warm up and then in alternating order."""
    parameters = json.loads(sys.argv[1])
    spark = _session(parameters)
    register(spark)
    results = []
    for number in range(parameters["runs"] + _WARM_UPS):
        for topic, ends in parameters["topics"].items():
            sinks = parameters["sinks_of"][topic]
            ways = [(side, sink) for sink in sinks for side in parameters["sides"]]
            for side, sink in ways if number % 2 else reversed(ways):
                frame = _frame(spark, parameters, side, topic, ends, sink)
                spark_read = _timed(frame, f"{side} {sink}", topic, sink, parameters["output"])
                if number >= _WARM_UPS:
                    results.append(asdict(spark_read))
    Path(parameters["found"]).write_text(json.dumps(results))
    spark.stop()


def _session(asked: Mapping[str, Any]) -> SparkSession:
    builder = SparkSession.builder.master(asked["master"])
    for name, value in asked["conf"].items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _frame(
    spark: SparkSession,
    asked: Mapping[str, Any],
    side: str,
    topic: str,
    ends: Mapping[str, int],
    sink: str,
) -> "DataFrame":
    common = {
        "startingOffsets": "earliest",
        "endingOffsets": json.dumps({topic: dict(ends)}),
        "subscribe": topic,
        "minPartitions": str(asked["tasks"]),
    }
    columns = asked["sinks"][sink]["columns"]
    if side in asked["servers"]:
        options = {**common, "kafka.bootstrap.servers": asked["servers"][side]}
        frame = spark.read.format("kafka").options(**options).load()
        return frame if columns is None else frame.select(*columns)
    options = {**common, **asked["stores"][side.split(maxsplit=1)[0]]}
    if columns is not None:
        options["columns"] = ",".join(columns)
    if side.endswith("read"):
        return read(spark, options)
    return spark.read.format("sidetier").options(**options).load()


def _timed(frame: "DataFrame", way: str, topic: str, sink: str, output: str) -> SparkRead:
    cpu, started = _cpu_seconds(), monotonic()
    if sink == "parquet":
        frame.write.mode("overwrite").parquet(output)
    else:
        frame.write.format("noop").mode("overwrite").save()
    seconds = monotonic() - started
    spark_read = SparkRead(way, topic, seconds, _cpu_seconds() - cpu)
    print(f"{topic} {way}: {seconds:.1f} s, {spark_read.cpu_seconds:.1f} CPU s", flush=True)
    return spark_read


def _cpu_seconds() -> float:
    """Return the CPU seconds of this kernel session, with ended children that were waited for."""
    own, ticks = os.getsid(0), 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[_SESSION]) == own:
                ticks += sum(map(int, fields[_TIMES]))
    return ticks / _TICKS


if __name__ == "__main__":
    main()
