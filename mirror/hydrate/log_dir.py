"""Lock and check the log dirs of a stopped broker, and edit their checkpoint files."""

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sidetier.mirror.hydrate.plan import HydratePlan, PlannedPartition, check_prepared, replace_file
from sidetier.segments.checkpoints import parse_offset_checkpoint
from sidetier.segments.errors import ConfigurationError, SegmentError
from sidetier.segments.names import FileKind, parse_segment_file_name
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.segments.properties import (
    MetaProperties,
    parse_meta_properties,
    parse_partition_metadata,
)

LOG_START_CHECKPOINT: Final = "log-start-offset-checkpoint"
RECOVERY_CHECKPOINT: Final = "recovery-point-offset-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"
_LOCK: Final = ".lock"
_META_PROPERTIES: Final = "meta.properties"


@dataclass(frozen=True, slots=True)
class LogDir:
    """A locked log dir and the broker that owns it."""

    path: Path
    owner: MetaProperties

    def live_directory(self, tp: TopicPartition) -> Path:
        """Return the directory of the partition, if the broker keeps it in this log dir."""
        return self.path / str(tp)


@contextmanager
def locked_log_dirs(paths: Iterable[Path]) -> Iterator[list[LogDir]]:
    """Take the broker's own lock on each log dir, so that the broker cannot start meanwhile.

    Raises:
        ConfigurationError: A log dir does not exist, is in use, or no broker has ever used it.
    """
    with ExitStack() as stack:
        log_dirs = []
        for path in paths:
            stack.enter_context(_locked(path))
            log_dirs.append(LogDir(path, _owner(path)))
        yield log_dirs


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    if not path.is_dir():
        raise ConfigurationError(f"{path}: there is no such log dir; see log_dirs")
    if not (path / _META_PROPERTIES).is_file():
        raise ConfigurationError(
            f"{path}: no broker has used this log dir (it has no {_META_PROPERTIES}): start the "
            "new broker once, run `sidetier hydrate prepare`, and stop it"
        )
    # A broker removes its lock file when it stops cleanly, so the file may have to be created.
    lock = path / _LOCK
    handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        # The JVM locks the same file with fcntl too.
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigurationError(
                f"{path}: a broker, or another hydrate, uses this log dir: stop it first"
            ) from None
        # The file stays, as a killed broker leaves it: a broker that had opened it just before its
        # removal would lock a file that nobody else can find.
        if os.geteuid() == 0:  # the broker must be able to open it
            owner = path.stat()
            os.fchown(handle, owner.st_uid, owner.st_gid)
        yield
    finally:
        os.close(handle)


def _owner(path: Path) -> MetaProperties:
    file = path / _META_PROPERTIES
    try:
        return parse_meta_properties(file.read_text(), str(file))
    except (OSError, SegmentError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: not a broker's log dir: {error}") from None


@dataclass(frozen=True, slots=True)
class Destination:
    """The log dir of one planned partition."""

    plan: PlannedPartition
    log_dir: LogDir


def destinations(
    plan: HydratePlan, log_dirs: Iterable[LogDir], pending: Mapping[Path, Iterable[str]]
) -> list[Destination]:
    """Return the partitions of the plan that belong on this host.

    Args:
        plan: A plan whose topics were created.
        log_dirs: All log dirs of the broker, locked.
        pending: By log dir, the names of partitions whose directory an interrupted run has moved
            away and will put back.

    Raises:
        ConfigurationError: The plan is not prepared, the log dirs belong to another cluster, or a
            partition of this broker is in none of the log dirs.
    """
    check_prepared(plan)
    known = list(log_dirs)
    for log_dir in known:
        if log_dir.owner.cluster_id != plan.kafka_cluster_id:
            raise ConfigurationError(
                f"{log_dir.path} belongs to Kafka cluster {log_dir.owner.cluster_id}, but the "
                f"topics of this plan were created on {plan.kafka_cluster_id}"
            )
    placeable, missing = [], []
    brokers = {log_dir.owner.broker_id for log_dir in known}
    for partition in plan.partitions:
        tp = partition.topic_partition
        prepared = plan.prepared.get(partition.topic)
        if prepared is None or prepared.brokers[partition.partition] not in brokers:
            continue
        holder = next(
            (
                log_dir
                for log_dir in known
                if log_dir.live_directory(tp).is_dir() or str(tp) in pending.get(log_dir.path, ())
            ),
            None,
        )
        if holder is None:
            missing.append(str(tp))
        else:
            placeable.append(Destination(partition, holder))
    if missing:
        paths = ", ".join(str(log_dir.path) for log_dir in known)
        raise ConfigurationError(
            f"{len(missing)} partitions of this broker are in none of its log dirs ({paths}), the "
            f"first is {missing[0]}: give every log dir of the broker, and check that the topic "
            "was not deleted since `sidetier hydrate prepare`"
        )
    return placeable


def check_live_directory(directory: Path, topic_id: str | None) -> None:
    """Check that a partition's directory belongs to the created topic, and has no records.

    Raises:
        ConfigurationError: The directory belongs to another topic, or is not empty.
    """
    metadata = directory / PARTITION_METADATA
    try:
        actual = parse_partition_metadata(metadata.read_text(), str(metadata))
    except FileNotFoundError:
        actual = None
    except (SegmentError, UnicodeDecodeError) as error:
        raise ConfigurationError(str(error)) from None
    if topic_id is not None and actual != topic_id:
        raise ConfigurationError(
            f"{directory}: {PARTITION_METADATA} has topic id {actual}, but the topic was created "
            f"with {topic_id}: it was deleted and created again; run `sidetier hydrate prepare`"
        )
    for file in sorted(directory.iterdir()):
        parsed = parse_segment_file_name(file.name)
        if parsed is None or parsed.kind is not FileKind.LOG or parsed.deleted:
            continue
        size = file.stat().st_size
        if size:
            raise ConfigurationError(
                f"{directory} is not empty: {file.name} has {size} bytes; segments are placed only "
                "into a topic without records"
            )


def read_offsets(file: Path) -> dict[TopicPartition, Offset]:
    """Return the rows of an offset checkpoint; none if there is no file.

    Raises:
        SegmentError: The file does not parse.
    """
    try:
        return parse_offset_checkpoint(file.read_text(), str(file))
    except FileNotFoundError:
        return {}


def update_offsets(file: Path, changes: Mapping[TopicPartition, int]) -> None:
    """Add rows to an offset checkpoint, or replace them; other rows stay.

    A kill leaves the old file or the new one.

    Raises:
        SegmentError: The file does not parse.
    """
    if not changes:
        return
    rows: dict[TopicPartition, int] = {**read_offsets(file), **changes}
    text = "".join(f"{tp.topic} {tp.partition} {offset}\n" for tp, offset in sorted(rows.items()))
    # Kafka's form: version 0, the number of rows, and a line for each row.
    replace_file(file, f"0\n{len(rows)}\n{text}".encode())
