"""Place archived segments into the log dirs of a stopped broker.

Each partition is staged whole, in a directory beside the live one whose name ends in `-delete`, and
then switched in by two renames. Kafka ignores such a directory and deletes it when it starts, so
the broker sees the empty partition or the whole one, never a part.

What the next run does after a kill:

====================================  ==========================================================
kill                                  next run
====================================  ==========================================================
while a segment is written            writes the segment again; complete segments stay
before the first rename               switches the staged partition in
between the renames                   makes the second rename
after the second rename               finds the partition in place; removes the leftovers
a broker was started after the kill   places from the start: the broker has deleted what was staged
====================================  ==========================================================

The journal `sidetier-hydrate-<plan id>.json` in the log dir lists the partitions that are in place.
"""

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sidetier.archive.access import ArchiveAccess
from sidetier.mirror.hydrate.batch_scan import (
    NORMALISED_EPOCH,
    RANGE_BYTES,
    RANGES_AHEAD,
    BatchScanner,
    RangeReader,
    check_end,
    read_chunk,
    scan_batches,
)
from sidetier.mirror.hydrate.log_dir import (
    LOG_START_CHECKPOINT,
    PARTITION_METADATA,
    RECOVERY_CHECKPOINT,
    Destination,
    LogDir,
    check_live_directory,
    update_offsets,
)
from sidetier.mirror.hydrate.plan import (
    HydratePlan,
    PlannedPartition,
    PlannedSegment,
    replace_file,
    sync_directory,
)
from sidetier.segments.batches import next_sequence, set_leader_epoch
from sidetier.segments.epoch_history import EpochHistory, encode_leader_epoch_checkpoint
from sidetier.segments.errors import ConfigurationError, DamagedSegmentError
from sidetier.segments.headers import BatchHeader
from sidetier.segments.json_text import parse_json
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.offsets import BaseOffset, LeaderEpoch, Offset, TopicPartition
from sidetier.segments.producer_snapshot import OpenTransaction, ProducerState, encode_snapshot
from sidetier.segments.transactions import Marker, TransactionTracker
from sidetier.segments.txn_index import AbortedTxn, encode_txn_index
from sidetier.segments.walker import BatchWalker

_FREE_BYTES: Final = 1 << 30
"""Bytes to leave free on the disk of a log dir."""
_LOG_BYTES_PER_INDEX_BYTE: Final = 200
"""Both indexes of a segment have 20 bytes for each 4 KiB of its log at most."""
_LONGEST_NAME: Final = 255
_CHECKPOINT: Final = "leader-epoch-checkpoint"
_UNKNOWN_COORDINATOR: Final = -1


class StoppedError(Exception):
    """The run was asked to stop. The staged files stay for the next run."""


@dataclass(frozen=True, slots=True)
class PlaceSettings:
    """How a run places segments.

    Attributes:
        at_once: Number of partitions that are placed at the same time.
        before_read: Called with a number of bytes before they are read; it may block.
        written: Called with the number of bytes and of complete segments that were written, on any
            thread.
        step: Called with the name of each durable step before it; tests stop there.
        stop: Set to stop the run.
    """

    at_once: int = 4
    before_read: Callable[[int], None] = lambda _: None
    written: Callable[[int, int], None] = lambda _bytes, _segments: None
    step: Callable[[str], None] = lambda _: None
    stop: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class Placed:
    """The result for one partition.

    Attributes:
        topic_partition: The partition.
        size: Bytes of its segments.
        already: Whether an earlier run had placed it.
        problem: Why it is not in place; None if it is.
    """

    topic_partition: TopicPartition
    size: int = 0
    already: bool = False
    problem: str | None = None


