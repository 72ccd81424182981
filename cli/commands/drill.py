"""`sidetier drill`: prove that a sample of the archive can be restored."""

import random
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from sidetier.cli import exits, kernel
from sidetier.cli.arguments import DURATION, PARTITION, SIZE, size_text
from sidetier.cli.extras import needs_extra, quiet_config
from sidetier.cli.mirror.options import LIBRARIES, ClusterOptions
from sidetier.cli.options import CommandOptions, group, option, options
from sidetier.cli.output import Cell, OutputFormat, Result, Table, range_text, say
from sidetier.cli.signals import ended_by_signals

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sidetier.archive.access import ArchiveAccess
    from sidetier.config.model import Config
    from sidetier.mirror.drill.run import DrilledPartition
    from sidetier.mirror.hydrate.plan import PlannedPartition
    from sidetier.segments.offsets import TopicPartition

_CONNECTIONS: Final = 32
_MAX_SEED: Final = 2**31 - 1


_TailStarts = Mapping["TopicPartition", int]
"""Where the tails of partitions begin."""


def _tail_offsets(partition: "PlannedPartition", tails: _TailStarts) -> int:
    start = tails.get(partition.topic_partition, partition.end)
    return max(partition.end - max(start, partition.start), 0)


def _tail_text(partitions: "Iterable[PlannedPartition]", tails: _TailStarts) -> str:
    offsets = sum(_tail_offsets(partition, tails) for partition in partitions)
    return f", {offsets:,} offsets of them in tail packs" if tails else ""


_PLANNED_COLUMNS: Final = ("PARTITION", "OFFSETS", "SEGMENTS", "SIZE")


def _planned_cells(partition: "PlannedPartition") -> tuple[Cell, ...]:
    return (
        str(partition.topic_partition),
        range_text(partition.start, partition.end),
        len(partition.segments),
        size_text(partition.size),
    )


def _planned_json(partition: "PlannedPartition", tails: "_TailStarts") -> dict[str, object]:
    return {
        **partition.topic_partition._asdict(),
        "start": partition.start,
        "end": partition.end,
        "tail_offsets": _tail_offsets(partition, tails),
        "segments": [segment.key for segment in partition.segments],
        "bytes": partition.size,
    }


@dataclass(frozen=True, slots=True)
class SampleResult(Result):
    """The sample that `--dry-run` selects."""

    sample: "Sequence[PlannedPartition]"
    seed: int
    tails: _TailStarts = field(default_factory=dict)

    def as_json(self) -> object:
        """Return the sample."""
        return {
            "dry_run": True,
            "seed": self.seed,
            "partitions": [_planned_json(partition, self.tails) for partition in self.sample],
        }

    def as_tables(self) -> "Sequence[Table]":
        """Return a row for each partition."""
        rows = [_planned_cells(partition) for partition in self.sample]
        tail = _tail_text(self.sample, self.tails)
        footer = f"this sample would be restored{tail}; the same sample again: --seed {self.seed}"
        return (Table(_PLANNED_COLUMNS, rows, footer=footer),)


@dataclass(frozen=True, slots=True)
class DrillResult:
    """Result of a drill. `recorded` is the key of the stored result; None if it is not stored."""

    partitions: "Sequence[DrilledPartition]"
    seed: int
    tails: _TailStarts = field(default_factory=dict)
    recorded: str | None = None

    @property
    def problems(self) -> tuple[str, ...]:
        """All differences."""
        return tuple(problem for partition in self.partitions for problem in partition.problems)

    @property
    def exit_code(self) -> int:
        """FINDINGS if something could not be restored or differs."""
        return exits.FINDINGS if self.problems else exits.OK

    @property
    def records(self) -> int:
        """Number of archived records in the sample."""
        return sum(partition.records for partition in self.partitions)

    @property
    def size(self) -> int:
        """Size of the sampled segments, in bytes."""
        return sum(partition.plan.size for partition in self.partitions)

    def as_json(self) -> object:
        """Return the result of each partition."""
        return {
            "equal": not self.problems,
            "seed": self.seed,
            "records": self.records,
            "bytes": self.size,
            "recorded": self.recorded,
            "partitions": [
                {
                    **_planned_json(partition.plan, self.tails),
                    "records": partition.records,
                    "live": partition.live,
                    "problems": list(partition.problems),
                }
                for partition in self.partitions
            ],
        }

    def as_tables(self) -> "Sequence[Table]":
        """Return a row for each partition, and every difference."""
        rows = [
            (
                *_planned_cells(partition.plan),
                partition.records,
                partition.live,
                "differs" if partition.problems else "equal",
            )
            for partition in self.partitions
        ]
        columns = (*_PLANNED_COLUMNS, "RECORDS", "LIVE BROKERS", "OUTCOME")
        tail = _tail_text((partition.plan for partition in self.partitions), self.tails)
        total = (
            f"{len(rows)} partitions, {size_text(self.size)}, {self.records:,} records"
            f"{tail}; the same sample again: --seed {self.seed}"
        )
        footer = "\n".join([*self.problems, total])
        return (Table(columns, rows, footer=footer),)


