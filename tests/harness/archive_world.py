"""Any archive of one partition, made by hand, and a plain model of what is true of it."""

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
    """`end` is where it ends for a reader: as noted, or, of Pinterest's uploader, as its bytes
    say.
    """

    base: int
    batches: list[MadeBatch]
    end: int


@dataclass(slots=True)
class World:
    """An archive, and all that is true of it."""

    archive: MadeArchive
    segments: list[Segment] = field(default_factory=list)
    """Those that may be read."""
    gaps: list[tuple[int, int]] = field(default_factory=list)
    start: int = 0
    end: int = 0

    def covered(self, offset: int) -> bool:
        return any(one.base <= offset < one.end for one in self.segments)

    def stored(self) -> list[MadeBatch]:
        """Every readable batch once, in order."""
        known = {batch.first: batch for one in self.segments for batch in one.batches}
        return [known[first] for first in sorted(known) if first < self.end]

    def expect(self, start: int, *, committed: bool) -> tuple[list[int], list[int], bool]:
        """The offsets that are handed out, those that are told to be missing, and whether the end
        is reached.
        """
        limit = self._limit(start) if committed else self.end
        shown = [
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
        return shown, missing, limit >= self.end

    @property
    def stable(self) -> int:
        """Where the first batch begins that no marker decides, else the end."""
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
        """Committed or not; None where no marker has come."""
        if not batch.is_transactional or batch.is_control:
            return True
        markers = (one for one in self.stored() if one.is_control and one.first > batch.first)
        own = (one for one in markers if one.producer_id == batch.producer_id)
        return next(((one.records[0].key or b"")[3] == 1 for one in own), None)


def produced(dice: random.Random, count: int) -> list[MadeBatch]:
    """What producers have written by turns; some offsets are gone (compaction)."""
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
    """Segments one behind the other; the next begins where the one before ends."""
    inner = sorted(dice.sample(range(1, len(batches)), min(dice.randrange(6), len(batches) - 1)))
    for low, high in pairwise([0, *inner, len(batches)]):
        some = batches[low:high]
        base = batches[low].first if low else 0
        end = batches[high].first if high < len(batches) else some[-1].last + 1
        yield Segment(base, some, some[-1].last + 1 if by_bytes else end)


def build(seed: int, *, is_pinterest: bool) -> World:
    dice = random.Random(seed)
    batches = produced(dice, dice.randrange(5, 60))
    while not batches:
        batches = produced(dice, 20)
    world = World(MadeArchive(is_pinterest=is_pinterest))
    line = list(cut(dice, batches, by_bytes=is_pinterest))
    last = dice.randrange(len(line))
    kept = [one for number, one in enumerate(line) if number == last or dice.random() < 0.85]
    for one in kept:
        store(world, one)
    named = line[last]
    for stray in orphan_segments(dice, batches, {one.base for one in line}):
        store(world, stray)
        kept.append(stray)
    world.end = named.end if not is_pinterest else pinterest_end(kept, named.base)
    world.segments = [
        one
        for one in kept
        if one.base < world.end and one.base <= (named.base if not is_pinterest else world.end)
    ]
    world.archive.mark(named.base, named.end)
    world.start = min((one.base for one in world.segments), default=world.end)
    record_gaps(dice, world)
    return world


def store(world: World, one: Segment) -> None:
    world.archive.segment(one.base, encoded(one.batches), one.end)


def orphan_segments(
    dice: random.Random, batches: list[MadeBatch], taken: set[int]
) -> Iterator[Segment]:
    """Other leaders' segments of the same records."""
    for _ in range(dice.randrange(3)):
        low = dice.randrange(len(batches))
        some = batches[low : low + dice.randrange(1, 8)]
        if some[0].first not in taken:
            taken.add(some[0].first)
            yield Segment(some[0].first, some, some[-1].last + 1)


def pinterest_end(segments: list[Segment], named: int) -> int:
    below = [one for one in segments if one.base <= named]
    end = max(below, key=lambda one: one.base).end if below else 0
    for one in sorted(segments, key=lambda one: one.base):
        if one.base > named:
            if one.base > end:
                break
            end = max(end, one.end)
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


def store_companions(world: World, line: list[Segment]) -> None:
    """What the broker has beside each segment."""
    still_open: dict[int, int] = {}
    for one in line:
        before, aborted = dict(still_open), []
        for batch in one.batches:
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
        world.archive.transaction_indexes(one.base, aborted, before)
