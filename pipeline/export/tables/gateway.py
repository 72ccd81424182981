"""What of Spark only its Java side has: the one place that looks behind PySpark's names."""

from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from sidetier.pipeline.export.tables.errors import (
    MissingJarsError,
    NotCommittedError,
    RefusedRowsError,
)
from sidetier.pipeline.export.tables.spark_jars import TableJar, hint_of
from sidetier.segments.errors import ConfigurationError

SPARK_ERRORS = (PySparkException, Py4JError)
"""What a failed write raises."""
_MOST_TEXT = 2000


def jvm(spark: SparkSession) -> Any:  # noqa: ANN401 - Java's classes by name
    """Java's packages and classes.

    Raises:
        ConfigurationError: a session of Spark Connect has none.
    """
    found = getattr(spark, "_jvm", None)
    if found is None:
        raise ConfigurationError(
            "exports into tables need a classic Spark session, not one of Spark Connect"
        )
    return found


def java_session(spark: SparkSession) -> Any:  # noqa: ANN401
    """The session itself."""
    return spark._jsparkSession  # noqa: SLF001 - public in Scala


def java_context(spark: SparkSession) -> Any:  # noqa: ANN401
    """Its `JavaSparkContext`."""
    return spark.sparkContext._jsc  # noqa: SLF001 - public in Scala


def default_scheme(spark: SparkSession) -> str:
    """The file system of a path that names none: `file`, where nothing else is set."""
    file_system = jvm(spark).org.apache.hadoop.fs.FileSystem
    configuration = java_context(spark).hadoopConfiguration()
    return str(file_system.getDefaultUri(configuration).getScheme())


def java_process(spark: SparkSession) -> int:
    """The process id of the driver's Java side: it commits, and may outlive Python for a moment."""
    return int(jvm(spark).java.lang.ProcessHandle.current().pid())


def columns_in_sql(frame: DataFrame) -> str:
    """The columns of a frame as CREATE TABLE wants them."""
    return str(frame._jdf.schema().toDDL())  # noqa: SLF001 - PySpark has no name for it


def require_class(spark: SparkSession, name: str, jar: TableJar) -> None:
    """Refuse to go on without a class of a jar.

    Raises:
        MissingJarsError: names the jar's coordinates.
    """
    loader = jvm(spark).java.lang.Thread.currentThread().getContextClassLoader()
    try:
        jvm(spark).java.lang.Class.forName(name, False, loader)  # noqa: FBT003 - Java's order
    except Py4JError:
        raise MissingJarsError(
            f"Spark does not find {name}. {hint_of(jar, spark.version)}"
        ) from None


def not_committed(error: Exception, table: str, given_up: str = "") -> NotCommittedError:
    """What a failed write is to the caller; what Spark says is in the text."""
    text = _told(str(error))
    if isinstance(error, AnalysisException) and not given_up:
        return RefusedRowsError(f"{table}: the rows do not fit the table: {text}")
    why = f"given up, for {given_up}" if given_up else "the write failed"
    return NotCommittedError(f"{table}: {why}; the table is as it was before. Spark says: {text}")


def _told(text: str) -> str:
    """What went wrong, without the lines that say where."""
    lines = [
        line.strip()
        for line in text.splitlines()
        if not line.startswith(("\t", "  ")) and "stacktrace" not in line and line.strip()
    ]
    told = " / ".join(dict.fromkeys(lines))
    return told if len(told) <= _MOST_TEXT else f"... {told[-_MOST_TEXT:]}"


def cause_class(error: Exception) -> str:
    """The Java class of an error that came through the gateway; "" where it did not."""
    java = getattr(error, "java_exception", None)
    return "" if java is None else str(java.getClass().getName())
