"""Output of the steps of `sidetier hydrate`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sidetier.archive.tail.survey import TailSurvey
from sidetier.cli import exits
from sidetier.cli.arguments import above_end_text, most_lines, size_text, time_text
from sidetier.cli.output import Columns, Result, Table, range_text, table_of
from sidetier.cli.tail import is_whole, partition_fields, partition_lines, problem_lines
from sidetier.config.problems import first_of
from sidetier.mirror.hydrate.consistent_cut import TransactionReport
from sidetier.mirror.hydrate.log_dir import Destination
from sidetier.mirror.hydrate.place import Journal, Placed
from sidetier.mirror.hydrate.plan import HydratePlan, PlannedPartition

if TYPE_CHECKING:
    from sidetier.mirror.hydrate.finish import OpenTransaction
    from sidetier.mirror.hydrate.steps import FinishReport, ReplicateReport, VerifyTopicsReport
    from sidetier.mirror.hydrate.verify import Verified

_MAX_IDS: Final = 10


@dataclass(frozen=True, slots=True)
class PlanResult:
    """The restored and the lost offsets of a plan.

    Attributes:
        file: The plan's file; None with --dry-run.
        is_unproven: Whether transactions should be whole, and some may be cut.
        tails: The tails as they were before the plan, which has promoted them unless `file` is
            None; None with --no-tail.
    """

    plan: HydratePlan
    file: str | None
    is_unproven: bool = False
    tails: TailSurvey | None = None

    @property
    def exit_code(self) -> int:
        """FINDINGS if records in gaps are lost, or a transaction may be cut."""
        gaps = any(partition.gaps for partition in self.plan.partitions)
        has_lost = self.tails is not None and not is_whole(self.tails)
        return exits.FINDINGS if gaps or self.is_unproven or has_lost else exits.OK

    def as_json(self) -> object:
        """Return the plan without the names of segments."""
        return {
            "plan_id": self.plan.plan_id,
            "cluster": self.plan.cluster,
            "file": self.file,
            "until_ms": self.plan.until_ms,
            "transactions": None
            if self.plan.transactions is None
            else asdict(self.plan.transactions) | {"are_whole": self.plan.has_whole_transactions},
            "bytes": self.plan.size,
            "partitions": [
                {
                    **asdict(partition),
                    "segments": len(partition.segments),
                    "bytes": partition.size,
                    "records_in_gaps": _in_gaps(partition),
                    "left_out": partition.archive_end - partition.end,
                }
                for partition in self.plan.partitions
            ],
            "tails": None
            if self.tails is None
            else {
                "promoted": self.file is not None,
                "partitions": [
                    partition_fields(tail, (self.plan.planned_ms or 0) / 1000)
                    for tail in self.tails.partitions
                ],
                "problems": dict(self.tails.problems),
            },
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each partition, and an explanation of the losses."""
        tails = () if self.tails is None else self.tails.partitions
        from_tail = {tail.tp: tail.offsets for tail in tails if tail.offsets}
        columns: Columns[PlannedPartition] = {
            "TOPIC": lambda partition: partition.topic,
            "PARTITION": lambda partition: partition.partition,
            "OFFSETS": lambda partition: range_text(partition.start, partition.end),
            "SEGMENTS": lambda partition: len(partition.segments),
            "SIZE": lambda partition: size_text(partition.size),
            "LEFT OUT": lambda partition: partition.archive_end - partition.end or None,
            "IN GAPS": lambda partition: _in_gaps(partition) or None,
            "ARCHIVED UNTIL": lambda partition: time_text(partition.last_timestamp_ms),
            "FROM THE TAIL": lambda partition: from_tail.get(partition.topic_partition),
        }
        end = "not written (--dry-run)" if self.file is None else f"written to {self.file}"
        footer = (
            f"{len(self.plan.partitions)} partitions, {size_text(self.plan.size)}; plan {end}\n"
            "Lost: records after the last archived segment (ARCHIVED UNTIL is its largest "
            "timestamp), and records in gaps (IN GAPS, offsets). LEFT OUT are archived offsets "
            "that --until or --transaction-consistent cuts off."
        )
        above = [
            above_end_text(partition.topic_partition, partition.above_end, partition.archive_end)
            for partition in self.plan.partitions
            if partition.above_end
        ]
        footer = "\n".join([footer, *most_lines(above), *self._tail_lines()])
        if self.plan.transactions is not None:
            lines = _transaction_lines(self.plan.transactions)
            if self.plan.has_whole_transactions:
                lines.append("Every restored transaction is whole.")
            elif self.plan.transactions.is_proven:
                lines.append("Not guaranteed: transactions with records in gaps are not whole.")
            footer = "\n".join([footer, *lines])
        return (table_of(self.plan.partitions, columns, footer, optional=("FROM THE TAIL",)),)

    def _tail_lines(self) -> list[str]:
        if self.tails is None:
            return ["Tail packs were not looked for (--no-tail)."]
        tails = [tail for tail in self.tails.partitions if tail.has_records]
        lines = [*partition_lines(self.tails), *problem_lines(self.tails)]
        if tails:
            offsets = sum(tail.offsets for tail in tails)
            what = "only tail packs have" if self.file is None else "tail packs had"
            then = (
                "not in this plan yet: without --dry-run, they are promoted before"
                if self.file is None
                else "now archived, and part of OFFSETS"
            )
            lines.append(
                f"FROM THE TAIL: {offsets} offsets of {len(tails)} partitions, which {what}, are "
                f"{then}."
            )
        return lines


