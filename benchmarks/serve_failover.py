"""Failover: time without records after the leader has gone, through `serve --live` and directly."""

import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, PartitionMetadata
from confluent_kafka.cimpl import NewTopic
from lib.backlog import VERSION
from lib.clock import monotonic, pause, wait_until
from lib.endpoint import Endpoint
from lib.failover_clients import SteadyConsumer, SteadyProducer
from lib.options import benchmark_options, work_directory
from lib.results import Report, Spread, Target
from lib.stores import FileStore

from devtools.sandbox.kafka import KraftCluster
from sidetier.wire.cluster import NO_LEADER

_TOPIC = "failing-over"
_REPLICAS = 3
_INTERVAL = 0.01
_STEADY_SECONDS = 3.0
_ELECTION_SECONDS, _RECORDS_SECONDS, _RETURN_SECONDS = 60.0, 120.0, 120.0
# Kafka's defaults; those of the sandbox are shorter.
_PROPERTIES = {"broker.session.timeout.ms": 9000, "broker.heartbeat.interval.ms": 2000}
_DIRECT, _QUICK, _ENDPOINT = "direct", "direct, short timeouts", "endpoint"
_QUICK_SETTINGS = {
    "socket.timeout.ms": 2000,
    "topic.metadata.refresh.interval.ms": 1000,
    "reconnect.backoff.max.ms": 500,
}
_LIMITS = {"killed": 0.5, "stopped": 0.3, "shut down": 0.3}
_HOW = """\
Three KRaft brokers ({version}) with Kafka's own session timeout (9 s), a controller, and `sidetier
serve --live` over them and an empty archive, all on one machine. A producer with acks=all appends a
record of 100 bytes every 10 ms to a partition with three replicas. Three consumers read it at the
same time with confluent-kafka, and go on after errors: directly at the brokers with default
settings; directly with a socket timeout of 2 s and a refresh of the leaders each second; and
through the endpoint, with default settings. In each round the leader is **killed** (SIGKILL),
**stopped** (SIGSTOP: its connections stay open, and it answers nothing) and **shut down** (SIGTERM:
it moves its leaderships away); in between it comes back, and is in sync. Figures are the seconds
between the last record before and the first one after, for the same records at all consumers;
"leader" is the time until a Metadata request (every 50 ms) shows another one. Each consumer must
get each record once, in order. {rounds} rounds."""


@dataclass(frozen=True, slots=True)
class Failover:
    """One loss of the leader. Times are in seconds.

    Attributes:
        kind: What was done with the leader.
        leader: Until Metadata shows another leader.
        gaps: The longest time without a record, of each consumer.
        errors: Errors that each consumer has reported meanwhile.
    """

    kind: str
    leader: float
    gaps: Mapping[str, float]
    errors: Mapping[str, int]


class Bench:
    """The cluster, and the clients of the partition."""

    def __init__(
        self,
        cluster: KraftCluster,
        producer: SteadyProducer,
        consumers: Mapping[str, SteadyConsumer],
    ) -> None:
        self._cluster, self._producer, self._consumers = cluster, producer, consumers
        settings = {"socket.timeout.ms": 1000, "log_level": 0}
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, **settings})
        self._events: Mapping[str, tuple[Callable[[int], None], Callable[[int], None]]] = {
            "killed": (cluster.kill_broker, cluster.start_broker),
            "stopped": (cluster.pause_broker, cluster.resume_broker),
            "shut down": (cluster.stop_broker, cluster.start_broker),
        }

    def lose_leader(self, kind: str) -> Failover:
        """Let the leader go, wait for all consumers, and let it come back."""
        self._wait_for_records(monotonic())
        pause(_STEADY_SECONDS)
        end, begin = self._events[kind]
        errors = {name: sum(each.errors.values()) for name, each in self._consumers.items()}
        old = self._leader()
        if old == NO_LEADER:
            raise RuntimeError("no broker names the leader")
        at = monotonic()
        with ThreadPoolExecutor(1) as acting:  # a controlled shutdown takes some seconds
            ended = acting.submit(end, old)
            wait_until(
                lambda: self._leader() not in {old, NO_LEADER}, _ELECTION_SECONDS, "a leader", 0.05
            )
            elected = monotonic()
            ended.result()
        self._wait_for_records(elected)
        pause(1)
        until = monotonic()
        found = Failover(
            kind,
            elected - at,
            {name: each.longest_gap(at, until) for name, each in self._consumers.items()},
            {
                name: sum(each.errors.values()) - errors[name]
                for name, each in self._consumers.items()
            },
        )
        begin(old)
        wait_until(lambda: self._in_sync() == _REPLICAS, _RETURN_SECONDS, "all in sync", 0.2)
        return found

    def _wait_for_records(self, since: float) -> None:
        """Wait until all consumers have a record that was acknowledged after this moment."""

        def have_all() -> bool:
            self._producer.check()
            for each in self._consumers.values():
                each.check()
            acked = list(self._producer.acked)
            offset = next((at for at, moment in enumerate(acked) if moment > since), None)
            return offset is not None and all(
                len(each.received) > offset for each in self._consumers.values()
            )

        try:
            wait_until(have_all, _RECORDS_SECONDS, "records at all consumers", 0.05)
        except TimeoutError as error:
            state = {name: (len(c.received), c.errors) for name, c in self._consumers.items()}
            raise TimeoutError(f"{error}: {state}") from None

    def _leader(self) -> int:
        described = self._described()
        return NO_LEADER if described is None else int(described.leader)

    def _in_sync(self) -> int:
        described = self._described()
        return 0 if described is None else len(described.isrs)

    def _described(self) -> PartitionMetadata | None:
        """Return the partition; None if the broker that is asked does not answer in a second."""
        with suppress(KafkaException):
            return self._admin.list_topics(_TOPIC, timeout=1).topics[_TOPIC].partitions[0]
        return None


