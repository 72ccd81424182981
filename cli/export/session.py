"""What every export has open: the archive, the output, and what carries tasks out."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from sidetier.cli.export.files_request import SUBMITTED
from sidetier.segments.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUIET: Final = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}


@contextmanager
def spark_session(
    master: str, name: str, conf: Mapping[str, str] | None = None
) -> Iterator["SparkSession"]:
    """A session of this process, stopped at the end unless it was there before; under spark-submit,
    with its settings.

    `conf` are settings of the session, and go before the others.

    Raises:
        ConfigurationError: PySpark is not installed, or cannot start.
    """
    try:
        from pyspark.errors import PySparkException  # noqa: PLC0415 -- an extra
        from pyspark.sql import SparkSession  # noqa: PLC0415
    except ModuleNotFoundError:
        raise ConfigurationError(
            "--master needs PySpark, which is not installed: pip install 'sidetier[spark]'"
        ) from None
    is_ours = SparkSession.getActiveSession() is None
    builder = SparkSession.builder.appName(name)
    if master != SUBMITTED:
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
        yield session
    finally:
        if is_ours:
            session.stop()
