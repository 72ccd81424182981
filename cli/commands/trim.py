"""`sidetier trim`: one pass of local retention, or what it would delete."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Final

from sidetier.cli import exits, kernel
from sidetier.cli.arguments import most_lines, size_text, topic_name
from sidetier.cli.inspect.cluster import need_cluster
from sidetier.cli.inspect.local_retention import ArchiveAt, led_partition, trim_json
from sidetier.cli.invocation import Invocation
from sidetier.cli.options import CONFIGURATION, OUTPUT, option, options
from sidetier.cli.output import Cell, OutputFormat, Table
from sidetier.cli.stores import open_archive, told_waits
from sidetier.cli.wiring import check_archive, identify, record_deleter, topic_config_source
from sidetier.config.model import Config
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import BrokerId, TopicPartition
from sidetier.segments.properties import MetaProperties
from sidetier.uploader.clock import SYSTEM_CLOCK
from sidetier.uploader.trim.archive_check import LedPartition
from sidetier.uploader.trim.decision import EXPECTED_HINDRANCES, Trim
from sidetier.uploader.trim.trimmer import AT_ONCE, CHECK_THREADS, GroupBehind, Survey, Trimmer
from sidetier.uploader.watching.disk import find_partitions

_MAX_ROWS: Final = 40


@dataclass(frozen=True, slots=True)
class TrimResult:
    """The result of a pass.

    Attributes:
        broker_id: This host's broker.
        dry_run: Whether nothing was deleted.
        led: Number of partitions with local retention that the broker leads.
        trims: The partitions with records beyond local retention.
        groups_behind: The consumer groups that are behind the new log starts.
        notes: Further lines for the output.
    """

    broker_id: BrokerId
    dry_run: bool
    led: int
    trims: tuple[Trim, ...]
    groups_behind: tuple[GroupBehind, ...]
    notes: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """FINDINGS if records stay for a reason that an operator should know."""
        is_held = any(
            trim.held and trim.held.hindrance not in EXPECTED_HINDRANCES for trim in self.trims
        )
        return exits.FINDINGS if is_held else exits.OK

    def as_json(self) -> object:
        """Return the totals, and every partition with records beyond local retention."""
        return {
            "broker_id": self.broker_id,
            "dry_run": self.dry_run,
            "led_partitions": self.led,
            "bytes": sum(trim.size for trim in self.trims),
            "excess_bytes": sum(trim.excess for trim in self.trims),
            "topics": [
                {"topic": topic, "partitions": count, "bytes": size, "excess_bytes": excess}
                for topic, count, size, excess in self._topics()
            ],
            "partitions": [trim_json(trim) for trim in self.trims],
            "groups_behind": [
                {
                    "group": entry.group,
                    "topic": entry.topic_partition.topic,
                    "partition": entry.topic_partition.partition,
                    "committed_offset": entry.committed,
                    "log_start_offset": entry.log_start,
                }
                for entry in self.groups_behind
            ],
            "notes": list(self.notes),
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each topic, the partitions that are held, and the groups."""
        size, count = sum(trim.size for trim in self.trims), len(self.trims)
        verb = "would be deleted" if self.dry_run else "were deleted"
        footer = (
            f"{size_text(size)} {verb} from {count} of the {self.led} partitions with local "
            f"retention that broker {self.broker_id} leads"
        )
        rows = [
            (topic, count, size_text(size), size_text(excess))
            for topic, count, size, excess in self._topics()
        ]
        freed = "WOULD FREE" if self.dry_run else "FREED"
        columns = ("TOPIC", "PARTITIONS", freed, "STAYS BEYOND RETENTION")
        tables = [Table(columns if rows else (), rows, footer=footer)]
        held = [
            (str(trim.topic_partition), trim.excess, trim.held) for trim in self.trims if trim.held
        ]
        if held:
            tables.append(
                _limited(
                    ("PARTITION", "STAYS", "REASON", "DETAILS"),
                    [
                        (name, size_text(excess), reason.hindrance.value, reason.text)
                        for name, excess, reason in held
                    ],
                )
            )
        if self.groups_behind:
            tables.append(
                _limited(
                    ("GROUP BEHIND", "PARTITION", "COMMITTED", "LOG START"),
                    [
                        (entry.group, str(entry.topic_partition), entry.committed, entry.log_start)
                        for entry in self.groups_behind
                    ],
                )
            )
        return (*tables, *(Table((), footer=line) for line in most_lines(self.notes)))

    def _topics(self) -> Iterator[tuple[str, int, int, int]]:
        for topic in sorted({trim.topic_partition.topic for trim in self.trims}):
            trims = [trim for trim in self.trims if trim.topic_partition.topic == topic]
            yield topic, len(trims), sum(t.size for t in trims), sum(t.excess for t in trims)


def _limited(columns: tuple[str, ...], rows: Sequence[Sequence[Cell]]) -> Table:
    more = len(rows) - _MAX_ROWS
    footer = f"and {more} more: --output json has them all" if more > 0 else None
    return Table(columns, rows[:_MAX_ROWS], footer=footer)