@contextmanager
def bench(directory: Path) -> Iterator[Bench]:
    """Yield the running cluster with its clients."""
    files = FileStore(directory / "files")
    files.directory.mkdir()
    with ExitStack() as stack:
        cluster = stack.enter_context(
            KraftCluster(
                directory / "kafka",
                VERSION,
                brokers=_REPLICAS,
                controllers=1,
                properties=_PROPERTIES,
            )
        )
        servers = cluster.bootstrap_servers
        topic = NewTopic(_TOPIC, 1, _REPLICAS, config={"min.insync.replicas": "2"})
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([topic])[_TOPIC].result(30)
        options = ("--live", servers)
        endpoint = stack.enter_context(
            Endpoint(directory / "serve", files.storage, files.environment, options)
        )
        configs = {
            _DIRECT: {"bootstrap.servers": servers},
            _QUICK: {"bootstrap.servers": servers, **_QUICK_SETTINGS},
            _ENDPOINT: {"bootstrap.servers": endpoint.bootstrap_servers},
        }
        producer = stack.enter_context(SteadyProducer(servers, _TOPIC, _INTERVAL))
        consumers = {
            name: stack.enter_context(SteadyConsumer(config, _TOPIC))
            for name, config in configs.items()
        }
        yield Bench(cluster, producer, consumers)


def measure(directory: Path, rounds: int, limit: float) -> list[Failover]:
    """Run as many rounds as the time allows, at most `rounds`."""
    began, longest, found = monotonic(), 0.0, list[Failover]()
    with bench(directory) as running:
        for _ in range(rounds):
            if monotonic() - began + longest > limit:
                break
            at = monotonic()
            for kind in _LIMITS:
                found.append(running.lose_leader(kind))
                print(found[-1], file=sys.stderr)
            longest = max(longest, monotonic() - at)
    return found


@click.command()
@benchmark_options
@click.option("--limit", type=float, default=1200.0, show_default=True, help="Seconds, about.")
def main(
    *, quick: bool, runs: int | None, record: bool, json_path: Path | None, limit: float
) -> None:
    """Let the leader of a partition go in three ways, and measure the gap at its consumers."""
    with work_directory() as directory:
        found = measure(directory, runs or (1 if quick else 5), limit)
    how = _HOW.format(version=VERSION, rounds=len(found) // len(_LIMITS))
    report = Report("serve_failover", "Failover of a leader", how)
    names = (_DIRECT, _QUICK, _ENDPOINT)
    rows: list[list[object]] = []
    for kind, limit_seconds in _LIMITS.items():
        of_kind = [each for each in found if each.kind == kind]
        added = {
            name: Spread.of(each.gaps[_ENDPOINT] - each.gaps[name] for each in of_kind)
            for name in (_DIRECT, _QUICK)
        }
        rows.append(
            [
                kind,
                Spread.of(each.leader for each in of_kind).text(),
                *(Spread.of(each.gaps[name] for each in of_kind).text() for name in names),
                *(spread.text() for spread in added.values()),
            ]
        )
        report.targets.append(
            Target(f"s more than direct, leader {kind}", added[_DIRECT].middle, limit_seconds)
        )
        report.targets.append(
            Target(f"s more than {_QUICK}, leader {kind}", added[_QUICK].middle, limit_seconds)
        )
    columns = ["leader", "new leader, s", *(f"{name}, s" for name in names)]
    report.table([*columns, "endpoint - direct", f"endpoint - {_QUICK}"], rows)
    report.raw = {"failovers": [asdict(each) for each in found]}
    sys.exit(report.finish(record=record, json_path=json_path))


if __name__ == "__main__":
    main()
