"""Take over from a mirror that has committed its progress on the source, without transactions.

Such a mirror (MirrorMaker 1, or a copier made of a consumer and a producer) may have produced
records beyond its last committed offset, or may have committed an offset before its records were
written. Therefore the last records of the target are searched on the source, and the progress is
set to the offset after the last copied record.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from sidetier.mirror.copy.engine import Copy, map_batch
from sidetier.mirror.copy.offset_map import MapChunk, Run, encode_map_record, joined
from sidetier.mirror.copy.target import KafkaTarget, OutgoingBatch, Target
from sidetier.mirror.offsets.groups import ClusterGroups, Groups
from sidetier.mirror.partition_log import ClusterLog, PartitionLog
from sidetier.mirror.topics.catalog import BrokerTopics, Catalog
from sidetier.mirror.topics.planning import CatalogOptions, PlannedCopy
from sidetier.mirror.topics.rules import MirrorNames, topic_rules
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.segments.records import Record
from sidetier.wire.cluster import Cluster
from sidetier.wire.requests import CommittedOffset, list_groups
from sidetier.wire.settings import ClientSettings

COMPARED_RECORDS: Final = 1000
SEARCHED_OFFSETS: Final = 1_000_000
_Contents = tuple[int, bytes | None, bytes | None]
"""Timestamp, key and value of a record."""


class CommittedAs(StrEnum):
    """Meaning of the old mirror's committed offset."""

    NEXT_OFFSET = "next-offset"
    LAST_RECORD = "last-record"


class Verdict(StrEnum):
    """How reliable the progress is."""

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
    """The progress to take over for one partition.

    Attributes:
        copy: Source partition and target partition.
        committed: The old mirror's committed offset, converted to the offset of the next record.
        progress: The source offset at which the new mirror continues.
        verdict: How reliable `progress` is.
        compared: Number of records, up to the last one, that are equal on both clusters.
        possible_duplicates: Maximum number of source offsets that are copied a second time. 0 if
            the progress is verified.
        runs: The offset map of the compared records.
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
    """Position of the target's last records on the source.

    Attributes:
        pairs: Source and target offset of each equal record, by ascending offset.
        end: The source offset after the last record that was copied.
        is_unique: False if the same records are in two places on the source.
    """

    pairs: tuple[tuple[Offset, Offset], ...]
    end: Offset
    is_unique: bool


def align(tail: Sequence[Record], source: Iterable[Record]) -> Alignment | None:
    """Find the last records of the target on the source; None if it does not have them.

    Two records are equal if they have the same timestamp, key and value. The best position is the
    one at which most of the tail's records, counted backwards from its last one, are equal. The
    whole tail need not match: an old mirror that was restarted has copied some records twice. If it
    was stopped before it reached the end of its former run, the records of the former run count as
    copied too.

    Args:
        tail: The last records of the target, by ascending offset; at least one.
        source: Records of the source, by ascending offset.
    """
    expected = [_contents(record) for record in tail]
    window: deque[tuple[Offset, _Contents]] = deque(maxlen=len(tail))
    best: tuple[Offset, ...] = ()
    end, is_unique = Offset(0), True
    former_run: Iterator[_Contents] = iter(())
    for record in source:
        contents = _contents(record)
        window.append((record.offset, contents))
        matching = tuple(_matching(window, expected))
        if len(matching) > len(best):
            best, end, is_unique = matching, Offset(record.offset + 1), True
            former_run = iter(_behind_former(expected, len(matching)))
        elif next(former_run, None) == contents:
            end = Offset(record.offset + 1)
        else:
            former_run = iter(())
        if best and len(matching) == len(best) and matching != best:
            is_unique = False
            if len(best) == len(tail):
                break  # two positions of the whole tail: no further record can decide between them
    if not best:
        return None
    targets = [record.offset for record in reversed(tail)]
    return Alignment(tuple(reversed(list(zip(best, targets, strict=False)))), end, is_unique)


def _behind_former(expected: Sequence[_Contents], matching: int) -> Sequence[_Contents]:
    """Return the records after the tail's last record in a former run that had copied it too.

    The last `matching` records belong to the last run. Returns no records if no former run has
    copied the last record.
    """
    last = len(expected) - 1
    former_runs = range(last - matching, -1, -1)
    former = next((at for at in former_runs if expected[at] == expected[last]), last)
    return expected[former + 1 :]


def _matching(
    window: deque[tuple[Offset, _Contents]], expected: Sequence[_Contents]
) -> Iterator[Offset]:
    """Yield the source offsets of the equal records, from the last one backwards."""
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
    """Determine where the copy of a partition continues.

    Args:
        copy: Source partition and target partition.
        committed: The old mirror's committed offset, as the offset of the next record.
        source: Reads the source.
        target: Reads the target.
        compare: Number of the target's last offsets to compare; 0 compares none.
        search: Number of source offsets from `committed` on in which they are searched.

    Raises:
        ConfigurationError: A topic does not exist, or the committed offset is beyond the source's
            end.
        MirrorError: A transaction stays open for too long.
        BrokerError: A broker refuses, or none answers.
    """
    source_log, target_log = source.offsets(copy.source), target.offsets(copy.target)
    if source_log is None or target_log is None:
        missing = f"{copy.source.topic} on the source" if source_log is None else copy.target.topic
        raise ConfigurationError(
            f"topic {missing} does not exist: the old mirror has copied to another name (--rename)"
        )
    if committed > source_log.end:
        raise ConfigurationError(
            f"{copy.source}: the old mirror's next offset is {committed}, and the source ends at "
            f"{source_log.end}: check the meaning of the committed offset (--committed); or the "
            "topic was created again"
        )
    # At most the offsets that are committed on the source and
    # not covered by the old offset are copied a second time.
    behind = Offset(max(source_log.last_stable - committed, 0))
    unverified = AdoptedPartition(copy, committed, committed, Verdict.NOT_COMPARED, 0, behind)
    if compare == 0:
        return unverified
    tail = list(
        target.read(copy.target, max(target_log.end - compare, target_log.start), target_log.end)
    )
    if not tail:
        return _of_empty_target(unverified, source_log.start, target_log.end)
    start = max(committed - compare, source_log.start)
    end = min(source_log.last_stable, committed + search)
    alignment = align(tail, source.read(copy.source, start, end))
    if alignment is None:
        return replace(unverified, verdict=Verdict.NOT_FOUND)
    if not alignment.is_unique:
        return replace(unverified, verdict=Verdict.AMBIGUOUS)
    return AdoptedPartition(
        copy,
        committed,
        alignment.end,
        Verdict.VERIFIED,
        len(alignment.pairs),
        0,
        joined(Run(at, to, 1) for at, to in alignment.pairs),
    )


def _of_empty_target(
    unverified: AdoptedPartition, source_start: Offset, target_end: Offset
) -> AdoptedPartition:
    """Handle a target without records: it never had one, or its records have expired."""
    if target_end == 0 and unverified.committed <= source_start:
        return replace(unverified, verdict=Verdict.NOTHING_COPIED, possible_duplicates=0)
    return replace(unverified, verdict=Verdict.NOT_FOUND)


def next_offsets(
    committed: Mapping[TopicPartition, CommittedOffset], meaning: CommittedAs
) -> dict[TopicPartition, Offset]:
    """Convert the old mirror's committed offsets to the offset of the next record."""
    more = 1 if meaning is CommittedAs.LAST_RECORD else 0
    return {tp: Offset(offset.offset + more) for tp, offset in committed.items()}