class Journal:
    """The partitions of a log dir that are being switched in, and those that are in place."""

    def __init__(self, log_dir: Path, plan_id: str) -> None:
        """Read the journal of an earlier run, if there is one.

        Raises:
            ConfigurationError: The file does not parse.
        """
        self._path = log_dir / f"sidetier-hydrate-{plan_id}.json"
        self._lock = threading.Lock()
        self.switching: set[str] = set()
        self.placed: set[str] = set()
        with suppress(FileNotFoundError):
            data = self._path.read_bytes()
            try:
                fields = parse_json(data)
                self.switching, self.placed = set(fields["switching"]), set(fields["placed"])
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigurationError(
                    f"{self._path}: not a journal of hydrate ({error}); if no partition of this "
                    "log dir was placed, remove it"
                ) from None

    def note_switching(self, name: str) -> None:
        """Record that the partition is about to be switched in."""
        with self._lock:
            self.switching.add(name)
            self._write()

    def note_placed(self, name: str) -> None:
        """Record that the partition is in place."""
        with self._lock:
            self.switching.discard(name)
            self.placed.add(name)
            self._write()

    def forget(self, name: str) -> None:
        """Record that the partition is not in place, and nothing of it is staged."""
        with self._lock:
            self.switching.discard(name)
            self._write()

    def _write(self) -> None:
        fields = {"switching": sorted(self.switching), "placed": sorted(self.placed)}
        replace_file(self._path, json.dumps(fields).encode())


def place(
    plan: HydratePlan,
    archive: ArchiveAccess,
    wanted: Iterable[Destination],
    journals: dict[Path, Journal],
    settings: PlaceSettings,
) -> list[Placed]:
    """Place partitions, several at once. Partitions that are already in place stay unchanged.

    Args:
        plan: The plan, with its topics created.
        archive: The archive with the segments.
        wanted: The partitions of this host (`destinations`), in locked log dirs.
        journals: The journal of each log dir.
        settings: How to place them.

    Returns:
        One entry for each partition, in the order of `wanted`. If one partition fails, the others
        are still placed.

    Raises:
        ConfigurationError: A disk is too small; nothing was written.
        StoppedError: `settings.stop` was set.
    """
    destinations = list(wanted)
    todo = [
        destination
        for destination in destinations
        if str(destination.plan.topic_partition) not in journals[destination.log_dir.path].placed
    ]
    _check_space(todo, plan.plan_id)
    _write_log_starts(entry for entry in todo if not _is_refused(plan, entry))
    with (
        ThreadPoolExecutor(settings.at_once * (RANGES_AHEAD + 1), "hydrate-read") as readers,
        ThreadPoolExecutor(settings.at_once, "hydrate-place") as placers,
    ):

        def run(destination: Destination) -> Placed:
            journal = journals[destination.log_dir.path]
            tp = destination.plan.topic_partition
            if str(tp) in journal.placed:
                return Placed(tp, destination.plan.size, already=True)
            ranges = RangeReader(readers)
            try:
                _Placement(plan, destination, archive, journal, settings, ranges).run()
            except (StoppedError, KeyboardInterrupt):
                raise
            except Exception as error:  # noqa: BLE001 -- one partition must not stop the others
                return Placed(tp, problem=str(error) or type(error).__name__)
            return Placed(tp, destination.plan.size)

        results = list(placers.map(run, destinations))
    done = {result.topic_partition for result in results if not (result.already or result.problem)}
    _write_recovery_points(
        destination for destination in destinations if destination.plan.topic_partition in done
    )
    return results


def _is_refused(plan: HydratePlan, destination: Destination) -> bool:
    """Whether the live directory cannot take the segments; `_Placement.run` reports why."""
    tp = destination.plan.topic_partition
    live = destination.log_dir.live_directory(tp)
    try:
        if live.is_dir():
            check_live_directory(live, plan.prepared[tp.topic].topic_id)
    except ConfigurationError:
        return True
    return False


def _check_space(todo: Iterable[Destination], plan_id: str) -> None:
    # Several log dirs may be on one file system.
    needed: dict[int, int] = {}
    log_dirs: dict[int, set[Path]] = {}
    for destination in todo:
        staged = staging_directory(destination.log_dir, destination.plan.topic_partition, plan_id)
        staged_bytes = (
            sum(file.stat().st_size for file in staged.iterdir()) if staged.is_dir() else 0
        )
        path = destination.log_dir.path
        device = path.stat().st_dev
        needed[device] = needed.get(device, 0) + max(0, destination.plan.size - staged_bytes)
        log_dirs.setdefault(device, set()).add(path)
    for device, logs in needed.items():
        size = logs + logs // _LOG_BYTES_PER_INDEX_BYTE
        free = shutil.disk_usage(min(log_dirs[device])).free
        # A plan of a few MB need not leave a whole GiB free.
        if free < size + min(size, _FREE_BYTES):
            raise ConfigurationError(
                f"{', '.join(map(str, sorted(log_dirs[device])))}: {size:,} bytes are to be "
                f"placed, but only {free:,} are free"
            )


