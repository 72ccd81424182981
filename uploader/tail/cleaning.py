"""Remove from the tail what nobody needs any more. On a thread of its own, with its own connection.

`MergedTail.needed` says what is needed. Packs without such a row are left out of the index. Packs
of which few bytes are needed are written again, partition by partition, from the local disk: by the
rule of `gates.committed_range`, as every range.

Order of writes, and what a kill leaves:

1. New packs: ranges twice, with equal bytes.
2. The index object (If-Match), without the old packs: packs that nobody needs.
3. One hour later, for readers, the old packs are deleted: nothing.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import structlog

from sidetier.archive.objects.leader_epochs import read_epoch_history
from sidetier.archive.objects.tail_index import read_tail_index, write_tail_index
from sidetier.archive.objects.watermark import read_watermark
from sidetier.archive.tail.inventory import TailInventory
from sidetier.archive.tail.merge import ArchivedPart, PackedRow, PackRef, merge
from sidetier.archive.tail.pack import PackBuilder, TailRow, epochs_from
from sidetier.leadership.port import LedLog, LogOffsetSource
from sidetier.segments.epoch_history import EpochHistory
from sidetier.segments.errors import (
    ArchiveError,
    PreconditionFailedError,
    SegmentError,
    SidetierError,
    StorageError,
)
from sidetier.segments.keys import parse_tail_pack_key
from sidetier.segments.offsets import BrokerId, Offset, OffsetRange, TopicPartition
from sidetier.storage.port import LISTED_AT_ONCE, RemoteStorage
from sidetier.uploader.clock import Clock
from sidetier.uploader.gates.committed_range import refusal
from sidetier.uploader.gates.remembered_epochs import read_local_epochs
from sidetier.uploader.tail.board import TailPartition
from sidetier.uploader.tail.packs import PackNumbers, TailPlace, store_pack
from sidetier.uploader.tail.ranges import TailRange, find_range, read_range
from sidetier.uploader.watching.disk import log_file
from sidetier.wire.log_offsets import AnsweredOffset, OffsetKind

log: Final = structlog.get_logger()
MIN_LIVE_SHARE: Final = 0.25
"""Packs of which a smaller share of the bytes is needed are written again."""
MAX_REWRITTEN_BYTES: Final = 256 << 20
"""Bytes that one cleaning writes again."""
MAX_PACK_BYTES: Final = 16 << 20
SMALL_PACK_BYTES: Final = 1 << 20
DELETED_AFTER: Final = 3600.0
"""Seconds from the index without a pack to the pack's deletion."""

ArchivedOf = Callable[[TopicPartition], ArchivedPart | None]
"""Returns what the archive has of a partition that this broker does not lead; None if unknown."""


class PackUse(NamedTuple):
    """What is needed of a pack.

    Attributes:
        pack: The pack.
        size: Bytes of its ranges.
        needed: The rows that are needed.
    """

    pack: PackRef
    size: int
    needed: tuple[TailRow, ...]

    @property
    def live_bytes(self) -> int:
        """Bytes of the needed rows."""
        return sum(row.size for row in self.needed)


class CleaningPlan(NamedTuple):
    """What to do with the packs of a broker.

    Attributes:
        keep: Packs that stay.
        drop: Packs that nobody needs.
        rewrite: Packs whose needed rows are written again.
    """

    keep: tuple[PackRef, ...]
    drop: tuple[PackRef, ...]
    rewrite: tuple[PackUse, ...]


def plan_cleaning(
    uses: Iterable[PackUse],
    may_rewrite: Callable[[TailRow], bool],
    max_bytes: int = MAX_REWRITTEN_BYTES,
) -> CleaningPlan:
    """Decide what happens to each pack. Pure. The emptiest packs are rewritten first."""
    keep: list[PackRef] = []
    drop: list[PackRef] = []
    candidates: list[PackUse] = []
    for use in uses:
        if not use.needed:
            drop.append(use.pack)
        elif (
            use.live_bytes < MIN_LIVE_SHARE * use.size or not use.size  # only claims
        ) and all(map(may_rewrite, use.needed)):
            candidates.append(use)
        else:
            keep.append(use.pack)
    rewrite: list[PackUse] = []
    for use in sorted(candidates, key=lambda each: each.live_bytes):
        max_bytes -= use.live_bytes
        if max_bytes >= 0:
            rewrite.append(use)
        else:
            keep.append(use.pack)
    # A small pack that only moves is not worth a write.
    if len(rewrite) == 1 and rewrite[0].size < SMALL_PACK_BYTES:
        keep += [use.pack for use in rewrite]
        rewrite = []
    return CleaningPlan(tuple(keep), tuple(drop), tuple(rewrite))


