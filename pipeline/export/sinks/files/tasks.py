"""Tasks of an export to files: the work on one Kafka partition, the same in every engine."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from sidetier.archive.access import ArchiveAccess, open_archive
from sidetier.config.archive_options import DEFAULT_MAX_BATCH_BYTES
from sidetier.config.model import BrokerConfig
from sidetier.config.storage import StorageConfig
from sidetier.pipeline.export.errors import RecordCountError
from sidetier.pipeline.export.output import open_output
from sidetier.pipeline.export.sinks.files.manifest import NO_SCHEMAS, SchemaIds, Span
from sidetier.pipeline.export.sinks.files.options import FilesOptions
from sidetier.pipeline.export.sinks.files.upload import FileUploader
from sidetier.pipeline.export.sinks.files.write_range import (
    Progress,
    Written,
    columns_of,
    write_range,
)
from sidetier.pipeline.export.tail.consuming import BrokerReader
from sidetier.pipeline.export.values.registry import RegistryConfig
from sidetier.pipeline.planning.split import BrokerRange, Missing, Split
from sidetier.pipeline.reading.split_reader import ReadOptions, read_split
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.port import RemoteStorage


@dataclass(frozen=True, slots=True)
class Task:
    """The work on one Kafka partition. A task can be pickled for Spark executors.

    Attributes:
        on_broker: ranges behind the splits, which only the brokers have.
        schemas: schema ids of the last rows before this task.
        with_tail: see `Plan`.
    """

    tp: TopicPartition
    span: Span
    splits: tuple[Split, ...]
    options: FilesOptions
    run: str
    on_broker: tuple[BrokerRange, ...] = ()
    schemas: SchemaIds = NO_SCHEMAS
    with_tail: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a task: the files it wrote, and the ranges that were not stored."""

    tp: TopicPartition
    written: Written
    missing: tuple[Missing, ...] = ()


class Engine(Protocol):
    """Runs tasks, each with `write_range`: several at once, and again if one fails.

    Its methods may be called from several threads.
    """

    def run(self, tasks: Sequence[Task]) -> Sequence[Done]:
        """Run tasks; return their results in any order.

        Raises:
            SidetierError: a task has failed. All other tasks of this call have ended.
        """
        ...

    def cancel(self) -> None:
        """Make all tasks, of every call of `run`, end with an error as soon as possible."""
        ...


@dataclass(frozen=True, slots=True)
class Connections:
    """A cluster's archive, the export's target store, the brokers, and the schema registry.

    The value has no secrets, so it can be sent to Spark executors: each process resolves its own.
    """

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
        with (
            open_archive(self.cluster, self.archive) as access,
            open_output(self.target) as target,
        ):
            yield access, target


_MAX_RECORDS: Final = 1 << 16


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
        RecordCountError: a record was read twice, or see `write_range`.
        SidetierError: see `write_range`, `read_split` and `BrokerReader.read`.
    """
    missing: list[Missing] = []
    columns, isolation = columns_of(task.options), IsolationLevel(task.options.isolation)
    how = ReadOptions(
        columns=columns,
        isolation=isolation,
        fail_on_data_loss=task.options.fail_on_data_loss,
        most_records=_MAX_RECORDS,
        max_batch_bytes=max_batch_bytes,
        with_tail=task.with_tail,
    )

    def records() -> Generator[pa.RecordBatch]:
        for split in task.splits:
            yield from read_split(archive, split, how, missing.append)
        for broker_range in task.on_broker:
            yield from BrokerReader(broker, isolation, columns).read(broker_range)

    sink = FileUploader(target, task.run)
    with closing(records()) as batches:
        written = write_range(
            task.tp,
            task.options,
            _each_once(task, batches),
            sink,
            progress,
            schemas=task.schemas,
            registry=registry,
        )
    return Done(task.tp, written, tuple(missing))


def _each_once(task: Task, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches; raise RecordCountError for a record that was read before, or that is not
    in the task's range.
    """
    position = task.span.first
    for batch in batches:
        offsets = batch.column("offset").to_numpy()
        if len(offsets):
            rising = offsets[0] >= position and bool((np.diff(offsets) > 0).all())
            if not rising or offsets[-1] >= task.span.until:
                raise RecordCountError(
                    str(task.tp),
                    f"the records from offset {offsets[0]} to {offsets[-1]} were read at offset "
                    f"{position} of [{task.span.first}, {task.span.until})",
                )
            position = int(offsets[-1]) + 1
        yield batch