def _write_log_starts(todo: Iterable[Destination]) -> None:
    """Write the log starts before any partition is switched in, or deleted records reappear.

    Not for a live directory that is refused: its broker would delete that topic's records below the
    offset.

    If a broker is started before the switch, its empty partition begins at that offset: it is still
    empty, and the next run places it.
    """
    starts: dict[Path, dict[TopicPartition, int]] = {}
    for destination in todo:
        if destination.plan.is_start_inside_segment:
            rows = starts.setdefault(destination.log_dir.path, {})
            rows[destination.plan.topic_partition] = destination.plan.start
    for path, rows in starts.items():
        update_offsets(path / LOG_START_CHECKPOINT, rows)


def _write_recovery_points(done: Iterable[Destination]) -> None:
    """Write recovery points, so that the broker does not read all placed segments again.

    Everything that was placed is on the disk, so a broker that crashes soon after its start need
    not recover it. A kill before this step costs only that time.
    """
    points: dict[Path, dict[TopicPartition, int]] = {}
    for destination in done:
        points.setdefault(destination.log_dir.path, {})[destination.plan.topic_partition] = (
            destination.plan.end
        )
    for path, rows in points.items():
        update_offsets(path / RECOVERY_CHECKPOINT, rows)


def staging_directory(log_dir: LogDir, tp: TopicPartition, plan_id: str) -> Path:
    """Return the directory in which a partition is staged; the same in each run of a plan."""
    return _beside(log_dir, tp, f"{plan_id}/staged/{tp}")


def _beside(log_dir: LogDir, tp: TopicPartition, seed: str) -> Path:
    """Return a directory name that Kafka takes for a deleted partition."""
    # Kafka's form is `<topic>-<partition>.<32 hex digits>-delete`. The
    # digits come from the plan, so that the next run finds the directory.
    digest = hashlib.md5(seed.encode(), usedforsecurity=False).hexdigest()
    suffix = f"-{tp.partition}.{digest}-delete"
    return log_dir.path / (tp.topic[: _LONGEST_NAME - len(suffix)] + suffix)


