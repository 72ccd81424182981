"""Early archiving and tail packs: what they cost beside archiving segments alone."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click
from lib.backlog import broker, create_topic
from lib.options import benchmark_options, work_directory
from lib.results import Report, Spread, Target
from lib.rolls import Traffic, percentile, watch
from lib.sidecar import Setup, Sidecar
from lib.stores import real_store

_TRAFFIC = Traffic("orders", rate_bytes=10_000_000, value_bytes=2_000)
_SEGMENT_BYTES = 16 << 20
_EARLY = {"topics": [_TRAFFIC.topic], "bytes": "4MiB", "age": "10s"}
_TAIL = {"interval": "5s"}
_KINDS: Mapping[str, Mapping[str, Any]] = {
    "segments alone": {},
    "early": {"early": _EARLY},
    "tail": {"tail": _TAIL},
    "early and tail": {"early": _EARLY, "tail": _TAIL},
}
_HOW = """\
A KRaft broker (4.3.1) takes {rate:g} MB/s in records of 2 kB over eight partitions with segments of
16 MiB, for {seconds:g} s; the sidecar stores them in versitygw. All share the machine. **Early** is
`uploader.early` with `bytes: 4MiB` and `age: 10s`, **tail** is `uploader.tail.interval: 5s`. Each
round has a new cluster and a new store for each kind, in changing order; ratios compare kinds of
one round. A roll is the moment when the next `.log` appears in the log dir, and stored is the
moment when `offset.wm` in the server's directory covers the segment. Bytes are those of the
sidecar's counters, indexes and packs included, per acknowledged byte. Latency counts from the due
moment of a record to its acknowledgement. {runs} rounds."""


@dataclass(frozen=True, slots=True)
class Window:
    """One kind in one round. Times are in seconds; `bytes` is what the sidecar has sent."""

    kind: str
    segments: int
    rolled_to_stored: float
    latency_p99: float
    acknowledged: int
    bytes: float
    cpu_seconds: float
    peak_bytes: int
    seconds: float


def measure(kind: str, seconds: float) -> Window:
    """Produce for a while beside a sidecar of this kind."""
    with (
        work_directory() as directory,
        broker(directory / "kafka") as cluster,
        real_store(directory / "store") as store,
    ):
        create_topic(cluster, _TRAFFIC.topic, _TRAFFIC.partitions, _SEGMENT_BYTES)
        (log_dir,) = cluster.log_dirs(1)
        servers = cluster.bootstrap_servers
        more = {
            "broker": {"bootstrap_servers": servers},
            "leadership": {"source": "auto"},
            "uploader": dict(_KINDS[kind]),
        }
        setup = Setup(directory, [log_dir], store.storage, more, store.environment)
        with Sidecar(setup) as sidecar:
            sidecar.wait_until_ready(60)
            before = sidecar.cpu_seconds
            watched = watch(sidecar, log_dir, store, _TRAFFIC, servers, seconds)
            cpu, peak = sidecar.cpu_seconds - before, sidecar.peak_resident_bytes
            names = ("uploaded_bytes", "tail_bytes", "tail_rewritten_bytes")
            wanted = {f"sidetier_{name}_total" for name in names}
            sent = sum(value for (name, _), value in sidecar.samples().items() if name in wanted)
    passages = watched.rolled_to_stored
    return Window(
        kind,
        len(passages),
        median(passages),
        percentile(watched.latencies, 99),
        len(watched.latencies) * _TRAFFIC.value_bytes,
        sent,
        cpu,
        peak,
        watched.seconds,
    )


def report_of(rounds: Sequence[Mapping[str, Window]], how: str) -> Report:
    """Make the report of some rounds."""
    alone = "segments alone"

    def ratios(kind: str, name: str) -> list[float]:
        return [getattr(one[kind], name) / getattr(one[alone], name) for one in rounds]

    def sent(kind: str) -> list[float]:
        return [one[kind].bytes / one[kind].acknowledged for one in rounds]

    report = Report("early_and_tail", "Early archiving and tail packs beside segments", how)
    report.table(
        ["", "roll to stored, s", "produce p99, ms", "bytes sent", "CPU, % of a core", "peak, MB"],
        [
            [
                kind,
                Spread.of(one[kind].rolled_to_stored for one in rounds).text(),
                Spread.of(one[kind].latency_p99 * 1000 for one in rounds).text(0),
                Spread.of(sent(kind)).text(),
                Spread.of(100 * one[kind].cpu_seconds / one[kind].seconds for one in rounds).text(
                    1
                ),
                Spread.of(one[kind].peak_bytes / 1e6 for one in rounds).text(0),
            ]
            for kind in _KINDS
        ],
    )
    both = [ours / theirs for ours, theirs in zip(sent("early and tail"), sent(alone), strict=True)]
    report.targets = [
        Target(
            "roll to stored with a tail, ratio", median(ratios("tail", "rolled_to_stored")), 1.1
        ),
        Target("produce p99 with a tail, ratio", median(ratios("tail", "latency_p99")), 1.1),
        Target("bytes with early archiving and a tail, ratio", median(both), 2.4),
    ]
    report.raw = {"rounds": [{kind: asdict(one) for kind, one in each.items()} for each in rounds]}
    return report


@click.command()
@benchmark_options
def main(*, quick: bool, runs: int | None, record: bool, json_path: Path | None) -> None:
    """Produce 10 MB/s to eight partitions, with and without early archiving and tail packs."""
    seconds, count = (20.0, 1) if quick else (60.0, runs or 3)
    rounds: list[Mapping[str, Window]] = []
    for number in range(count):
        kinds = list(_KINDS)
        order = kinds[number % len(kinds) :] + kinds[: number % len(kinds)]
        rounds.append({kind: measure(kind, seconds) for kind in order})
        print(rounds[-1], file=sys.stderr)
    how = _HOW.format(rate=_TRAFFIC.rate_bytes / 1e6, seconds=seconds, runs=count)
    sys.exit(report_of(rounds, how).finish(record=record, json_path=json_path))


if __name__ == "__main__":
    main()
