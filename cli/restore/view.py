"""Output of `sidetier restore`: the plan, and the result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sidetier.cli import exits
from sidetier.cli.arguments import above_end_text, most_lines
from sidetier.cli.mirror.view import CopyResult
from sidetier.cli.output import Cell, Table, range_text
from sidetier.mirror.restore.copy_check import CheckedCopy
from sidetier.mirror.restore.plan import PartitionRestore
from sidetier.segments.offsets import TopicPartition

_KAFKA_CONFIGS = "kafka-configs.sh --alter --entity-type topics --entity-name"


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """The plan of a restore.

    Attributes:
        name: Name of the restore.
        partitions: The partitions with their ranges.
        exists: Target topics that exist.
        problems: By target topic, why it cannot take records.
        settings_left: By target topic, the archived settings that it is not created with.
    """

    name: str
    partitions: Sequence[PartitionRestore]
    exists: frozenset[str] = frozenset()
    problems: Mapping[str, str] = field(default_factory=dict)
    settings_left: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def leaves_out(self) -> bool:
        """Whether archived records cannot be restored because a transaction is open."""
        return any(partition.undecided for partition in self.partitions)

    @property
    def exit_code(self) -> int:
        """MISCONFIGURED if a target cannot take records."""
        return exits.MISCONFIGURED if self.problems else exits.OK

    def as_json(self) -> object:
        """Return all partitions."""
        return {
            "dry_run": True,
            "name": self.name,
            "partitions": [
                {
                    **range_json(partition),
                    "offsets_left": partition.offsets_left,
                    "target_exists": partition.target.topic in self.exists,
                    "problem": self.problems.get(partition.target.topic),
                }
                for partition in self.partitions
            ],
            "settings_left": self.settings_left,
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each partition."""
        rows = [
            (*_cells(partition), partition.offsets_left, self._target(partition.target.topic))
            for partition in self.partitions
        ]
        columns = (*_COLUMNS, "OFFSETS TO RESTORE", "TARGET TOPIC")
        return (Table(columns, rows, footer=notes(self.partitions, self.settings_left)),)

    def _target(self, topic: str) -> str:
        return self.problems.get(topic) or (
            "exists" if topic in self.exists else "would be created"
        )


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """The result of a restore, and of its comparison with the archive.

    `checked` is None if nothing was compared.
    """

    plan: RestorePlan
    copied: CopyResult
    stopped: bool = False
    checked: Mapping[TopicPartition, CheckedCopy] | None = None

    @property
    def differs(self) -> bool:
        """Whether the target differs from the archive."""
        return any(partition.problems for partition in (self.checked or {}).values())

    @property
    def exit_code(self) -> int:
        """FINDINGS if a record differs, is in a gap, or was left out."""
        if self.stopped:
            return exits.INTERRUPTED
        if self.differs or self.plan.leaves_out:
            return exits.FINDINGS
        return self.copied.exit_code

    def as_json(self) -> object:
        """Return all partitions and counts."""
        return {
            **self.copied.as_json(),
            "name": self.plan.name,
            "stopped": self.stopped,
            "partitions": [
                {**range_json(partition), "verified": self._verified(partition.target)}
                for partition in self.plan.partitions
            ],
            "settings_left": self.plan.settings_left,
        }

    def _verified(self, target: TopicPartition) -> object:
        checked = (self.checked or {}).get(target)
        if checked is None:
            return None
        return {"records": checked.records, "problems": list(checked.problems)}

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each partition, the gaps, and the totals."""
        rows = [
            (*_cells(partition), self._outcome(partition.target))
            for partition in self.plan.partitions
        ]
        footer = notes(self.plan.partitions, self.plan.settings_left)
        (sums,) = self.copied.as_tables()
        tables = [Table((*_COLUMNS, "VERIFIED"), rows, footer=footer), sums]
        if self.stopped:
            tables.append(Table((), footer="stopped; run the same command again to continue"))
        elif not any(partition.offsets_left for partition in self.plan.partitions):
            tables.append(Table((), footer="everything had been restored before"))
        return tables

    def _outcome(self, target: TopicPartition) -> str:
        checked = (self.checked or {}).get(target)
        if checked is None:
            return "no"
        return "; ".join(checked.problems) or f"{checked.records} records are equal"


_COLUMNS = ("SOURCE", "TARGET", "OFFSETS", "ARCHIVED UP TO")


def _cells(partition: PartitionRestore) -> tuple[Cell, ...]:
    return (
        str(partition.source),
        str(partition.target),
        range_text(partition.start, partition.end),
        partition.archive_end,
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
        "undecided_offsets": partition.undecided,
        "above_end": list(partition.above_end),
    }


def notes(
    partitions: Sequence[PartitionRestore], settings_left: Mapping[str, Mapping[str, str]]
) -> str | None:
    """Return what the operator should know or do; None if there is nothing."""
    lines = [
        f"{partition.source}: {partition.undecided} archived offsets from "
        f"{partition.last_stable_offset} on are left out: a transaction that begins there is open "
        "at the end of the archive. If it will never be decided, restore the records behind its "
        "start with --open-transactions abort"
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
