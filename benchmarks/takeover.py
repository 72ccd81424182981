"""Takeover: the time from a leader change until the new sidecar stores waiting segments."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from itertools import chain, cycle, islice, permutations
from pathlib import Path
from typing import Any

import click
from confluent_kafka import ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from lib.backlog import VERSION, fill
from lib.clock import monotonic, wait_until, wall
from lib.options import benchmark_options, work_directory
from lib.repeated import Repeated
from lib.results import Report, Spread, Target
from lib.sidecar import Setup, Sidecar
from lib.stores import LAYOUT, RealStore, real_store

from devtools.sandbox.kafka import KraftCluster
from sidetier.segments import offsets

_TOPIC = "handed-over"
_PARTITIONS = 12
_SEGMENT_BYTES = 1 << 20
_FILL_BYTES = _PARTITIONS * 5 * _SEGMENT_BYTES // 2
_CHANGE_SECONDS = 60.0
_WAIT_SECONDS = 60.0
_SEGMENT_FILES = {".index", ".timeindex", ".log", ".txnindex", ".snapshot"}
_HOW = """\
Three KRaft brokers ({version}) with a sidecar each, with default settings except for the brokers'
addresses, and versitygw, all on one machine; {partitions} partitions with three replicas, and
segments of 1 MiB. Before each change the sidecars of the leaders in question are killed, then
records are produced until closed segments wait for an upload. **Killed**: a broker is killed with
SIGKILL. **Shut down**: a controlled shutdown moves its leaderships away. **Elected**: it runs
again, and a preferred election moves its partitions back to it. Time begins when a Metadata request
(every 10 ms) first shows the new leader of the partition, and ends when the first file of a waiting
segment is seen in the server's directory (checked every 10 ms). **Known**: until the sidecar logs
the change; **gates**: until its first upload of the partition begins: the archive is read, compared
with the log and listed, and the high watermark is known in the new epoch; **put**: until that
upload's first object is stored: the segment has been read and summed. **Watermark** is the time
from the new leader's first appearance to the `offset.wm` that covers its first upload. {changes}
changes."""


@dataclass(frozen=True, slots=True)
class Handover:
    """Handover of one partition; in seconds since its new leader was seen."""

    kind: str
    partition: int
    broker_id: int
    known: float
    begun: float
    first_object: float
    watermark: float

    @property
    def gates(self) -> float:
        """Seconds from knowing the leadership to the begin of the upload."""
        return self.begun - self.known

    @property
    def put(self) -> float:
        """Seconds from the begin of the upload to its first object."""
        return self.first_object - self.begun


@dataclass(slots=True)
class Watch:
    """When each partition's new leader and first new object were seen, in seconds since 1970."""

    admin: AdminClient
    store: RealStore
    before: Mapping[int, int]
    there: Mapping[int, set[str]]
    led: dict[int, tuple[int, float]] = field(default_factory=dict)
    put: dict[int, float] = field(default_factory=dict)

    def observe_leaders(self) -> None:
        """Read the leaders with one Metadata request."""
        with suppress(KafkaException):
            leaders, seen_at = leaders_of(self.admin, 1.0), wall()
            for number, old in self.before.items():
                if leaders.get(number, -1) not in {old, -1}:
                    self.led.setdefault(number, (leaders[number], seen_at))

    def observe_objects(self) -> None:
        """List the directory of each partition once."""
        for number in self.before:
            if number not in self.put and segment_files(self.store, number) - self.there[number]:
                self.put[number] = wall()

    @property
    def is_over(self) -> bool:
        """Whether all leaders and objects were seen."""
        return self.before.keys() <= self.put.keys() & self.led.keys()


def leaders_of(admin: AdminClient, timeout: float = 10.0) -> dict[int, int]:
    """Return the leader of each partition; -1 for none."""
    described = admin.list_topics(_TOPIC, timeout=timeout).topics[_TOPIC]
    return {number: partition.leader for number, partition in described.partitions.items()}


def segment_files(store: RealStore, number: int) -> set[str]:
    """Return the names of a partition's segment files on the store."""
    directory = store.bucket / LAYOUT.partition_prefix(offsets.TopicPartition(_TOPIC, number))
    with suppress(FileNotFoundError):
        return {path.name for path in directory.iterdir() if path.suffix in _SEGMENT_FILES}
    return set()


