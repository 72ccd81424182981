"""Serve live: the end of a topic and its live half by `sidetier serve --live` and directly."""

import http.client
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles
from time import monotonic_ns

import click
from confluent_kafka import Producer
from lib import idle_clients, kafka_reading, processes, tail_reading
from lib.backlog import broker, create_topic
from lib.clock import pause
from lib.endpoint import Endpoint
from lib.kafka_reading import KafkaRead
from lib.options import benchmark_options, work_directory
from lib.programs import ready_program, run_program
from lib.results import Report, Spread, Target
from lib.stores import FileStore
from lib.topics import Shape, write

from devtools.sandbox.kafka import KraftCluster
from sidetier.brokers.ports import free_port

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30
_GROUPS = 50
_IDLE, _IDLE_SECONDS = 1000, 20.0
_INTERVAL = 0.01
_TAIL = "tail"
_HOW = """\
A KRaft broker (4.3.1), and `sidetier serve --live` over it and an empty archive. **End**: a
producer sends records of 1 KiB every 10 ms, and confluent-kafka consumers in a process of their own
wait for them: one, and {groups} groups; {records} records each time. Ages are from before `produce`
to after `poll`, in ms. "Sent by the broker" is the bytes of batches that the endpoint has got, of
those that were produced. **Live half**: {size} MiB of 1 KiB records in batches of 64 KiB, which no
client has read before, by `consume(5000)`. Broker and endpoint take turns, and share the machine's
cores with the clients. **Idle**: {idle} connections at the end of the partition. {runs} runs."""


@dataclass(frozen=True, slots=True)
class Tail:
    """Ages of records at the end, in ms; with the endpoint, its CPU time and upstream bytes."""

    p50: float
    p99: float
    cpu_ms_per_fetch: float
    upstream: float


@dataclass(frozen=True, slots=True)
class Server:
    """Where clients read, and what it costs."""

    bootstrap: str
    cpu_seconds: Callable[[], float]
    fetched_bytes: Callable[[], float]


def tail(server: Server, cluster: KraftCluster, groups: int, records: int) -> Tail:
    """Let these groups wait at the end while records come."""
    config = {
        "bootstrap.servers": server.bootstrap,
        "auto.offset.reset": "error",
        "enable.auto.commit": False,
        "check.crcs": False,
    }
    asked = {"config": config, "topic": _TAIL, "groups": groups, "records": records}
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0})
    with ready_program(tail_reading.__file__, asked) as answered:
        pause(1)
        cpu, fetched = server.cpu_seconds(), server.fetched_bytes()
        for _ in range(records):
            producer.produce(_TAIL, b"%020d" % monotonic_ns() + bytes(_KIB - 20), partition=0)
            producer.poll(0)
            pause(_INTERVAL)
        producer.flush(30)
        ages: list[float] = answered()
        cpu, fetched = server.cpu_seconds() - cpu, server.fetched_bytes() - fetched
    cuts = quantiles(ages, n=100)
    return Tail(cuts[49], cuts[98], cpu * 1000 / len(ages), fetched / (records * _KIB))


def read(server: Server, shape: Shape, records: int) -> tuple[KafkaRead, float]:
    """Read a topic; return the server's CPU seconds per GiB, too."""
    config = {
        "bootstrap.servers": server.bootstrap,
        "group.id": "bench",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "fetch.queue.backoff.ms": 5,
        "check.crcs": False,
    }
    asked = {"config": config, "topic": shape.topic, "partitions": 1, "records": records}
    before = server.cpu_seconds()
    result = KafkaRead(**run_program(kafka_reading.__file__, asked))
    return result, (server.cpu_seconds() - before) / result.size * _GIB


@contextmanager
def servers(directory: Path) -> Iterator[tuple[KraftCluster, Endpoint, dict[str, Server]]]:
    """Yield a broker, an endpoint over it, and both as servers."""
    files = FileStore(directory / "files")
    files.directory.mkdir()
    with broker(directory / "kafka") as cluster:
        create_topic(cluster, _TAIL, 1, 64 * _MIB)
        port = free_port()
        options = (
            *("--live", cluster.bootstrap_servers, "--metrics-port", str(port)),
            *("--max-connections", str(2 * _IDLE), "--max-connections-per-host", str(2 * _IDLE)),
        )
        with Endpoint(directory / "serve", files.storage, files.environment, options) as endpoint:
            yield (
                cluster,
                endpoint,
                {
                    "broker": Server(
                        cluster.bootstrap_servers,
                        lambda: processes.cpu_seconds(cluster.process_of(1).pid),
                        lambda: 0.0,
                    ),
                    "endpoint": Server(
                        endpoint.bootstrap_servers,
                        lambda: endpoint.cpu_seconds,
                        lambda: fetched_bytes(port),
                    ),
                },
            )


