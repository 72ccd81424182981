"""Takes over from a mirror that has committed its progress on the source, outside of transactions.

Such a mirror (MirrorMaker 1, a copier made of a consumer and a producer) may have produced records
beyond the offset that it has committed last, or may have committed an offset before its records
were written. So the last records of the target are searched on the source: the progress is then set
exactly behind the last one that was copied.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from sidetier.mirror.engine import Copy, map_batch
from sidetier.mirror.offset_map import MapChunk, Run, encode_map_record, joined
from sidetier.mirror.partition_log import PartitionLog
from sidetier.mirror.target import OutgoingBatch, Target
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.segments.records import Record
from sidetier.wire.requests import CommittedOffset

COMPARED_RECORDS: Final = 1000
SEARCHED_OFFSETS: Final = 1_000_000
_Contents = tuple[int, bytes | None, bytes | None]
"""Timestamp, key and value of a record."""


class CommittedAs(StrEnum):
    """What the old mirror's committed offset means."""

    NEXT_OFFSET = "next-offset"
    LAST_RECORD = "last-record"


class Verdict(StrEnum):
    """How sure the progress is."""

    VERIFIED = "verified"
    NOTHING_COPIED = "verified: nothing was copied yet"
    NOT_FOUND = "not verified: the target's last records are not found on the source"
    AMBIGUOUS = "not verified: the target's last records are found more than once on the source"
    NOT_COMPARED = "not verified: not compared"

    @property
    def is_verified(self) -> bool:
        """Whether no record is lost or copied twice."""
        return self in {Verdict.VERIFIED, Verdict.NOTHING_COPIED}


@dataclass(frozen=True, slots=True)
class AdoptedPartition:
    """What is taken over of one partition.

    Attributes:
        copy: Source partition and target partition.
        committed: What the old mirror has committed, as the offset of the next record.
        progress: The source offset at which the new mirror goes on.
        verdict: How sure that is.
        compared: Number of records that are equal on both clusters, up to the last one.
        possible_duplicates: At most so many source offsets were copied already, and are copied
            again. 0 where the progress is verified.
        runs: Where the compared records are on the target.
    """

    copy: Copy
    committed: Offset
    progress: Offset
    verdict: Verdict
    compared: int = 0
    possible_duplicates: int = 0
    runs: tuple[Run, ...] = ()


@dataclass(frozen=True, slots=True)
class Alignment:
    """Where the last records of the target are on the source.

    Attributes:
        pairs: Source and target offset of each equal record, by rising offset.
        end: The source offset behind the last record that was copied.
        is_unique: False where the same records are in two places of the source.
    """

    pairs: tuple[tuple[Offset, Offset], ...]
    end: Offset
    is_unique: bool


def align(tail: Sequence[Record], source: Iterable[Record]) -> Alignment | None:
    """Find the last records of the target among those of the source; None where they are not.

    Records are equal that have the same timestamp, key and value. The place counts at which most of
    the tail's records, up to its last one, are equal one by one. The tail need not be found whole:
    an old mirror that has started again has copied some records twice. Where it was then stopped
    before it had caught up with itself, the records of its former run count as copied, too.

    Args:
        tail: Of the target, by rising offset; at least one record.
        source: Records of the source, by rising offset.
    """
    expected = [_contents(record) for record in tail]
    window: deque[tuple[Offset, _Contents]] = deque(maxlen=len(tail))
    best: tuple[Offset, ...] = ()
    end, is_unique = Offset(0), True
    former_run: Iterator[_Contents] = iter(())
    for record in source:
        contents = _contents(record)
        window.append((record.offset, contents))
        found = tuple(_matching(window, expected))
        if len(found) > len(best):
            best, end, is_unique = found, Offset(record.offset + 1), True
            former_run = iter(_behind_former(expected, len(found)))
        elif next(former_run, None) == contents:
            end = Offset(record.offset + 1)
        else:
            former_run = iter(())
        if best and len(found) == len(best) and found != best:
            is_unique = False
            if len(best) == len(tail):
                break  # nothing can tell them apart
    if not best:
        return None
    targets = [record.offset for record in reversed(tail)]
    return Alignment(tuple(reversed(list(zip(best, targets, strict=False)))), end, is_unique)


def _behind_former(expected: Sequence[_Contents], matching: int) -> Sequence[_Contents]:
    """What follows the tail's last record where a former run has copied it; empty where none has.

    The last `matching` records are those of the last run.
    """
    last = len(expected) - 1
    former_runs = range(last - matching, -1, -1)
    former = next((at for at in former_runs if expected[at] == expected[last]), last)
    return expected[former + 1 :]


def _matching(
    window: deque[tuple[Offset, _Contents]], expected: Sequence[_Contents]
) -> Iterator[Offset]:
    """The source offsets of the equal records, from the last one backwards."""
    for (offset, contents), wanted in zip(reversed(window), reversed(expected), strict=False):
        if contents != wanted:
            return
        yield offset


def _contents(record: Record) -> _Contents:
    return record.timestamp, record.key, record.value