class Bench:
    """The cluster, the store and the sidecars."""

    def __init__(
        self, directory: Path, cluster: KraftCluster, store: RealStore, stack: ExitStack
    ) -> None:
        self._directory = directory
        self._cluster = cluster
        self._store = store
        self._stack = stack
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        self._sidecars: dict[int, Sidecar] = {}

    def begin(self) -> None:
        """Create a topic whose partitions have every order of replicas, and start the sidecars."""
        orders = islice(cycle(permutations(self._cluster.broker_ids)), _PARTITIONS)
        config = {"segment.bytes": str(_SEGMENT_BYTES), "min.insync.replicas": "2"}
        replicas = [list(order) for order in orders]
        topic = NewTopic(_TOPIC, _PARTITIONS, replica_assignment=replicas, config=config)
        self._admin.create_topics([topic])[_TOPIC].result(30)
        for broker in self._cluster.broker_ids:
            self._start_sidecar(broker)
        fill(self._cluster, _TOPIC, _PARTITIONS, _FILL_BYTES)
        self._wait_until_stored()

    def cycle(self, kind: str, broker: int) -> list[Handover]:
        """Stop a broker, and start it again."""
        self._let_segments_wait({broker})
        led = [number for number, leader in leaders_of(self._admin).items() if leader == broker]
        end = {"killed": self._cluster.kill_broker, "shut down": self._cluster.stop_broker}[kind]
        handovers = self._change(kind, led, lambda: end(broker))
        self._cluster.start_broker(broker)
        self._start_sidecar(broker)
        self._wait_until_in_sync()
        self._wait_until_stored()
        self._let_segments_wait(set(self._cluster.broker_ids) - {broker})
        handovers += self._change("elected", led, lambda: self._elect(led))
        for broker_id in self._cluster.broker_ids:
            if not self._sidecars[broker_id].process.running:
                self._start_sidecar(broker_id)
        self._wait_until_stored()
        return handovers

    def _start_sidecar(self, broker: int) -> None:
        servers = self._cluster.bootstrap_of(broker)
        more: dict[str, Any] = {
            "broker": {"bootstrap_servers": servers},
            "leadership": {"source": "auto"},
            "topics": {"include": [_TOPIC]},
        }
        directory, log_dirs = self._directory / f"sidecar-{broker}", self._cluster.log_dirs(broker)
        store = self._store
        setup = Setup(directory, log_dirs, store.storage, more, store.environment)
        self._sidecars[broker] = sidecar = self._stack.enter_context(Sidecar(setup))
        sidecar.wait_until_ready(_WAIT_SECONDS)

    def _let_segments_wait(self, brokers: set[int]) -> None:
        """Kill the sidecars, and then close segments of all partitions on all replicas."""
        for broker in brokers:
            self._sidecars[broker].process.kill()
        goal = {number: self._closed(number) for number in range(_PARTITIONS)}
        fill(self._cluster, _TOPIC, _PARTITIONS, _FILL_BYTES)
        wait_until(
            lambda: all(self._closed(number) > goal[number] for number in goal),
            _WAIT_SECONDS,
            "closed segments on every replica",
        )

    def _closed(self, number: int) -> int:
        """Return the lowest base offset of the active segment over the replicas."""
        ends = []
        for broker in self._cluster.broker_ids:
            (log_dir,) = self._cluster.log_dirs(broker)
            ends.append(max(int(p.stem) for p in (log_dir / f"{_TOPIC}-{number}").glob("*.log")))
        return min(ends)

    def _change(self, kind: str, led: list[int], act: Callable[[], None]) -> list[Handover]:
        """Cause a change of leaders, and observe its effects."""
        leaders = leaders_of(self._admin)
        files_before = {number: segment_files(self._store, number) for number in led}
        watch = Watch(
            self._admin, self._store, {number: leaders[number] for number in led}, files_before
        )
        with Repeated(watch.observe_leaders), Repeated(watch.observe_objects):
            act()
            wait_until(lambda: watch.is_over, _CHANGE_SECONDS, f"{kind}: the first objects")
        handovers = [self._handover(kind, number, watch) for number in led]
        for handover in handovers:
            print(handover, file=sys.stderr)
        return handovers

    def _handover(self, kind: str, number: int, watch: Watch) -> Handover:
        broker, seen_at = watch.led[number]
        sidecar = self._sidecars[broker]

        def later(name: str) -> list[dict[str, Any]]:
            rows = (row for row in sidecar.events(name) if row["partition"] == number)
            return [row for row in rows if _at(row) >= watch.put[number]]

        wait_until(lambda: later("watermark.moved"), _CHANGE_SECONDS, "the watermark")
        upload_start = min(_at(row) - row["seconds"] for row in later("segment.uploaded"))
        moved = later("watermark.moved")[0]
        heard = [_at(row) for row in sidecar.events("leadership.changed") if row["gained"]]
        known_at = max(moment for moment in heard if moment <= upload_start + 1e-3)
        return Handover(
            kind,
            number,
            broker,
            known_at - seen_at,
            upload_start - seen_at,
            watch.put[number] - seen_at,
            _at(moved) - seen_at,
        )

    def _elect(self, led: list[int]) -> None:
        wanted = [TopicPartition(_TOPIC, number) for number in led]
        self._admin.elect_leaders(ElectionType.PREFERRED, wanted).result(30)

    def _wait_until_in_sync(self) -> None:
        everyone = set(self._cluster.broker_ids)

        def holds() -> bool:
            described = self._admin.list_topics(_TOPIC, timeout=10).topics[_TOPIC].partitions
            return all(set(partition.isrs) == everyone for partition in described.values())

        wait_until(holds, _WAIT_SECONDS, "all replicas in sync", 0.2)

    def _wait_until_stored(self) -> None:
        def holds() -> bool:
            return all(
                self._store.stored_up_to(offsets.TopicPartition(_TOPIC, number))
                >= self._closed(number)
                for number in range(_PARTITIONS)
            )

        wait_until(holds, _WAIT_SECONDS, "everything closed to be stored", 0.1)


