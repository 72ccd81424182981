"""Mirror: `sidetier mirror` with and without transactions, alternating with MirrorMaker 2."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from lib import mirror_clusters
from lib.mirror_clusters import PARTITIONS, RECORD_BYTES, Shape
from lib.mirror_contenders import Contender, Copied, MirrorMaker, Pair, SidetierMirror, copy_once
from lib.options import benchmark_options, work_directory
from lib.results import Report, Spread, Target

_MIB = 1 << 20
_BATCHES = {"16k": 16 << 10, "1m": 1_000_000}
_SHAPES = tuple(f"{batch}-{codec}" for codec in ("none", "lz4") for batch in _BATCHES)
_TIMES_FASTER = {"16k": 2.0, "1m": 3.5}
_CPU_SHARE = 0.1
_TRANSACTIONS_COST = 0.9
_CONTENDERS: Mapping[str, Callable[[Path, Pair, Shape, str], Contender]] = {
    "exactly-once": lambda *given: SidetierMirror(*given, "exactly-once"),
    "at-least-once": lambda *given: SidetierMirror(*given, "at-least-once"),
    "mirror-maker": MirrorMaker,
}
_HOW = """\
Two KRaft clusters of one broker each (4.3.1, 1 GiB of heap, G1). Topics of {partitions} partitions
with {small} MiB of records ({large} MiB for batches of 1 MB) of {record} B (key and value; half of
it is random bytes), written by confluent-kafka in batches of 16 KiB and of 1 MB, uncompressed and
with lz4. `sidetier mirror` runs with its defaults and --until-caught-up; **MirrorMaker 2** (4.3.1,
dedicated mode) with exactly.once.source.support=enabled, a task for each partition, producers with
the source's batch size and codec, linger.ms=100, fetches of 32 MiB, up to 10,000 records a poll, a
transaction each second, and the heap of its start script (2 GiB). Each copies from the beginning
into a topic of its own; clusters and contender share the cores. Rates and CPU time count from the
moment when a quarter of the records was committed to the last commit, so that neither the start of
a process nor most of Java's compilation counts; **start** is from the process to its first record
on the target. MB are of keys and values before compression. After each copy a read-committed
consumer has found each record of the source once, in order and equal. {runs} runs in turns; ratios
compare neighbouring runs."""

Runs = list[dict[str, Copied]]
"""Result of each contender, for each run."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Extent of the measurement."""

    shapes: Sequence[Shape]
    contenders: Sequence[str]
    runs: int


def measure(directory: Path, plan: Plan) -> dict[str, Runs]:
    """Fill the source, and let the contenders copy it in alternating order, shape by shape."""
    with (
        mirror_clusters.cluster(directory / "source") as source,
        mirror_clusters.cluster(directory / "target") as target,
    ):
        pair = Pair(source, target)
        runs_by_shape: dict[str, Runs] = {}
        for shape in plan.shapes:
            mirror_clusters.fill(source, shape)
            size, records = mirror_clusters.mean_batch(source, shape.name)
            _tell(f"{shape.name}: batches of {size:.0f} bytes, {records:.0f} records")
            runs_by_shape[shape.name] = [
                _run(directory, pair, shape, plan.contenders, number) for number in range(plan.runs)
            ]
            mirror_clusters.delete_topics(source, shape.name)
        return runs_by_shape


