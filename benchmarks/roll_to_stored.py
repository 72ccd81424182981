"""Roll to stored: how soon after its roll a segment is stored, and what took the time."""

import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import quantiles
from subprocess import PIPE, Popen
from typing import Self

import click
from lib import steady
from lib.backlog import broker, create_topic
from lib.clock import monotonic, pause
from lib.options import benchmark_options, work_directory
from lib.results import Report, Target
from lib.sidecar import Setup, Sidecar
from lib.stores import RealStore, real_store

from sidetier.segments.offsets import TopicPartition

_TOPIC = "rolls"
_PARTITIONS = 8
_SEGMENT_BYTES = 16 << 20
_RATE_BYTES = 30_000_000
_VALUE_BYTES = 10_000
_LOOK_SECONDS = 0.01
_STAGES = ("high_watermark", "queueing", "uploading", "committing")
_HOW = """\
A KRaft broker (4.3.1) takes {rate:g} MB/s in records of 10 kB over eight partitions with segments
of 16 MiB, for {seconds:g} s; the sidecar, as it is configured by default with
`broker.bootstrap_servers`, stores them in versitygw. All share the machine. **From outside**: a
roll is when the next `.log` is seen in the log dir, stored is when `offset.wm` in the server's
directory covers the segment; both are looked at every 10 ms. The upload's own time is that of the
event `segment.uploaded`. **From inside**: the sidecar's histograms, quantiles by interpolation
within a bucket. What was rolled in the last 5 s is left out."""

Segment = tuple[int, int]
"""Partition and base offset."""


@dataclass(slots=True)
class Seen:
    """Moments, in monotonic seconds."""

    rolled: dict[Segment, float] = field(default_factory=dict)
    stored: dict[Segment, float] = field(default_factory=dict)


class Observer:
    """Looks at the log dir and at the store's directory until it is told to stop."""

    def __init__(self, log_dir: Path, store: RealStore) -> None:
        self._log_dir = log_dir
        self._store = store
        self._stopping = threading.Event()
        self._bases: dict[int, list[int]] = {number: [] for number in range(_PARTITIONS)}
        self._done = dict.fromkeys(range(_PARTITIONS), 0)
        self.seen = Seen()
        self._thread = threading.Thread(target=self._run, name="observer")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_SECONDS):
            for partition in range(_PARTITIONS):
                self._look_for_rolls(partition)
                self._look_for_stored(partition)

    def _look_for_rolls(self, partition: int) -> None:
        names = (self._log_dir / f"{_TOPIC}-{partition}").glob("*.log")
        bases, now = sorted(int(path.stem) for path in names), monotonic()
        for closed, _ in pairwise(bases):
            self.seen.rolled.setdefault((partition, closed), now)
        self._bases[partition] = bases

    def _look_for_stored(self, partition: int) -> None:
        done = self._store.stored_up_to(TopicPartition(_TOPIC, partition))
        if done == self._done[partition]:
            return
        self._done[partition], now = done, monotonic()
        for closed, after in pairwise(self._bases[partition]):
            if after <= done:
                self.seen.stored.setdefault((partition, closed), now)


@dataclass(frozen=True, slots=True)
class Passage:
    """One segment's, in seconds."""

    partition: int
    base_offset: int
    rolled_to_stored: float
    upload: float

    @property
    def excess(self) -> float:
        """What the upload does not explain."""
        return self.rolled_to_stored - self.upload


def passages(seen: Seen, uploads: Mapping[Segment, float], until: float) -> list[Passage]:
    """Of every segment that was rolled before `until`; one that was never stored counts as forever.

    Raises:
        RuntimeError: a segment was not stored although there was time.
    """
    found = []
    for segment, rolled in sorted(seen.rolled.items()):
        if rolled > until:
            continue
        if segment not in seen.stored or segment not in uploads:
            raise RuntimeError(f"partition and base {segment}: rolled, but never seen stored")
        upload = uploads[segment]
        found.append(Passage(*segment, seen.stored[segment] - rolled, upload))
    return found


def percentile(values: Sequence[float], percent: int) -> float:
    """Of two values at least."""
    return quantiles(values, n=100, method="inclusive")[percent - 1]


@dataclass(frozen=True, slots=True)
class Stage:
    """A histogram's summary, in seconds."""

    name: str
    count: float
    mean: float
    median: float
    p99: float


def stage(
    samples: Mapping[tuple[str, frozenset[tuple[str, str]]], float], name: str, labels: set[str]
) -> Stage:
    """Of a histogram among the samples; `labels` are the values of its labels but `le`."""
    buckets: list[tuple[float, float]] = []
    facts: dict[str, float] = {}
    for (found, pairs), value in samples.items():
        values = dict(pairs)
        edge = values.pop("le", None)
        if set(values.values()) != labels or not found.startswith(name):
            continue
        if edge is not None:
            buckets.append((float(edge), value))
        else:
            facts[found.removeprefix(name)] = value
    count = facts.get("_count", 0)
    mean = facts.get("_sum", 0) / count if count else 0
    middle, late = (_within(sorted(buckets), count * share) for share in (0.5, 0.99))
    return Stage(" ".join(labels) or name, count, mean, middle, late)


