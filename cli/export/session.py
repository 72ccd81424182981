"""What every export has open: the archive, the output, and what carries tasks out."""

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
"""As a master: the one that spark-submit was given."""
_ARTIFACTS_HERE: Final = "4.0.0"
_QUIET: Final = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}


@contextmanager
def spark_session(
    master: str, name: str, conf: Mapping[str, str] | None = None, *, option: str = "--master"
) -> Iterator["SparkSession"]:
    """A session of this process, stopped at the end unless it was there before; under spark-submit,
    with its settings.

    `conf` are settings of the session, and go before the others. Errors name the `option` that asks
    for Spark.

    Raises:
        ConfigurationError: PySpark is not installed, or cannot start here, or its workers run on a
            Python without this package.
    """
    try:
        from pyspark import __version__ as pyspark_version  # noqa: PLC0415 -- an extra
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
    """Let workers on this machine run on the Python of this process, unless another one is named:
    Spark takes whichever `python3` comes first, which mostly is none that has what they need.
    """
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def check_directory(directory: Path, pyspark_version: str) -> None:
    """Spark 4.0.0 makes `artifacts` in the directory where it is started, and fails each query
    where it cannot (SPARK-52396; later versions take the temporary directory).

    Raises:
        ConfigurationError: it could not.
    """
    if pyspark_version == _ARTIFACTS_HERE and not os.access(directory, os.W_OK | os.X_OK):
        raise ConfigurationError(
            f"Spark {pyspark_version} writes to the directory that it is started in, and cannot "
            f"write to {directory}: start it elsewhere, or with a later PySpark"
        )
