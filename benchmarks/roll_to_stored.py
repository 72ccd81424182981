"""Roll to stored: the time from a segment's roll until it is stored, by stage."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from lib.backlog import broker, create_topic
from lib.options import benchmark_options, work_directory
from lib.results import Report, Target
from lib.rolls import Passage, Traffic, observe, percentile
from lib.sidecar import Setup, Sidecar
from lib.stores import real_store

_TRAFFIC = Traffic("rolls")
_SEGMENT_BYTES = 16 << 20
_STAGES = ("high_watermark", "queueing", "uploading", "committing")
_HOW = """\
A KRaft broker (4.3.1) takes {rate:g} MB/s in records of 10 kB over eight partitions with segments
of 16 MiB, for {seconds:g} s; the sidecar, with its default settings and `broker.bootstrap_servers`,
stores them in versitygw. All share the machine. **From outside**: a roll is the moment when the
next `.log` appears in the log dir, and stored is the moment when `offset.wm` in the server's
directory covers the segment; both are checked every 10 ms. The upload's own time is that of the
event `segment.uploaded`. **From inside**: the sidecar's histograms, quantiles by interpolation
within a bucket. Segments rolled in the last 5 s are left out."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Summary of a histogram, in seconds."""

    name: str
    count: float
    mean: float
    median: float
    p99: float


def stage(
    samples: Mapping[tuple[str, frozenset[tuple[str, str]]], float], name: str, labels: set[str]
) -> Stage:
    """Summarize a histogram among the samples; `labels` are its label values without `le`."""
    buckets: list[tuple[float, float]] = []
    facts: dict[str, float] = {}
    for (sample_name, pairs), value in samples.items():
        values = dict(pairs)
        edge = values.pop("le", None)
        if set(values.values()) != labels or not sample_name.startswith(name):
            continue
        if edge is not None:
            buckets.append((float(edge), value))
        else:
            facts[sample_name.removeprefix(name)] = value
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
        create_topic(cluster, _TRAFFIC.topic, _TRAFFIC.partitions, _SEGMENT_BYTES)
        (log_dir,) = cluster.log_dirs(1)
        servers = cluster.bootstrap_servers
        more = {
            "broker": {"bootstrap_servers": servers},
            "leadership": {"source": "auto"},
        }
        setup = Setup(directory, [log_dir], store.storage, more, store.environment)
        with Sidecar(setup) as sidecar:
            sidecar.wait_until_ready(60)
            passages = observe(sidecar, log_dir, store, _TRAFFIC, servers, seconds)
            samples = sidecar.samples()
    stages = [stage(samples, "sidetier_stage_seconds", {name}) for name in _STAGES]
    stages.append(stage(samples, "sidetier_roll_to_stored_seconds", set()))
    return passages, stages


def _report(found: Sequence[Passage], stages: Sequence[Stage], how: str) -> Report:
    report = Report("roll_to_stored", "Roll to stored", how)
    rows = []
    for name, values in (
        ("from roll to stored", [passage.rolled_to_stored for passage in found]),
        ("the upload's own time", [passage.upload for passage in found]),
        ("what the upload does not explain", [passage.excess for passage in found]),
    ):
        percentiles = [f"{percentile(values, percent):.3f}" for percent in (50, 90, 99)]
        rows.append([name, *percentiles, f"{max(values):.3f}"])
    columns = [f"from outside, {len(found)} segments, s", "median", "p90", "p99", "most"]
    report.table(columns, rows)
    report.table(
        ["from inside, s", "segments", "mean", "median, about", "p99, about"],
        [
            [
                stage_row.name,
                f"{stage_row.count:.0f}",
                f"{stage_row.mean:.3f}",
                f"{stage_row.median:.3f}",
                f"{stage_row.p99:.3f}",
            ]
            for stage_row in stages
        ],
    )
    excess = [passage.excess for passage in found]
    report.targets = [
        Target("median over the upload's own time, s", percentile(excess, 50), 0.3),
        Target("99th percentile over the upload's own time, s", percentile(excess, 99), 1.5),
    ]
    report.raw = {
        "segments": [asdict(passage) for passage in found],
        "stages": [asdict(stage_row) for stage_row in stages],
    }
    return report


@click.command()
@benchmark_options
@click.option("--seconds", type=float, help="How long records are produced; 90 by default.")
def main(
    *, quick: bool, runs: int | None, record: bool, json_path: Path | None, seconds: float | None
) -> None:
    """Produce 30 MB/s to eight partitions with segments of 16 MiB, stored on versitygw."""
    length = seconds or (15.0 if quick else 90.0)
    passages: list[Passage] = []
    stages: list[Stage] = []
    for _ in range(runs or 1):
        with work_directory() as directory:
            more, stages = measure(directory, length)
            passages += more
    how = _HOW.format(rate=_TRAFFIC.rate_bytes / 1e6, seconds=length)
    report = _report(passages, stages, how)
    sys.exit(report.finish(record=record, json_path=json_path))


if __name__ == "__main__":
    main()
