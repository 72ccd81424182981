"""One call of `sidetier export hudi` or `iceberg`, from the configuration to the exit code."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from sidetier.cli.export.options import HudiCommandOptions, IcebergCommandOptions, TableOptions
from sidetier.cli.export.request import table_request
from sidetier.cli.export.session import finish, reached_at, target_of
from sidetier.cli.export.view import TableResult
from sidetier.cli.output import say
from sidetier.config.model import Config
from sidetier.config.properties_file import read_properties
from sidetier.config.storage import StorageConfig
from sidetier.pipeline.export.request import TableRequest
from sidetier.pipeline.export.sinks.tables.hudi import parse_options, whole_state_every
from sidetier.pipeline.export.sinks.tables.iceberg import IcebergOptions
from sidetier.pipeline.export.sinks.tables.lease import LeaseTimes
from sidetier.pipeline.export.sinks.tables.run import TableTerms
from sidetier.pipeline.export.table_export import (
    LeasePlace,
    TableExport,
    open_hudi_export,
    open_iceberg_export,
)
from sidetier.segments.errors import ConfigurationError

_SCHEMES: Final = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "": "file"}
DEFAULT_INTERVAL: Final = 60.0
_Opened = AbstractContextManager[TableExport]


def export_hudi(config: Config, given: HudiCommandOptions) -> int:
    """Export, and return the exit code. Raises SidetierError."""
    options = parse_options({**read_options(given.file), **given.properties})
    terms = TableTerms(
        timeout=options.timeout,
        allow_empty=options.allow_empty,
        whole_state_every=whole_state_every(options, given.table.whole_state_every),
    )
    request = table_request(given.topics, given.table, terms, options.interval)
    url = given.lock or lock_url(options.base_path)
    lease = LeasePlace(
        target_of(config.storage, url, given.lock_config),
        LeaseTimes(ttl=given.lock_ttl, wait=given.lock_wait),
    )

    def opened(reached: Config, letters: StorageConfig | None) -> _Opened:
        return open_hudi_export(reached, request, options, lease, dead_letters=letters, on_note=say)

    return _run(config, request, given.table, opened)


def export_iceberg(config: Config, given: IcebergCommandOptions) -> int:
    """Export, and return the exit code. Raises SidetierError."""
    options = IcebergOptions(
        given.name, given.partitioned_by, given.table_properties, given.writer_options
    )
    request = table_request(given.topics, given.table, TableTerms(), DEFAULT_INTERVAL)

    def opened(reached: Config, letters: StorageConfig | None) -> _Opened:
        return open_iceberg_export(reached, request, options, dead_letters=letters, on_note=say)

    return _run(config, request, given.table, opened)


def _run(
    config: Config,
    request: TableRequest,
    given: TableOptions,
    opened: Callable[[Config, StorageConfig | None], _Opened],
) -> int:
    broker = reached_at(config.broker, given.tail.bootstrap, request.kafka)
    letters = given.dead_letters
    target = None if letters is None else target_of(config.storage, letters, None)
    with opened(config.model_copy(update={"broker": broker}), target) as export:
        return finish(export, request, TableResult, given.output, given.metrics_file)


def read_options(file: Path | None) -> dict[str, str]:
    """Return the properties of a file; raise ConfigurationError if it cannot be read."""
    return {} if file is None else read_properties(file, "--options")


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