def _transaction_lines(report: TransactionReport) -> list[str]:
    """Describe the parts that were left out so that no transaction is half restored, and the
    missing guarantees.
    """
    lines = [
        f"{cut.partition} ends at {cut.end}, not at {cut.requested}: the archive does not show "
        f"that the transaction of producer {cut.producer_id}, epoch {cut.producer_epoch}, is "
        f"committed below the end of {cut.not_committed_in}"
        for cut in report.lowered
    ]
    if report.version_1_producers:
        ids = first_of(report.version_1_producers, _MAX_IDS)
        lines.append(
            f"Not guaranteed: producers {ids} use transactions of version 1. Which of their "
            "markers in two partitions belong together is not known. Their last transactions may "
            "be half restored."
        )
    if report.unproven_producers:
        ids = first_of(report.unproven_producers, _MAX_IDS)
        lines.append(
            f"Not guaranteed: {report.unproven_transactions} transactions of producers {ids} may "
            "have records in partitions that were not archived up to their time. A plan with "
            f"--until {time_text(report.proven_until_ms)} has none of them."
        )
    return lines


def _in_gaps(partition: PlannedPartition) -> int:
    return sum(end - start for start, end in partition.gaps)


@dataclass(frozen=True, slots=True)
class PreparedResult(Result):
    """Topics that were created, or would be."""

    plan: HydratePlan
    topics: Sequence[str]
    dry_run: bool

    def as_json(self) -> object:
        """Return all topics."""
        return {
            "dry_run": self.dry_run,
            "kafka_cluster_id": self.plan.kafka_cluster_id,
            "topics": [
                {
                    "topic": name,
                    "partitions": self.plan.topics[name].partitions,
                    "brokers": self._brokers(name),
                }
                for name in self.topics
            ],
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each topic, and the next step."""
        columns: Columns[str] = {
            "TOPIC": lambda name: name,
            "PARTITIONS": lambda name: self.plan.topics[name].partitions,
            "BROKERS": lambda name: (
                ", ".join(map(str, sorted(set(self._brokers(name) or ())))) or None
            ),
        }
        after = (
            "nothing was created (--dry-run)"
            if self.dry_run
            else "next: stop every broker cleanly, copy the plan to each broker's host, and run "
            "`sidetier hydrate place` there"
        )
        return (table_of(self.topics, columns, after),)

    def _brokers(self, name: str) -> list[int] | None:
        return None if self.dry_run else list(self.plan.prepared[name].brokers)


@dataclass(frozen=True, slots=True)
class DestinationsResult(Result):
    """Partitions that `place --dry-run` would place."""

    wanted: Sequence[Destination]
    journals: Mapping[Path, Journal]

    def as_json(self) -> object:
        """Return all partitions of this host."""
        return {
            "dry_run": True,
            "partitions": [
                {
                    "partition": str(destination.plan.topic_partition),
                    "log_dir": str(destination.log_dir.path),
                    "bytes": destination.plan.size,
                    "already": self._is_placed(destination),
                }
                for destination in self.wanted
            ],
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each partition of this host."""
        columns: Columns[Destination] = {
            "PARTITION": lambda one: str(one.plan.topic_partition),
            "LOG DIR": lambda one: str(one.log_dir.path),
            "SIZE": lambda one: size_text(one.plan.size),
            "STATE": lambda one: "in its place" if self._is_placed(one) else "would be placed",
        }
        return (table_of(self.wanted, columns),)

    def _is_placed(self, one: Destination) -> bool:
        return str(one.plan.topic_partition) in self.journals[one.log_dir.path].placed


@dataclass(frozen=True, slots=True)
class PlacedResult:
    """Result for each partition of this host."""

    placed: Sequence[Placed]

    @property
    def exit_code(self) -> int:
        """FAILED if a partition could not be placed."""
        return exits.FAILED if any(entry.problem for entry in self.placed) else exits.OK

    def as_json(self) -> object:
        """Return all partitions of this host."""
        return {
            "partitions": [
                {
                    "partition": str(partition.topic_partition),
                    "bytes": partition.size,
                    "already": partition.already,
                    "problem": partition.problem,
                }
                for partition in self.placed
            ]
        }

    def as_tables(self) -> Sequence[Table]:
        """Return the partitions with a problem, or else one line."""
        problems = [
            (str(partition.topic_partition), partition.problem)
            for partition in self.placed
            if partition.problem
        ]
        count = len(self.placed) - len(problems)
        if problems:
            footer = f"{count} partitions are in their place; run the same command again"
            return (Table(("PARTITION", "PROBLEM"), problems, footer=footer),)
        footer = (
            f"{count} partitions are in their place; next: when every host is done, start the "
            "brokers and run `sidetier hydrate replicate`"
        )
        return (Table((), footer=footer),)


@dataclass(frozen=True, slots=True)
class ReplicatedResult(Result):
    """View of `replicate`, or of its dry run."""

    report: "ReplicateReport"

    def as_json(self) -> object:
        """Return the aborted transactions and the replicas of each partition."""
        return {
            "dry_run": self.report.dry_run,
            "aborted_transactions": [
                {"partition": partition, "producer_id": producer, "first_offset": first}
                for partition, producer, first in _open_rows(self.report.aborted)
            ],
            "replicas": {
                str(tp): list(brokers) for tp, brokers in sorted(self.report.replicas.items())
            },
            "producer_ids": self.report.producer_ids,
        }

    def as_tables(self) -> Sequence[Table]:
        """Return the aborted transactions, and a summary."""
        done = "would be" if self.report.dry_run else "were"
        footer = (
            f"{len(self.report.aborted)} open transactions {done} aborted, "
            f"{len(self.report.replicas)} partitions {done} given more replicas, "
            f"{self.report.producer_ids} producer ids {done} used up"
        )
        if not self.report.dry_run:
            footer += "; next: `sidetier hydrate verify`"
        columns = ("PARTITION", "PRODUCER ID", "FIRST OFFSET") if self.report.aborted else ()
        return (Table(columns, _open_rows(self.report.aborted), footer=footer),)


@dataclass(frozen=True, slots=True)
class FinishedResult:
    """View of `finish`, or of its dry run."""

    report: "FinishReport"

    @property
    def exit_code(self) -> int:
        """FINDINGS if the brokers refuse part of the configuration."""
        return exits.FINDINGS if any(self.report.refused.values()) else exits.OK

    def as_json(self) -> object:
        """Return all configurations, and what was restored."""
        return {
            "dry_run": self.report.dry_run,
            "configs": {name: dict(configs) for name, configs in self.report.configs.items()},
            "refused_configs": {
                name: dict(refused) for name, refused in self.report.refused.items() if refused
            },
            "not_restored_configs": {
                name: dict(configs) for name, configs in self.report.not_restored.items()
            },
            "restored": [asdict(entry) for entry in self.report.restored],
        }

    def as_tables(self) -> Sequence[Table]:
        """Return the refused configs and a summary, then what was restored."""
        refused = [
            (name, config, reason)
            for name, reasons in self.report.refused.items()
            for config, reason in reasons.items()
        ]
        done = "would be" if self.report.dry_run else "were"
        footer = f"{len(self.report.configs)} topics {done} given their configuration"
        if refused:
            footer += f"; {len(refused)} configs are refused: set them yourself"
        footer += "".join(
            f"\ntopic {name}: {config}={value} is not restored: it names brokers of the lost "
            "cluster"
            for name, configs in self.report.not_restored.items()
            for config, value in configs.items()
        )
        columns = ("TOPIC", "CONFIG", "REFUSED") if refused else ()
        skipped_lines = [
            f"{entry.kind}: {line}" for entry in self.report.restored for line in entry.skipped
        ]
        rows = [
            (entry.kind, len(entry.changed), entry.unchanged, len(entry.skipped))
            for entry in self.report.restored
        ]
        restored = Table(
            ("RESTORED", "CHANGED", "UNCHANGED", "LEFT OUT"), rows, footer="\n".join(skipped_lines)
        )
        return (Table(columns, refused, footer=footer), *([restored] if rows else []))


@dataclass(frozen=True, slots=True)
class VerifiedResult:
    """View of the comparison."""

    report: "VerifyTopicsReport"

    @property
    def exit_code(self) -> int:
        """FINDINGS if something differs."""
        return exits.FINDINGS if self.report.differs else exits.OK

    def as_json(self) -> object:
        """Return all partitions and problems."""
        return {
            "equal": not self.report.differs,
            "partitions": [
                {
                    "partition": str(partition.topic_partition),
                    "records": partition.records,
                    "committed_records": partition.committed_records,
                    "compared": "bytes" if partition.by_bytes else "records",
                    "problems": list(partition.problems),
                }
                for partition in self.report.partitions
            ],
            "problems": list(self.report.problems),
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each partition, and every difference."""
        columns: Columns[Verified] = {
            "PARTITION": lambda partition: str(partition.topic_partition),
            "RECORDS": lambda partition: partition.records,
            "COMMITTED": lambda partition: partition.committed_records,
            "OUTCOME": lambda partition: "differs" if partition.problems else "equal",
        }
        problems = [
            problem for partition in self.report.partitions for problem in partition.problems
        ]
        problems += self.report.problems
        footer = "\n".join(problems) or "everything is equal; next: `sidetier hydrate finish`"
        return (table_of(self.report.partitions, columns, footer),)


def _open_rows(transactions: "Sequence[OpenTransaction]") -> list[tuple[str, int, int]]:
    """Return partition, producer id and first offset of each transaction."""
    return [
        (
            str(transaction.partition),
            transaction.producer.producer.id,
            int(transaction.producer.transaction_start or 0),
        )
        for transaction in transactions
    ]
