"""Consume: the store with `TieredConsumer` against the broker with confluent-kafka."""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from lib import holding, reading, seeking
from lib.backlog import broker
from lib.holding import Held
from lib.options import benchmark_options, work_directory
from lib.programs import run_program
from lib.reading import Read
from lib.results import Report, Spread, Target
from lib.seeking import Seek
from lib.sidecar import CLUSTER
from lib.stores import RealStore, real_store
from lib.topics import Shape, mean_batch, store, write

_MIB, _GIB = 1 << 20, 1 << 30
_KIB = 1 << 10
_WAYS = (
    ("kafka", "poll"),
    ("kafka", "consume"),
    ("store", "poll"),
    ("store", "consume"),
    ("store", "arrow"),
    ("endpoint", "poll"),
    ("endpoint", "consume"),
    ("tiered-kafka", "poll"),
    ("tiered-kafka", "consume"),
    ("tiered-endpoint", "poll"),
    ("tiered-endpoint", "consume"),
)
_NAMES = {"poll": "poll()", "consume": "consume(500)", "arrow": "consume_arrow(10_000)"}
_SEEKS = 10
_POLL_PART = 4
"""`poll` is slow, so it reads only this fraction of the records (1/N); results are rates."""
_HOW = """\
Topics of one partition on a KRaft broker (4.3.1), filled by confluent-kafka without compression:
{large} MiB of records of 1 KiB and {small} MiB of records of 100 B, each with a key of 10 B and
random bytes as value. The sidecar has stored the closed segments on versitygw. All readers read
these from offset 0 to their end, by `poll` the first quarter. The first topic has one segment;
those of the others have {segment} MiB. Readers take turns, each in a process of its own. Rates
are from the first record to the last; the time to the first record is measured from before the
consumer is created. confluent-kafka reads with its default settings, without CRC checks;
`TieredConsumer` with TIERED_STORAGE_ONLY and its defaults, with CRC checks. "endpoint" is
confluent-kafka that reads an endpoint of `sidetier serve` in its own process, over the same
store. "tiered-kafka" and "tiered-endpoint" are `TieredConsumer` with KAFKA_ONLY on the same
servers, the latter with CRC checks: the cost of a `TieredConsumer` that reads the store in this
way. Broker, S3 server and reader share the machine's cores, and all files are in the page cache. MB
and GiB are of values. CPU time and resident memory are those of the reader's process, with Python
and all its libraries. Each seek is by a reader that knows the archive and has read nothing;
requests are counted up to the range with the record, with one thread. {runs} runs in turns."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Topic sizes in MiB."""

    runs: int
    large: int
    small: int
    segment: int

    @property
    def shapes(self) -> list[Shape]:
        """Shapes with records of 1 KiB and of 100 B, in batches of 16 KiB and of 1 MiB."""
        sizes = ((_KIB, self.large), (100, self.small))
        combinations = [
            Shape(record, batch, min(self.segment, size) * _MIB, size * _MIB)
            for record, size in sizes
            for batch in (16 * _KIB, _MIB)
        ]
        first = combinations[0]
        return [Shape(first.record, first.batch, self.large * _MIB, first.size), *combinations[1:]]


@dataclass(slots=True)
class Found:
    """All measured values."""

    reads: dict[str, dict[str, list[Read]]]
    batches: dict[str, tuple[float, float]]
    seeks: list[Seek]
    held: list[Held]


def measure(directory: Path, plan: Plan) -> Found:
    """Write and store the topics, and read them in alternating order."""
    with ExitStack() as stack:
        cluster = stack.enter_context(broker(directory / "kafka"))
        real = stack.enter_context(real_store(directory / "store"))
        for shape in plan.shapes:
            write(cluster, shape)
        ends = store(cluster, real, plan.shapes, directory / "sidecar")
        os.sync()
        kafka, endpoint = _kafka(cluster.bootstrap_servers), _endpoint(real)
        kafka_only = {"tiered.storage.mode": "KAFKA_ONLY"}
        configs = {
            "kafka": kafka,
            "store": {"tiered.storage.mode": "TIERED_STORAGE_ONLY", **real.reader_options},
            "endpoint": endpoint,
            "tiered-kafka": {**kafka, **kafka_only},
            "tiered-endpoint": {**endpoint, **kafka_only, "check.crcs": True},
        }
        reads = {
            shape.topic: _reads(shape, ends[shape.topic], configs, real, plan.runs)
            for shape in plan.shapes
        }
        first = plan.shapes[0].topic
        place = {"topic": first, "end": ends[first], "storage": real.storage}
        seek_rows = run_program(seeking.__file__, {**place, "seeks": _SEEKS}, real.environment)
        memory_runs = [
            Held(
                **run_program(holding.__file__, {**place, "budget": size * _MIB}, real.environment)
            )
            for size in (16, 64, 128)
        ]
        batches = {shape.topic: mean_batch(real, shape.topic) for shape in plan.shapes}
        return Found(reads, batches, [Seek(**seek) for seek in seek_rows], memory_runs)


def _reads(
    shape: Shape, end: int, configs: Mapping[str, Any], real: RealStore, runs: int
) -> dict[str, list[Read]]:
    reads_by_way: dict[str, list[Read]] = {f"{side} {method}": [] for side, method in _WAYS}
    for number in range(runs):
        for side, method in _WAYS if number % 2 == 0 else reversed(_WAYS):
            last = end // _POLL_PART if method == "poll" else end
            parameters = {
                "side": side,
                "method": method,
                "topic": shape.topic,
                "end": last,
                "config": configs[side],
            }
            read = Read(**run_program(reading.__file__, parameters, real.environment))
            print(f"{shape.topic} {side} {method}: {read}", file=sys.stderr)
            if read.records < last - 1:
                raise RuntimeError(f"{shape.topic} {side} {method}: {read.records} of {last} came")
            reads_by_way[f"{side} {method}"].append(read)
    return reads_by_way


