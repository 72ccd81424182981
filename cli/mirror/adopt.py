"""`sidetier mirror adopt`: continue a copy that another program has made.

Needs the packages of the extra `mirror`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sidetier.cli import exits
from sidetier.cli.mirror.options import AdoptOptions, client_properties
from sidetier.cli.output import Columns, Table, table_of
from sidetier.mirror.adopt import (
    AdoptedPartition,
    AdoptReport,
    AdoptRequest,
    CommittedAs,
    adopt_copy,
)

_COLUMNS: Final[Columns[AdoptedPartition]] = {
    "SOURCE": lambda partition: str(partition.copy.source),
    "TARGET": lambda partition: str(partition.copy.target),
    "COMMITTED (NEXT)": lambda partition: partition.committed,
    "GOES ON AT": lambda partition: partition.progress,
    "RECORDS EQUAL": lambda partition: partition.compared,
    "POSSIBLE DUPLICATES": lambda partition: partition.possible_duplicates,
    "RESULT": lambda partition: partition.verdict.value,
}


@dataclass(frozen=True, slots=True)
class AdoptResult:
    """View of what was taken over."""

    report: AdoptReport

    def as_json(self) -> object:
        """Return all partitions."""
        return {
            "dry_run": self.report.dry_run,
            "partitions_written": 0 if self.report.dry_run else self.report.written,
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
                for partition in self.report.adopted
            ],
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each partition."""
        if self.report.dry_run:
            footer = f"dry run: progress of {self.report.written} partitions would be written"
        else:
            footer = f"progress of {self.report.written} partitions was written"
        return (table_of(self.report.adopted, _COLUMNS, footer),)

    @property
    def exit_code(self) -> int:
        """FINDINGS if records may be copied twice."""
        return (
            exits.OK
            if all(partition.verdict.is_verified for partition in self.report.adopted)
            else exits.FINDINGS
        )


def adopt(options: AdoptOptions) -> AdoptResult:
    """Continue the old mirror's copy with a new mirror."""
    call = options.call
    config = call.load(needs_log_dirs=False).config if call.is_configured() else None
    request = AdoptRequest(
        name=options.name,
        group=options.group,
        committed=CommittedAs(options.committed),
        topics=options.topics,
        exclude=options.exclude,
        rename=options.rename,
        accept_log_append_time=options.accept_log_append_time,
        compare=options.compare,
        search=options.search,
        dry_run=options.dry_run,
    )
    return AdoptResult(
        adopt_copy(
            request,
            client_properties("source", options.source, config),
            client_properties("target", options.target),
        )
    )
