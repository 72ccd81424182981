"""Restore a sample of the archive into topics of a given cluster, and compare it."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Final

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.objects.layout import read_note
from sidetier.mirror.copy.archive_source import ArchiveSource
from sidetier.mirror.copy.engine import Copy, Engine
from sidetier.mirror.copy.offset_map import OffsetMap
from sidetier.mirror.copy.source import KafkaSource, OnGap, SourceGap
from sidetier.mirror.copy.target import KafkaTarget
from sidetier.mirror.drill.given_cluster import (
    delete_drill,
    delete_left_over,
    new_run,
    topic_of,
    topics_of_run,
)
from sidetier.mirror.drill.run import DrilledPartition, LiveLog, compared_with_live
from sidetier.mirror.drill.sample import plan_of_sample
from sidetier.mirror.hydrate.digest import Digest
from sidetier.mirror.hydrate.plan import PlannedPartition
from sidetier.mirror.hydrate.verify import ArchiveSide, BrokerSide
from sidetier.mirror.offsets.translate import read_offset_map
from sidetier.mirror.restore.copy_check import ArchivedRecords, CopiedRange, check_copy
from sidetier.mirror.restore.plan import KEEPS_RECORDS, RestoreNote
from sidetier.mirror.topics.rules import Lineage, MirrorNames
from sidetier.segments.errors import (
    BrokerError,
    ConfigurationError,
    LeadershipError,
    SidetierError,
)
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition
from sidetier.wire.cluster import Cluster
from sidetier.wire.settings import ClientSettings
from sidetier.wire.topics import create_topic

_SETTINGS: Final[Mapping[str, str]] = {**KEEPS_RECORDS, "max.message.bytes": str(100 << 20)}
"""An archived batch may be larger than the cluster's default limit. 100 MiB is the largest request
that a broker accepts by default (`socket.request.max.bytes`).
"""


OnText = Callable[[str], None]


def ignore_text(_text: str) -> None:
    """Do nothing."""


def drill_on_cluster(  # noqa: PLR0913, PLR0917 -- each one is an input of its own
    archive: ArchiveAccess,
    sample: Sequence[PlannedPartition],
    properties: Mapping[str, str],
    replication_factor: int,
    left_over_age: float,
    live: LiveLog | None = None,
    on_step: OnText = ignore_text,
    on_warning: OnText = ignore_text,
) -> list[DrilledPartition]:
    """Restore the sample with the engine of `sidetier restore`, and compare it.

    The drill's topics are deleted when this call ends, also after an error. If the process is
    killed, a later drill deletes them.

    Args:
        archive: The archive to read.
        sample: The partitions to restore.
        properties: Client properties of the given cluster, in librdkafka's names.
        replication_factor: Replication factor of the drill's topics; -1 for the cluster's default.
        left_over_age: Age in seconds from which on topics of an earlier drill are deleted.
        live: The live brokers; None to compare nothing with them.
        on_step: Called with a message at each step.
        on_warning: Called with what an operator has to do.

    Returns:
        One result for each partition, in the order of the sample.

    Raises:
        ConfigurationError: The given cluster is the archived one.
        SidetierError: The cluster or the live brokers cannot be asked.
    """
    with Cluster(ClientSettings.from_properties(properties)) as cluster:
        _refuse_archived_cluster(archive, cluster)
        now = time.time_ns() / 1e9
        _delete_left_over(cluster, now, left_over_age, on_step, on_warning)
        names = new_run(now)
        with _drill_topics(
            cluster, names, sample, replication_factor, on_step, on_warning
        ) as copies:
            on_step(f"restoring {len(sample)} partitions into topics {names.group}-*")
            problems = _restore(archive, cluster, names, sample, copies)
            on_step("comparing")
            return _compare(archive, cluster, properties, names, sample, copies, problems, live)


def _refuse_archived_cluster(archive: ArchiveAccess, cluster: Cluster) -> None:
    note = read_note(archive.default_store, archive.layout)
    cluster_id = cluster.metadata(()).cluster_id
    if note is not None and cluster_id is not None and note.kafka_cluster_id == cluster_id:
        raise ConfigurationError(
            f"the given cluster {cluster_id} is the archived one: its sidecars would archive the "
            "drill's topics. Give another cluster, or none for a temporary broker"
        )


def _delete_left_over(
    cluster: Cluster, now: float, age: float, on_step: OnText, on_warning: OnText
) -> None:
    """Delete topics of earlier drills; a failure does not stop this drill."""
    try:
        left_over = delete_left_over(cluster, now, age)
    except BrokerError as error:
        on_warning(f"topics of earlier drills were not deleted: {error}")
        return
    for topic in left_over.deleted:
        on_step(f"deleted topic {topic} of a drill that was killed")
    for topic in left_over.unproven:
        on_warning(
            f"topic {topic} has the name of a drill's topic, but no progress proves that a drill "
            "has written its records: delete it if it is not needed"
        )


@contextmanager
def _drill_topics(
    cluster: Cluster,
    names: MirrorNames,
    sample: Sequence[PlannedPartition],
    replication_factor: int,
    on_step: OnText,
    on_warning: OnText,
) -> Iterator[Mapping[TopicPartition, TopicPartition]]:
    """Create the drill's topics, and yield the target of each sampled partition.

    The topics are deleted at the end, also after an error.
    """
    topics = plan_of_sample("", sample).topics
    targets = {topic: topic_of(names, number) for number, topic in enumerate(sorted(topics))}
    try:
        for topic, target in targets.items():
            count = topics[topic].partitions
            create_topic(cluster, target, count, replication_factor, _SETTINGS)
        create_topic(cluster, names.offsets_topic, 1, replication_factor, _SETTINGS)
        yield {
            plan.topic_partition: TopicPartition(targets[plan.topic], plan.partition)
            for plan in sample
        }
    finally:
        on_step("deleting the drill's topics")
        try:
            delete_drill(cluster, names.group, topics_of_run(cluster, names))
        except BrokerError as error:
            on_warning(
                f"topics {names.group}-* were not deleted: {error}; a later drill deletes them"
            )


def _restore(
    archive: ArchiveAccess,
    cluster: Cluster,
    names: MirrorNames,
    sample: Sequence[PlannedPartition],
    copies: Mapping[TopicPartition, TopicPartition],
) -> dict[TopicPartition, str]:
    """Copy each partition by itself, so that one that cannot be read does not stop the others.

    Returns:
        The problem of each partition that could not be restored.
    """
    ids = {
        topic.name: topic.topic_id
        for topic in cluster.metadata({target.topic for target in copies.values()}).topics.values()
    }
    problems = {}
    with closing(KafkaTarget(cluster, names.group, names.transactional_id())) as target:
        for plan in sample:
            tp = plan.topic_partition
            target_id = str(ids.get(copies[tp].topic) or "")
            lineage = Lineage(tp.topic, (archive.layout.cluster,), target_id=target_id or None)
            note = RestoreNote(lineage, Offset(plan.start)).encoded()
            copy = Copy(tp, copies[tp], note, target_id=target_id)
            try:
                gaps = _copy(archive, target, names, plan, copy)
            # Of the target, and so of every further partition.
            except (BrokerError, LeadershipError):
                raise
            except SidetierError as error:
                problems[tp] = f"{tp}: cannot be restored: {error}"
                continue
            for gap in gaps:
                if not any(start <= gap.start and gap.end <= end for start, end in plan.gaps):
                    problems[tp] = (
                        f"{tp}: cannot be restored: offsets {OffsetRange(gap.start, gap.end)} are "
                        f"in no segment and in no recorded gap: {gap.detail}"
                    )
    return problems


def _copy(
    archive: ArchiveAccess,
    target: KafkaTarget,
    names: MirrorNames,
    plan: PlannedPartition,
    copy: Copy,
) -> list[SourceGap]:
    """Copy the planned offsets; return the gaps in them."""
    source = KafkaSource(
        None,
        # As a drill on a temporary broker aborts transactions that are open at the sample's end.
        ArchiveSource(archive, abort_open=True),
        until={copy.source: Offset(plan.end)},
        on_gap=OnGap.SKIP,
    )
    engine = Engine(
        source,
        target,
        lambda: {copy.source: copy},
        lambda tps: dict.fromkeys(tps, Offset(plan.start)),
        offsets_topic=names.offsets_topic,
        refresh_seconds=None,
    )
    try:
        engine.run()
    finally:
        source.close()
    return engine.counts.gaps


class _ArchivedRecords:
    """RecordSource that reads the archive, for the comparison with the live brokers."""

    def __init__(self, archive: ArchiveSide) -> None:
        self._archive = archive

    def digest(self, plan: PlannedPartition, isolation: IsolationLevel) -> Digest:
        return self._archive.expected(plan)[isolation]


def _compare(  # noqa: PLR0913, PLR0917 -- both sides of the comparison, and what was copied
    archive: ArchiveAccess,
    cluster: Cluster,
    properties: Mapping[str, str],
    names: MirrorNames,
    sample: Sequence[PlannedPartition],
    copies: Mapping[TopicPartition, TopicPartition],
    problems: Mapping[TopicPartition, str],
    live: LiveLog | None,
) -> list[DrilledPartition]:
    """Compare each copy with the archive, and the archive with the live brokers."""
    maps = read_offset_map(cluster, names.offsets_topic, max_runs=sys.maxsize)
    source, brokers = ArchiveSource(archive), BrokerSide(properties)
    drilled = []
    with (
        closing(ArchivedRecords(archive)) as archived,
        closing(ArchiveSide(archive)) as every_record,
    ):
        for plan in sample:
            tp = plan.topic_partition
            if tp in problems:
                drilled.append(DrilledPartition(plan, problems=(problems[tp],)))
                continue
            end = Offset(plan.end)
            copied = CopiedRange(
                tp, copies[tp], Offset(plan.start), end, source.last_stable_offset(tp) or end
            )
            checked = check_copy(
                copied,
                maps.get(copies[tp], OffsetMap(())),
                Offset(0),
                archived.records(copied, source.view(tp)),
                brokers,
            )
            live_problems, live_text = compared_with_live(
                plan, _ArchivedRecords(every_record), live, "the archive"
            )
            drilled.append(
                DrilledPartition(
                    plan, checked.records, live_text, (*checked.problems, *live_problems)
                )
            )
    return drilled