def _within(buckets: Sequence[tuple[float, float]], rank: float) -> float:
    edge, below = 0.0, 0.0
    for upper, count in buckets:
        if count >= rank > 0:
            if upper == float("inf"):
                return edge
            return edge + (upper - edge) * (rank - below) / max(count - below, 1e-9)
        edge, below = upper, count
    return edge


def measure(directory: Path, seconds: float) -> tuple[list[Passage], list[Stage]]:
    """Produce for a while beside a running sidecar."""
    with broker(directory / "kafka") as cluster, real_store(directory / "store") as store:
        create_topic(cluster, _TOPIC, _PARTITIONS, _SEGMENT_BYTES)
        (log_dir,) = cluster.log_dirs(1)
        more = {
            "broker": {"bootstrap_servers": cluster.bootstrap_servers},
            "leadership": {"source": "auto"},
        }
        setup = Setup(directory, [log_dir], store.storage, more, store.environment)
        with Sidecar(setup) as sidecar, Observer(log_dir, store) as observer:
            sidecar.wait_until_ready(60)
            rate = _RATE_BYTES // _VALUE_BYTES
            arguments = [cluster.bootstrap_servers, _TOPIC, _PARTITIONS, rate, _VALUE_BYTES]
            line = [sys.executable, steady.__file__, *map(str, arguments)]
            with Popen(line, stdout=PIPE, text=True) as producer:
                pause(seconds)
                until = monotonic() - 5
                producer.terminate()
                text, _ = producer.communicate(timeout=60)
            sent = len(text.splitlines()) * _VALUE_BYTES / seconds
            print(f"{sent / 1e6:.1f} MB/s were produced", file=sys.stderr)
            with suppress(TimeoutError):
                sidecar.wait_until(lambda: _is_stored(observer.seen, until), 60, "the last upload")
            samples = sidecar.samples()
            uploads = {
                (row["partition"], row["base_offset"]): row["seconds"]
                for row in sidecar.events("segment.uploaded")
                if row["topic"] == _TOPIC
            }
    stages = [stage(samples, "sidetier_stage_seconds", {name}) for name in _STAGES]
    stages.append(stage(samples, "sidetier_roll_to_stored_seconds", set()))
    return passages(observer.seen, uploads, until), stages


def _is_stored(seen: Seen, until: float) -> bool:
    due = [segment for segment, rolled in list(seen.rolled.items()) if rolled <= until]
    return all(segment in seen.stored for segment in due)


def _report(found: Sequence[Passage], stages: Sequence[Stage], how: str) -> Report:
    report = Report("roll_to_stored", "Roll to stored", how)
    rows = []
    for name, values in (
        ("from roll to stored", [passage.rolled_to_stored for passage in found]),
        ("the upload's own time", [passage.upload for passage in found]),
        ("what the upload does not explain", [passage.excess for passage in found]),
    ):
        shown = [f"{percentile(values, percent):.3f}" for percent in (50, 90, 99)]
        rows.append([name, *shown, f"{max(values):.3f}"])
    columns = [f"from outside, {len(found)} segments, s", "median", "p90", "p99", "most"]
    report.table(columns, rows)
    report.table(
        ["from inside, s", "segments", "mean", "median, about", "p99, about"],
        [
            [
                one.name,
                f"{one.count:.0f}",
                f"{one.mean:.3f}",
                f"{one.median:.3f}",
                f"{one.p99:.3f}",
            ]
            for one in stages
        ],
    )
    excess = [passage.excess for passage in found]
    report.targets = [
        Target("median over the upload's own time, s", percentile(excess, 50), 0.3),
        Target("99th percentile over the upload's own time, s", percentile(excess, 99), 1.5),
    ]
    report.raw = {
        "segments": [asdict(passage) for passage in found],
        "stages": [asdict(one) for one in stages],
    }
    return report


@click.command()
@benchmark_options
@click.option("--seconds", type=float, help="How long records are produced; 90 by default.")
def main(
    *, quick: bool, runs: int | None, record: bool, json_path: Path | None, seconds: float | None
) -> None:
    """30 MB/s over eight partitions; segments of 16 MiB; versitygw."""
    length = seconds or (15.0 if quick else 90.0)
    found: list[Passage] = []
    stages: list[Stage] = []
    for _ in range(runs or 1):
        with work_directory() as directory:
            more, stages = measure(directory, length)
            found += more
    how = _HOW.format(rate=_RATE_BYTES / 1e6, seconds=length)
    report = _report(found, stages, how)
    sys.exit(report.finish(record=record, json_path=json_path))


if __name__ == "__main__":
    main()