@dataclass(slots=True)
class _Placement:
    """The placement of one partition."""

    plan: HydratePlan
    destination: Destination
    archive: ArchiveAccess
    journal: Journal
    settings: PlaceSettings
    ranges: RangeReader

    @property
    def _tp(self) -> TopicPartition:
        return self.destination.plan.topic_partition

    @property
    def _partition(self) -> PlannedPartition:
        return self.destination.plan

    @property
    def _live(self) -> Path:
        return self.destination.log_dir.live_directory(self._tp)

    @property
    def _staged(self) -> Path:
        return staging_directory(self.destination.log_dir, self._tp, self.plan.plan_id)

    @property
    def _emptied(self) -> Path:
        """The directory to which the empty live directory is moved."""
        return _beside(
            self.destination.log_dir, self._tp, f"{self.plan.plan_id}/emptied/{self._tp}"
        )

    def run(self) -> None:
        """Stage and switch in, continuing where an earlier run has stopped."""
        name = str(self._tp)
        if name in self.journal.switching and not self._staged.is_dir():
            if self._is_in_place():
                self._finish()
                return
            self.journal.forget(name)  # a broker was started meanwhile, and deleted what was staged
        if self._live.is_dir():
            self._check_live()
            # The plan needs no other files than the live directory's: an empty log that
            # begins at 0.
            if self._partition.end == 0:
                self.journal.note_placed(name)
                return
            self._stage()
            self._step("switch: move the empty directory")
            # Before the first rename: after a kill between the renames, no log dir has a live
            # directory of the partition, and only this note shows where it belongs.
            self.journal.note_switching(name)
            self._remove(self._emptied)
            self._live.rename(self._emptied)
        self._step("switch: move the staged directory")
        self._staged.rename(self._live)
        sync_directory(self.destination.log_dir.path)
        self._step("switched")
        self._finish()

    def _finish(self) -> None:
        self._remove(self._emptied)
        self._step("note as placed")
        self.journal.note_placed(str(self._tp))

    def _is_in_place(self) -> bool:
        return (self._live / _log_name(self._partition.end)).exists() and all(
            (self._live / _log_name(segment.base_offset)).exists()
            for segment in self._partition.segments
        )

    def _check_live(self) -> None:
        prepared = self.plan.prepared[self._tp.topic]
        check_live_directory(self._live, prepared.topic_id)

    def _stage(self) -> None:
        live = self._live.stat()
        self._staged.mkdir(exist_ok=True)
        transactions = _StagedTransactions()
        end = Offset(0)
        store = self.archive.store(self._tp.topic)
        for segment, until in self._partition.segments_with_ends:
            if self.settings.stop.is_set():
                raise StoppedError(str(self._tp))
            end = self._stage_segment(segment, end, transactions)
            # In each run, and before the switch: a segment that has lost batches stays staged.
            check_end(store, segment, end, until)
        self._step("stage: the files beside the segments")
        self._write_beside(transactions)
        # A broker that runs as another user must be able to write to the files.
        if os.geteuid() == 0:
            for path in (self._staged, *self._staged.iterdir()):
                os.chown(path, live.st_uid, live.st_gid)
        # Before the directory is switched in: its names must be durable, too.
        sync_directory(self._staged)

    def _write_beside(self, transactions: "_StagedTransactions") -> None:
        """Write the empty last segment, the producers with open transactions, epochs, and topic id.

        The empty last segment keeps the archived ones closed. The broker loads its `.snapshot`, so
        it knows the producer ids with open transactions and no others.
        """
        partition, staged = self._partition, self._staged
        end = Offset(partition.end)
        _write_durably(staged / _log_name(end), b"")
        _write_durably(
            staged / _file_name(end, FileKind.SNAPSHOT), transactions.producer_snapshot()
        )
        epochs: tuple[tuple[LeaderEpoch, Offset], ...] = ()
        if partition.segments:
            # One epoch for all records: the leader epochs of all placed batches are set to it.
            epochs = ((LeaderEpoch(NORMALISED_EPOCH), Offset(partition.segments[0].base_offset)),)
        _write_durably(
            staged / _CHECKPOINT, encode_leader_epoch_checkpoint(EpochHistory(epochs)).encode()
        )
        with suppress(FileNotFoundError):  # brokers without topic ids
            _write_durably(
                staged / PARTITION_METADATA, (self._live / PARTITION_METADATA).read_bytes()
            )

    def _stage_segment(
        self, segment: PlannedSegment, floor: Offset, transactions: "_StagedTransactions"
    ) -> Offset:
        """Write one segment unless it is staged already; return its end offset, exclusive."""
        path = self._staged / _log_name(segment.base_offset)
        # Only a whole segment has this name, with its indexes beside it.
        if path.exists():
            return self._follow_staged(path, segment, transactions)
        self._step("stage: a segment")
        part = path.with_name(path.name + ".part")
        end = self._copy(segment, part, floor, transactions)
        self._step("stage: rename a segment")
        part.rename(path)
        self.settings.written(0, 1)
        return end

    def _follow_staged(
        self, path: Path, segment: PlannedSegment, transactions: "_StagedTransactions"
    ) -> Offset:
        """Follow the transactions of a segment that an earlier run has staged; return its end."""
        end = Offset(segment.base_offset)
        for _, header, marker in scan_batches(_chunks(path), str(path)):
            transactions.feed(header, marker)
            end = header.next_offset
        self.settings.written(segment.size, 1)
        return end

    def _copy(
        self,
        segment: PlannedSegment,
        target: Path,
        floor: Offset,
        transactions: "_StagedTransactions",
    ) -> Offset:
        """Copy a `.log` up to the plan's end with normalised epochs, and write its indexes.

        The indexes are built from the batches, so they match what was written, also if the segment
        was cut.
        """
        base = BaseOffset(segment.base_offset)
        name = _log_name(base)
        scanner = BatchScanner(segment.key)
        walker = BatchWalker(segment.key, rebuild_indexes=True, checksum=False)
        end = floor
        with target.open("wb") as file:
            for chunk in self._fetched(segment):
                buffer, batches = scanner.feed(chunk)
                cut = len(buffer)
                for at, header, marker in batches:
                    if header.base_offset >= self._partition.end:
                        cut = at
                        break
                    self._check_offsets(segment, header.base_offset, header.next_offset, end)
                    set_leader_epoch(buffer, NORMALISED_EPOCH, at)
                    transactions.feed(header, marker)
                    end = header.next_offset
                ours = memoryview(buffer)[:cut]
                walker.feed(ours)
                file.write(ours)
                self.settings.written(len(ours), 0)
                if cut < len(buffer):
                    break
            # Not after a cut: the bytes behind it were not read.
            else:
                scanner.finish()
            file.flush()
            # The rename of the `.part` file marks the segment as whole, so its bytes must be
            # durable first.
            os.fsync(file.fileno())
        facts = walker.finish()
        if facts.indexes is None:
            raise DamagedSegmentError(f"{segment.key}: no index could be built")
        stem = self._staged / name.removesuffix(FileKind.LOG.value)
        # Before the `.part` file is renamed: the final name promises that the indexes exist, too.
        _write_durably(stem.with_suffix(FileKind.INDEX.value), facts.indexes.index)
        _write_durably(stem.with_suffix(FileKind.TIMEINDEX.value), facts.indexes.timeindex)
        aborted = transactions.aborted_in(segment)
        if aborted:
            _write_durably(stem.with_suffix(FileKind.TXNINDEX.value), encode_txn_index(aborted))
        return end

    def _check_offsets(self, segment: PlannedSegment, first: int, behind: int, floor: int) -> None:
        if first < floor:
            raise DamagedSegmentError(
                f"{segment.key}: it begins at offset {first}, but the segment before it reaches "
                f"{floor}: archives whose segments overlap cannot be placed; restore this topic "
                "by its records (sidetier restore)"
            )
        if behind > self._partition.end:
            raise DamagedSegmentError(
                f"{segment.key}: the batch at offset {first} reaches beyond the plan's end "
                f"{self._partition.end}; make a new plan"
            )

    def _fetched(self, segment: PlannedSegment) -> Iterator[bytearray]:
        """Yield the bytes of a `.log` in order; several ranges are read ahead."""
        store = self.archive.store(self._tp.topic)
        deadline = self.archive.provider.endpoint(self._tp.topic).deadline

        def fill(start: int, room: bytearray) -> None:
            if self.settings.stop.is_set():
                raise StoppedError(segment.key)
            self.settings.before_read(len(room))
            read_chunk(store, segment, start, room, deadline)

        return self.ranges.read_ahead(fill, segment.size)

    def _remove(self, directory: Path) -> None:
        """Remove a directory of this tool; it is not an error if it does not exist."""
        if directory.is_dir():
            shutil.rmtree(directory)

    def _step(self, name: str) -> None:
        self.settings.step(name)


