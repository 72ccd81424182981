"""Verify: `sidetier verify --deep` against plain reads of the same objects, and the light check."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from lib import plain_list, plain_read
from lib.installed import installed_programs
from lib.log_dirs import Shape
from lib.measured_process import Run, timed
from lib.options import benchmark_options, work_directory
from lib.results import Report, Spread, Target
from lib.sidecar import CLUSTER
from lib.sidecar_archive import archive
from lib.stores import BUCKET, LAYOUT, RealStore, StandIn, real_store

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
_SERVER_SEGMENTS = 20_000
"""Segments of the light check on the real server, which reads the whole directory for each page."""
_PAGE_DELAY, _REQUEST_DELAY, _MANY_PARTITIONS = 0.1, 0.03, 1000
_OFFSETS = 100
"""Offsets of a segment of the light check."""
_FILES = ((FileKind.LOG, b"x"), (FileKind.INDEX, b""), (FileKind.TIMEINDEX, b""))
"""Files of a segment of the light check, with their bytes."""
_HOW = """\
**Deep:** {gib:.2f} GiB in {segments} segments of {size} MiB ({partitions} partitions, batches of
{batch} KiB, uncompressed records of 1 KiB) on an S3 server of this machine (versitygw, HTTP), whose
CPU time is not counted, but which shares the two cores. **boto3** reads the same `.log` objects by
ranged GETs of {chunk} MiB on {threads} threads, and drops the bytes. **verify** is
`sidetier verify --deep` with its defaults. Each is a process, from its start to its end, in
alternating order; ratios compare neighbouring runs. **Light:** `sidetier verify` over archives of
segments with their indexes, of a few bytes each, three objects for each segment. **Stand-in** is an
HTTP server of this repository that answers each request after a delay, and takes little CPU time:
one partition of {light:,} segments with {page:.0f} ms for each request (a page of 1,000 keys), and
{many:,} partitions of {each:,} segments with {request:.0f} ms. **versitygw** has one partition of
{server:,} segments, written as files of the server, with the attributes of an object that it has
stored itself; for each page, it reads the names of the whole directory. **Listing** is a process
that only lists the same keys of the same server with obstore, and drops them. {runs} runs."""


@dataclass(frozen=True, slots=True)
class Bench:
    """A store and the directory of the measured processes."""

    directory: Path
    storage: dict[str, Any]
    environment: dict[str, str]

    def timed(self, size: int, line: Sequence[str], given: str = "") -> tuple[Run, str]:
        """Run a process with this standard input; return its figures and its output."""
        return timed(size, line, self.directory, self.environment, given)

    def listing(self, keys: int) -> Run:
        """List the keys of partition bench0-0, and check their number."""
        s3 = self.storage["s3"]
        prefix = LAYOUT.partition_prefix(TopicPartition("bench0", 0)).rstrip("/")
        line = [sys.executable, plain_list.__file__, BUCKET, s3["endpoint_url"], s3["region"]]
        run, output = self.timed(0, [*line, prefix])
        # Beside the segments: `_metadata` and `offset.wm`.
        if int(output) != keys + 2:
            raise RuntimeError(f"{output.strip()} keys were listed, {keys + 2} are stored")
        print(f"listing: {run}", file=sys.stderr)
        return run

    def verify(self, size: int, segments: int, *options: str) -> Run:
        """Run `sidetier verify`, and check that it has seen all segments and no damage."""
        config = self.directory / "sidetier.yaml"
        settings = {"cluster": {"name": CLUSTER}, "storage": self.storage}
        config.write_text(json.dumps(settings))
        program = str(installed_programs("consumer") / "sidetier")
        line = [program, "--config", str(config), "verify", "--output", "json", *options]
        run, output = self.timed(size, line)
        result = json.loads(output)
        if result["segments"] != segments or result["findings"]:
            raise RuntimeError(f"{result['segments']} segments, {result['findings'][:3]}")
        return run


def measure_deep(directory: Path, shape: Shape, runs: int) -> list[dict[str, Run]]:
    """Store an archive once; read and verify it in alternating order."""
    with real_store(directory / "deep") as store:
        bench = Bench(directory, store.storage, store.environment)
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


Light = dict[str, list[Run]]
"""Runs of the light check, and of the bare listing of the same keys, by name."""


def measure_light(directory: Path, segments: int, on_server: int, runs: int) -> Light:
    """Verify archives of many small segments, and list the keys of the largest partitions."""
    light: Light = {}
    many = min(_MANY_PARTITIONS, segments)
    for name, partitions, delay in (
        ("stand-in, one partition", 1, _PAGE_DELAY),
        ("stand-in, many partitions", many, _REQUEST_DELAY),
    ):
        with StandIn(directory) as stand_in:
            _created_segments(stand_in, segments // partitions, partitions)
            stand_in.set_delay(delay)
            bench = Bench(directory, stand_in.storage, stand_in.environment)
            light[name] = _repeated(name, bench, segments // partitions * partitions, runs)
            if partitions == 1:
                light[f"{name}, listing"] = [bench.listing(3 * segments) for _ in range(runs)]
    with real_store(directory / "light") as store:
        _many_segments(store, on_server)
        bench = Bench(directory, store.storage, store.environment)
        light["versitygw, listing"] = [bench.listing(3 * on_server) for _ in range(runs)]
        light["versitygw"] = _repeated("versitygw", bench, on_server, runs)
    return light


def _repeated(name: str, bench: Bench, segments: int, runs: int) -> list[Run]:
    results = []
    for _ in range(runs):
        results.append(bench.verify(0, segments))
        print(f"{name}: {results[-1]}", file=sys.stderr)
    return results


def _created_segments(stand_in: StandIn, segments: int, partitions: int) -> None:
    """Create partitions of this number of segments each, twenty partitions for each topic."""
    tps = [TopicPartition(f"bench{number // 20}", number % 20) for number in range(partitions)]
    stand_in.create_all(
        (LAYOUT.object_key(tp, BaseOffset(number * _OFFSETS), kind), len(body))
        for tp in tps
        for number in range(segments)
        for kind, body in _FILES
    )
    stand_in.put_all(pair for tp in tps for pair in _small_objects(tp, segments))


def _many_segments(store: RealStore, segments: int) -> None:
    """Store one segment by the API, and all others as copies of its files and their attributes."""
    client, tp = store.client(), TopicPartition("bench0", 0)
    prefix = LAYOUT.partition_prefix(tp)
    for kind, body in _FILES:
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
    # The end of the last segment is read from its metadata.
    client.put_object(
        Bucket=BUCKET,
        Key=LAYOUT.object_key(tp, BaseOffset((segments - 1) * _OFFSETS), FileKind.LOG),
        Body=b"x",
        Metadata={NEXT_OFFSET_KEY: str(segments * _OFFSETS)},
    )
    for key, body in _small_objects(tp, segments):
        client.put_object(Bucket=BUCKET, Key=key, Body=body)


def _small_objects(tp: TopicPartition, segments: int) -> Iterator[tuple[str, bytes]]:
    """Yield key and bytes of `_metadata` and `offset.wm`."""
    entries = ((BaseOffset(number * _OFFSETS), number) for number in range(segments))
    yield (
        LAYOUT.metadata_key(tp),
        encode_metadata(PartitionMetadata(tp).with_segments(entries)),
    )
    last, end = BaseOffset((segments - 1) * _OFFSETS), Offset(segments * _OFFSETS)
    watermark = encode_watermark(Watermark(last, end, start_offset=Offset(0)))
    yield LAYOUT.watermark_key(tp), watermark


def report_on(report: Report, deep: Sequence[dict[str, Run]], light: Light) -> None:
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
    rows = [
        [
            name,
            Spread.of(run.seconds for run in runs).text(),
            Spread.of(run.cpu_seconds for run in runs).text(),
            f"{max(run.peak_resident_bytes for run in runs) / _MIB:.0f}",
        ]
        for name, runs in light.items()
    ]
    report.table(["light", "s", "CPU s", "MiB at most"], rows)
    ratio = Spread.of(
        run["verify"].megabytes_per_second / run["boto3"].megabytes_per_second for run in deep
    )
    report.targets.append(
        Target("MB/s of verify --deep, against reading", ratio.middle, _SHARE, at_least=True)
    )
    for name in ("stand-in, one partition", "stand-in, many partitions"):
        seconds = Spread.of(run.seconds for run in light[name]).middle
        report.targets.append(Target(f"s of the light check, {name}", seconds, _LIGHT_SECONDS))
    report.raw["deep"] = [{name: asdict(run) for name, run in runs.items()} for runs in deep]
    report.raw["light"] = {name: [asdict(run) for run in runs] for name, runs in light.items()}


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
    on_server = min(many, _SERVER_SEGMENTS)
    with work_directory() as directory:
        deep = measure_deep(directory, shape, runs or 1)
        light = measure_light(directory, many, on_server, runs or 1)
    how = _HOW.format(
        gib=deep[0]["verify"].size / _GIB,
        segments=shape.closed_segments,
        size=segment // _MIB,
        partitions=_PARTITIONS,
        batch=batch_kib,
        chunk=CHUNK_BYTES // _MIB,
        threads=_THREADS,
        light=many,
        page=_PAGE_DELAY * 1000,
        many=min(_MANY_PARTITIONS, many),
        each=max(1, many // _MANY_PARTITIONS),
        request=_REQUEST_DELAY * 1000,
        server=on_server,
        runs=len(deep),
    )
    report = Report("verify", "Verifying", how)
    report_on(report, deep, light)
    sys.exit(report.finish(record=record, json_path=json_path))


if __name__ == "__main__":
    main()
