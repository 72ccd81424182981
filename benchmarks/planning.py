"""Plan reads of 10,000 stored segments, in one partition and in a hundred."""

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import click
from lib.archives import LAYOUT, stored
from lib.clock import monotonic
from lib.log_dirs import FIRST_TIMESTAMP, Shape
from lib.options import benchmark_options, work_directory
from lib.results import Report, Spread, Target
from lib.stores import real_store

from sidetier.archive.access import ArchiveAccess, endpoint_provider
from sidetier.archive.objects.chapters import SEGMENTS
from sidetier.archive.objects.watermark import decode_watermark
from sidetier.config.storage import StorageConfig
from sidetier.pipeline.planning.planner import Planner
from sidetier.pipeline.planning.request import Filters, ReadRequest, Topics
from sidetier.pipeline.planning.split import Plan
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.factory import open_storage
from sidetier.storage.port import PutOptions
from sidetier.storage.provider import OpenStores, PatternEndpointProvider
from sidetier.storage.settings import StorageEndpoint
from sidetier.storage.store_calls import NullObserver
from sidetier.uploader.chapters import LongArchive, write_chapters

_SEGMENT_BYTES, _BATCH_BYTES = 48 << 10, 6 << 10
_LIMIT = 5.0
_PUTS_AT_ONCE = 8
_CHAPTERS = "since a time, with chapters"
_LIMIT_WITH_CHAPTERS = 1.5
_PLACES = {
    False: "the file-system store",
    True: "an S3 server of this machine (versitygw, HTTP), whose CPU time is not counted",
}
_HOW = """\
An archive on {place}, as a sidecar leaves it: {segments:,} segments with their indexes, of {size}
KiB each. Each plan is a new planner's, as a job makes it; **again** is the same planner a second
time, with nothing new: the cost of an incremental run that finds nothing. **Every segment cut** has
splits of half a segment, so that each index is read; **since a time** reads the largest timestamp
of each segment, or, **with chapters**, one object for 1,000 segments; **committed** reads the last
stable offset. Requests are those that an object store would receive: a list is a page of 1,000
objects. {runs} runs."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One run: seconds, CPU seconds, splits and requests."""

    seconds: float
    cpu_seconds: float
    splits: int
    requests: dict[str, int]


