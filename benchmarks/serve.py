"""Serve: `sidetier serve` against the broker that wrote the same segments, read by librdkafka."""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
from lib import idle_clients, kafka_reading, processes
from lib.backlog import broker
from lib.clock import pause
from lib.endpoint import Endpoint
from lib.kafka_reading import KafkaRead
from lib.options import benchmark_options, work_directory
from lib.programs import ready_program, run_program
from lib.results import Report, Spread, Target
from lib.stores import FileStore, certificate, real_store
from lib.topics import Shape, store, write

_MIB, _GIB, _KIB = 1 << 20, 1 << 30, 1 << 10
_MEMORY = 256
"""Budget of the endpoint's block cache in MiB, its default."""
_OVER_BUDGET = 60
_IDLE = 500
_IDLE_SECONDS = 20.0
_HOW = """\
Topics of one and of eight partitions on a KRaft broker (4.3.1), {size} MiB each, filled by
confluent-kafka without compression in batches of {batch} KiB; a sidecar has stored their closed
segments of {segment} MiB in a directory and on versitygw. confluent-kafka reads the stored records
by `consume(5000)` from the broker and from `sidetier serve` in turns, each time in a new process,
with `fetch.queue.backoff.ms=5` and no CRC check. MB are of values; CPU seconds are user and system
time per GiB of values, of the server's process, of versitygw and of the client. Ratios are of
neighbours. Client, server and versitygw share the machine's cores, and all files are in the page
cache. **Bound**: MB/s of an endpoint over S3 that takes no CPU time itself, if client and versitygw
use all cores, of the broker's. {runs} runs."""

_CPU_LIMITS = {"files": 0.5, "S3": 1.2}
"""CPU seconds per GiB, set on a machine on which a broker takes `_BROKER_CPU`."""
_BROKER_CPU = {1: 0.56, 8: 0.24}
"""CPU seconds per GiB of a broker (4.3.1) with 4 KiB records on that machine, by partitions."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One read, and the CPU seconds of the server and of its S3 server meanwhile."""

    read: KafkaRead
    server_cpu_seconds: float
    store_cpu_seconds: float

    def per_gib(self, cpu_seconds: float) -> float:
        """Return CPU seconds per GiB of values."""
        return cpu_seconds / self.read.size * _GIB

    @property
    def server_cpu_per_gib(self) -> float:
        """CPU seconds of the server per GiB of values."""
        return self.per_gib(self.server_cpu_seconds)

    @property
    def most_megabytes_per_second(self) -> float:
        """MB of values per second if client and S3 server used all cores."""
        cores = len(os.sched_getaffinity(0))
        return self.read.size / 1e6 * cores / (self.read.cpu_seconds + self.store_cpu_seconds)


@dataclass(frozen=True, slots=True)
class Server:
    """A server to read from: its process, the properties of its clients, and its S3 server."""

    pid: int
    properties: Mapping[str, Any]
    store_pid: int | None = None


@dataclass(frozen=True, slots=True)
class Idle:
    """The endpoint with waiting connections."""

    grown: int
    cores: float
    answers: int


Reads = dict[str, dict[str, list[Measured]]]


def shapes(size: int, segment: int, batch: int) -> list[Shape]:
    """Return the shapes of all topics."""
    return [
        Shape(record, batch * _KIB, segment * _MIB, size * _MIB, partitions=partitions)
        for record in (_KIB, 4 * _KIB)
        for partitions in (1, 8)
    ]


