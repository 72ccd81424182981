"""Last step of the demo: Spark counts the archived records by minute, without a broker."""

import importlib.util
import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from sidetier.brokers.errors import JavaMissingError
from sidetier.brokers.java import find_java_for_spark
from sidetier.brokers.processes import Command, ManagedProcess

_SECONDS: Final = 300.0
_NEEDED: Final = ("pyspark", "pyarrow", "numpy", "cramjam")
_JVM_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""Options of a JVM that runs for seconds: it compiles each method once, and quickly."""


def what_is_missing(*packages: str) -> str | None:
    """Return which packages are not installed, and how to install them; None if all are."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if not missing:
        return None
    return f"{', '.join(missing)} not installed: `make setup-demo` installs it"


def why_no_spark() -> str | None:
    """Return why Spark cannot run on this machine, and what to do; None if it can."""
    missing = what_is_missing(*_NEEDED)
    if missing is not None:
        return missing
    try:
        find_java_for_spark()
    except JavaMissingError as error:
        return str(error)
    return None


def count_by_minute(config: Path, topic: str, directory: Path) -> Mapping[datetime, int]:
    """Return the number of archived records in each minute, by its beginning in UTC.

    Spark's output goes to `spark.log` in the directory.

    Raises:
        ServerDiedError, ServerTimeoutError: Spark failed; the text has the end of its log.
    """
    directory.mkdir(parents=True, exist_ok=True)
    result = directory / "minutes.json"
    line = [sys.executable, "-m", "devtools.demo.spark", str(config), topic, str(result)]
    environment = {
        "JAVA_HOME": str(find_java_for_spark().home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(directory / "local"),
    }
    log = directory / "spark.log"
    with ManagedProcess(Command("Spark", line, log, environment)) as process:
        process.start()
        process.wait_until(result.is_file, _SECONDS)
    counts: dict[str, int] = json.loads(result.read_text(encoding="utf-8"))
    return {datetime.fromtimestamp(int(ms) / 1000, UTC): count for ms, count in counts.items()}


def main() -> None:
    """Count the records by minute, and write the result file atomically.

    This runs in a process of its own, because a Spark session starts a JVM that prints a lot. The
    result is a JSON object: milliseconds since 1970 at which a minute begins, and the number of
    records in it.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 -- only this process needs Spark
    from pyspark.sql.functions import col, unix_millis, window  # noqa: PLC0415

    from sidetier.spark import read  # noqa: PLC0415

    config, topic, result = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    spark = (
        SparkSession.builder.appName("sidetier demo")
        .master("local[2]")
        .config("spark.driver.memory", "700m")
        .config("spark.driver.extraJavaOptions", _JVM_OPTIONS)
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
