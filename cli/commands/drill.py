"""`sidetier drill`: prove that a sample of the archive can be restored."""

import importlib
import random
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from sidetier.cli import exits
from sidetier.cli.arguments import PARTITION, checked_duration, size_text
from sidetier.cli.extras import from_extra, quiet_logs
from sidetier.cli.invocation import configuration_options, invocation
from sidetier.cli.mirror.options import LIBRARIES, target_options
from sidetier.cli.output import OutputFormat, Table, emit, output_option, range_text
from sidetier.cli.signals import ended_by_signals
from sidetier.segments.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sidetier.archive.access import ArchiveAccess
    from sidetier.mirror.drill.run import DrilledPartition
    from sidetier.mirror.hydrate.plan import PlannedPartition

_CONNECTIONS: Final = 32
_MOST_SEED: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class SampleResult:
    """The sample that `--dry-run` selects."""

    sample: "Sequence[PlannedPartition]"
    seed: int

    def as_json(self) -> object:
        """Return the sample."""
        return {
            "dry_run": True,
            "seed": self.seed,
            "partitions": [
                {
                    "topic": partition.topic,
                    "partition": partition.partition,
                    "start": partition.start,
                    "end": partition.end,
                    "segments": [segment.key for segment in partition.segments],
                    "bytes": partition.size,
                }
                for partition in self.sample
            ],
        }

    def as_tables(self) -> "Sequence[Table]":
        """Return a row for each partition."""
        rows = [
            (
                str(partition.topic_partition),
                range_text(partition.start, partition.end),
                len(partition.segments),
                size_text(partition.size),
            )
            for partition in self.sample
        ]
        footer = f"this sample would be restored; the same sample again: --seed {self.seed}"
        return (Table(("PARTITION", "OFFSETS", "SEGMENTS", "SIZE"), rows, footer=footer),)


@dataclass(frozen=True, slots=True)
class DrillResult:
    """Result of a drill. `recorded` is the key of the stored result; None if it is not stored."""

    partitions: "Sequence[DrilledPartition]"
    seed: int
    recorded: str | None = None

    @property
    def problems(self) -> tuple[str, ...]:
        """All differences."""
        return tuple(problem for partition in self.partitions for problem in partition.problems)

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
                    "topic": partition.plan.topic,
                    "partition": partition.plan.partition,
                    "start": partition.plan.start,
                    "end": partition.plan.end,
                    "segments": [segment.key for segment in partition.plan.segments],
                    "bytes": partition.plan.size,
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
                str(partition.plan.topic_partition),
                range_text(partition.plan.start, partition.plan.end),
                len(partition.plan.segments),
                size_text(partition.plan.size),
                partition.records,
                partition.live,
                "differs" if partition.problems else "equal",
            )
            for partition in self.partitions
        ]
        columns = (
            "PARTITION",
            "OFFSETS",
            "SEGMENTS",
            "SIZE",
            "RECORDS",
            "LIVE BROKERS",
            "OUTCOME",
        )
        total = (
            f"{len(rows)} partitions, {size_text(self.size)}, {self.records:,} records; "
            f"the same sample again: --seed {self.seed}"
        )
        footer = "\n".join([*self.problems, total])
        return (Table(columns, rows, footer=footer),)