class _StagedTransactions:
    """The transactions of the batches that are staged, as a broker writes them to its files."""

    def __init__(self) -> None:
        self._tracker = TransactionTracker()
        # The last batch of each open transaction.
        self._last: dict[int, BatchHeader] = {}

    def feed(self, header: BatchHeader, marker: Marker) -> None:
        """Process the next batch."""
        self._tracker.feed(header, marker)
        if header.producer_id not in self._tracker.open:
            self._last.pop(header.producer_id, None)
        elif not header.is_control:
            self._last[header.producer_id] = header

    def aborted_in(self, segment: PlannedSegment) -> Sequence[AbortedTxn]:
        """Return the transaction index of the segment that was fed last."""
        self._tracker.forget_below(segment.base_offset)
        return self._tracker.aborted

    def producer_snapshot(self) -> bytes:
        """Return the `.snapshot` for the offset after the last batch, with open transactions only.

        It has no other producers, so the broker forgets all other producer ids: a producer of the
        new cluster that is given an archived id again is not taken for the old one.
        """
        return encode_snapshot(
            _producer_state(self._last[producer], transaction).encoded()
            for producer, transaction in self._tracker.open.items()
        )


def _producer_state(last: BatchHeader, transaction: OpenTransaction) -> ProducerState:
    delta = last.last_offset - last.base_offset
    return ProducerState(
        last.producer_id,
        last.producer_epoch,
        next_sequence(last.base_sequence, delta),
        last.last_offset,
        delta,
        last.max_timestamp,
        _UNKNOWN_COORDINATOR,
        transaction.first_offset,
    )


def _log_name(base: int) -> str:
    return _file_name(base, FileKind.LOG)


def _file_name(base: int, kind: FileKind) -> str:
    return segment_file_name(BaseOffset(base), kind)


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(RANGE_BYTES):
            yield chunk
