"""Verify: `sidetier verify --deep` against plain reads of the same objects, and the light check."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from lib import plain_read
from lib.log_dirs import Shape
from lib.measured_process import Run, timed
from lib.options import benchmark_options, work_directory
from lib.results import Report, Spread, Target
from lib.sidecar import CLUSTER
from lib.sidecar_archive import archive
from lib.stores import BUCKET, LAYOUT, RealStore, real_store

from sidetier.archive.objects.pinterest_metadata import PartitionMetadata, encode_metadata
from sidetier.archive.objects.watermark import Watermark, encode_watermark
from sidetier.archive.verify.deep import CHUNK_BYTES
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.notes import NEXT_OFFSET_KEY
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition

_MIB, _GIB = 1 << 20, 1 << 30
_SEGMENT_BYTES = 64 * _MIB
_PARTITIONS = 8
_THREADS = 4
_SHARE, _LIGHT_SECONDS, _LIGHT_SEGMENTS = 0.5, 30.0, 100_000
_OFFSETS = 100
"""Offsets of a segment of the light check."""
_HOW = """\
**Deep:** {gib:.2f} GiB in {segments} segments of {size} MiB ({partitions} partitions, batches of
{batch} KiB, uncompressed records of 1 KiB) on an S3 server of this machine (versitygw, HTTP), whose
CPU time is not counted, but which shares the two cores. **boto3** reads the same `.log` objects by
ranged GETs of {chunk} MiB on {threads} threads, and drops the bytes. **verify** is
`sidetier verify --deep` with its defaults. Each is a process, from its start to its end, in
alternating order; ratios compare neighbouring runs. **Light:** `sidetier verify` over one
partition of {light:,} segments with their indexes, of a few bytes each, on the same server:
{objects:,} listed objects. They are written as files of the server, with the attributes of an
object that it has stored itself. {runs} runs."""


@dataclass(frozen=True, slots=True)
class Bench:
    """A store and the directory of the measured processes."""

    directory: Path
    store: RealStore

    def timed(self, size: int, line: Sequence[str], given: str = "") -> tuple[Run, str]:
        """Run a process with this standard input; return its figures and its output."""
        return timed(size, line, self.directory, self.store.environment, given)

    def verify(self, size: int, segments: int, *options: str) -> Run:
        """Run `sidetier verify`, and check that it has seen all segments and no damage."""
        config = self.directory / "sidetier.yaml"
        settings = {"cluster": {"name": CLUSTER}, "storage": self.store.storage}
        config.write_text(json.dumps(settings))
        program = str(Path(sys.executable).with_name("sidetier"))
        line = [program, "--config", str(config), "verify", "--output", "json", *options]
        run, output = self.timed(size, line)
        result = json.loads(output)
        if result["segments"] != segments or result["findings"]:
            raise RuntimeError(f"{result['segments']} segments, {result['findings'][:3]}")
        return run


def measure_deep(directory: Path, shape: Shape, runs: int) -> list[dict[str, Run]]:
    """Store an archive once; read and verify it in alternating order."""
    with real_store(directory / "deep") as store:
        bench = Bench(directory, store)
        objects = archive(directory, store, shape)
        size = sum(size for _, size in objects)
        server = store.server
        plain = [sys.executable, plain_read.__file__, str(CHUNK_BYTES), str(_THREADS)]
        plain += [BUCKET, server.endpoint_url, server.region]
        listed = "".join(f"{key} {size}\n" for key, size in objects)
        results = []
        for number in range(runs):
            run: dict[str, Run] = {}
            for name in ("boto3", "verify") if number % 2 == 0 else ("verify", "boto3"):
                if name == "boto3":
                    run[name] = bench.timed(size, plain, listed)[0]
                else:
                    run[name] = bench.verify(size, shape.closed_segments, "--deep")
                print(f"{name}: {run[name]}", file=sys.stderr)
            results.append(run)
        return results


def measure_light(directory: Path, segments: int, runs: int) -> list[Run]:
    """Verify an archive of many small segments."""
    with real_store(directory / "light") as store:
        bench = Bench(directory, store)
        _many_segments(store, segments)
        results = []
        for _ in range(runs):
            results.append(bench.verify(0, segments))
            print(f"light: {results[-1]}", file=sys.stderr)
        return results


def _many_segments(store: RealStore, segments: int) -> None:
    """Store one segment by the API, and all others as copies of its files and their attributes."""
    client, tp = store.client(), TopicPartition("bench0", 0)
    prefix = LAYOUT.partition_prefix(tp)
    for kind, body in ((FileKind.LOG, b"x"), (FileKind.INDEX, b""), (FileKind.TIMEINDEX, b"")):
        key = LAYOUT.object_key(tp, BaseOffset(0), kind)
        client.put_object(
            Bucket=BUCKET, Key=key, Body=body, Metadata={NEXT_OFFSET_KEY: str(_OFFSETS)}
        )
        first = store.bucket / key
        attributes = [(name, os.getxattr(first, name)) for name in os.listxattr(first)]
        for number in range(1, segments):
            name = segment_file_name(BaseOffset(number * _OFFSETS), kind)
            path = store.bucket / prefix / name
            path.write_bytes(body)
            for attribute, value in attributes:
                os.setxattr(path, attribute, value)
    last, end = BaseOffset((segments - 1) * _OFFSETS), Offset(segments * _OFFSETS)
    # The end of the last segment is read from its metadata.
    client.put_object(
        Bucket=BUCKET,
        Key=LAYOUT.object_key(tp, last, FileKind.LOG),
        Body=b"x",
        Metadata={NEXT_OFFSET_KEY: str(end)},
    )
    entries = ((BaseOffset(number * _OFFSETS), number) for number in range(segments))
    metadata = encode_metadata(PartitionMetadata(tp).with_segments(entries))
    client.put_object(Bucket=BUCKET, Key=LAYOUT.metadata_key(tp), Body=metadata)
    watermark = encode_watermark(Watermark(last, end, start_offset=Offset(0)))
    client.put_object(Bucket=BUCKET, Key=LAYOUT.watermark_key(tp), Body=watermark)


def report_on(
    report: Report, deep: Sequence[dict[str, Run]], light: Sequence[Run], segments: int
) -> None:
    """Fill the report with two tables and the targets."""
    rows = []
    for name in ("boto3", "verify"):
        step = [run[name] for run in deep]
        rows.append(
            [
                name,
                Spread.of(run.megabytes_per_second for run in step).text(0),
                Spread.of(run.cpu_seconds * _GIB / run.size for run in step).text(),
                f"{max(run.peak_resident_bytes for run in step) / _MIB:.0f}",
            ]
        )
    report.table(["deep", "MB/s", "CPU s/GiB", "MiB at most"], rows)
    report.table(
        ["light", "s", "CPU s", "MiB at most"],
        [
            [
                f"{segments:,} segments",
                Spread.of(run.seconds for run in light).text(),
                Spread.of(run.cpu_seconds for run in light).text(),
                f"{max(run.peak_resident_bytes for run in light) / _MIB:.0f}",
            ]
        ],
    )
    ratio = Spread.of(
        run["verify"].megabytes_per_second / run["boto3"].megabytes_per_second for run in deep
    )
    report.targets.append(
        Target("MB/s of verify --deep, against reading", ratio.middle, _SHARE, at_least=True)
    )
    seconds = Spread.of(run.seconds for run in light).middle
    report.targets.append(
        Target(f"s of the light check of {segments:,} segments", seconds, _LIGHT_SECONDS)
    )
    report.raw["deep"] = [{name: asdict(run) for name, run in runs.items()} for runs in deep]
    report.raw["light"] = [asdict(run) for run in light]


@click.command()
@benchmark_options
@click.option("--gib", type=click.FloatRange(0.1), help="GiB of segments.  [default: 2]")
@click.option("--segments", type=click.IntRange(2), help="Of the light check. [default: 100,000]")
@click.option("--batch-kib", type=click.IntRange(2), default=16, help="KiB of a batch.")
def main(  # noqa: PLR0913 - one parameter for each option
    *,
    quick: bool,
    runs: int | None,
    record: bool,
    json_path: Path | None,
    gib: float | None,
    segments: int | None,
    batch_kib: int,
) -> None:
    """Compare plain ranged GETs and `verify --deep`, and measure the light check."""
    size = round((gib or (0.25 if quick else 2)) * _GIB)
    segment = min(_SEGMENT_BYTES, size // _PARTITIONS)
    each = max(1, round(size / _PARTITIONS / segment))
    shape = Shape(_PARTITIONS, each, segment, batch_kib << 10, shared=True)
    many = segments or (1000 if quick else _LIGHT_SEGMENTS)
    with work_directory() as directory:
        deep = measure_deep(directory, shape, runs or 1)
        light = measure_light(directory, many, runs or 1)
    how = _HOW.format(
        gib=deep[0]["verify"].size / _GIB,
        segments=shape.closed_segments,
        size=segment // _MIB,
        partitions=_PARTITIONS,
        batch=batch_kib,
        chunk=CHUNK_BYTES // _MIB,
        threads=_THREADS,
        light=many,
        objects=3 * many,
        runs=len(deep),
    )
    report = Report("verify", "Verifying", how)
    report_on(report, deep, light, many)
    sys.exit(report.finish(record=record, json_path=json_path))


if __name__ == "__main__":
    main()
