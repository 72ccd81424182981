"""The work of one task, the same in every engine."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from sidetier.archive.access import ArchiveAccess
from sidetier.config.archive_options import DEFAULT_MAX_BATCH_BYTES
from sidetier.config.cluster import BrokerConfig
from sidetier.pipeline.export.files.ports import Done, Task
from sidetier.pipeline.export.files.sink import FileSink
from sidetier.pipeline.export.files.task import Progress, columns_of, write_range
from sidetier.pipeline.export.files.values.registry import RegistryConfig
from sidetier.pipeline.export.tail.consuming import BrokerReader
from sidetier.pipeline.reading.options import ReadOptions
from sidetier.pipeline.reading.split_reader import read_split
from sidetier.segments.isolation import IsolationLevel
from sidetier.storage.port import RemoteStorage

if TYPE_CHECKING:
    from sidetier.pipeline.planning.split import Missing

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