@click.command(name="drill")
@click.option(
    "-t",
    "--topic",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    help="Regular expression; topics whose whole name matches are sampled; repeatable.  [default: "
    "every archived topic but Kafka's internal ones]",
)
@click.option(
    "-p",
    "--partition",
    "numbers",
    multiple=True,
    type=PARTITION,
    help="Sample only these partitions of the topics; repeatable.  [default: all]",
)
@click.option(
    "--segments",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Number of consecutive segments of each partition, at a random place.",
)
@click.option(
    "--newest", is_flag=True, help="Sample the newest segments, not segments at a random place."
)
@click.option(
    "--max-partitions",
    type=click.IntRange(1, 1000),
    default=20,
    show_default=True,
    help="Maximum number of partitions in the sample.",
)
@click.option(
    "--max-bytes",
    metavar="SIZE",
    default="1GiB",
    show_default=True,
    help="Maximum size of all sampled segments together.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, _MOST_SEED),
    help="Seed of the random sample: the same seed and the same archive give the same sample.  "
    "[default: a new seed each time, shown in the output]",
)
@click.option(
    "--live/--no-live",
    default=True,
    help="Also compare with the live brokers (broker.bootstrap_servers), where they still hold "
    "the records.  [default: live]",
)
@click.option(
    "--record/--no-record",
    default=True,
    help="Store the outcome as _sidetier/<cluster>/drill.json, from which sidecars export the "
    "time of the last successful drill.  [default: record]",
)
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Directory for the temporary broker's files, which are removed at the end.  [default: the "
    "system's directory for temporary files]",
)
@click.option(
    "--bootstrap-server",
    "--bootstrap",
    "bootstrap",
    metavar="HOST:PORT",
    help="Restore into topics of this cluster, which are deleted at the end.  [default: a "
    "temporary broker on this machine]",
)
@target_options
@click.option(
    "--replication-factor",
    type=click.IntRange(1),
    help="Replication factor of the topics in the given cluster.  [default: the cluster's default]",
)
@click.option(
    "--left-over-age",
    metavar="DURATION",
    default="24h",
    show_default=True,
    callback=checked_duration,
    help="Age at which topics of a killed drill are deleted from the given cluster.",
)
@click.option("--dry-run", is_flag=True, help="Show the sample; start no broker, store nothing.")
@configuration_options
@output_option
@click.pass_context
def command(  # noqa: PLR0913 -- one parameter for each option
    context: click.Context,
    *,
    patterns: tuple[str, ...],
    numbers: tuple[int, ...],
    segments: int,
    newest: bool,
    max_partitions: int,
    max_bytes: str,
    seed: int | None,
    live: bool,
    record: bool,
    directory: Path | None,
    bootstrap: str | None,
    target_properties: tuple[str, ...],
    target_config: Path | None,
    replication_factor: int | None,
    left_over_age: float,
    dry_run: bool,
    output: OutputFormat,
) -> None:
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
    sampling = from_extra(
        lambda: importlib.import_module("sidetier.mirror.drill.sample"),
        "sidetier drill",
        LIBRARIES,
        "consumer,mirror",
    )
    from sidetier.cli.stores import open_archive  # noqa: PLC0415

    loaded = invocation(context).load(needs_log_dirs=False)
    quiet_logs(loaded)
    config = loaded.config
    if seed is None:
        seed = random.SystemRandom().randint(0, _MOST_SEED)
    rules = sampling.SampleRules(seed, segments, newest, max_partitions, _size(max_bytes))

    def say(step: str) -> None:
        if output is OutputFormat.TABLE:
            click.echo(f"sidetier: {step}", err=True)

    with ended_by_signals(), open_archive(config, connections=_CONNECTIONS) as archive:
        sample = sampling.select_sample(archive, rules, patterns, numbers)
        if dry_run:
            emit(SampleResult(sample, seed), output)
            return
        brokers = None
        if live:
            from sidetier.cli.drill.live import live_brokers  # noqa: PLC0415

            brokers = live_brokers(config, sample)
        if bootstrap is not None or target_properties or target_config is not None:
            from sidetier.cli.restore.session import target_properties as properties_of  # noqa: PLC0415
            from sidetier.mirror.drill.copied import drill_on_cluster  # noqa: PLC0415

            drilled = drill_on_cluster(
                archive,
                sample,
                properties_of(config, context.params),
                replication_factor or -1,
                left_over_age,
                brokers,
                say,
                lambda text: click.echo(f"sidetier: {text}", err=True),
            )
        else:
            from sidetier.brokers.kafka import TemporaryBroker  # noqa: PLC0415
            from sidetier.mirror.drill.run import drill_on_temporary_broker  # noqa: PLC0415

            with tempfile.TemporaryDirectory(prefix="sidetier-drill-", dir=directory) as files:
                temporary = TemporaryBroker(Path(files) / "kafka")
                drilled = drill_on_temporary_broker(archive, sample, temporary, brokers, say)
        result = DrillResult(drilled, seed)
        if record:
            result = _recorded(archive, result)
    emit(result, output)
    context.exit(exits.FINDINGS if result.problems else exits.OK)


def _size(text: str) -> int:
    from sidetier.config.units import parse_size  # noqa: PLC0415

    try:
        return parse_size(text)
    except ValueError as error:
        raise ConfigurationError(f"--max-bytes: {error}") from None


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