@options
class DrillOptions(CommandOptions):
    """Options of `sidetier drill`."""

    patterns: tuple[str, ...] = option(
        "-t",
        "--topic",
        metavar="PATTERN",
        help="Regular expression; topics whose whole name matches are sampled; repeatable.  "
        "[default: every archived topic but Kafka's internal ones]",
    )
    numbers: tuple[int, ...] = option(
        "-p",
        "--partition",
        type=PARTITION,
        help="Sample only these partitions of the topics; repeatable.  [default: all]",
    )
    segments: int = option(
        "--segments",
        type=click.IntRange(min=1),
        default=2,
        help="Number of consecutive segments of each partition, at a random place.",
    )
    newest: bool = option(
        "--newest", help="Sample the newest segments, not segments at a random place."
    )
    with_tail: bool = option(
        "--with-tail",
        help="Sample the newest segments, and the records of active segments that tail packs have. "
        "They are promoted into --directory; the archive does not change.",
    )
    max_partitions: int = option(
        "--max-partitions",
        type=click.IntRange(1, 1000),
        default=20,
        help="Maximum number of partitions in the sample.",
    )
    max_bytes: int = option(
        "--max-bytes",
        type=SIZE,
        default="1GiB",
        help="Maximum size of all sampled segments together.",
    )
    seed: int | None = option(
        "--seed",
        type=click.IntRange(0, _MAX_SEED),
        help="Seed of the random sample: the same seed and the same archive give the same sample.  "
        "[default: a new seed each time, shown in the output]",
    )
    live: bool = option(
        "--live/--no-live",
        default=True,
        show_default=False,
        help="Also compare with the live brokers (broker.bootstrap_servers), where they still hold "
        "the records.  [default: live]",
    )
    record: bool = option(
        "--record/--no-record",
        default=True,
        show_default=False,
        help="Store the outcome as _sidetier/<cluster>/drill.json, from which sidecars export the "
        "time of the last successful drill.  [default: record]",
    )
    directory: Path | None = option(
        "--directory",
        type=click.Path(path_type=Path, file_okay=False, exists=True),
        help="Directory for the temporary broker's files, which are removed at the end.  [default: "
        "the system's directory for temporary files]",
    )
    bootstrap: str | None = option(
        "--bootstrap-server",
        "--bootstrap",
        metavar="HOST:PORT",
        help="Restore into topics of this cluster, which are deleted at the end.  [default: a "
        "temporary broker on this machine]",
    )
    target: ClusterOptions = group("target")
    replication_factor: int | None = option(
        "--replication-factor",
        type=click.IntRange(1),
        help="Replication factor of the topics in the given cluster.  [default: the cluster's "
        "default]",
    )
    left_over_age: float = option(
        "--left-over-age",
        type=DURATION,
        default="24h",
        help="Age at which topics of a killed drill are deleted from the given cluster.",
    )
    dry_run: bool = option("--dry-run", help="Show the sample; start no broker, store nothing.")

    @property
    def names_cluster(self) -> bool:
        """Whether the sample is restored into a given cluster."""
        given = self.target
        return self.bootstrap is not None or bool(given.properties) or given.config is not None


