"""Random archives of one partition, and a simple model of what a reader must return for them."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from sidetier.segments.offsets import Offset
from sidetier.segments.txn_index import AbortedTxn
from tests.harness.made_archive import MadeArchive, encoded
from tests.harness.record_batches import MadeBatch, TransactionalLog


@dataclass(slots=True)
class Segment:
    """A segment. `end` is its end for a reader: as noted, or by its bytes if Pinterest's."""

    base: int
    batches: list[MadeBatch]
    end: int


@dataclass(slots=True)
class World:
    """An archive, and the model of its content."""

    archive: MadeArchive
    segments: list[Segment] = field(default_factory=list)
    """Readable segments."""
    gaps: list[tuple[int, int]] = field(default_factory=list)
    start: int = 0
    end: int = 0

    def covered(self, offset: int) -> bool:
        return any(segment.base <= offset < segment.end for segment in self.segments)

    def stored(self) -> list[MadeBatch]:
        """Return every readable batch once, in order."""
        batches = {batch.first: batch for segment in self.segments for batch in segment.batches}
        return [batches[first] for first in sorted(batches) if first < self.end]

    def expect(self, start: int, *, committed: bool) -> tuple[list[int], list[int], bool]:
        """Return the offsets to expect from a reader that begins at `start`.

        Returns:
            The offsets of the returned records, the offsets that are reported as missing, and
            whether the reader reaches the archive end.
        """
        limit = self._limit(start) if committed else self.end
        returned = [
            record.offset
            for batch in self.stored()
            if batch.first < limit and not batch.is_control
            if not committed or self._is_shown(batch)
            for record in batch.records
            if max(start, self.start) <= record.offset
        ]
        missing = [
            offset
            for offset in range(start, limit)
            if offset < self.start or not self.covered(offset)
        ]
        return returned, missing, limit >= self.end

    @property
    def stable(self) -> int:
        """First offset of the first batch without a deciding marker, or else the archive end."""
        return self._limit(self.start)

    def _limit(self, start: int) -> int:
        undecided = (
            batch.first
            for batch in self.stored()
            if batch.last >= max(start, self.start) and self._fate(batch) is None
        )
        return min(undecided, default=self.end)

    def _is_shown(self, batch: MadeBatch) -> bool:
        return self._fate(batch) is True

    def _fate(self, batch: MadeBatch) -> bool | None:
        """Return whether the batch was committed; None if its transaction has no marker yet."""
        if not batch.is_transactional or batch.is_control:
            return True
        markers = (
            marker for marker in self.stored() if marker.is_control and marker.first > batch.first
        )
        own = (marker for marker in markers if marker.producer_id == batch.producer_id)
        return next(((marker.records[0].key or b"")[3] == 1 for marker in own), None)


def produced(dice: random.Random, count: int) -> list[MadeBatch]:
    """Return batches of interleaved producers; some offsets are missing, as after compaction."""
    log = TransactionalLog()
    for _ in range(count):
        producer = dice.randrange(1, 4)
        match dice.randrange(6):
            case 0 | 1:
                log.write(-1, dice.randrange(1, 5), transactional=False)
            case 2 | 3:
                log.write(producer, dice.randrange(1, 5))
            case 4:
                log.mark(producer, commit=dice.random() < 0.5)
            case _:
                log.next_offset += dice.randrange(3)
    return log.batches


def cut(dice: random.Random, batches: list[MadeBatch], *, by_bytes: bool) -> Iterator[Segment]:
    """Cut batches into consecutive segments. Each begins where the one before ends."""
    inner = sorted(dice.sample(range(1, len(batches)), min(dice.randrange(6), len(batches) - 1)))
    for low, high in pairwise([0, *inner, len(batches)]):
        segment_batches = batches[low:high]
        base = batches[low].first if low else 0
        end = batches[high].first if high < len(batches) else segment_batches[-1].last + 1
        yield Segment(base, segment_batches, segment_batches[-1].last + 1 if by_bytes else end)


def build(seed: int, *, is_pinterest: bool) -> World:
    dice = random.Random(seed)
    batches = produced(dice, dice.randrange(5, 60))
    while not batches:
        batches = produced(dice, 20)
    world = World(MadeArchive(is_pinterest=is_pinterest))
    line = list(cut(dice, batches, by_bytes=is_pinterest))
    last = dice.randrange(len(line))
    stored = [
        segment for number, segment in enumerate(line) if number == last or dice.random() < 0.85
    ]
    for segment in stored:
        store(world, segment)
    named = line[last]
    taken = {segment.base for segment in line}
    if is_pinterest:
        # Without notes, a segment whose first batch is at the base of the next one may
        # have the bytes of another segment: its offsets are reported as missing.
        taken.add(batches[0].first)
    for stray in orphan_segments(dice, batches, taken):
        store(world, stray)
        stored.append(stray)
    world.end = named.end if not is_pinterest else pinterest_end(stored, named.base)
    world.segments = [
        segment
        for segment in stored
        if segment.base < world.end
        and segment.base <= (named.base if not is_pinterest else world.end)
    ]
    world.archive.mark(named.base, named.end)
    world.start = min((segment.base for segment in world.segments), default=world.end)
    record_gaps(dice, world)
    return world


def store(world: World, one: Segment) -> None:
    world.archive.segment(one.base, encoded(one.batches), one.end)


def orphan_segments(
    dice: random.Random, batches: list[MadeBatch], taken: set[int]
) -> Iterator[Segment]:
    """Yield segments of the same records with bases that another leader chose."""
    for _ in range(dice.randrange(3)):
        low = dice.randrange(len(batches))
        segment_batches = batches[low : low + dice.randrange(1, 8)]
        if segment_batches[0].first not in taken:
            taken.add(segment_batches[0].first)
            yield Segment(segment_batches[0].first, segment_batches, segment_batches[-1].last + 1)


def pinterest_end(segments: list[Segment], named: int) -> int:
    below = [segment for segment in segments if segment.base <= named]
    end = max(below, key=lambda segment: segment.base).end if below else 0
    for segment in sorted(segments, key=lambda segment: segment.base):
        if segment.base > named:
            if segment.base > end:
                break
            end = max(end, segment.end)
    return end


def record_gaps(dice: random.Random, world: World) -> None:
    missing = [o for o in range(world.start, world.end) if not world.covered(o)]
    runs = [(first, last + 1) for first, last in _runs(missing) if dice.random() < 0.5]
    for first, end in runs:
        world.archive.gap(first, end)
    world.gaps = runs


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    if not numbers:
        return
    first = before = numbers[0]
    for number in numbers[1:]:
        if number != before + 1:
            yield first, before
            first = number
        before = number
    yield first, before


def store_transaction_indexes(world: World, line: list[Segment]) -> None:
    """Store the producer snapshot and transaction index that a broker has for each segment."""
    still_open: dict[int, int] = {}
    for segment in line:
        before, aborted = dict(still_open), []
        for batch in segment.batches:
            producer = batch.producer_id
            if not batch.is_transactional:
                continue
            if not batch.is_control:
                still_open.setdefault(producer, batch.first)
                continue
            first = still_open.pop(producer, None)
            if first is not None and (batch.records[0].key or b"")[3] == 0:
                stable = min([batch.first + 1, *still_open.values()])
                aborted.append(
                    AbortedTxn(producer, Offset(first), Offset(batch.first), Offset(stable))
                )
        world.archive.transaction_indexes(segment.base, aborted, before)
