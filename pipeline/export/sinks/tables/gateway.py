"""Access to Spark's Java side. All uses of PySpark's private names are in this module."""

from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sidetier.pipeline.export.errors import (
    MissingJarsError,
    NotCommittedError,
    RefusedRowsError,
)
from sidetier.pipeline.export.sinks.tables.spark_jars import TableJar, hint_of
from sidetier.segments.errors import ConfigurationError

SPARK_ERRORS = (PySparkException, Py4JError)
"""Errors that a failed write raises."""
_MAX_TEXT = 2000


def jvm(spark: SparkSession) -> Any:  # noqa: ANN401 - Java classes, found by name
    """Return Java's packages and classes.

    Raises:
        ConfigurationError: the session is one of Spark Connect, which has no access to Java.
    """
    view = getattr(spark, "_jvm", None)
    if view is None:
        raise ConfigurationError(
            "exports into tables need a classic Spark session, not one of Spark Connect"
        )
    return view


def java_session(spark: SparkSession) -> Any:  # noqa: ANN401
    """Return the Java session."""
    return spark._jsparkSession  # noqa: SLF001 - public in Scala


def java_context(spark: SparkSession) -> Any:  # noqa: ANN401
    """Return the `JavaSparkContext`."""
    return spark.sparkContext._jsc  # noqa: SLF001 - public in Scala


def default_scheme(spark: SparkSession) -> str:
    """Return the scheme of paths that name none; Hadoop's default is `file`."""
    file_system = jvm(spark).org.apache.hadoop.fs.FileSystem
    configuration = java_context(spark).hadoopConfiguration()
    return str(file_system.getDefaultUri(configuration).getScheme())


def java_process(spark: SparkSession) -> int:
    """Return the process id of the driver's JVM, which makes commits and may outlive Python
    briefly.
    """
    return int(jvm(spark).java.lang.ProcessHandle.current().pid())


def columns_in_sql(frame: DataFrame) -> str:
    """Return the columns of a frame in the form of CREATE TABLE."""
    return str(frame._jdf.schema().toDDL())  # noqa: SLF001 - PySpark has no public name for it


def java_type(spark: SparkSession, kind: StructType) -> Any:  # noqa: ANN401
    """Return Spark's Java type for a type of rows."""
    return jvm(spark).org.apache.spark.sql.types.DataType.fromJson(kind.json())


def require_class(spark: SparkSession, name: str, jar: TableJar) -> None:
    """Check that Spark has a class of a jar.

    Raises:
        MissingJarsError: it does not. The message names the jar's coordinates.
    """
    # Without a loader, Java would take py4j's, which does not have the jars of `--packages`.
    loader = jvm(spark).java.lang.Thread.currentThread().getContextClassLoader()
    try:
        jvm(spark).java.lang.Class.forName(name, False, loader)  # noqa: FBT003 - a Java call has no keywords
    except Py4JError:
        raise MissingJarsError(
            f"Spark does not find {name}. {hint_of(jar, spark.version)}"
        ) from None


def not_committed(error: Exception, table: str, given_up: str = "") -> NotCommittedError:
    """Return the error for a failed write, with Spark's message."""
    if isinstance(error, AnalysisException) and not given_up:
        return refused_rows(error, table)
    text = _told(str(error))
    outcome = f"cancelled: {given_up}" if given_up else "the write failed"
    return NotCommittedError(
        f"{table}: {outcome}; no record of this commit is visible. Spark says: {text}"
    )


def refused_rows(error: Exception, table: str) -> RefusedRowsError:
    """Return the error for rows whose columns or types do not fit the table."""
    return RefusedRowsError(f"{table}: the rows do not fit the table: {_told(str(error))}")


def _told(text: str) -> str:
    """Return the message without its stack trace."""
    lines = [
        line.strip()
        for line in text.splitlines()
        if not line.startswith(("\t", "  ")) and "stacktrace" not in line and line.strip()
    ]
    summary = " / ".join(dict.fromkeys(lines))
    return summary if len(summary) <= _MAX_TEXT else f"... {summary[-_MAX_TEXT:]}"


def cause_class(error: Exception) -> str:
    """Return the class name of a Java exception; empty for other errors."""
    java = getattr(error, "java_exception", None)
    return "" if java is None else str(java.getClass().getName())
