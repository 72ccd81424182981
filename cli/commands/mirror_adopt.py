"""`sidetier mirror adopt`: continue a copy that another program has made."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from sidetier.cli import exits
from sidetier.cli.extras import from_extra
from sidetier.cli.invocation import Invocation, configuration_options, invocation
from sidetier.cli.mirror.options import (
    LIBRARIES,
    client_properties,
    source_options,
    target_options,
    topic_rules,
)
from sidetier.cli.output import OutputFormat, Table, emit, output_option
from sidetier.segments.errors import ConfigurationError

if TYPE_CHECKING:
    from sidetier.mirror.adopt import AdoptedPartition, CommittedAs
    from sidetier.mirror.offsets.groups import Groups
    from sidetier.mirror.topics.planning import PlannedCopy
    from sidetier.segments.offsets import Offset, TopicPartition
    from sidetier.wire.cluster import Cluster


@click.command(name="adopt")
@click.option("--name", required=True, metavar="NAME", help="Name of the mirror that goes on.")
@click.option(
    "--group",
    required=True,
    metavar="GROUP",
    help="Consumer group on the source whose offsets are the old mirror's progress.",
)
@click.option(
    "--committed",
    type=click.Choice(["next-offset", "last-record"]),
    default="next-offset",
    show_default=True,
    help="Whether the old mirror has committed the offset of the next record, as consumers do, or "
    "that of the last record.",
)
@source_options
@target_options
@click.option(
    "--topic",
    "topics",
    metavar="PATTERN",
    multiple=True,
    help="Regular expression for whole names of source topics; repeatable.  [default: all topics "
    "of the group]",
)
@click.option(
    "--exclude",
    metavar="PATTERN",
    multiple=True,
    help="Regular expression for topics that are left out; repeatable.",
)
@click.option(
    "--rename",
    metavar="PATTERN=NAME",
    multiple=True,
    help="Name of the copies of topics that match, as the old mirror has named them and the new "
    "one will; repeatable.  [default: the source's name]",
)
@click.option(
    "--accept-log-append-time",
    is_flag=True,
    help="Take over topics whose brokers replace timestamps. Their records cannot be compared.",
)
@click.option(
    "--compare",
    type=click.IntRange(0),
    default=1000,
    show_default=True,
    metavar="OFFSETS",
    help="Last offsets of each target partition to compare with the source; 0 compares none.",
)
@click.option(
    "--search",
    type=click.IntRange(1),
    default=1_000_000,
    show_default=True,
    metavar="OFFSETS",
    help="Source offsets behind the committed one in which they are searched.",
)
@click.option("--dry-run", is_flag=True, help="Show the progress, and write none.")
@output_option
@configuration_options
@click.pass_context
def command(context: click.Context, /, output: OutputFormat, **given: Any) -> None:  # noqa: ANN401 -- click's values
    """Take over from a mirror that commits its progress on the source.

    For MirrorMaker 1, or a program that consumes and produces. Stop it first. The command searches
    the source for the last records of each target partition, by timestamp, key and value, and sets
    the new mirror's progress behind the last one that was copied: nothing is lost or copied twice,
    even if the old mirror has produced more than it has committed, or less. If it does not find
    them, the committed offset counts, and the result shows how many records may be copied twice.

    The command writes the progress on the target in one transaction. It never changes progress that
    exists, so you can repeat it.

    \b
    Example:
      sidetier mirror adopt --name dr --group old-copier --committed last-record \\
        --source bootstrap.servers=a:9092 --target bootstrap.servers=b:9092

    Exit codes: 0 done; 1 a failure; 2 a setting is wrong, the old mirror runs, or other progress
    exists, and nothing was written; 3 done, but some records may be copied twice.
    """  # noqa: D301 -- \b is click's mark, and must be one character
    call = invocation(context)
    context.exit(from_extra(lambda: _adopt(call, given, output), "mirror", LIBRARIES, "mirror"))


def _adopt(call: Invocation, given: Mapping[str, Any], output: OutputFormat) -> int:
    from sidetier.mirror.adopt import CommittedAs  # noqa: PLC0415 -- `--help` needs no Kafka
    from sidetier.wire.cluster import Cluster  # noqa: PLC0415
    from sidetier.wire.settings import ClientSettings  # noqa: PLC0415

    config = call.load().config if call.is_configured() else None
    source_settings = ClientSettings.from_properties(client_properties("source", given, config))
    target_settings = ClientSettings.from_properties(client_properties("target", given))
    with Cluster(source_settings) as source_cluster, Cluster(target_settings) as target_cluster:
        result = _adopted(source_cluster, target_cluster, given, CommittedAs(given["committed"]))
    emit(result, output)
    return result.exit_code


def _adopted(
    source: "Cluster", target: "Cluster", given: Mapping[str, Any], meaning: "CommittedAs"
) -> "_AdoptResult":
    from sidetier.mirror.adopt import (  # noqa: PLC0415
        adopt_partition,
        next_offsets,
        progress_to_write,
        write_progress,
    )
    from sidetier.mirror.copy.target import KafkaTarget  # noqa: PLC0415
    from sidetier.mirror.offsets.groups import ClusterGroups  # noqa: PLC0415
    from sidetier.mirror.partition_log import ClusterLog  # noqa: PLC0415
    from sidetier.mirror.topics.catalog import BrokerTopics, Catalog  # noqa: PLC0415
    from sidetier.mirror.topics.planning import CatalogOptions  # noqa: PLC0415
    from sidetier.mirror.topics.rules import MirrorNames  # noqa: PLC0415

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
        require_stopped(groups, given["group"])
        if groups.committed(given["group"]) != committed:
            raise ConfigurationError(
                f"group {given['group']} has committed other offsets meanwhile: the old mirror "
                "runs. Stop it, and try again"
            )
        catalog.create_offsets_topic()
        writer = KafkaTarget(target, names.group, f"{names.group}-adopt")
        write_progress(writer, missing, adopted, names.offsets_topic, time.time_ns() // 1_000_000)
    return _AdoptResult(adopted, len(missing), given["dry_run"])


def require_stopped(groups: "Groups", group: str) -> None:
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


def require_no_workers(target: "Cluster", group: str) -> None:
    """Refuse to write progress while the new mirror runs.

    Raises:
        ConfigurationError: The progress group has members on the target.
    """
    from sidetier.wire.requests import list_groups  # noqa: PLC0415

    progress_group = list_groups(target).get(group)
    if progress_group is not None and progress_group.has_members:
        raise ConfigurationError(
            f"group {group} has members on the target: the new mirror runs. Stop it, and try again"
        )


def copies_of(
    planned: "Sequence[PlannedCopy]", offsets: "Mapping[TopicPartition, Offset]", group: str
) -> "list[tuple[Any, Offset]]":
    """Return the copy of each partition with an offset that the old mirror committed, and that
    offset.

    Raises:
        ConfigurationError: The new mirror cannot copy one of the topics, or there is no such
            partition.
    """
    from sidetier.mirror.copy.engine import Copy  # noqa: PLC0415
    from sidetier.segments.offsets import TopicPartition  # noqa: PLC0415

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


@dataclass(frozen=True, slots=True)
class _AdoptResult:
    """What was taken over; `written` is a number of partitions."""

    adopted: "Sequence[AdoptedPartition]"
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
