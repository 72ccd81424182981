"""Planning reads: 10,000 stored segments, of one partition and of a hundred."""

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import asdict, astuple, dataclass
from functools import partial
from pathlib import Path
from unittest.mock import patch
from uuid import uuid4

import click
from lib.clock import monotonic
from lib.log_dirs import FIRST_TIMESTAMP, LogDir, Shape, make_log_dir
from lib.options import benchmark_options, work_directory
from lib.results import Report, Spread, Target

from sidetier.pipeline.planning.planner import Planner
from sidetier.pipeline.planning.request import Filters, ReadRequest
from sidetier.pipeline.planning.selection import Topics
from sidetier.pipeline.planning.split import Plan
from sidetier.sandbox.cache import fetch_once
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.notes import NEXT_OFFSET_KEY
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.segments.watermark import Watermark, encode_watermark
from sidetier.storage.bodies import BytesBody
from sidetier.storage.endpoints import ArchiveAccess
from sidetier.storage.local import LocalStorage
from sidetier.storage.provider import OpenStores, PatternEndpointProvider
from sidetier.storage.settings import StorageEndpoint

_LAYOUT = ArchiveLayout("bench", 5)
_SEGMENT_BYTES, _BATCH_BYTES = 48 << 10, 6 << 10
_LIMIT = 5.0
_VERSION = 1
_HOW = """\
An archive on the file-system store, as a sidecar leaves it: {segments:,} segments with their
indexes, of {size} KiB each. Each plan is a new planner's, as a job makes it; **again** is
the same planner a second time, with nothing new: what an incremental run that finds nothing costs.
**Every segment cut** has splits of half a segment, so that each index is read; **since a time**
asks each segment for its largest timestamp; **committed** looks for the last stable offset.
{runs} runs."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One run: seconds, and what came of it."""

    seconds: float
    cpu_seconds: float
    splits: int


def open_archive(shape: Shape) -> ArchiveAccess:
    """An archive in the cache, made when it is not there; it is not changed."""
    parts = "-".join(str(int(part)) for part in (_VERSION, *astuple(shape)))
    root = fetch_once(f"bench-planning-{parts}", lambda folder: _fill(folder, shape)).resolve()
    store = LocalStorage(root)
    provider = PatternEndpointProvider(StorageEndpoint(f"file://{root}"))
    return ArchiveAccess(provider, OpenStores(provider, lambda _: store), _LAYOUT)


def _fill(root: Path, shape: Shape) -> None:
    """A log dir, stored as a sidecar stores it; files are not synced while that is made."""
    with (
        work_directory() as directory,
        closing(LocalStorage(root)) as store,
        patch.object(os, "fsync", lambda _handle: None),
    ):
        log_dir = make_log_dir(directory / "log-dir", shape)
        for tp in shape.topic_partitions():
            for base in shape.bases:
                _put(store, log_dir, tp, base)
            mark = Watermark(
                BaseOffset(shape.bases[-1]), Offset(shape.next_offset), nonce=uuid4().hex
            )
            store.put_object(_LAYOUT.watermark_key(tp), BytesBody(encode_watermark(mark)))


def _put(store: LocalStorage, log_dir: LogDir, tp: TopicPartition, base: int) -> None:
    notes = {NEXT_OFFSET_KEY: str(base + log_dir.shape.offsets)}
    for kind in (FileKind.INDEX, FileKind.TIMEINDEX, FileKind.LOG):
        data = (log_dir.path / str(tp) / segment_file_name(BaseOffset(base), kind)).read_bytes()
        metadata = notes if kind is FileKind.LOG else None
        key = _LAYOUT.object_key(tp, BaseOffset(base), kind)
        store.put_object(key, BytesBody(data), metadata=metadata)


def requests(shape: Shape) -> dict[str, ReadRequest]:
    """What is planned."""
    topic = Topics(("bench0",))
    middle = FIRST_TIMESTAMP + shape.next_offset // 2
    return {
        "all of it": ReadRequest(topic),
        "every segment cut": ReadRequest(topic, max_split_bytes=_SEGMENT_BYTES // 2),
        "since a time": ReadRequest(topic, filters=Filters(since_ms=middle)),
        "committed": ReadRequest(topic, isolation=IsolationLevel.READ_COMMITTED),
    }


def measure(access: ArchiveAccess, wanted: dict[str, ReadRequest]) -> dict[str, Figures]:
    """Each once."""
    found: dict[str, Figures] = {}
    for name, request in wanted.items():
        with Planner(access) as planner:
            plan = partial(planner.plan, request)
            found[name] = _timed(plan)
            if name == "all of it":
                found["again"] = _timed(plan)
    return found


def _timed(plan: Callable[[], Plan]) -> Figures:
    begin, cpu = monotonic(), os.times()
    made = plan()
    now = os.times()
    busy = now.user + now.system - cpu.user - cpu.system
    return Figures(monotonic() - begin, busy, len(made.splits))


def _report(report: Report, found: dict[int, list[dict[str, Figures]]], segments: int) -> None:
    names = list(next(iter(found.values()))[0])
    report.table(
        [
            "seconds",
            *(_partitions_text(number) for number in found),
            *(f"CPU s, {_partitions_text(number)}" for number in found),
            "splits",
        ],
        [
            [
                name,
                *(Spread.of(run[name].seconds for run in runs).text() for runs in found.values()),
                *(
                    Spread.of(run[name].cpu_seconds for run in runs).text()
                    for runs in found.values()
                ),
                " and ".join(f"{runs[0][name].splits:,}" for runs in found.values()),
            ]
            for name in names
        ],
    )
    report.targets = [
        Target(
            f"seconds to plan {segments:,} segments of {_partitions_text(number)}, {name}",
            Spread.of(run[name].seconds for run in runs).middle,
            _LIMIT,
        )
        for number, runs in found.items()
        for name in names
    ]
    report.raw = {
        str(number): [{name: asdict(one) for name, one in run.items()} for run in runs]
        for number, runs in found.items()
    }


def _partitions_text(number: int) -> str:
    return f"{number:,} partition{'' if number == 1 else 's'}"


@click.command()
@benchmark_options
def main(*, quick: bool, runs: int | None, record: bool, json_path: Path | None) -> None:
    """10,000 segments of 1 and of 100 partitions."""
    segments, times = (500, 1) if quick else (10_000, 5)
    times = runs or times
    how = _HOW.format(segments=segments, size=_SEGMENT_BYTES >> 10, runs=times)
    report = Report("planning", "Planning reads", how)
    found: dict[int, list[dict[str, Figures]]] = {}
    with ExitStack() as stack:
        for partitions in (1, 100):
            shape = Shape(
                partitions, segments // partitions, _SEGMENT_BYTES, _BATCH_BYTES, shared=True
            )
            access = open_archive(shape)
            stack.callback(access.stores.close)
            wanted = requests(shape)
            found[partitions] = [measure(access, wanted) for _ in range(times)]
    _report(report, found, segments)
    sys.exit(report.finish(record=record, json_path=json_path))


if __name__ == "__main__":
    main()
