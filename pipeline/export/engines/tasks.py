"""The work of one task, the same in every engine."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from sidetier.archive.access import ArchiveAccess, endpoint_provider, open_archive
from sidetier.config.archive_options import DEFAULT_MAX_BATCH_BYTES
from sidetier.config.model import BrokerConfig
from sidetier.config.storage import StorageConfig
from sidetier.pipeline.export.files.ports import Done, Task
from sidetier.pipeline.export.files.sink import FileSink
from sidetier.pipeline.export.files.task import Progress, columns_of, write_range
from sidetier.pipeline.export.files.values.registry import RegistryConfig
from sidetier.pipeline.export.tail.consuming import BrokerReader
from sidetier.pipeline.reading.split_reader import ReadOptions, read_split
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.isolation import IsolationLevel
from sidetier.storage.factory import open_storage
from sidetier.storage.port import RemoteStorage

if TYPE_CHECKING:
    from sidetier.pipeline.planning.split import Missing


# The stores and servers that a task connects to, as a value without secrets.
#
# Each process resolves secrets itself, so the value can be sent to Spark executors.


@dataclass(frozen=True, slots=True)
class Places:
    """A cluster's archive, the export's target store, the brokers, and the schema registry."""

    cluster: str
    archive: StorageConfig
    target: StorageConfig
    broker: BrokerConfig = field(default_factory=BrokerConfig)
    registry: RegistryConfig | None = None

    @contextmanager
    def open(self) -> Iterator[tuple[ArchiveAccess, RemoteStorage]]:
        """Open the archive and the target store; both are closed at the end of the `with` block.

        Raises:
            ConfigurationError: a secret cannot be read in this process, or a storage driver is
                missing.
        """
        with open_archive(self.cluster, self.archive) as access:
            target = open_storage(endpoint_provider(self.target).endpoints[0])
            try:
                yield access, target
            finally:
                target.close()


def require_fencing(target: RemoteStorage, config: StorageConfig) -> None:
    """Raise ConfigurationError if the target store has no conditional puts.

    Without them two exports of the same output could overwrite each other's files and state. The
    setting `fencing: unfenced_acknowledged` accepts this.
    """
    if target.capabilities.conditional_writes or config.fencing != "required":
        return
    raise ConfigurationError(
        f"{config.url}: this store has no conditional writes, so two exports at once could spoil "
        "each other's files and state; set fencing: unfenced_acknowledged for the output to use it "
        "all the same"
    )


_MOST_RECORDS: Final = 1 << 16


def carry_out(  # noqa: PLR0913, PLR0917 -- both engines pass the same set
    task: Task,
    archive: ArchiveAccess,
    target: RemoteStorage,
    broker: BrokerConfig,
    progress: Progress = lambda _records, _next_offset: None,
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
    registry: RegistryConfig | None = None,
) -> Done:
    """Read a task's range and write its files.

    Args:
        task: the range, its splits, and the options.
        archive: the archive to read from.
        target: the store to write files to.
        broker: connection for records that the archive does not have.
        progress: called after each batch of records; see `Progress`.
        max_batch_bytes: largest record batch that is read, in bytes.
        registry: connection to the schema registry.

    Raises:
        SidetierError: see `write_range`, `read_split` and `BrokerReader.read`.
    """
    missing: list[Missing] = []
    columns, isolation = columns_of(task.options), IsolationLevel(task.options.isolation)
    how = ReadOptions(
        columns=columns,
        isolation=isolation,
        fail_on_data_loss=task.options.fail_on_data_loss,
        most_records=_MOST_RECORDS,
        max_batch_bytes=max_batch_bytes,
    )

    def records() -> Iterator[pa.RecordBatch]:
        for split in task.splits:
            yield from read_split(archive, split, how, missing.append)
        for broker_range in task.on_broker:
            yield from BrokerReader(broker, isolation, columns).read(broker_range)

    sink = FileSink(target, task.run)
    written = write_range(
        task.tp,
        task.options,
        records(),
        sink,
        progress,
        schemas=task.schemas,
        registry=registry,
    )
    return Done(task.tp, written, tuple(missing))
