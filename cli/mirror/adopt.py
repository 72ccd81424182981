"""`sidetier mirror adopt`: continue a copy that another program has made.

Needs the packages of the extra `mirror`.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sidetier.cli import exits
from sidetier.cli.invocation import Invocation
from sidetier.cli.mirror.options import client_properties, topic_rules
from sidetier.cli.output import OutputFormat, Table, emit
from sidetier.mirror.adopt import (
    AdoptedPartition,
    CommittedAs,
    adopt_partition,
    next_offsets,
    progress_to_write,
    write_progress,
)
from sidetier.mirror.copy.engine import Copy
from sidetier.mirror.copy.target import KafkaTarget
from sidetier.mirror.offsets.groups import ClusterGroups, Groups
from sidetier.mirror.partition_log import ClusterLog
from sidetier.mirror.topics.catalog import BrokerTopics, Catalog
from sidetier.mirror.topics.planning import CatalogOptions, PlannedCopy
from sidetier.mirror.topics.rules import MirrorNames
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.wire.cluster import Cluster
from sidetier.wire.requests import list_groups
from sidetier.wire.settings import ClientSettings


@dataclass(frozen=True, slots=True)
class AdoptResult:
    """What was taken over; `written` is a number of partitions."""

    adopted: Sequence[AdoptedPartition]
    written: int
    dry_run: bool

    def as_json(self) -> object:
        """Return all partitions."""
        return {
            "dry_run": self.dry_run,
            "partitions_written": 0 if self.dry_run else self.written,
            "partitions": [
                {
                    "source_topic": partition.copy.source.topic,
                    "target_topic": partition.copy.target.topic,
                    "partition": partition.copy.source.partition,
                    "committed_next_offset": partition.committed,
                    "progress": partition.progress,
                    "verdict": partition.verdict.name.lower(),
                    "records_compared": partition.compared,
                    "possible_duplicates": partition.possible_duplicates,
                }
                for partition in self.adopted
            ],
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each partition."""
        rows = [
            (
                str(partition.copy.source),
                str(partition.copy.target),
                partition.committed,
                partition.progress,
                partition.compared,
                partition.possible_duplicates,
                partition.verdict.value,
            )
            for partition in self.adopted
        ]
        columns = (
            "SOURCE",
            "TARGET",
            "COMMITTED (NEXT)",
            "GOES ON AT",
            "RECORDS EQUAL",
            "POSSIBLE DUPLICATES",
            "RESULT",
        )
        if self.dry_run:
            footer = f"dry run: progress of {self.written} partitions would be written"
        else:
            footer = f"progress of {self.written} partitions was written"
        return (Table(columns, rows, footer=footer),)

    @property
    def exit_code(self) -> int:
        """FINDINGS if records may be copied twice."""
        return (
            exits.OK
            if all(partition.verdict.is_verified for partition in self.adopted)
            else exits.FINDINGS
        )


def adopt(call: Invocation, given: Mapping[str, Any], output: OutputFormat) -> int:
    """Write the progress of a new mirror that continues the old one's copy; return the exit code.

    Raises:
        ConfigurationError: A setting does not fit, or the old mirror runs; nothing was written.
        SidetierError: A cluster cannot be read or written.
    """
    config = call.load(needs_log_dirs=False).config if call.is_configured() else None
    source_settings = ClientSettings.from_properties(client_properties("source", given, config))
    target_settings = ClientSettings.from_properties(client_properties("target", given))
    with Cluster(source_settings) as source_cluster, Cluster(target_settings) as target_cluster:
        result = _adopted(source_cluster, target_cluster, given, CommittedAs(given["committed"]))
    emit(result, output)
    return result.exit_code


def _adopted(
    source: Cluster, target: Cluster, given: Mapping[str, Any], meaning: CommittedAs
) -> AdoptResult:
    names = MirrorNames(given["name"])
    rules = topic_rules(given["topics"] or (".*",), given["exclude"], given["rename"])
    options = CatalogOptions(
        create=False,
        accept_log_append_time=given["accept_log_append_time"],
        accept_records=True,  # the old mirror's records
    )
    catalog = Catalog(BrokerTopics(source), target, rules, names, options)
    groups = ClusterGroups(source)
    committed = groups.committed(given["group"])
    require_stopped(groups, given["group"])
    offsets = next_offsets(committed, meaning)
    logs = ClusterLog(source), ClusterLog(target)
    adopted = [
        adopt_partition(copy, offset, *logs, compare=given["compare"], search=given["search"])
        for copy, offset in copies_of(catalog.plan(), offsets, given["group"])
    ]
    progress = ClusterGroups(target).committed(names.group)
    missing = progress_to_write(adopted, progress)
    if missing and not given["dry_run"]:
        require_no_workers(target, names.group)
        # Again: the old mirror may have been started while the copies were compared.
        require_stopped(groups, given["group"])
        if groups.committed(given["group"]) != committed:
            raise ConfigurationError(
                f"group {given['group']} has committed other offsets meanwhile: the old mirror "
                "runs. Stop it, and try again"
            )
        catalog.create_offsets_topic()
        writer = KafkaTarget(target, names.group, f"{names.group}-adopt")
        write_progress(writer, missing, adopted, names.offsets_topic, time.time_ns() // 1_000_000)
    return AdoptResult(adopted, len(missing), given["dry_run"])


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
) -> list[tuple[Any, Offset]]:
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