def _run(
    directory: Path, pair: Pair, shape: Shape, contenders: Sequence[str], number: int
) -> dict[str, Copied]:
    copies = {}
    for name in contenders if number % 2 == 0 else reversed(contenders):
        contender = _CONTENDERS[name](directory, pair, shape, f"{name}-{shape.name}-{number}")
        copies[name] = copy_once(contender, pair, shape)
        mirror_clusters.check_copy(pair.target, contender.topic, shape)
        mirror_clusters.delete_topics(pair.target, contender.topic)
        _tell(f"{shape.name} {name}: {copies[name].megabytes_per_second:.0f} MB/s, {copies[name]}")
    return copies


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def report_on(report: Report, found: Mapping[str, Runs], contenders: Sequence[str]) -> None:
    """Fill the report with a table for each shape, and the targets."""
    for shape, runs in found.items():
        rows = []
        for name in contenders:
            copies = [run[name] for run in runs]
            rows.append(
                [
                    "MirrorMaker 2" if name == "mirror-maker" else f"mirror, {name}",
                    Spread.of(copied.megabytes_per_second for copied in copies).text(0),
                    Spread.of(copied.cpu_per_gib for copied in copies).text(),
                    Spread.of(copied.brokers_cpu_per_gib for copied in copies).text(),
                    Spread.of(copied.start_seconds for copied in copies).text(1),
                    f"{max(copied.peak_resident_bytes for copied in copies) / _MIB:.0f}",
                ]
            )
        columns = [f"{shape} batches", "MB/s", "CPU s/GiB", "brokers' CPU s/GiB", "start, s"]
        report.table([*columns, "MiB at most"], rows)
        report.targets += _targets(shape, runs, contenders)
    report.raw = {
        shape: [{name: asdict(copied) for name, copied in run.items()} for run in runs]
        for shape, runs in found.items()
    }


def _targets(shape: str, runs: Runs, contenders: Sequence[str]) -> list[Target]:
    def speed(name: str) -> Spread:
        return Spread.of(
            run["exactly-once"].megabytes_per_second / run[name].megabytes_per_second
            for run in runs
        )

    targets = []
    if {"exactly-once", "at-least-once"} <= set(contenders):
        comparison = f"{shape}: MB/s with transactions, against without"
        targets.append(
            Target(comparison, speed("at-least-once").middle, _TRANSACTIONS_COST, at_least=True)
        )
    if {"exactly-once", "mirror-maker"} <= set(contenders):
        cpu = Spread.of(
            run["exactly-once"].cpu_per_gib / run["mirror-maker"].cpu_per_gib for run in runs
        )
        least = _TIMES_FASTER[shape.partition("-")[0]]
        targets += [
            Target(
                f"{shape}: MB/s, against MirrorMaker 2",
                speed("mirror-maker").middle,
                least,
                at_least=True,
            ),
            Target(f"{shape}: CPU s/GiB, against MirrorMaker 2", cpu.middle, _CPU_SHARE),
        ]
    return targets


@click.command()
@benchmark_options
@click.option(
    "--mib", type=click.IntRange(16), help="MiB of records of each topic.  [512, and 1536 for 1m]"
)
@click.option(
    "--shape", "shapes", type=click.Choice(_SHAPES), multiple=True, help="Only these batches."
)
@click.option(
    "--contender",
    "contenders",
    type=click.Choice(list(_CONTENDERS)),
    multiple=True,
    help="Only these.",
)
def main(  # noqa: PLR0913 - one parameter for each option
    *,
    quick: bool,
    runs: int | None,
    record: bool,
    json_path: Path | None,
    mib: int | None,
    shapes: tuple[str, ...],
    contenders: tuple[str, ...],
) -> None:
    """Compare three contenders on two clusters with four kinds of batches, in alternating order."""
    small, large = ((256, 256) if quick else (512, 1536)) if mib is None else (mib, mib)
    plan = Plan(
        [_shape(name, small, large) for name in shapes or (_SHAPES[:1] if quick else _SHAPES)],
        contenders or tuple(_CONTENDERS),
        runs or 1,
    )
    with work_directory() as directory:
        results = measure(directory, plan)
    how = _HOW.format(
        partitions=PARTITIONS, small=small, large=large, record=RECORD_BYTES, runs=plan.runs
    )
    report = Report("mirror", "Mirroring", how)
    report_on(report, results, plan.contenders)
    sys.exit(report.finish(record=record, json_path=json_path))


def _shape(name: str, small: int, large: int) -> Shape:
    """Return a shape. Topics with large batches have more MiB, because they are copied faster."""
    batch, codec = name.split("-")
    return Shape(_BATCHES[batch], codec, (large if batch == "1m" else small) * _MIB)


if __name__ == "__main__":
    main()
