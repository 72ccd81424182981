"""Plan the copies of topics: what is created, changed or refused. Pure, no I/O."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from uuid import UUID

from sidetier.mirror.topics.rules import (
    APPEND_TIME,
    CREATE_TIME,
    MAX_MESSAGE_BYTES,
    NOT_COPIED,
    SEGMENT_BYTES,
    TIMESTAMP_TYPE,
    Lineage,
    decode_lineage,
    loop_problem,
    may_restart,
    partition_problem,
    progress_problem,
    records_problem,
    timestamp_problem,
)
from sidetier.segments.offsets import TopicPartition
from sidetier.wire.cluster import TopicMetadata
from sidetier.wire.requests import CommittedOffset


@dataclass(frozen=True, slots=True)
class SourceTopic:
    """A source topic: number of partitions, settings that are set on the topic, and id.

    `problem` is the reason why the topic cannot be copied, if the source itself has one.
    """

    partitions: int
    settings: Mapping[str, str]
    topic_id: UUID | None = None
    problem: str | None = None


class CopySettings(StrEnum):
    """Which copies get the settings of their source topic."""

    NONE = "none"
    ONCE = "once"
    """Copies that the mirror creates, at creation."""
    SYNC = "sync"
    """All copies, again whenever a setting is changed on either side."""


@dataclass(frozen=True, slots=True)
class CatalogOptions:
    """How topics are created, and which problems are accepted.

    Attributes:
        create: Whether missing topics are created on the target.
        replication_factor: Replication factor of created topics; -1 for the target's default.
        settings: Which copies get the settings that are set on the source topic.
        accept_log_append_time: Whether a target topic may replace timestamps.
        accept_records: Whether a target topic without progress may have records.
        raise_partitions: Whether a copy gets more partitions when its source topic does.
        restart_recreated: Whether a copy is deleted and created again when its source topic was.
        refuse_loops: Whether copies are refused that would feed a cluster its own records.
    """

    create: bool = True
    replication_factor: int = -1
    settings: CopySettings = CopySettings.ONCE
    accept_log_append_time: bool = False
    accept_records: bool = False
    raise_partitions: bool = True
    restart_recreated: bool = False
    refuse_loops: bool = True


@dataclass(frozen=True, slots=True)
class PlannedCopy:
    """The plan for one topic: its copy, and the changes of `copies`, or why it is refused.

    Attributes:
        source: The source topic.
        target: The name of its copy.
        partitions: Number of partitions of the source topic.
        lineage: The lineage of the copy, with the current ids of the topics.
        settings: Settings with which the target topic is created.
        exists: Whether the target topic exists and stays.
        problem: Why the topic cannot be copied; None if it can.
        source_id: Kafka's id of the source topic.
        added_partitions: Number of partitions to add to an existing target topic.
        changed_settings: Settings to set on an existing target topic.
    """

    source: str
    target: str
    partitions: int
    lineage: Lineage
    settings: Mapping[str, str]
    exists: bool
    problem: str | None = None
    source_id: UUID | None = None
    added_partitions: int = 0
    changed_settings: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[int, Lineage] = field(default_factory=dict)
    """The lineages stored with the progress, by partition number."""
    replaces: UUID | None = None
    """The id of an existing target topic to delete first, because the copy begins again."""
    former: Mapping[TopicPartition, CommittedOffset] = field(default_factory=dict)
    """Progress of a target topic that was or will be deleted; brokers delete it after the topic."""
    max_batch_bytes: int | None = None
    """Maximum size of a batch in an existing target topic; None if unknown."""


@dataclass(frozen=True, slots=True)
class TargetState:
    """The target cluster before anything is changed.

    Attributes:
        cluster_id: Kafka's id of the cluster; "" if the brokers have none.
        topics: The topics that exist and have the name of a copy.
        settings: The effective settings of these topics.
        progress: The progress of the mirror.
        with_records: The topics that have a partition with records but without progress.
        problems: Why topics cannot be described, by topic.
    """

    cluster_id: str
    topics: Mapping[str, TopicMetadata]
    settings: Mapping[str, Mapping[str, str]]
    progress: Mapping[TopicPartition, CommittedOffset]
    with_records: Collection[str]
    problems: Mapping[str, str] = field(default_factory=dict)


def plan_copy(
    topic: SourceTopic, target: str, lineage: Lineage, state: TargetState, options: CatalogOptions
) -> PlannedCopy:
    """Plan the copy of one topic.

    Args:
        topic: The source topic.
        target: The name of its copy.
        lineage: The lineage of the copy, without ids.
        state: The target cluster.
        options: How topics are created, and which problems are accepted.
    """
    existing = state.topics.get(target)
    lineage = replace(
        lineage,
        source_id=text_of(topic.topic_id),
        target_id=None if existing is None else text_of(existing.topic_id),
    )
    progress = {tp: state.progress[tp] for tp in state.progress if tp.topic == target}
    replaces = _replaced_id(existing, lineage, progress, options)
    wanted = _wanted_settings(topic, options)
    planned = PlannedCopy(
        lineage.topic,
        target,
        topic.partitions,
        lineage,
        wanted,
        exists=existing is not None and replaces is None,
        source_id=topic.topic_id,
        replaces=replaces,
    )
    loop = None
    if options.refuse_loops:
        loop = loop_problem(lineage, target, state.cluster_id)
    if existing is None or replaces is not None:
        missing = None
        if not options.create:
            missing = f"topic {target} does not exist on the target"
        return replace(planned, problem=topic.problem or loop or missing, former=progress)
    effective = state.settings.get(target, {})
    count = len(existing.partitions)
    kept = _kept(progress, partitions_of(target, count))
    # Without progress, the topic may be another one with the same name: nothing is added to it.
    adds = bool(kept) and topic.partitions > count and options.raise_partitions
    problems = (
        topic.problem,
        state.problems.get(target),
        loop,
        _progress_problem(lineage, kept.values(), target),
        None if adds else partition_problem(lineage.topic, target, topic.partitions, count),
        records_problem(lineage.topic, target) if target in state.with_records else None,
        _timestamp_problem(target, effective, options),
    )
    return replace(
        planned,
        problem=next(filter(None, problems), None),
        added_partitions=topic.partitions - count if adds else 0,
        changed_settings=_changed_settings(wanted, effective, options),
        kept=kept,
        max_batch_bytes=max_batch_bytes(effective),
    )


def new_topic_problem(
    target: str, effective: Mapping[str, str], options: CatalogOptions
) -> str | None:
    """Return why a topic must not be created with these effective settings; None if it may."""
    if _timestamp_problem(target, effective, options) is None:
        return None
    return (
        f"topic {target} on the target would have {TIMESTAMP_TYPE}={APPEND_TIME}, the default of "
        "its brokers, which replaces each record's timestamp: create the topic with "
        f"{TIMESTAMP_TYPE}={CREATE_TIME}, or accept that with --accept-log-append-time"
    )


def max_batch_bytes(settings: Mapping[str, str]) -> int | None:
    """Return the maximum size of a batch that a topic takes; None if the settings do not tell it.

    Args:
        settings: The effective settings of the topic.
    """
    sizes = [settings[name] for name in (MAX_MESSAGE_BYTES, SEGMENT_BYTES) if name in settings]
    return min(map(int, sizes), default=None)


def _wanted_settings(topic: SourceTopic, options: CatalogOptions) -> dict[str, str]:
    """Return the settings of the copy that come from the source topic."""
    if options.settings is CopySettings.NONE:
        return {}
    wanted = {name: value for name, value in topic.settings.items() if name not in NOT_COPIED}
    if wanted.get(TIMESTAMP_TYPE) == APPEND_TIME and not options.accept_log_append_time:
        wanted[TIMESTAMP_TYPE] = CREATE_TIME  # the copy keeps the timestamps of the source's broker
    return wanted


def _timestamp_problem(
    target: str, settings: Mapping[str, str], options: CatalogOptions
) -> str | None:
    if options.accept_log_append_time:
        return None
    return timestamp_problem(target, settings)


def _replaced_id(
    existing: TopicMetadata | None,
    lineage: Lineage,
    progress: Mapping[TopicPartition, CommittedOffset],
    options: CatalogOptions,
) -> UUID | None:
    """Return the id of the target topic to delete first; None if it stays."""
    if existing is None or not options.restart_recreated:
        return None
    if not may_restart(lineage, _kept(progress, progress).values()):
        return None
    return existing.topic_id


def _changed_settings(
    wanted: Mapping[str, str], effective: Mapping[str, str], options: CatalogOptions
) -> dict[str, str]:
    if options.settings is not CopySettings.SYNC:
        return {}
    return {
        name: value
        for name, value in wanted.items()
        if effective.get(name) != value
        and (name != TIMESTAMP_TYPE or options.accept_log_append_time)
    }


def _kept(
    progress: Mapping[TopicPartition, CommittedOffset], partitions: Iterable[TopicPartition]
) -> dict[int, Lineage]:
    lineages = {
        tp.partition: decode_lineage(progress[tp].metadata) for tp in partitions if tp in progress
    }
    return {number: lineage for number, lineage in lineages.items() if lineage is not None}


def _progress_problem(lineage: Lineage, kept: Iterable[Lineage], target: str) -> str | None:
    for noted in kept:
        problem = progress_problem(lineage, noted, target)
        if problem is not None:
            return problem
    return None


def partitions_of(topic: str, count: int) -> list[TopicPartition]:
    """Return the partitions of a topic."""
    return [TopicPartition(topic, number) for number in range(count)]


def text_of(topic_id: UUID | None) -> str | None:
    """Return the text of a topic id; None if the brokers have none."""
    return None if topic_id is None else str(topic_id)
