"""Encryption: catch-up and reading of encrypted segments against plain ones."""

import base64
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from catch_up import Run, timed_catch_up
from lib import reading
from lib.log_dirs import LogDir, Shape, cached_log_dir
from lib.options import benchmark_options, work_directory
from lib.programs import run_program
from lib.reading import Read
from lib.results import Report, Spread, Target
from lib.stores import RealStore, real_store

_TIMEOUT = 300.0
_GIB = 1 << 30
_WAYS = ("plain", "encrypted")
_HOW = """\
{gib:.2f} GiB in {segments} closed segments of {partitions} partitions, with their indexes, go to
versitygw over HTTP, as they are and encrypted with a key in a file, in turns. The sidecar's time
and CPU time are those of the section "Catch-up". Then `TieredConsumer` reads one partition of what
was stored, by `consume_arrow(10_000)`, in a process of its own with its defaults (CRC checks);
rates are from the first record to the last, and GiB are of values. The server shares the cores. The
segments are in the page cache. {runs} runs in turns; ratios compare neighbouring runs."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One catch-up, and one reading of what it has stored."""

    upload: Run
    read: Read


def measure(directory: Path, log_dir: LogDir, runs: int) -> list[dict[str, Measured]]:
    """Measure pairs of a plain and an encrypted archive, in alternating order."""
    key = directory / "key"
    key.write_text(base64.b64encode(os.urandom(32)).decode())
    settings = {"topics": [".*"], "key": "k1", "keys": {"k1": {"file": str(key)}}}
    size, pairs = log_dir.closed_bytes(), []
    with real_store(directory / "store") as store:
        _measured(directory, store, log_dir, size, {})  # fills the page cache, and is not counted
        for number in range(runs):
            pair = {}
            for way in _WAYS if number % 2 == 0 else reversed(_WAYS):
                store.clear()
                os.sync()
                more = {"encryption": settings} if way == "encrypted" else {}
                pair[way] = _measured(directory, store, log_dir, size, more)
                print(f"{way}: {pair[way]}", file=sys.stderr)
            pairs.append(pair)
    return pairs


def _measured(
    directory: Path, store: RealStore, log_dir: LogDir, size: int, more: Mapping[str, Any]
) -> Measured:
    upload = timed_catch_up(directory, store, log_dir, size, more)
    tp = next(log_dir.shape.topic_partitions())
    parameters = {
        "side": "store",
        "method": "arrow",
        "topic": tp.topic,
        "end": log_dir.shape.next_offset,
        "config": {
            "tiered.storage.mode": "TIERED_STORAGE_ONLY",
            "tiered.storage.encryption.keys": f"k1=file:{directory / 'key'}",
            **store.reader_options,
        },
    }
    read = Read(**run_program(reading.__file__, parameters, store.environment))
    return Measured(upload, read)


def report_on(report: Report, pairs: list[dict[str, Measured]]) -> None:
    """Fill the report with a table and the target."""
    rows = []
    for way in _WAYS:
        uploads = [pair[way].upload for pair in pairs]
        reads = [pair[way].read for pair in pairs]
        rows.append(
            [
                way,
                Spread.of(run.cpu_per_gib for run in uploads).text(),
                Spread.of(run.megabytes_per_second for run in uploads).text(0),
                Spread.of(run.cpu_per_gib for run in reads).text(),
                Spread.of(run.megabytes_per_second for run in reads).text(0),
            ]
        )
    both = [(pair["encrypted"], pair["plain"]) for pair in pairs]
    speed = Spread.of(
        new.upload.megabytes_per_second / old.upload.megabytes_per_second for new, old in both
    )
    ratios = [
        Spread.of(new.upload.cpu_per_gib / old.upload.cpu_per_gib for new, old in both),
        speed,
        Spread.of(new.read.cpu_per_gib / old.read.cpu_per_gib for new, old in both),
        Spread.of(
            new.read.megabytes_per_second / old.read.megabytes_per_second for new, old in both
        ),
    ]
    rows.append(["ratio", *(spread.text() for spread in ratios)])
    columns = ["segments", "sidecar CPU s/GiB", "catch-up MB/s", "read CPU s/GiB", "read MB/s"]
    report.table(columns, rows)
    report.targets.append(
        Target("encrypted catch-up MB/s, against plain", speed.middle, 0.7, at_least=True)
    )
    report.raw = {
        "runs": [{way: asdict(measured) for way, measured in pair.items()} for pair in pairs]
    }


@click.command()
@benchmark_options
def main(*, quick: bool, runs: int | None, record: bool, json_path: Path | None) -> None:
    """Upload and read 2 GiB in 32 closed segments, encrypted and not."""
    shape = Shape(4, 2, 16 << 20) if quick else Shape(8, 4, 64 << 20)
    times = runs or (1 if quick else 3)
    log_dir = cached_log_dir(shape)
    how = _HOW.format(
        gib=log_dir.closed_bytes() / _GIB,
        segments=shape.closed_segments,
        partitions=shape.partitions,
        runs=times,
    )
    report = Report("encryption", "Encryption", how)
    with work_directory() as directory:
        report_on(report, measure(directory, log_dir, times))
    sys.exit(report.finish(record=record, json_path=json_path))


if __name__ == "__main__":
    main()