def measure(
    directory: Path, topics: Sequence[Shape], runs: int
) -> tuple[Reads, dict[str, int], Idle]:
    """Read all topics from all servers in turns.

    Returns:
        The reads by topic and server; peaks of the endpoints' resident memory in bytes; the
        endpoint over files with idle connections.
    """
    with ExitStack() as stack:
        cluster = stack.enter_context(broker(directory / "kafka"))
        s3 = stack.enter_context(real_store(directory / "s3"))
        files = FileStore(directory / "files")
        files.directory.mkdir()
        for shape in topics:
            write(cluster, shape)
        store(cluster, s3, topics, directory / "sidecar-s3")
        records = store(cluster, files, topics, directory / "sidecar-files")
        os.sync()
        pair, authority = certificate(directory / "tls")
        memory = ("--memory", f"{_MEMORY}MiB")
        tls = ("--tls-certificate", str(pair.certificate), "--tls-key", str(pair.key))
        over_files, over_s3, over_tls = (
            stack.enter_context(Endpoint(directory / name, real.storage, real.environment, options))
            for name, real, options in (
                ("serve-files", files, memory),
                ("serve-s3", s3, memory),
                ("serve-tls", files, (*memory, *tls)),
            )
        )
        encrypted = {"security.protocol": "SSL", "ssl.ca.location": str(authority)}
        servers = {
            "broker": Server(
                cluster.process_of(1).pid, {"bootstrap.servers": cluster.bootstrap_servers}
            ),
            "files": _server(over_files),
            "S3": replace(_server(over_s3), store_pid=s3.server.process.pid),
            "files, TLS": _server(over_tls, encrypted),
        }
        reads: Reads = {shape.topic: {name: [] for name in servers} for shape in topics}
        for number in range(runs):
            for shape in topics:
                names = list(servers) if number % 2 == 0 else list(reversed(servers))
                for name in names:
                    measured = _read(servers[name], shape, records[shape.topic])
                    print(f"{shape.topic} {name}: {measured}", file=sys.stderr)
                    reads[shape.topic][name].append(measured)
        peaks = {
            name: endpoint.peak_resident_bytes
            for name, endpoint in (("files", over_files), ("S3", over_s3), ("TLS", over_tls))
        }
        first = topics[0].topic
        with Endpoint(directory / "serve-idle", files.storage, {}, memory) as idle:
            return reads, peaks, _idle(idle, first, records[first])


def _server(endpoint: Endpoint, more: Mapping[str, Any] | None = None) -> Server:
    properties = {"bootstrap.servers": endpoint.bootstrap_servers, **(more or {})}
    return Server(endpoint.process.pid, properties)


def _read(server: Server, shape: Shape, records: int) -> Measured:
    config = {
        "group.id": "bench",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "fetch.queue.backoff.ms": 5,
        **server.properties,
    }
    asked = {
        "config": config,
        "topic": shape.topic,
        "partitions": shape.partitions,
        "records": records,
    }

    def cpu_seconds() -> tuple[float, float]:
        store_pid = server.store_pid
        return processes.cpu_seconds(server.pid), (
            0.0 if store_pid is None else processes.cpu_seconds(store_pid)
        )

    before, store_before = cpu_seconds()
    read = KafkaRead(**run_program(kafka_reading.__file__, asked))
    after, store_after = cpu_seconds()
    return Measured(read, after - before, store_after - store_before)


def _idle(endpoint: Endpoint, topic: str, end: int) -> Idle:
    asked = {"address": endpoint.address, "connections": 1, "topic": topic, "offset": end}
    run_program(idle_clients.__file__, {**asked, "seconds": 2})
    before = endpoint.resident_bytes
    waiting = {**asked, "connections": _IDLE, "seconds": _IDLE_SECONDS + 4}
    with ready_program(idle_clients.__file__, waiting) as answered:
        pause(2)
        cpu = endpoint.cpu_seconds
        pause(_IDLE_SECONDS)
        cores = (endpoint.cpu_seconds - cpu) / _IDLE_SECONDS
        grown = endpoint.resident_bytes - before
        answers = answered()
    return Idle(grown, cores, answers)