class Requests(NullObserver):
    """Counts requests by operation."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._counts: Counter[str] = Counter()

    def request(self, operation: str, seconds: float, outcome: str) -> None:
        """Count by operation; duration and outcome do not matter."""
        del seconds, outcome
        with self._guard:
            self._counts[operation] += 1

    def taken(self) -> dict[str, int]:
        """Return the counts since the last call."""
        with self._guard:
            counts, self._counts = self._counts, Counter()
        return dict(sorted(counts.items()))


Places = Callable[[Requests], ArchiveAccess]
"""Opens an archive anew, with counted requests."""


@contextmanager
def in_files(shape: Shape) -> Iterator[Places]:
    """Yield an archive in the cache, created if missing; it must not be changed."""
    yield partial(_opened, PatternEndpointProvider(StorageEndpoint(f"file://{stored(shape)}")))


@contextmanager
def in_s3(shape: Shape) -> Iterator[Places]:
    """Yield the same archive in a bucket of a running S3 server."""
    with work_directory() as directory, real_store(directory) as server:
        os.environ.update(server.environment)
        places = partial(_opened, endpoint_provider(StorageConfig(**server.storage)))
        with (
            in_files(shape) as files,
            closing(files(Requests()).stores) as source,
            closing(places(Requests()).stores) as target,
            ThreadPoolExecutor(_PUTS_AT_ONCE) as putters,
        ):
            source_store, target_store = source.of_topic("bench0"), target.of_topic("bench0")

            def copy(key: str) -> None:
                stored = source_store.get_object(key)
                target_store.put_object(
                    key, BytesBody(stored.data), PutOptions(metadata=stored.head.metadata)
                )

            for _ in putters.map(copy, [row.key for row in source_store.list_objects("")]):
                """Wait, and let errors show."""
        yield places


def _opened(provider: PatternEndpointProvider, requests: Requests) -> ArchiveAccess:
    stores = OpenStores(provider, lambda endpoint: open_storage(endpoint, observer=requests))
    return ArchiveAccess(provider, stores, LAYOUT)


def requests(shape: Shape) -> dict[str, ReadRequest]:
    """Return the planned reads."""
    topic = Topics(("bench0",))
    middle = FIRST_TIMESTAMP + shape.next_offset // 2
    return {
        "all of it": ReadRequest(topic),
        "every segment cut": ReadRequest(topic, max_split_bytes=_SEGMENT_BYTES // 2),
        "since a time": ReadRequest(topic, filters=Filters(since_ms=middle)),
        "committed": ReadRequest(topic, isolation=IsolationLevel.READ_COMMITTED),
    }


def measure(shape: Shape, places: Places, *, chapters: bool) -> dict[str, Figures]:
    """Measure each plan once; with `chapters`, repeat the last one after chapters were written."""
    figures: dict[str, Figures] = {}
    counted = Requests()
    access = places(counted)
    with closing(access.stores):
        for name, request in requests(shape).items():
            with Planner(access) as planner:
                plan = partial(planner.plan, request)
                figures[name] = _timed(plan, counted)
                if name == "all of it":
                    figures["again"] = _timed(plan, counted)
        if chapters and shape.segments >= SEGMENTS:
            for partition in range(shape.partitions):
                tp = TopicPartition("bench0", partition)
                store = access.store(tp.topic)
                key = LAYOUT.watermark_key(tp)
                watermark = decode_watermark(store.get_object(key).data, key)
                archive = LongArchive(
                    store, LAYOUT, tp, watermark.topic_id, watermark.base_offset, shape.segments
                )
                write_chapters(archive, lambda: False)
            counted.taken()
            with Planner(access) as planner:
                request = requests(shape)["since a time"]
                figures[_CHAPTERS] = _timed(partial(planner.plan, request), counted)
            # so that the next run starts without chapters
            for partition in range(shape.partitions):
                tp = TopicPartition("bench0", partition)
                store = access.store(tp.topic)
                watermark = decode_watermark(store.get_object(LAYOUT.watermark_key(tp)).data, "")
                for row in list(store.list_objects(LAYOUT.chapters_prefix(tp, watermark.topic_id))):
                    store.delete_object(row.key)
    return figures


def _timed(plan: Callable[[], Plan], counted: Requests) -> Figures:
    begin, cpu = monotonic(), os.times()
    plan_result = plan()
    cpu_end, seconds = os.times(), monotonic() - begin
    busy = cpu_end.user + cpu_end.system - cpu.user - cpu.system
    return Figures(seconds, busy, len(plan_result.splits), counted.taken())


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
                *(_spread(runs, name, "seconds") for runs in found.values()),
                *(_spread(runs, name, "cpu_seconds") for runs in found.values()),
                " and ".join(
                    f"{runs[0][name].splits:,}" for runs in found.values() if name in runs[0]
                ),
            ]
            for name in names
        ],
    )
    report.table(
        ["requests", *(_partitions_text(number) for number in found)],
        [
            [
                name,
                *(
                    _requests_text(runs[0][name].requests) if name in runs[0] else ""
                    for runs in found.values()
                ),
            ]
            for name in names
        ],
    )
    report.targets = [
        Target(
            f"seconds to plan {segments:,} segments of {_partitions_text(number)}, {name}",
            Spread.of(run[name].seconds for run in runs).middle,
            _LIMIT_WITH_CHAPTERS if name == _CHAPTERS else _LIMIT,
        )
        for number, runs in found.items()
        for name in runs[0]
    ]
    report.raw = {
        str(number): [{name: asdict(figures) for name, figures in run.items()} for run in runs]
        for number, runs in found.items()
    }


def _spread(runs: list[dict[str, Figures]], name: str, figure: str) -> str:
    """Return the spread; empty if not measured, because short archives have no chapters."""
    if name not in runs[0]:
        return ""
    return Spread.of(getattr(run[name], figure) for run in runs).text()


def _requests_text(counts: dict[str, int]) -> str:
    return ", ".join(f"{number:,} {operation}" for operation, number in counts.items())


def _partitions_text(number: int) -> str:
    return f"{number:,} partition{'' if number == 1 else 's'}"


@click.command()
@click.option("--s3", is_flag=True, help="On an S3 server of this machine.")
@benchmark_options
def main(*, s3: bool, quick: bool, runs: int | None, record: bool, json_path: Path | None) -> None:
    """Plan reads of 10,000 segments in 1 and in 100 partitions."""
    segments, times = (500, 1) if quick else (10_000, 5)
    times = runs or times
    how = _HOW.format(segments=segments, size=_SEGMENT_BYTES >> 10, runs=times, place=_PLACES[s3])
    name, title = ("planning_s3", "Planning reads on S3") if s3 else ("planning", "Planning reads")
    report = Report(name, title, how)
    results: dict[int, list[dict[str, Figures]]] = {}
    for partitions in (1, 100):
        shape = Shape(partitions, segments // partitions, _SEGMENT_BYTES, _BATCH_BYTES, shared=True)
        with (in_s3 if s3 else in_files)(shape) as places:
            results[partitions] = [measure(shape, places, chapters=s3) for _ in range(times)]
    _report(report, results, segments)
    sys.exit(report.finish(record=record, json_path=json_path))


if __name__ == "__main__":
    main()