def _kafka(servers: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": servers,
        "group.id": "bench",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
    }


def _endpoint(real: RealStore) -> dict[str, Any]:
    return {**_kafka(""), "cluster": CLUSTER, "storage": real.storage, "fetch.queue.backoff.ms": 5}


def report_on(report: Report, plan: Plan, found: Found) -> None:
    """Fill the report: a table per topic, tables of seeks and memory, and the targets."""
    for shape in plan.shapes:
        _table(report, shape, found)
    _targets_of_reading(report, plan.shapes, found.reads)
    _report_seeks(report, found.seeks, plan.large)
    rows = [
        [memory_run.budget >> 20, f"{memory_run.held / _MIB:.1f}", f"{memory_run.grown / _MIB:.0f}"]
        for memory_run in found.held
    ]
    report.table(["budget, MiB", "held at most, MiB", "the process grew by, MiB"], rows)
    report.targets += [
        Target(
            f"MiB held with a budget of {memory_run.budget >> 20}",
            memory_run.held / _MIB,
            memory_run.budget / _MIB,
        )
        for memory_run in found.held
    ]
    report.raw = {
        "reads": {
            topic: {way: [asdict(read) for read in way_reads] for way, way_reads in ways.items()}
            for topic, ways in found.reads.items()
        },
        "batches": found.batches,
        "seeks": [asdict(seek) for seek in found.seeks],
        "memory": [asdict(memory_run) for memory_run in found.held],
    }


def _table(report: Report, shape: Shape, found: Found) -> None:
    size, records = found.batches[shape.topic]
    name = f"{shape.record} B, batches of {size / 1024:.0f} KiB ({records:.0f} records)"
    rows = []
    for way, reads in found.reads[shape.topic].items():
        side, method = way.split()
        rows.append(
            [
                f"{side}, {_NAMES[method]}",
                Spread.of(read.records_per_second / 1000 for read in reads).text(0),
                Spread.of(read.megabytes_per_second for read in reads).text(0),
                Spread.of(read.cpu_per_gib for read in reads).text(),
                Spread.of(read.first_seconds for read in reads).text(),
                f"{max(read.resident_most for read in reads) / _MIB:.0f}",
            ]
        )
    columns = [name, "thousand records/s", "MB/s", "CPU s/GiB", "s to the first", "MiB at most"]
    report.table(columns, rows)


def _targets_of_reading(
    report: Report, shapes: Sequence[Shape], reads: Mapping[str, Mapping[str, list[Read]]]
) -> None:
    limits = {(_KIB, "consume"): (1.0, 1.0), (100, "arrow"): (5.0, 2.0)}
    for (record, method), pair in limits.items():
        for batch, limit in zip((16 * _KIB, _MIB), pair, strict=True):
            shape = next(s for s in shapes if (s.record, s.batch) == (record, batch))
            ways = reads[shape.topic]
            ratio = Spread.of(
                archived.records_per_second / consumed.records_per_second
                for archived, consumed in zip(
                    ways[f"store {method}"], ways["kafka consume"], strict=True
                )
            )
            comparison = (
                f"{_NAMES[method]} of {record} B in {batch >> 10} KiB, against confluent-kafka's"
            )
            comparison += " consume(500)"
            report.targets.append(Target(comparison, ratio.middle, limit, at_least=True))


def _report_seeks(report: Report, seeks: Sequence[Seek], size: int) -> None:
    rows = []
    for kind in ("offset", "timestamp"):
        seeks_of_kind = [seek for seek in seeks if seek.kind == kind]
        seconds = Spread.of(seek.seconds * 1000 for seek in seeks_of_kind)
        requests = Spread.of(float(len(seek.requests)) for seek in seeks_of_kind)
        rows.append([kind, seconds.text(0), requests.text(0)])
        description = f"a seek by {kind} into the middle of a segment of {size} MiB"
        report.targets += [
            Target(f"ms to the first record of {description}", seconds.middle, 100.0),
            Target(f"requests of {description}", requests.high, 3.0),
        ]
    report.table(["seek by", "ms to the first record", "requests"], rows)


@click.command()
@benchmark_options
@click.option("--large", type=int, help="MiB of records of 1 KiB; 1024 by default.")
@click.option("--small", type=int, help="MiB of records of 100 B; 128 by default.")
def main(
    *,
    quick: bool,
    runs: int | None,
    record: bool,
    json_path: Path | None,
    large: int | None,
    small: int | None,
) -> None:
    """Read the store with poll, consume and consume_arrow, alternating with confluent-kafka."""
    plan = Plan(
        runs or (1 if quick else 3),
        large or (64 if quick else 1024),
        small or (16 if quick else 128),
        16 if quick else 128,
    )
    with work_directory() as directory:
        results = measure(directory, plan)
    how = _HOW.format(
        large=plan.large, small=plan.small, segment=min(plan.segment, plan.small), runs=plan.runs
    )
    report = Report("consume", "Consuming", how)
    report_on(report, plan, results)
    sys.exit(report.finish(record=record, json_path=json_path))


if __name__ == "__main__":
    main()
