"""Output of `sidetier restore`: the plan, and the result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sidetier.cli import exits
from sidetier.cli.arguments import above_end_text, most_lines
from sidetier.cli.mirror.view import CopyResult
from sidetier.cli.output import Cell, Table, range_text
from sidetier.mirror.restore.plan import PartitionRestore
from sidetier.mirror.restore.run import RestorePlan, RestoreReport
from sidetier.segments.offsets import TopicPartition

_KAFKA_CONFIGS = "kafka-configs.sh --alter --entity-type topics --entity-name"


@dataclass(frozen=True, slots=True)
class PlanResult:
    """View of the plan of a restore."""

    plan: RestorePlan

    @property
    def exit_code(self) -> int:
        """MISCONFIGURED if a target cannot take records."""
        return exits.MISCONFIGURED if self.plan.problems else exits.OK

    def as_json(self) -> object:
        """Return all partitions."""
        return {
            "dry_run": True,
            "name": self.plan.name,
            "partitions": [
                {
                    **range_json(partition),
                    "offsets_left": partition.offsets_left,
                    "target_exists": partition.target.topic in self.plan.exists,
                    "problem": self.plan.problems.get(partition.target.topic),
                }
                for partition in self.plan.partitions
            ],
            "settings_left": self.plan.settings_left,
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each partition."""
        rows = [
            (*_cells(partition), partition.offsets_left, self._target(partition.target.topic))
            for partition in self.plan.partitions
        ]
        columns = (*_columns(self.plan), "OFFSETS TO RESTORE", "TARGET TOPIC")
        return (Table(columns, rows, footer=notes(self.plan.partitions, self.plan.settings_left)),)

    def _target(self, topic: str) -> str:
        return self.plan.problems.get(topic) or (
            "exists" if topic in self.plan.exists else "would be created"
        )


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """View of the report of a restore."""

    report: RestoreReport

    @property
    def exit_code(self) -> int:
        """FINDINGS if a record differs, is in a gap, or was left out."""
        if self.report.stopped:
            return exits.INTERRUPTED
        return exits.OK if self.report.is_complete else exits.FINDINGS

    def as_json(self) -> object:
        """Return all partitions and counts."""
        return {
            **CopyResult(self.report.copied).as_json(),
            "name": self.report.plan.name,
            "stopped": self.report.stopped,
            "partitions": [
                {**range_json(partition), "verified": self._verified(partition.target)}
                for partition in self.report.plan.partitions
            ],
            "settings_left": self.report.plan.settings_left,
        }

    def _verified(self, target: TopicPartition) -> object:
        checked = (self.report.checked or {}).get(target)
        if checked is None:
            return None
        return {"records": checked.records, "problems": list(checked.problems)}

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each partition, the gaps, and the totals."""
        rows = [
            (*_cells(partition), self._outcome(partition.target))
            for partition in self.report.plan.partitions
        ]
        footer = notes(self.report.plan.partitions, self.report.plan.settings_left)
        (sums,) = CopyResult(self.report.copied).as_tables()
        tables = [Table((*_columns(self.report.plan), "VERIFIED"), rows, footer=footer), sums]
        if self.report.stopped:
            tables.append(Table((), footer="stopped; run the same command again to continue"))
        elif not any(partition.offsets_left for partition in self.report.plan.partitions):
            tables.append(Table((), footer="everything had been restored before"))
        return tables

    def _outcome(self, target: TopicPartition) -> str:
        checked = (self.report.checked or {}).get(target)
        if checked is None:
            return "no"
        return "; ".join(checked.problems) or f"{checked.records} records are equal"


def _columns(plan: RestorePlan) -> tuple[str, ...]:
    with_tail = any(partition.tail_end is not None for partition in plan.partitions)
    return ("SOURCE", "TARGET", "OFFSETS", "ARCHIVED UP TO", *["SAFE UP TO"] * with_tail)


def _cells(partition: PartitionRestore) -> tuple[Cell, ...]:
    tail_end = partition.tail_end
    return (
        str(partition.source),
        str(partition.target),
        range_text(partition.start, partition.end),
        partition.archive_end,
        *(() if tail_end is None else (tail_end,)),
    )


def range_json(partition: PartitionRestore) -> dict[str, object]:
    """Return one partition's range; `end` is exclusive."""
    return {
        "source_topic": partition.source.topic,
        "target_topic": partition.target.topic,
        "partition": partition.source.partition,
        "start": partition.start,
        "end": partition.end,
        "archive_end": partition.archive_end,
        "safe_up_to": partition.tail_end,
        "undecided_offsets": partition.undecided,
        "above_end": list(partition.above_end),
    }


def notes(
    partitions: Sequence[PartitionRestore], settings_left: Mapping[str, Mapping[str, str]]
) -> str | None:
    """Return what the operator should know or do; None if there is nothing."""
    lines = [
        f"{partition.source}: {partition.undecided} "
        f"{'archived' if partition.tail_end is None else 'stored'} offsets from "
        f"{partition.last_stable_offset} on are left out: a transaction that begins there is open "
        f"at the end of {'the archive' if partition.tail_end is None else 'archive and tail'}. If "
        "it will never be decided, restore the records behind its start with --open-transactions "
        "abort"
        for partition in partitions
        if partition.undecided
    ]
    lines += most_lines(
        [
            above_end_text(partition.source, partition.above_end, partition.archive_end)
            for partition in partitions
            if partition.above_end
        ]
    )
    lines += [
        f"{topic} is created without these archived settings, which could delete or refuse old "
        f"records. Set them when you need them: {_KAFKA_CONFIGS} {topic} --add-config "
        f"'{_assignments(settings)}'"
        for topic, settings in sorted(settings_left.items())
        if settings
    ]
    return "\n".join(lines) or None


def _assignments(settings: Mapping[str, str]) -> str:
    return ",".join(
        f"{name}=[{value}]" if "," in value else f"{name}={value}"
        for name, value in sorted(settings.items())
    )