def progress_to_write(
    adopted: Iterable[AdoptedPartition], progress: Mapping[TopicPartition, CommittedOffset]
) -> dict[TopicPartition, CommittedOffset]:
    """Return the progress that is not yet on the target; empty if all was adopted before.

    Args:
        adopted: The partitions to take over.
        progress: The progress that the new mirror has on the target.

    Raises:
        ConfigurationError: The target has other progress; one line for each partition.
    """
    wanted = {
        adoption.copy.target: CommittedOffset(adoption.progress, metadata=adoption.copy.lineage)
        for adoption in adopted
    }
    different = [
        f"{tp}: the mirror's progress is source offset {progress[tp].offset}, the old mirror's is "
        f"{adoption.offset}"
        for tp, adoption in sorted(wanted.items())
        if tp in progress and progress[tp].offset != adoption.offset
    ]
    if different:
        raise ConfigurationError(
            "the mirror has progress of its own, which is kept: it has run since, or was adopted "
            "with other options. Use another --name, or delete its consumer group on the target if "
            "it has copied nothing\n" + "\n".join(different)
        )
    return {tp: adoption for tp, adoption in wanted.items() if tp not in progress}


def write_progress(
    target: Target,
    progress: Mapping[TopicPartition, CommittedOffset],
    adopted: Iterable[AdoptedPartition],
    offsets_topic: str,
    now_ms: int,
) -> None:
    """Write progress, and the offset map of the compared records, in one transaction.

    A kill leaves all of it or nothing. Repeating it changes nothing.

    Raises:
        BrokerError: The target refuses, or does not answer.
    """
    records = [
        encode_map_record(MapChunk(partition.copy.target, partition.runs, partition.copy.target_id))
        for partition in adopted
        if partition.runs and partition.copy.target in progress
    ]
    target.start()  # fences a mirror of this name that runs by mistake
    if records:
        tp = TopicPartition(offsets_topic, 0)
        batch = memoryview(map_batch(records, now_ms))
        target.send([OutgoingBatch(tp, batch, range(len(records)))])
        target.flush()
    target.commit(progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptRequest:
    """Which copy is taken over.

    Attributes:
        name: Name of the new mirror.
        group: Consumer group on the source whose offsets are the old mirror's progress.
        committed: Which offset the old mirror commits.
        topics: Regular expressions for whole names of source topics; empty for all of the group.
        exclude: Regular expressions of topics to leave out.
        rename: `PATTERN=NAME`: names of copies, in the old and the new mirror.
        accept_log_append_time: Take over also topics whose brokers replace the timestamps. Their
            records cannot be compared.
        compare: Last offsets of each target partition to compare with the source.
        search: Source offsets to search after the committed one.
        dry_run: Write nothing.
    """

    name: str
    group: str
    committed: CommittedAs = CommittedAs.NEXT_OFFSET
    topics: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    rename: tuple[str, ...] = ()
    accept_log_append_time: bool = False
    compare: int = COMPARED_RECORDS
    search: int = SEARCHED_OFFSETS
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class AdoptReport:
    """What was taken over, or with `dry_run` would be; `written` is a number of partitions."""

    adopted: Sequence[AdoptedPartition]
    written: int
    dry_run: bool


def adopt_copy(
    request: AdoptRequest, source: Mapping[str, str], target: Mapping[str, str]
) -> AdoptReport:
    """Write the progress of a new mirror that continues the old one's copy.

    Args:
        request: The copy.
        source: Properties of the source's Kafka client.
        target: Properties of the target's Kafka client.

    Raises:
        ConfigurationError: A setting does not fit, or the old mirror runs; nothing was written.
        SidetierError: A cluster cannot be read or written.
    """
    with (
        Cluster(ClientSettings.from_properties(source)) as source_cluster,
        Cluster(ClientSettings.from_properties(target)) as target_cluster,
    ):
        return _adopted(source_cluster, target_cluster, request)


def _adopted(source: Cluster, target: Cluster, request: AdoptRequest) -> AdoptReport:
    names = MirrorNames(request.name)
    rules = topic_rules(request.topics or (".*",), request.exclude, request.rename)
    options = CatalogOptions(
        create=False,
        accept_log_append_time=request.accept_log_append_time,
        accept_records=True,  # the old mirror's records
    )
    catalog = Catalog(BrokerTopics(source), target, rules, names, options)
    groups = ClusterGroups(source)
    committed = groups.committed(request.group)
    require_stopped(groups, request.group)
    offsets = next_offsets(committed, request.committed)
    logs = ClusterLog(source), ClusterLog(target)
    adopted = [
        adopt_partition(copy, offset, *logs, compare=request.compare, search=request.search)
        for copy, offset in copies_of(catalog.plan(), offsets, request.group)
    ]
    progress = ClusterGroups(target).committed(names.group)
    missing = progress_to_write(adopted, progress)
    if missing and not request.dry_run:
        require_no_workers(target, names.group)
        # Again: the old mirror may have been started while the copies were compared.
        require_stopped(groups, request.group)
        if groups.committed(request.group) != committed:
            raise ConfigurationError(
                f"group {request.group} has committed other offsets meanwhile: the old mirror "
                "runs. Stop it, and try again"
            )
        catalog.create_offsets_topic()
        with closing(KafkaTarget(target, names.group, f"{names.group}-adopt")) as writer:
            now_ms = time.time_ns() // 1_000_000
            write_progress(writer, missing, adopted, names.offsets_topic, now_ms)
    return AdoptReport(adopted, len(missing), request.dry_run)


def require_stopped(groups: Groups, group: str) -> None:
    """Refuse a group that has members, or that does not exist.

    Raises:
        ConfigurationError: The old mirror runs, or has another group.
    """
    members = groups.names()
    if group not in members:
        raise ConfigurationError(f"the source has no consumer group {group}")
    if members[group]:
        raise ConfigurationError(
            f"group {group} has members on the source: the old mirror runs. Stop it, and try again"
        )


def require_no_workers(target: Cluster, group: str) -> None:
    """Refuse to write progress while the new mirror runs.

    Raises:
        ConfigurationError: The progress group has members on the target.
    """
    progress_group = list_groups(target).get(group)
    if progress_group is not None and progress_group.has_members:
        raise ConfigurationError(
            f"group {group} has members on the target: the new mirror runs. Stop it, and try again"
        )


def copies_of(
    planned: Sequence[PlannedCopy], offsets: Mapping[TopicPartition, Offset], group: str
) -> list[tuple[Copy, Offset]]:
    """Return the copy of each partition with an offset that the old mirror committed, and that
    offset.

    Raises:
        ConfigurationError: The new mirror cannot copy one of the topics, or there is no such
            partition.
    """
    topics = {tp.topic for tp in offsets}
    problems = [
        topic.problem for topic in planned if topic.problem is not None and topic.source in topics
    ]
    if problems:
        raise ConfigurationError("\n".join(problems))
    copies = [
        (
            Copy(
                TopicPartition(topic.source, number),
                TopicPartition(topic.target, number),
                topic.lineage.encoded(),
            ),
            offsets[TopicPartition(topic.source, number)],
        )
        for topic in planned
        for number in range(topic.partitions)
        if TopicPartition(topic.source, number) in offsets
    ]
    if not copies:
        raise ConfigurationError(
            f"group {group} has committed no offset of a topic that --topic selects"
        )
    return copies
