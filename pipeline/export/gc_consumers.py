"""Exports as consumers of the archive, for `archive.gc`."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from sidetier.archive.access import require_directory
from sidetier.archive.gc.needs import Consumer, NextOffset, UnknownProgressError
from sidetier.pipeline.export.output import open_output
from sidetier.segments.errors import ObjectNotFoundError, SidetierError
from sidetier.segments.offsets import Offset, TopicPartition

if TYPE_CHECKING:
    from sidetier.config.retention import RetainedExport, RetainedTable
    from sidetier.config.storage import StorageConfig
    from sidetier.storage.port import RemoteStorage

_FORMATS: Final = {"hudi": "Hudi", "iceberg": "Iceberg"}


def files_consumer(storage: "StorageConfig", cluster: str, export: "RetainedExport") -> Consumer:
    """Return an export to files, whose manifest has its progress.

    Args:
        storage: Configuration of the archive's store, whose credentials open the output.
        cluster: Name of the archive's cluster.
        export: The export.
    """
    from sidetier.pipeline.export.sinks.files.manifest import (  # noqa: PLC0415 -- needs the extra
        decode_manifest,
        manifest_key,
    )

    name = f"export to {export.into}"

    def next_offsets(
        partitions: Collection[TopicPartition],
    ) -> Mapping[TopicPartition, NextOffset]:
        [topic] = {tp.topic for tp in partitions}
        key = manifest_key(export.topics_dir, topic)
        with _output(storage, export.into, name) as store:
            try:
                stored = store.get_object(key)
            except ObjectNotFoundError as error:
                raise UnknownProgressError(
                    f"{name}: it has no manifest {key}, so it has not exported topic {topic} yet"
                ) from error
            manifest = decode_manifest(stored.data, f"{export.into}/{key}")
        if manifest.cluster != cluster:
            raise UnknownProgressError(f"{name}: it exports cluster {manifest.cluster}")
        if manifest.asked is not None:
            raise UnknownProgressError(
                f"{name}: it exports the given range {manifest.asked}, so its next offsets do not "
                "tell what it still reads"
            )
        return {
            TopicPartition(topic, partition): NextOffset(Offset(offset), manifest.topic_id)
            for partition, offset in manifest.next_offsets.items()
        }

    return Consumer(name, next_offsets)


def table_consumer(storage: "StorageConfig", cluster: str, table: "RetainedTable") -> Consumer:
    """Return an export to a table, whose commits have its progress; as `files_consumer`."""
    from sidetier.pipeline.export.sinks.tables.stored_progress import (  # noqa: PLC0415 -- needs the extra
        hudi_progress,
        iceberg_progress,
    )

    name = f"export to the {_FORMATS[table.format]} table {table.location}"
    read = hudi_progress if table.format == "hudi" else iceberg_progress

    def next_offsets(
        _partitions: Collection[TopicPartition],
    ) -> Mapping[TopicPartition, NextOffset]:
        with _output(storage, table.location, name) as store:
            exported = read(store, cluster)
        topic_ids = exported.tail.topic_ids
        return {
            tp: NextOffset(offset, topic_ids.get(tp.topic))
            for tp, offset in exported.next_offsets.items()
        }

    return Consumer(name, next_offsets)


@contextmanager
def _output(storage: "StorageConfig", url: str, consumer: str) -> Iterator["RemoteStorage"]:
    """Open the output of an export. Every error in the block is raised as one that states that the
    export's progress is unknown.
    """
    target = storage.model_copy(update={"url": url, "overrides": ()})
    try:
        require_directory(url)
        with open_output(target) as store:
            yield store
    except UnknownProgressError:
        raise
    except SidetierError as error:
        raise UnknownProgressError(f"{consumer}: {error}") from error