def adopt_partition(
    copy: Copy,
    committed: Offset,
    source: PartitionLog,
    target: PartitionLog,
    *,
    compare: int = COMPARED_RECORDS,
    search: int = SEARCHED_OFFSETS,
) -> AdoptedPartition:
    """Find out where the copy of a partition goes on.

    Args:
        copy: Source partition and target partition.
        committed: What the old mirror has committed, as the offset of the next record.
        source: Reads the source.
        target: Reads the target.
        compare: Number of the target's last offsets to compare; 0 compares none.
        search: Number of source offsets from `committed` on in which they are searched.

    Raises:
        ConfigurationError: a topic does not exist, or the committed offset is beyond the source.
        MirrorError: a transaction stays open for too long.
        BrokerError: a broker refuses, or none answers.
    """
    there, written = source.offsets(copy.source), target.offsets(copy.target)
    if there is None or written is None:
        missing = f"{copy.source.topic} on the source" if there is None else copy.target.topic
        raise ConfigurationError(
            f"topic {missing} does not exist: the old mirror has copied to another name (--rename)"
        )
    if committed > there.end:
        raise ConfigurationError(
            f"{copy.source}: the old mirror's next offset is {committed}, and the source ends at "
            f"{there.end}: --committed says what the committed offset means; or the topic was "
            "created again"
        )
    behind = Offset(max(there.last_stable - committed, 0))
    unverified = AdoptedPartition(copy, committed, committed, Verdict.NOT_COMPARED, 0, behind)
    if compare == 0:
        return unverified
    tail = list(target.read(copy.target, max(written.end - compare, written.start), written.end))
    if not tail:
        return _of_empty_target(unverified, there.start, written.end)
    start = max(committed - compare, there.start)
    end = min(there.last_stable, committed + search)
    found = align(tail, source.read(copy.source, start, end))
    if found is None:
        return replace(unverified, verdict=Verdict.NOT_FOUND)
    if not found.is_unique:
        return replace(unverified, verdict=Verdict.AMBIGUOUS)
    return AdoptedPartition(
        copy,
        committed,
        found.end,
        Verdict.VERIFIED,
        len(found.pairs),
        0,
        joined(Run(at, to, 1) for at, to in found.pairs),
    )


def _of_empty_target(
    unverified: AdoptedPartition, source_start: Offset, target_end: Offset
) -> AdoptedPartition:
    """The target has no record: it never had one, or they have expired."""
    if target_end == 0 and unverified.committed <= source_start:
        return replace(unverified, verdict=Verdict.NOTHING_COPIED, possible_duplicates=0)
    return replace(unverified, verdict=Verdict.NOT_FOUND)


def next_offsets(
    committed: Mapping[TopicPartition, CommittedOffset], meaning: CommittedAs
) -> dict[TopicPartition, Offset]:
    """The offset of the next record of each partition that the old mirror has committed."""
    more = 1 if meaning is CommittedAs.LAST_RECORD else 0
    return {tp: Offset(one.offset + more) for tp, one in committed.items()}


def progress_to_write(
    adopted: Iterable[AdoptedPartition], progress: Mapping[TopicPartition, CommittedOffset]
) -> dict[TopicPartition, CommittedOffset]:
    """The progress that is not there yet; empty where all of it was taken over before.

    Args:
        adopted: What is taken over.
        progress: What the new mirror has on the target.

    Raises:
        ConfigurationError: other progress is there; one line for each partition.
    """
    wanted = {
        one.copy.target: CommittedOffset(one.progress, metadata=one.copy.lineage) for one in adopted
    }
    different = [
        f"{tp}: the mirror's progress is source offset {progress[tp].offset}, the old mirror's is "
        f"{one.offset}"
        for tp, one in sorted(wanted.items())
        if tp in progress and progress[tp].offset != one.offset
    ]
    if different:
        raise ConfigurationError(
            "the mirror has progress of its own, which is kept: it has run since, or was adopted "
            "with other options. Use another --name, or delete its consumer group on the target if "
            "it has copied nothing\n" + "\n".join(different)
        )
    return {tp: one for tp, one in wanted.items() if tp not in progress}


def write_progress(
    target: Target,
    progress: Mapping[TopicPartition, CommittedOffset],
    adopted: Iterable[AdoptedPartition],
    offsets_topic: str,
    now_ms: int,
) -> None:
    """Write progress, and the offset map of the compared records, in one transaction.

    What a kill leaves: nothing, or all of it. Repeating it changes nothing.

    Raises:
        BrokerError: the target refuses, or does not answer.
    """
    records = [
        encode_map_record(MapChunk(one.copy.target, one.runs, one.copy.target_id))
        for one in adopted
        if one.runs and one.copy.target in progress
    ]
    target.start()
    if records:
        tp = TopicPartition(offsets_topic, 0)
        batch = memoryview(map_batch(records, now_ms))
        target.send([OutgoingBatch(tp, batch, range(len(records)))])
        target.flush()
    target.commit(progress)
