"""The consumers in `retention.store[].keep_for`: adapters of all packages."""

from typing import TYPE_CHECKING

from sidetier.archive.gc.needs import Consumer, group_consumer
from sidetier.cli.extras import needs_extra
from sidetier.endpoint.groups.stored_offsets import local_group_consumer
from sidetier.leadership.cluster import as_texts
from sidetier.mirror.gc_consumer import mirror_consumer
from sidetier.pipeline.export.gc_consumers import files_consumer, table_consumer
from sidetier.segments.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sidetier.archive.access import ArchiveAccess
    from sidetier.config.model import Config
    from sidetier.config.retention import StoreRetention

_FILE_PACKAGES = ("babel", "cramjam", "fastavro", "google", "numpy", "pyarrow")


def retained_consumers(
    config: "Config", archive: "ArchiveAccess"
) -> "Callable[[StoreRetention], Sequence[Consumer]]":
    """Return a function that reads the consumers of a rule, and raises ConfigurationError."""
    return lambda rule: list(_consumers(config, archive, rule))


def _consumers(
    config: "Config", archive: "ArchiveAccess", rule: "StoreRetention"
) -> "Iterator[Consumer]":
    keep_for, storage, cluster = rule.keep_for, config.storage, config.cluster.name
    if keep_for.groups:
        if config.broker.bootstrap_servers is None:
            raise ConfigurationError(
                "retention.store: keep_for.groups needs broker.bootstrap_servers, which is not set"
            )
        properties = as_texts(config.broker.client_properties())
        for group in keep_for.groups:
            yield group_consumer(archive, properties, group)
    for mirror in keep_for.mirrors:
        yield mirror_consumer(mirror)
    for export in keep_for.exports:
        with needs_extra("keep_for.exports", _FILE_PACKAGES, "export"):
            consumer = files_consumer(storage, cluster, export)
        yield consumer
    for table in keep_for.tables:
        with needs_extra("keep_for.tables", ("fastavro",), "export"):
            consumer = table_consumer(storage, cluster, table)
        yield consumer
    for group in keep_for.local_groups:
        yield local_group_consumer(archive, group)