def fetched_bytes(port: int) -> float:
    """Return the bytes that brokers have sent to the endpoint."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    name = "sidetier_endpoint_live_fetched_bytes_total "
    return next(float(row.split()[1]) for row in text.splitlines() if row.startswith(name))


def idle_cores(endpoint: Endpoint, end: int) -> float:
    """Return the cores that many waiting connections cost the endpoint."""
    asked = {"address": endpoint.address, "connections": _IDLE, "topic": _TAIL, "offset": end}
    waiting = {**asked, "seconds": _IDLE_SECONDS + 6}
    with ready_program(idle_clients.__file__, waiting) as answered:
        pause(4)
        cpu = endpoint.cpu_seconds
        pause(_IDLE_SECONDS)
        cores = (endpoint.cpu_seconds - cpu) / _IDLE_SECONDS
        answered()
    return cores


def in_turns(names: list[str], number: int) -> list[str]:
    """Return the names, in the other order in every second run."""
    return names if number % 2 == 0 else names[::-1]


@click.command()
@benchmark_options
def main(*, quick: bool, runs: int | None, record: bool, json_path: Path | None) -> None:
    """Read the end of a topic and its live half from the broker, and through the endpoint."""
    size, records = (64, 100) if quick else (512, 500)
    runs = runs or (1 if quick else 3)
    tails: dict[tuple[str, int], list[Tail]] = {}
    reads: dict[str, list[tuple[KafkaRead, float]]] = {"broker": [], "endpoint": []}
    with work_directory() as directory, servers(directory) as (cluster, endpoint, both):
        for number in range(runs):
            # Topics of their own for each run: the endpoint keeps what it has read.
            shape = Shape(_KIB, (64 + number) * _KIB, 64 * _MIB, size * _MIB)
            write(cluster, shape)
            for name in in_turns(list(both), number):
                reads[name].append(read(both[name], shape, size * _MIB // _KIB))
                print(name, reads[name][-1], file=sys.stderr)
                for groups in (1, _GROUPS):
                    found = tail(both[name], cluster, groups, records)
                    tails.setdefault((name, groups), []).append(found)
                    print(name, groups, found, file=sys.stderr)
        end = 2 * 2 * runs * records
        idle = idle_cores(endpoint, end)
    how = _HOW.format(groups=_GROUPS, records=records, size=size, idle=_IDLE, runs=runs)
    report = Report("serve_live", "One log with the live cluster", how)
    report.table(
        ["end of a partition", "p50 ms", "p99 ms", "CPU ms a record and client", "sent by broker"],
        [
            [
                f"{name}, {groups} group(s)",
                Spread.of(each.p50 for each in found).text(1),
                Spread.of(each.p99 for each in found).text(1),
                Spread.of(each.cpu_ms_per_fetch for each in found).text(3),
                Spread.of(each.upstream for each in found).text() if name == "endpoint" else "",
            ]
            for (name, groups), found in tails.items()
        ],
    )
    report.table(
        ["live half", "MB/s", "server CPU s/GiB"],
        [
            [
                name,
                Spread.of(each.megabytes_per_second for each, _ in found).text(0),
                Spread.of(cpu for _, cpu in found).text(),
            ]
            for name, found in reads.items()
        ],
    )

    def middle(name: str, groups: int, what: str) -> float:
        return Spread.of(getattr(each, what) for each in tails[name, groups]).middle

    rates = Spread.of(
        ours.megabytes_per_second / theirs.megabytes_per_second
        for (ours, _), (theirs, _) in zip(reads["endpoint"], reads["broker"], strict=True)
    )
    added = middle("endpoint", 1, "p99") - middle("broker", 1, "p99")
    widened = middle("endpoint", _GROUPS, "p99") / middle("endpoint", 1, "p99")
    report.targets += [
        Target("ms more than the broker at the end, p99, one client", added, 5.0),
        Target(f"p99 of {_GROUPS} groups, of one client's", widened, 2.0),
        Target("bytes sent by the broker", middle("endpoint", _GROUPS, "upstream"), 1.2),
        Target("CPU ms a record at the end", middle("endpoint", 1, "cpu_ms_per_fetch"), 0.3),
        Target("MB/s of the live half, of the broker's", rates.middle, 0.7, at_least=True),
        Target("CPU s/GiB", Spread.of(cpu for _, cpu in reads["endpoint"]).middle, 0.5),
        Target(f"cores with {_IDLE} waiting connections", idle, 0.1),
    ]
    report.raw = {
        "tails": {
            f"{name}, {groups}": [asdict(each) for each in found]
            for (name, groups), found in tails.items()
        },
        "reads": {name: [(asdict(each), cpu) for each, cpu in of] for name, of in reads.items()},
        "idle": idle,
    }
    sys.exit(report.finish(record=record, json_path=json_path))


if __name__ == "__main__":
    main()
