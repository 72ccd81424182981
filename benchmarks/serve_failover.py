"""Failover: how long a consumer gets nothing after its leader is killed or stopped, by `sidetier
serve --live` and directly.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic_ns

import click
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from lib import tail_reading
from lib.backlog import VERSION
from lib.clock import pause, wait_until
from lib.endpoint import Endpoint
from lib.options import benchmark_options, work_directory
from lib.programs import ready_program
from lib.results import Report, Spread, Target
from lib.stores import FileStore

from devtools.sandbox.kafka import KraftCluster

_TOPIC = "failover"
_INTERVAL = 0.02
_BEFORE = 100
"""Records before the fault."""
_KILLED, _STOPPED = "killed", "stopped (SIGSTOP)"
_SECONDS = {_KILLED: 25.0, _STOPPED: 75.0}
"""Duration of the records after the fault: librdkafka's `socket.timeout.ms` is a minute."""
_HOW = """\
Three KRaft brokers (4.3.1) with a controller of its own, and `sidetier serve --live` over them and
an empty archive. A producer (acks=all) sends a record every 20 ms to a partition with three
replicas, and two confluent-kafka consumers wait for them at the same time: one of the brokers, one
of the endpoint. Then the leader is killed or stopped. The time without records is the age of the
record that took longest, from before `produce` to after `poll`, in seconds: both consumers read the
same records in the same failover. {runs} runs."""


@contextmanager
def servers(directory: Path) -> Iterator[tuple[KraftCluster, dict[str, str]]]:
    """Yield the brokers, and the bootstrap servers of both ways."""
    files = FileStore(directory / "files")
    files.directory.mkdir()
    with KraftCluster(directory / "kafka", VERSION, brokers=3, controllers=1) as cluster:
        options = ("--live", cluster.bootstrap_servers)
        with Endpoint(directory / "serve", files.storage, files.environment, options) as endpoint:
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
            config = {"min.insync.replicas": "1"}
            admin.create_topics([NewTopic(_TOPIC, 1, 3, config=config)])[_TOPIC].result(30)
            yield (
                cluster,
                {"broker": cluster.bootstrap_servers, "endpoint": endpoint.bootstrap_servers},
            )


def leader_in_sync(cluster: KraftCluster) -> int:
    """Wait until all replicas are in sync, and return the leader."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    found: list[int] = []

    def is_whole() -> bool:
        partition = admin.list_topics(_TOPIC, 30).topics[_TOPIC].partitions[0]
        found.append(partition.leader)
        return partition.leader > 0 and len(partition.isrs) == len(cluster.brokers)

    wait_until(is_whole, 120, "all replicas to be in sync")
    return found[-1]


def outages(
    cluster: KraftCluster,
    bootstraps: dict[str, str],
    fault: Callable[[int], None],
    seconds: float,
) -> dict[str, float]:
    """Return the seconds without records that each consumer saw."""
    records = _BEFORE + int(seconds / _INTERVAL)
    leader = leader_in_sync(cluster)
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0, "log_level": 0}
    )
    with ExitStack() as stack:
        waiting = {}
        for name, bootstrap in bootstraps.items():
            config = {
                "bootstrap.servers": bootstrap,
                "auto.offset.reset": "error",
                "enable.auto.commit": False,
                "log_level": 0,
            }
            asked = {"config": config, "topic": _TOPIC, "groups": 1, "records": records}
            waiting[name] = stack.enter_context(ready_program(tail_reading.__file__, asked))
        pause(1)
        for number in range(records):
            if number == _BEFORE:
                fault(leader)
            producer.produce(_TOPIC, b"%020d" % monotonic_ns(), partition=0)
            producer.poll(0)
            pause(_INTERVAL)
        producer.flush(120)
        return {name: max(answered()) / 1000 for name, answered in waiting.items()}


@click.command()
@benchmark_options
def main(*, quick: bool, runs: int | None, record: bool, json_path: Path | None) -> None:
    """Kill and stop leaders of a partition that a consumer of each way reads."""
    runs = runs or (1 if quick else 5)
    measured: dict[str, list[dict[str, float]]] = {_KILLED: [], _STOPPED: []}
    with work_directory() as directory, servers(directory) as (cluster, bootstraps):
        faults = {_KILLED: cluster.kill_broker, _STOPPED: cluster.pause_broker}
        for _ in range(runs):
            for what, fault in faults.items():
                leader = leader_in_sync(cluster)
                measured[what].append(outages(cluster, bootstraps, fault, _SECONDS[what]))
                print(what, measured[what][-1], file=sys.stderr)
                if what == _KILLED:
                    cluster.start_broker(leader)
                else:
                    cluster.resume_broker(leader)
    report = Report("serve_failover", "Failover of a live leader", _HOW.format(runs=runs))
    report.table(
        ["leader", "consumer of the brokers, s", "consumer of the endpoint, s"],
        [
            [what, *(Spread.of(each[name] for each in found).text() for name in bootstraps)]
            for what, found in measured.items()
        ],
    )
    for what, limit in ((_KILLED, 0.5), (_STOPPED, 0.3)):
        longer = Spread.of(each["endpoint"] - each["broker"] for each in measured[what]).middle
        report.targets.append(Target(f"seconds longer than direct, {what}", longer, limit))
    report.raw = {"outages": measured}
    sys.exit(report.finish(record=record, json_path=json_path))


if __name__ == "__main__":
    main()