def needed_rows(
    rows: Mapping[TopicPartition, Sequence[PackedRow]],
    led: Mapping[TopicPartition, TailPartition],
    archived_of: ArchivedOf,
) -> set[int]:
    """Return the ids (`id`) of the rows of one broker that are needed.

    Only stored rows are merged: what they prove to be stale, readers see as stale, too.
    """
    needed: set[int] = set()
    for tp, found in rows.items():
        part = led.get(tp)
        if part is None:
            archived = archived_of(tp)
        else:
            archived = ArchivedPart(part.archive_end, part.archived_epochs, part.topic_id)
        kept: Iterable[PackedRow] = found
        if archived is not None:
            try:
                kept = merge(archived, found).needed()
            except ArchiveError as error:
                log.warning("tail.kept", topic=tp.topic, partition=tp.partition, error=str(error))
        # The topic id of a led partition comes from its broker: another topic of this name is gone.
        needed |= {
            id(source.row)
            for source in kept
            if part is None or source.row.topic_id == part.topic_id
        }
    return needed


class _Run(NamedTuple):
    """Adjacent rows of one partition that are written again as one range.

    `start` is the archive end offset, if that is in the first row.
    """

    start: Offset
    end: Offset
    rows: tuple[TailRow, ...]


def joined_runs(rows: Iterable[TailRow], archive_end: Offset) -> Iterator[_Run]:
    """Yield the ranges of a partition to write again, without what is archived."""
    run: list[TailRow] = []
    for row in sorted(rows, key=lambda row: (row.start, -row.end)):
        if row.is_claim or row.end <= archive_end:
            continue
        if run and row.end <= run[-1].end:
            continue  # the same records twice
        if run and row.start != run[-1].end:
            yield _run_of(run, archive_end)
            run = []
        run.append(row)
    if run:
        yield _run_of(run, archive_end)


def _run_of(rows: Sequence[TailRow], archive_end: Offset) -> _Run:
    return _Run(max(rows[0].start, archive_end), rows[-1].end, tuple(rows))


def stored_archive(place_of: Callable[[str], TailPlace]) -> ArchivedOf:
    """Return a function that reads what is archived of a partition; two requests."""

    def read(tp: TopicPartition) -> ArchivedPart | None:
        place = place_of(tp.topic)
        try:
            stored = read_watermark(place.store, place.layout.watermark_key(tp))
            if stored is None or stored.watermark.topic_id is None:
                return None
            epochs = read_epoch_history(place.store, place.layout, tp).epoch_history
        except (StorageError, ArchiveError) as error:
            log.info(
                "tail.archive_unknown", topic=tp.topic, partition=tp.partition, error=str(error)
            )
            return None
        watermark = stored.watermark
        return ArchivedPart(watermark.next_offset, epochs, watermark.topic_id)

    return read


@dataclass(slots=True)
class CleaningTotals:
    """The result of the last cleaning, and counts since the start."""

    live_packs: int = 0
    live_bytes: int = 0
    stored_bytes: int = 0
    rewritten_bytes: int = 0
    deleted_packs: int = 0


@dataclass(slots=True)
class _Excluded:
    """Packs that the index excludes, with the monotonic time since when."""

    since: dict[int, float] = field(default_factory=dict)


