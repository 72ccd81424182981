"""Set up `sidetier export hudi`: the options, the Spark session, the table and its lease."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from sidetier.archive.access import endpoint_provider
from sidetier.cli.export.table_request import TableRequest, table_request
from sidetier.cli.export.table_session import export_table, tail_jars, with_jars
from sidetier.cli.export.targets import target_of
from sidetier.cli.output import OutputFormat
from sidetier.config.model import Config
from sidetier.config.properties_file import parse_properties
from sidetier.config.storage import StorageConfig
from sidetier.pipeline.export.engines.tasks import require_fencing
from sidetier.pipeline.export.tables.gateway import java_process
from sidetier.pipeline.export.tables.hudi.options import (
    HudiOptions,
    parse_options,
    whole_state_every,
    with_schema_changes,
)
from sidetier.pipeline.export.tables.hudi.table import HudiTable
from sidetier.pipeline.export.tables.lease import Lease, LeaseTimes, ProcessId, process_here
from sidetier.pipeline.export.tables.run import Terms
from sidetier.pipeline.export.tables.spark_jars import TableJar
from sidetier.pipeline.export.tables.table import Table
from sidetier.segments.errors import ConfigurationError
from sidetier.storage.factory import open_storage

SESSION: Final = {
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
    "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
    "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
    "spark.speculation": "false",  # Hudi refuses to write if it is on
    "spark.hadoop.fs.s3a.directory.marker.retention": "keep",  # otherwise commits hang: Hadoop 3.3
}
_SCHEMES: Final = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "": "file"}


def export_hudi(config: Config, given: Mapping[str, Any], output: OutputFormat) -> int:
    """Export, and return the exit code. Raises SidetierError."""
    options = parse_options(read_options(given["file"]) | given["options"])
    state_interval = whole_state_every(options, given["whole_state_every"])
    terms = Terms(
        timeout=options.timeout, allow_empty=options.allow_empty, whole_state_every=state_interval
    )
    request: TableRequest = table_request(given["topics"], given, terms, options.interval)
    if request.follows_registry:
        options = with_schema_changes(options)
    conf = with_jars(request.spark_conf or {}, SESSION, TableJar.HUDI, *tail_jars(request))
    url = given["lock"] or lock_url(options.base_path)
    target = target_of(config.storage, url, given["lock_config"])
    times = LeaseTimes(ttl=given["lock_ttl"], wait=given["lock_wait"])

    @contextmanager
    def opened(spark: SparkSession) -> Iterator[Table]:
        holder = process_here(java_process(spark))
        with _lease(target, options, times, holder) as lease:
            table = HudiTable(spark, options, lease)
            if request.dry_run:
                yield table
                return
            with table:
                yield table

    return export_table(config, replace(request, spark_conf=conf), opened, output)


def read_options(file: Path | None) -> dict[str, str]:
    """Return the properties of a file; raise ConfigurationError if it cannot be read."""
    if file is None:
        return {}
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--options {file}: cannot be read: {error}") from None
    return {entry.key: entry.value for entry in parse_properties(text, str(file))}


def lock_url(base_path: str) -> str:
    """Return the URL of the directory beside the table, with the storage layer's scheme."""
    parts = urlsplit(base_path)
    parent = parts.path.rstrip("/").rpartition("/")[0]
    scheme = _SCHEMES.get(parts.scheme, parts.scheme)
    if not parts.path.startswith("/") or (scheme == "file" and not parent):
        raise ConfigurationError(
            f"target.base.path {base_path}: must be absolute, and below a directory"
        )
    return f"{scheme}://{parts.netloc}{parent}"


@contextmanager
def _lease(
    target: StorageConfig, options: HudiOptions, times: LeaseTimes, holder: ProcessId
) -> Iterator[Lease]:
    store = open_storage(endpoint_provider(target).endpoints[0])
    try:
        require_fencing(store, target)
        name = options.base_path.rpartition("/")[2]
        yield Lease(store, f"_sidetier/{name}.lease", times, holder)
    finally:
        store.close()
