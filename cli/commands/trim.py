"""`sidetier trim`: one pass of local retention, or what it would delete."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sidetier.cli import exits, kernel
from sidetier.cli.arguments import most_lines, size_text, topic_name
from sidetier.cli.inspect.local_retention import group_json, trim_json
from sidetier.cli.options import CommandOptions, option, options
from sidetier.cli.output import Table, first_rows
from sidetier.cli.stores import reporting_waits
from sidetier.uploader.trim.groups_behind import (
    CATCH_UP,
    READ_THE_ARCHIVE,
    WHO_SKIPS,
    GroupInTopic,
    in_topics,
)
from sidetier.uploader.trim.single_pass import TrimReport, TrimRequest
from sidetier.uploader.wiring import trim_once


@dataclass(frozen=True, slots=True)
class TrimResult:
    """View of a pass."""

    report: TrimReport

    @property
    def exit_code(self) -> int:
        """FINDINGS if records stay for a reason that an operator should know."""
        return exits.FINDINGS if self.report.is_held else exits.OK

    def as_json(self) -> object:
        """Return the totals, and every partition with records beyond local retention."""
        return {
            "broker_id": self.report.broker_id,
            "dry_run": self.report.dry_run,
            "led_partitions": self.report.led,
            "bytes": sum(trim.size for trim in self.report.trims),
            "excess_bytes": sum(trim.excess for trim in self.report.trims),
            "topics": [
                {"topic": topic, "partitions": count, "bytes": size, "excess_bytes": excess}
                for topic, count, size, excess in self._topics()
            ],
            "partitions": [trim_json(trim) for trim in self.report.trims],
            "groups_behind": [
                {
                    "group": entry.group,
                    **entry.topic_partition._asdict(),
                    "committed_offset": entry.committed,
                    "log_start_offset": entry.log_start,
                    "skipped_offsets": entry.skipped,
                }
                for entry in self.report.groups_behind
            ],
            "groups": [group_json(row) for row in self._groups()],
            "notes": list(self.report.notes),
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each topic, the partitions that are held, and the groups."""
        size, count = sum(trim.size for trim in self.report.trims), len(self.report.trims)
        verb = "would be deleted" if self.report.dry_run else "were deleted"
        footer = (
            f"{size_text(size)} {verb} from {count} of the {self.report.led} partitions with local "
            f"retention that broker {self.report.broker_id} leads"
        )
        rows = [
            (topic, count, size_text(size), size_text(excess))
            for topic, count, size, excess in self._topics()
        ]
        freed = "WOULD FREE" if self.report.dry_run else "FREED"
        topic_columns = ("TOPIC", "PARTITIONS", freed, "STAYS BEYOND RETENTION")
        tables = [Table(topic_columns if rows else (), rows, footer=footer)]
        held = [
            (str(t.topic_partition), size_text(t.excess), t.held.hindrance.value, t.held.text)
            for t in self.report.trims
            if t.held
        ]
        if held:
            tables.append(first_rows(("PARTITION", "STAYS", "REASON", "DETAILS"), held))
        groups = [
            (row.group, row.topic, row.partitions, row.skipped, row.members_text)
            for row in self._groups()
        ]
        if groups:
            columns = ("GROUP BEHIND", "TOPIC", "PARTITIONS", "SKIPS", "MEMBERS")
            tables.append(first_rows(columns, groups))
            change = f"To change it, {READ_THE_ARCHIVE}"
            change += f", or {CATCH_UP}." if self.report.dry_run else "."
            tables += [Table((), footer=WHO_SKIPS), Table((), footer=change)]
        return (*tables, *(Table((), footer=line) for line in most_lines(self.report.notes)))

    def _groups(self) -> list[GroupInTopic]:
        return in_topics(self.report.groups_behind, self.report.members)

    def _topics(self) -> Iterator[tuple[str, int, int, int]]:
        for topic in sorted({trim.topic_partition.topic for trim in self.report.trims}):
            trims = [trim for trim in self.report.trims if trim.topic_partition.topic == topic]
            yield topic, len(trims), sum(t.size for t in trims), sum(t.excess for t in trims)


@options
class TrimOptions(CommandOptions):
    """Options of `sidetier trim`."""

    dry_run: bool = option("--dry-run", help="Delete nothing: show what would be deleted.")
    topics: tuple[str, ...] = option(
        "--topic",
        parse=topic_name,
        help="Topic to trim; may be repeated.  [default: all topics of retention.local.topics]",
    )


@kernel.command("trim")
def command(options: TrimOptions) -> TrimResult:
    """Delete archived records at the start of the logs that this host's broker leads.

    The command makes one pass of local retention (retention.local), as the running sidecar does at
    each interval. It deletes closed segments that are beyond local retention, after the store has
    shown that it has them: with their checksums, under the leader epochs of the log, and up to the
    last stable offset of the archive. It lists the consumer groups whose committed offsets are
    below the new log starts, with their members: if they read from the brokers, they skip records.
    Run it with --dry-run before you enable local retention.

    \b
    Example:
      sidetier trim --dry-run --config /etc/sidetier/sidetier.yaml

    Exit codes: 0 done; 1 the broker or the store does not answer; 2 a setting is wrong, or local
    retention is off; 3 records beyond local retention stay, and the output has the reasons. Records
    that wait for the archive, for a protected group or for the rate limit do not count.
    """  # noqa: D301 -- \b is click's marker and must be one character
    config = options.call.load().config
    with reporting_waits() as calls:
        return TrimResult(trim_once(config, TrimRequest(options.topics, options.dry_run), calls))