class TailCleaner:
    """Cleans the packs of one broker in all stores.

    Args:
        source: Asks the own broker, with a connection of its own.
        stores: Returns the stores in use, with the numbers of this broker's packs there.
        inventory_of: Reads the live packs of a store.
        place_of: Where a topic is stored.
        archived_of: What the archive has of a partition that this broker does not lead.
        broker: This broker.
        clock: The time.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - its ports
        self,
        source: LogOffsetSource,
        stores: Callable[[], Iterable[PackNumbers]],
        inventory_of: Callable[[PackNumbers], TailInventory],
        place_of: Callable[[str], TailPlace],
        archived_of: ArchivedOf,
        broker: BrokerId,
        clock: Clock,
    ) -> None:
        self._source = source
        self._stores = stores
        self._inventory_of = inventory_of
        self._place_of = place_of
        self._archived_of = archived_of
        self._broker = broker
        self._clock = clock
        self._excluded: dict[int, _Excluded] = defaultdict(_Excluded)
        self.totals = CleaningTotals()

    def run(
        self,
        led: Mapping[TopicPartition, TailPartition],
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Clean each store once. A store that does not answer does not stop the others.

        Raises:
            StorageError: The last error, after all stores were tried.
        """
        failed: SidetierError | None = None
        totals = CleaningTotals(
            rewritten_bytes=self.totals.rewritten_bytes, deleted_packs=self.totals.deleted_packs
        )
        for numbers in self._stores():
            try:
                self._clean(numbers, led, totals, stopped)
            except (StorageError, ArchiveError) as error:
                failed = error
        self.totals = totals
        if failed is not None:
            raise failed

    def _clean(
        self,
        numbers: PackNumbers,
        led: Mapping[TopicPartition, TailPartition],
        totals: CleaningTotals,
        stopped: Callable[[], bool],
    ) -> None:
        before = read_tail_index(numbers.store, numbers.layout, self._broker)
        contents = self._inventory_of(numbers).read([self._broker])
        if contents.problems:
            raise ArchiveError(
                "packs cannot be read, and nothing is cleaned: "
                + "; ".join(sorted(contents.problems.values())[:3])
            )
        needed = needed_rows(contents.rows, led, self._archived_of)
        uses = self._uses(contents.packs, contents.rows, needed)
        totals.live_packs += len(uses)
        totals.stored_bytes += sum(use.pack.size for use in uses)
        totals.live_bytes += sum(use.live_bytes for use in uses)
        plan = plan_cleaning(
            uses,
            lambda row: row.tp in led and led[row.tp].topic_id == row.topic_id,
        )
        keep = {pack.number for pack in plan.keep}
        if plan.rewrite and not stopped():
            failed = self._rewrite(numbers, plan.rewrite, led, totals)
            keep |= {use.pack.number for use in plan.rewrite if use.pack.number in failed}
        else:
            keep |= {use.pack.number for use in plan.rewrite}
        prefix = numbers.layout.tail_packs_prefix(self._broker)
        stored = {
            parse_tail_pack_key(listed.key, prefix): listed.key
            for listed in numbers.store.list_objects(prefix)
        }
        # Only packs that were read. A name is needed as long as its pack is stored.
        dropped = {pack.number for pack in contents.packs} - keep
        dropped |= set(() if before.index is None else before.index.dropped)
        dropped &= stored.keys()
        names = (tuple(sorted(keep)), tuple(sorted(dropped)))
        if before.index is None or (before.index.packs, before.index.dropped) != names:
            try:
                write_tail_index(numbers.store, numbers.layout, self._broker, *names, before)
            except PreconditionFailedError:
                log.warning("tail.index_conflict", broker=self._broker)
                return  # another sidecar of this broker cleans, too
        self._delete_dropped(numbers.store, {number: stored[number] for number in dropped}, totals)

    def _uses(
        self,
        packs: Iterable[PackRef],
        rows: Mapping[TopicPartition, Sequence[PackedRow]],
        needed: set[int],
    ) -> list[PackUse]:
        sizes: dict[str, int] = defaultdict(int)
        kept: dict[str, list[TailRow]] = defaultdict(list)
        for found in rows.values():
            for pack, row in found:
                assert pack is not None  # noqa: S101 - they were read from packs
                sizes[pack.key] += row.size
                if id(row) in needed:
                    kept[pack.key].append(row)
        return [PackUse(pack, sizes[pack.key], tuple(kept[pack.key])) for pack in packs]

    # -- rewriting --------------------------------------------------------------------------------

    def _rewrite(
        self,
        numbers: PackNumbers,
        uses: Sequence[PackUse],
        led: Mapping[TopicPartition, TailPartition],
        totals: CleaningTotals,
    ) -> set[int]:
        """Write the needed rows again. Return the numbers of the packs that stay for all that."""
        rows: dict[TopicPartition, list[TailRow]] = defaultdict(list)
        packs: dict[TopicPartition, set[int]] = defaultdict(set)
        for use in uses:
            for row in use.needed:
                rows[row.tp].append(row)
                packs[row.tp].add(use.pack.number)
        failed: set[int] = set()
        groups: dict[bool, _Rewriter] = {}
        for tp in sorted(rows):
            encrypts = self._place_of(tp.topic).encrypts
            rewriter = groups.get(encrypts)
            if rewriter is None:
                rewriter = groups[encrypts] = _Rewriter(self._source, numbers, self._clock)
            rewriter.add(led[tp], rows[tp])
        for rewriter in groups.values():
            rewriter.flush()
            totals.rewritten_bytes += rewriter.stored_bytes
            for tp in rewriter.failed:
                failed |= packs[tp]
        return failed

    # -- deleting ---------------------------------------------------------------------------------

    def _delete_dropped(
        self, store: RemoteStorage, dropped: Mapping[int, str], totals: CleaningTotals
    ) -> None:
        """Delete packs that the stored index has dropped for long enough."""
        now, excluded = self._clock.monotonic(), self._excluded[id(store)]
        excluded.since = {number: excluded.since.get(number, now) for number in dropped}
        due = [dropped[n] for n, since in excluded.since.items() if since + DELETED_AFTER <= now]
        for at in range(0, len(due), LISTED_AT_ONCE):
            store.delete_objects(due[at : at + LISTED_AT_ONCE])
        totals.deleted_packs += len(due)