def _at(row: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(row["timestamp"]).timestamp()


def measure(directory: Path, cycles: int, limit: float) -> list[list[Handover]]:
    """Run as many cycles with alternating brokers as the time allows, at most `cycles`."""
    began, cycles_done = monotonic(), list[list[Handover]]()
    with ExitStack() as stack:
        cluster = stack.enter_context(KraftCluster(directory / "kafka", VERSION, brokers=3))
        store = stack.enter_context(real_store(directory / "store"))
        bench = Bench(directory, cluster, store, stack)
        bench.begin()
        longest = 0.0
        for kind, broker in islice(_schedule(cluster), cycles):
            if monotonic() - began + longest > limit:
                break
            at = monotonic()
            cycles_done.append(bench.cycle(kind, broker))
            longest = max(longest, monotonic() - at)
    return cycles_done


def _schedule(cluster: KraftCluster) -> Iterator[tuple[str, int]]:
    return zip(cycle(("killed", "shut down")), cycle(cluster.broker_ids), strict=False)


def report_on(report: Report, found: list[Handover]) -> None:
    """Fill the report with a row for each kind of change, and one for all."""
    rows: list[list[object]] = []
    for kind in ("killed", "shut down", "elected", "all"):
        of_kind = [handover for handover in found if kind in {handover.kind, "all"}]
        if of_kind:
            rows.append([kind, len(of_kind), *_spreads(of_kind)])
    columns = ["change", "partitions", "to the first object, s", "known", "gates", "put"]
    report.table([*columns, "to the watermark, s"], rows)
    first = Spread.of(handover.first_object for handover in found)
    report.targets = [
        Target("median from a change of leader to the first object, s", first.middle, 2.0),
        Target("longest from a change of leader to the first object, s", first.high, 10.0),
    ]
    report.raw = {"handovers": [asdict(handover) for handover in found]}


def _spreads(found: list[Handover]) -> list[str]:
    return [
        Spread.of(values).text(3)
        for values in (
            [handover.first_object for handover in found],
            [handover.known for handover in found],
            [handover.gates for handover in found],
            [handover.put for handover in found],
            [handover.watermark for handover in found],
        )
    ]


@click.command()
@benchmark_options
@click.option("--limit", type=float, default=210.0, show_default=True, help="Seconds, about.")
def main(
    *, quick: bool, runs: int | None, record: bool, json_path: Path | None, limit: float
) -> None:
    """Stop and restart each of three brokers in turn."""
    with work_directory() as directory:
        cycles = measure(directory, runs or (2 if quick else 100), limit)
    how = _HOW.format(version=VERSION, partitions=_PARTITIONS, changes=2 * len(cycles))
    report = Report("takeover", "Takeover", how)
    report_on(report, list(chain.from_iterable(cycles)))
    sys.exit(report.finish(record=record, json_path=json_path))


if __name__ == "__main__":
    main()
