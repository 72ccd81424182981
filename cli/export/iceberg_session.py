"""Set up `sidetier export iceberg`: the options, the Spark session and the table."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from pyspark.sql import SparkSession

from sidetier.cli.export.table_request import table_request
from sidetier.cli.export.table_session import export_table, tail_jars, with_jars
from sidetier.cli.output import OutputFormat
from sidetier.config.model import Config
from sidetier.pipeline.export.tables.iceberg.table import IcebergOptions, IcebergTable
from sidetier.pipeline.export.tables.run import Terms
from sidetier.pipeline.export.tables.spark_jars import TableJar
from sidetier.pipeline.export.tables.table import Table

SESSION: Final = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
}
DEFAULT_INTERVAL: Final = 60.0


def export_iceberg(config: Config, given: Mapping[str, Any], output: OutputFormat) -> int:
    """Export, and return the exit code. Raises SidetierError."""
    options = IcebergOptions(
        given["table"], given["partitioned_by"], given["properties"], given["options"]
    )
    request = table_request(given["topics"], given, Terms(), DEFAULT_INTERVAL)
    conf = with_jars(request.spark_conf or {}, SESSION, TableJar.ICEBERG, *tail_jars(request))

    @contextmanager
    def opened(spark: SparkSession) -> Iterator[Table]:
        yield IcebergTable(spark, replace(options, adds_columns=request.follows_registry))

    request = replace(request, spark_conf=conf)
    return export_table(config, request, opened, output)