def report_on(
    report: Report, topics: Sequence[Shape], reads: Reads, peaks: Mapping[str, int], idle: Idle
) -> None:
    """Fill the report: a table per topic, memory, idle connections, and the targets."""
    limits = {"files": 0.95, "S3": 0.75, "files, TLS": 0.35}
    for shape in topics:
        servers = reads[shape.topic]
        against_broker = {
            name: Spread.of(
                measured.read.megabytes_per_second / peer.read.megabytes_per_second
                for measured, peer in zip(servers[name], servers["broker"], strict=True)
            )
            for name in limits
        }
        bounds = Spread.of(
            measured.most_megabytes_per_second / peer.read.megabytes_per_second
            for measured, peer in zip(servers["S3"], servers["broker"], strict=True)
        )
        name = f"{shape.record // _KIB} KiB, {shape.partitions} partition(s)"
        report.table(
            [
                name,
                "MB/s",
                "of the broker's",
                "bound",
                "server CPU s/GiB",
                "versitygw",
                "client",
                "s to the first",
            ],
            [
                [
                    server,
                    Spread.of(m.read.megabytes_per_second for m in measured).text(0),
                    against_broker[server].text() if server in against_broker else "",
                    bounds.text() if server == "S3" else "",
                    Spread.of(m.server_cpu_per_gib for m in measured).text(),
                    Spread.of(m.per_gib(m.store_cpu_seconds) for m in measured).text()
                    if server == "S3"
                    else "",
                    Spread.of(m.per_gib(m.read.cpu_seconds) for m in measured).text(),
                    Spread.of(m.read.first_seconds for m in measured).text(),
                ]
                for server, measured in servers.items()
            ],
        )
        for server, speed in limits.items():
            what = f"{name}, {server}"
            report.targets.append(
                Target(f"MB/s of {what}", against_broker[server].middle, speed, at_least=True)
            )
        for server, cpu in _CPU_LIMITS.items():
            what = f"{name}, {server}"
            spread = Spread.of(m.server_cpu_per_gib for m in servers[server])
            report.targets.append(Target(f"CPU s/GiB of {what}", spread.middle, cpu))
            ratio = Spread.of(
                m.server_cpu_per_gib / peer.server_cpu_per_gib
                for m, peer in zip(servers[server], servers["broker"], strict=True)
            )
            limit = cpu / _BROKER_CPU[shape.partitions]
            report.targets.append(Target(f"CPU of {what}, of the broker's", ratio.middle, limit))
        first = Spread.of(m.read.first_seconds for m in servers["files"])
        report.targets.append(Target(f"s to the first record, {name}", first.middle, 0.15))
    report.targets += [
        Target(f"MiB resident at most, {name}", peak / _MIB, _MEMORY + _OVER_BUDGET)
        for name, peak in peaks.items()
    ]
    report.targets += [
        Target(f"MB more with {_IDLE} waiting connections", idle.grown / 1e6, 100),
        Target(f"cores with {_IDLE} waiting connections", idle.cores, 0.3),
    ]
    report.raw = {
        "reads": {
            topic: {name: [asdict(m) for m in measured] for name, measured in servers.items()}
            for topic, servers in reads.items()
        },
        "peak_resident_bytes": dict(peaks),
        "idle": asdict(idle),
    }


@click.command()
@benchmark_options
@click.option("--size", type=int, help="MiB of each topic; 512 by default.")
def main(
    *, quick: bool, runs: int | None, record: bool, json_path: Path | None, size: int | None
) -> None:
    """Read a broker's topics from the broker, and from the archive through `sidetier serve`."""
    mebibytes = size or (64 if quick else 512)
    segment, batch = (4, 64) if quick else (32, 64)
    topics = shapes(mebibytes, segment, batch)
    runs = runs or (1 if quick else 3)
    with work_directory() as directory:
        reads, peaks, idle = measure(directory, topics, runs)
    how = _HOW.format(size=mebibytes, batch=batch, segment=segment, runs=runs)
    report = Report("serve", "Serving the archive", how)
    report_on(report, topics, reads, peaks, idle)
    sys.exit(report.finish(record=record, json_path=json_path))


if __name__ == "__main__":
    main()
