"""Spark session of an export, and the checks before it."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sidetier.pipeline.spark.python_workers import check_python_workers
from sidetier.segments.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUBMITTED: Final = "submit"
"""Value of the master that stands for the master given to spark-submit."""
_ARTIFACTS_HERE: Final = "4.0.0"
_QUIET: Final = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}


@contextmanager
def spark_session(
    master: str, name: str, conf: Mapping[str, str] | None = None, *, option: str = "--master"
) -> Iterator["SparkSession"]:
    """Yield a Spark session; stop it at the end unless it existed before.

    Under spark-submit the session has the settings of spark-submit. `conf` overrides the other
    settings. Errors name the `option` that asks for Spark.

    Raises:
        ConfigurationError: PySpark is not installed, or cannot start here, or its workers run on a
            Python without this package.
    """
    try:
        from pyspark import __version__ as pyspark_version  # noqa: PLC0415 -- part of an extra
        from pyspark.errors import PySparkException  # noqa: PLC0415
        from pyspark.sql import SparkSession  # noqa: PLC0415
    except ModuleNotFoundError:
        raise ConfigurationError(
            f"{option} needs PySpark, which is not installed: pip install 'sidetier[spark]'"
        ) from None
    is_ours = SparkSession.getActiveSession() is None
    builder = SparkSession.builder.appName(name)
    if master != SUBMITTED:
        use_this_python(master)
        check_directory(Path.cwd(), pyspark_version)
        builder = builder.master(master)
        for key, value in _QUIET.items():
            builder = builder.config(key, value)
    for key, value in (conf or {}).items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
    except (PySparkException, RuntimeError) as error:
        raise ConfigurationError(f"--master {master}: Spark does not start: {error}") from None
    try:
        check_python_workers(session)
        yield session
    finally:
        if is_ours:
            session.stop()


def use_this_python(master: str) -> None:
    """Let workers on this machine run on the Python of this process, unless another one is set.

    Spark would take the first `python3` in the path, which usually lacks the packages of the
    workers.
    """
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def check_directory(directory: Path, pyspark_version: str) -> None:
    """Check that Spark 4.0.0 can write to the directory in which it is started.

    That version creates `artifacts` there, and fails each query if it cannot (SPARK-52396). Later
    versions use the temporary directory.

    Raises:
        ConfigurationError: Spark could not write to the directory.
    """
    if pyspark_version == _ARTIFACTS_HERE and not os.access(directory, os.W_OK | os.X_OK):
        raise ConfigurationError(
            f"Spark {pyspark_version} writes to the directory that it is started in, and cannot "
            f"write to {directory}: start it elsewhere, or with a later PySpark"
        )