@kernel.command("drill")
def command(options: DrillOptions) -> SampleResult | DrillResult:
    """Restore a sample of the archive on a temporary broker, and compare it.

    Starts a Kafka broker on this machine and places the sampled segments with the steps of
    `sidetier hydrate`. Then it consumes them at both isolation levels. It compares counts, offsets
    and a checksum over keys, values, headers and timestamps with the archive, and with the live
    brokers where they still hold the records. It removes the broker and its files at the end. It
    needs Java 17 or newer, the jars of Kafka (downloaded once), and free disk space for the sample
    and up to 1 GiB more.

    With --bootstrap-server it copies the sample into topics of that cluster instead, with the steps
    of `sidetier restore`, and deletes these topics at the end.

    \b
    Example:
      sidetier drill --topic 'orders.*' --max-bytes 5GiB
      sidetier drill --max-bytes 50GiB --bootstrap-server test-cluster:9092

    Exit codes: 0 everything is equal; 1 the drill could not run (the store, a broker, Java); 2 a
    setting is wrong, or nothing is archived; 3 something could not be restored or differs.
    """  # noqa: D301 -- \b is click's marker and must be one character
    with needs_extra("sidetier drill", LIBRARIES, "consumer,mirror"):
        from sidetier.mirror.drill.sample import SampleRules, select_sample  # noqa: PLC0415 -- `--help` must not load it
    from sidetier.cli.stores import open_archive  # noqa: PLC0415

    config, seed = quiet_config(options.call), options.seed
    if seed is None:
        seed = random.SystemRandom().randint(0, _MAX_SEED)
    rules = SampleRules(
        seed,
        options.segments,
        options.newest or options.with_tail,
        options.max_partitions,
        options.max_bytes,
    )
    with ExitStack() as stack:
        stack.enter_context(ended_by_signals())
        archive = stack.enter_context(open_archive(config, connections=_CONNECTIONS))
        if not options.with_tail:
            sample = select_sample(archive, rules, options.patterns, options.numbers)
            if options.dry_run:
                return SampleResult(sample, seed)
            result = DrillResult(_drilled(config, archive, sample, options), seed)
        else:
            from sidetier.cli.drill.tails import drilled_tails  # noqa: PLC0415

            tails = stack.enter_context(drilled_tails(config, archive, options.directory))
            sample = select_sample(
                tails.archive, rules, options.patterns, options.numbers, tails.found, tails.promote
            )
            if options.dry_run:
                return SampleResult(sample, seed, tails.starts)
            drilled = _drilled(config, tails.archive, sample, options)
            drilled = [_with_problem(partition, tails.problems) for partition in drilled]
            result = DrillResult(drilled, seed, tails.starts)
        return _recorded(archive, result) if options.record else result


def _with_problem(
    drilled: "DrilledPartition", problems: "Mapping[TopicPartition, str]"
) -> "DrilledPartition":
    """Return the result with the problem of the partition's tail, if it has one."""
    problem = problems.get(drilled.plan.topic_partition)
    return drilled if problem is None else replace(drilled, problems=(*drilled.problems, problem))


def _drilled(
    config: "Config",
    archive: "ArchiveAccess",
    sample: "Sequence[PlannedPartition]",
    options: DrillOptions,
) -> "Sequence[DrilledPartition]":
    """Restore the sample where the options say, and compare it."""

    def show(step: str) -> None:
        if options.output is OutputFormat.TABLE:
            say(step)

    brokers = None
    if options.live:
        from sidetier.cli.drill.live import live_brokers  # noqa: PLC0415

        brokers = live_brokers(config, sample)
    if options.names_cluster:
        from sidetier.cli.restore.session import target_properties  # noqa: PLC0415
        from sidetier.mirror.drill.copied import drill_on_cluster  # noqa: PLC0415

        return drill_on_cluster(
            archive,
            sample,
            target_properties(config, options.target, options.bootstrap),
            options.replication_factor or -1,
            options.left_over_age,
            brokers,
            show,
            say,
        )
    from sidetier.brokers.kafka import TemporaryBroker  # noqa: PLC0415
    from sidetier.mirror.drill.run import drill_on_temporary_broker  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="sidetier-drill-", dir=options.directory) as files:
        temporary = TemporaryBroker(Path(files) / "kafka")
        return drill_on_temporary_broker(archive, sample, temporary, brokers, show)


def _recorded(archive: "ArchiveAccess", result: DrillResult) -> DrillResult:
    """Store the outcome on the default store; return the result with the key of the object."""
    from sidetier.archive.objects.drill_record import DrillRecord, record_drill  # noqa: PLC0415
    from sidetier.uploader.clock import SYSTEM_CLOCK  # noqa: PLC0415

    record = DrillRecord(
        finished_ms=int(SYSTEM_CLOCK.wall() * 1000),
        succeeded=not result.problems,
        seed=result.seed,
        partitions=len(result.partitions),
        records=result.records,
        bytes=result.size,
        problems=result.problems,
    )
    record_drill(archive.default_store, archive.layout, record)
    return replace(result, recorded=archive.layout.drill_key())
