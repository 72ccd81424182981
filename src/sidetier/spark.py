"""Archived records on Spark: `read(spark, ...)`, and `format("sidetier")` once registered.

Needs `sidetier[spark]` (PySpark 4) or `sidetier[spark35]` (PySpark 3.5), on executors too.
"""

from typing import TYPE_CHECKING

try:
    import pyspark
except ModuleNotFoundError as missing:
    raise ImportError(
        "sidetier.spark needs PySpark: install sidetier[spark], or sidetier[spark35] for 3.5"
    ) from missing

from sidetier.pipeline.spark.frames import read
from sidetier.pipeline.spark.python_workers import check_python_workers
from sidetier.pipeline.spark.report import ReadReport
from sidetier.segments.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ReadReport", "read", "register"]

_OLDEST_WITH_SOURCES = 4


def register(spark: "SparkSession") -> None:
    """Make `format("sidetier")` known to a session, for `read` and `readStream`.

    Raises:
        ConfigurationError: this PySpark has no data sources in Python, or Spark plans them on a
            Python without this package.
    """
    if int(pyspark.__version__.split(".", 1)[0]) < _OLDEST_WITH_SOURCES:
        raise ConfigurationError(
            f'format("sidetier") needs PySpark 4.0 or newer, and this is {pyspark.__version__}: '
            "use sidetier.spark.read(spark, ...), which reads the same"
        )
    check_python_workers(spark, on_driver=True)
    from sidetier.pipeline.spark.source import SidetierDataSource  # noqa: PLC0415 -- PySpark 4 only

    spark.dataSource.register(SidetierDataSource)