def _led_partitions(
    config: Config, identity: MetaProperties, topics: Collection[str]
) -> tuple[Mapping[TopicPartition, str], tuple[str, ...]]:
    """Return the directories of the partitions that are to be trimmed, and notes.

    Raises:
        ConfigurationError: The brokers belong to another cluster than the log dirs.
    """

    def wanted(topic: str) -> bool:
        named = not topics or topic in topics
        return named and config.topics.selects(topic) and config.retention.local.selects(topic)

    found = find_partitions(map(str, config.log_dirs), wanted)
    cluster = need_cluster(config).map()
    if cluster.cluster_id != identity.cluster_id:
        raise ConfigurationError(
            f"broker.bootstrap_servers belong to Kafka cluster {cluster.cluster_id}, and the log "
            f"dirs to {identity.cluster_id}: check broker.bootstrap_servers and log_dirs"
        )
    partitions = cluster.partitions
    directories = {
        tp: directory
        for tp, directory in sorted(found.directories.items())
        if tp in partitions and partitions[tp].leader == identity.broker_id
    }
    return directories, tuple(found.problems)


def _with_archives(
    directories: Mapping[TopicPartition, str], places: Callable[[str], ArchiveAt]
) -> list[LedPartition]:
    """Read `offset.wm` of each partition, some at a time."""

    def read(tp: TopicPartition) -> LedPartition:
        place = places(tp.topic)
        return led_partition(tp, directories[tp], place.store, place.layout)

    with ThreadPoolExecutor(CHECK_THREADS, "trim") as helpers:
        return list(helpers.map(read, directories))


def _make_pass(
    trimmer: Trimmer, led: Sequence[LedPartition], *, dry_run: bool
) -> tuple[list[Trim], Survey]:
    by_partition = {partition.topic_partition: partition for partition in led}
    survey = trimmer.survey(led)
    trims = [trim for trim in survey.trims if not trim.size]
    wanted = [(by_partition[t.topic_partition], t) for t in survey.trims if t.size]
    # The broker deletes the records of some partitions while the archives of the next are verified.
    with ThreadPoolExecutor(1, "trim-delete") as deleting:
        deletions: list[Future[list[Trim]]] = []
        for start in range(0, len(wanted), AT_ONCE):
            verified = trimmer.verify(wanted[start : start + AT_ONCE])
            if dry_run:
                trims += [trim for _, trim in verified]
                continue
            if deletions:
                deletions[-1].result()  # no verified trim waits behind other deletions
            deletions.append(deleting.submit(trimmer.delete, verified))
        for deletion in deletions:
            trims += deletion.result()
    return sorted(trims, key=lambda trim: trim.topic_partition), survey


@options
class TrimOptions:
    """Options of `sidetier trim`."""

    dry_run: bool = option("--dry-run", help="Delete nothing: show what would be deleted.")
    topics: tuple[str, ...] = option(
        "--topic",
        parse=topic_name,
        help="Topic to trim; may be repeated.  [default: all topics of retention.local.topics]",
    )
    call: Invocation = CONFIGURATION
    output: OutputFormat = OUTPUT


@kernel.command("trim")
def command(options: TrimOptions) -> TrimResult:
    """Delete archived records at the start of the logs that this host's broker leads.

    The command makes one pass of local retention (retention.local), as the running sidecar does at
    each interval. It deletes closed segments that are beyond local retention, after the store has
    shown that it has them: with their checksums, under the leader epochs of the log, and up to the
    last stable offset of the archive. It lists the consumer groups whose committed offsets are
    below the new log starts. Run it with --dry-run before you enable local retention.

    \b
    Example:
      sidetier trim --dry-run --config /etc/sidetier/sidetier.yaml

    Exit codes: 0 done; 1 the broker or the store does not answer; 2 a setting is wrong, or local
    retention is off; 3 records beyond local retention stay, and the output has the reasons. Records
    that wait for the archive, for a protected group or for the rate limit do not count.
    """  # noqa: D301 -- \b is click's marker and must be one character
    config, topics = options.call.load().config, options.topics
    local = config.retention.local
    if not local.enabled:
        raise ConfigurationError("retention.local.topics is not set: no topic has local retention")
    unknown = [topic for topic in topics if not local.selects(topic)]
    if unknown:
        raise ConfigurationError(
            f"--topic {unknown[0]}: retention.local.topics does not match this topic"
        )
    identity = identify(config)
    deleter, configs = record_deleter(config, identity), topic_config_source(config)
    if deleter is None or configs is None:  # the configuration's check has refused this
        raise ConfigurationError("broker.bootstrap_servers is not set")
    directories, notes = _led_partitions(config, identity, topics)
    with (
        told_waits() as calls,
        open_archive(config, connections=CHECK_THREADS, calls=calls) as archive,
    ):
        # A key with the right name and other bytes would show only when a record is read back.
        check_archive(config, archive, identity)
        places = cache(lambda topic: ArchiveAt(archive.store(topic), archive.layout))
        trimmer = Trimmer(local, deleter, configs, places, SYSTEM_CLOCK.wall, all_groups=True)
        led = _with_archives(directories, places)
        trims, survey = _make_pass(trimmer, led, dry_run=options.dry_run)
    ends = {trim.topic_partition: trim.end for trim in trims}
    behind = [
        entry._replace(log_start=ends[entry.topic_partition])
        for entry in sorted(survey.groups_behind)
        if entry.committed < ends[entry.topic_partition]
    ]
    if survey.groups_problem is not None:
        notes = (*notes, survey.groups_problem)
    return TrimResult(
        identity.broker_id, options.dry_run, len(led), tuple(trims), tuple(behind), notes
    )