class _Rewriter:
    """Writes needed rows of one group into new packs, sorted by partition."""

    def __init__(self, source: LogOffsetSource, numbers: PackNumbers, clock: Clock) -> None:
        self._source = source
        self._numbers = numbers
        self._clock = clock
        self._parts: list[tuple[TailPartition, TailRow, TailRange | None]] = []
        self._size = 0
        self.failed: set[TopicPartition] = set()
        self.stored_bytes = 0

    def add(self, part: TailPartition, rows: Sequence[TailRow]) -> None:
        """Read the ranges of a partition, and copy its claims."""
        try:
            history = read_local_epochs(part.directory)
            led_log = self._ask([part])[part.tp]
            if not isinstance(led_log, LedLog):
                raise led_log
            # A pack has the claims first: they do not depend on the log.
            for row in rows:
                if row.is_claim:
                    self._parts.append((part, row, None))
            for run in joined_runs(rows, part.archive_end):
                self._read(part, run, history, led_log)
        except (SidetierError, OSError) as error:
            log.info(
                "tail.not_rewritten",
                topic=part.tp.topic,
                partition=part.tp.partition,
                reason=str(error),
            )
            self.failed.add(part.tp)

    def _ask(self, parts: Sequence[TailPartition]) -> dict[TopicPartition, LedLog | SidetierError]:
        asked = [(part.tp, part.leader_epoch) for part in parts]
        answers = self._source.offsets(OffsetKind.HIGH_WATERMARK, asked)
        return {
            part.tp: LedLog(answer.offset, Offset(0), answer.leader_epoch)
            if isinstance(answer, AnsweredOffset)
            else answer
            for part, answer in zip(parts, answers, strict=True)
        }

    def _read(self, part: TailPartition, run: _Run, history: EpochHistory, led_log: LedLog) -> None:
        if led_log.high_watermark < run.end:
            raise SegmentError(f"the high watermark is {led_log.high_watermark}, below {run.end}")
        at = run.start
        bounded = led_log._replace(high_watermark=run.end)
        while at < run.end:
            wanted = find_range(part.directory, part.topic_id, at, bounded, MAX_PACK_BYTES)
            if wanted is None or wanted.start != at:
                raise SegmentError(f"the local log no longer has offset {at}")
            read = read_range(part.directory, wanted, history, ())
            row = _row_again(part, run, read, history)
            self._parts.append((part, row, read))
            self._size += len(read.data)
            at = read.end
            if self._size >= MAX_PACK_BYTES:
                self.flush()

    def flush(self) -> None:
        """Ask again, look again, and store what is confirmed."""
        parts, self._parts, self._size = self._parts, [], 0
        if not parts:
            return
        tails = list({part.tp: part for part, _, _ in parts}.values())
        try:
            answers = self._ask(tails)
        except SidetierError as error:
            log.warning("tail.unconfirmed", error=str(error))
            answers = {}  # nothing is confirmed
        builder = PackBuilder()
        for part, row, read in parts:
            if part.tp in self.failed:
                continue
            if read is None:
                builder.add(row._replace(position=0))
            elif self._is_confirmed(part, read, answers.get(part.tp)):
                builder.add(row, read.data)
            else:
                self.failed.add(part.tp)
        if builder.rows:
            self._store(builder, {part.tp for part, _, _ in parts})

    def _store(self, builder: PackBuilder, of: set[TopicPartition]) -> None:
        try:
            store_pack(self._numbers, builder.body(), int(self._clock.wall() * 1000))
        except StorageError as error:
            log.warning("tail.pack_failed", rows=len(builder.rows), error=str(error))
            self.failed |= of
        else:
            self.stored_bytes += builder.size

    @staticmethod
    def _is_confirmed(
        part: TailPartition, read: TailRange, again: LedLog | SidetierError | None
    ) -> bool:
        file = log_file(part.directory, read.wanted.segment)
        return refusal(read.wanted, read.runs, read.end, again, file) is None


def _row_again(part: TailPartition, run: _Run, read: TailRange, history: EpochHistory) -> TailRow:
    """Return the row of a range that is written again, with the transactions of the former rows."""
    offsets = OffsetRange(read.wanted.start, read.end)
    last = next(row for row in run.rows if row.end >= read.end)
    aborted = {each for row in run.rows for each in row.aborted if each.last_offset in offsets}
    is_end = last.end == read.end
    return TailRow(
        part.tp,
        part.topic_id,
        epochs_from(history, read.wanted.start),
        read.wanted.start,
        read.end,
        max(row.log_start for row in run.rows),
        last.last_stable if is_end else min(last.last_stable, read.wanted.start),
        read.batches,
        read.max_timestamp,
        last.open if is_end else (),
        tuple(sorted(aborted, key=lambda each: each.last_offset)),
    )
