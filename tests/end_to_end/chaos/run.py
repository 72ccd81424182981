"""A run from the first server to the verdict."""

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic

from confluent_kafka import KafkaException

from sidetier.sandbox.kafka import KafkaCluster
from tests.end_to_end.chaos.archive import read_archive
from tests.end_to_end.chaos.ledger import Ledger, Partition
from tests.end_to_end.chaos.load import CarelessLoad, IdempotentLoad, Load, TransactionalLoad
from tests.end_to_end.chaos.nemesis import Nemesis
from tests.end_to_end.chaos.observer import BucketEye, Observer
from tests.end_to_end.chaos.scene import (
    ASK_SECONDS,
    CATCH_UP_SECONDS,
    CLUSTER_PROPERTIES,
    PARTITIONS,
    Scene,
    set_up,
)
from tests.end_to_end.chaos.schedule import draw
from tests.end_to_end.chaos.served import Served, high_watermarks, read_tails
from tests.end_to_end.chaos.verdict import Evidence, broker_errors, sidecar_gaps, violations
from tests.harness.s3 import S3Bucket
from tests.harness.waiting import wait_until

PLAIN_RATE = 70.0
CARELESS_RATE = 20.0
PAID_RATE = 60.0
TAIL_SECONDS = 60.0
_LAST_EVENTS = 60
_SECONDS_PER_EVENT = 20  # on a loaded machine; a quiet one has one in three seconds


@dataclass(frozen=True, slots=True)
class Report:
    """What came of a run."""

    title: str
    seconds: float
    directory: Path
    violations: tuple[str, ...]
    events: tuple[str, ...]
    counts: Mapping[str, int] = field(default_factory=dict)
    acknowledged: int = 0
    stored: int = 0
    segments: int = 0
    expired: int = 0
    thrown_away: int = 0
    emptied: int = 0
    looks: int = 0

    @property
    def summary(self) -> str:
        """One line."""
        done = ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))
        return (
            f"{self.acknowledged} records acknowledged, {self.stored} stored in {self.segments} "
            f"segments, {self.expired} expired at the brokers, {self.thrown_away} thrown away by "
            f"them, {self.emptied} indexes emptied, {self.looks} looks; {done}"
        )

    @property
    def text(self) -> str:
        """Everything that somebody needs who looks for the cause."""
        return "\n".join(
            [
                f"{self.title}: {len(self.violations)} violations; logs are in {self.directory}",
                *self.violations,
                "--- the last events",
                *self.events,
                self.summary,
            ]
        )

    def check_that_it_was_chaos(self) -> None:
        """A run in which hardly anything happened proves nothing."""
        assert sum(self.counts.values()) >= self.seconds / _SECONDS_PER_EVENT, self.text
        assert self.stored >= 1000, self.text
        assert self.segments >= 50, self.text
        assert self.expired > 0, self.text


class Chaos:
    """One seed, one directory, so many seconds of trouble."""

    def __init__(self, seed: int, seconds: float, directory: Path) -> None:
        self.title = f"chaos seed {seed}, {seconds:g} s"
        self.properties = CLUSTER_PROPERTIES
        self._schedule = draw(seed, seconds, len(PARTITIONS))
        self._directory = directory
        self._began = monotonic()
        self._events: deque[str] = deque(maxlen=_LAST_EVENTS)
        self._log = directory / "chaos.log"
        self._ledger = Ledger()

    @property
    def retention(self) -> float:
        """Seconds: far longer than any outage, and far shorter than the run."""
        return min(90.0, max(45.0, self._schedule.seconds / 3))

    def tell(self, event: str) -> None:
        """Write it down; called from every thread."""
        line = f"{monotonic() - self._began:8.2f} {event}"
        self._events.append(line)
        with self._log.open("a") as log:
            log.write(f"{line}\n")

    def run(self, cluster: KafkaCluster, bucket: S3Bucket) -> Report:
        """Do it all, and look."""
        self.tell(self.title)
        bootstrap, seed = cluster.bootstrap_servers, self._schedule.seed
        with ExitStack() as stack:
            enter = stack.enter_context
            scene = enter(set_up(cluster, bucket, self._directory, self.retention))
            observer = enter(Observer(BucketEye(bucket), scene.layout, list(PARTITIONS), self.tell))
            served = enter(Served(bootstrap, PARTITIONS))
            plain = [tp for tp in PARTITIONS if tp[0] == "plain"]
            paid = [tp for tp in PARTITIONS if tp[0] == "paid"]
            careless = CarelessLoad(bootstrap, plain, CARELESS_RATE, seed)
            loads: list[Load] = [
                enter(IdempotentLoad(self._ledger, bootstrap, plain, PLAIN_RATE, seed)),
                enter(TransactionalLoad(self._ledger, bootstrap, paid, PAID_RATE, seed)),
                enter(careless),
            ]
            lag = partial(self._lag, observer)
            nemesis = Nemesis(scene, self._schedule, lag, careless.burst, self.tell)
            with nemesis:
                nemesis.wait()
            problems = [f"the nemesis failed: {error!r}" for error in nemesis.errors]
            self.tell("the trouble is over")
            scene.wait_until_healed()
            for load in loads:
                load.stop()
            self.tell("all is acknowledged")
            room = _Room(scene, observer, served, careless)
            return self._judge(room, nemesis.counts, problems)

    def _lag(self, observer: Observer) -> float:
        now = monotonic()
        return max(self._ledger.lag(tp, observer.next_offset(tp), now) for tp in PARTITIONS)

    def _judge(self, room: "_Room", counts: Mapping[str, int], problems: list[str]) -> Report:
        problems += room.catch_up()
        self.tell("caught up, or given up")
        starts = {tp: room.observer.next_offset(tp) for tp in PARTITIONS}
        tails = read_tails(room.scene.cluster.bootstrap_servers, starts, TAIL_SECONDS)
        problems += room.end()
        eye, layout = BucketEye(room.scene.bucket), room.scene.layout
        read = {tp: read_archive(eye, layout, tp) for tp in PARTITIONS}
        archives = {tp: archived for tp, archived in read.items() if archived is not None}
        problems += self._ledger.problems + room.served.problems + room.observer.problems
        problems += violations(
            Evidence(
                acknowledged=self._ledger.acknowledged,
                fates=self._ledger.fates,
                served=room.served.sums,
                tails=tails,
                archives=archives,
                ends=room.ends,
            )
        )
        return Report(
            title=self.title,
            seconds=self._schedule.seconds,
            directory=self._directory,
            violations=tuple(dict.fromkeys(problems)),
            events=tuple(self._events),
            counts=counts,
            acknowledged=self._ledger.total(),
            stored=sum(len(archived.records) for archived in archives.values()),
            segments=sum(len(archived.extents) for archived in archives.values()),
            expired=room.expired,
            thrown_away=room.careless.thrown_away(room.served.sums),
            emptied=room.observer.emptied,
            looks=room.observer.looks,
        )


class _Room:
    """What still runs when the trouble is over."""

    def __init__(
        self, scene: Scene, observer: Observer, served: Served, careless: CarelessLoad
    ) -> None:
        self.scene = scene
        self.observer = observer
        self.served = served
        self.careless = careless
        self.ends: dict[Partition, int] = {}
        self.expired = 0

    def catch_up(self) -> list[str]:
        """Wait until all that is closed is stored, and all that is committed is served."""
        problems = []
        try:
            for condition, what in (
                (self._all_served, "a consumer to reach the ends"),
                (self._all_stored, "what is closed to be stored"),
            ):
                wait_until(condition, CATCH_UP_SECONDS, what, ASK_SECONDS)
        except AssertionError as error:
            problems.append(f"{error}: {self._distances()}")
        if self.served.error is not None:
            problems.append(f"the consumer failed: {self.served.error!r}")
        return problems

    def _all_served(self) -> bool:
        try:
            ends = high_watermarks(self.scene.cluster.bootstrap_servers, PARTITIONS)
        except KafkaException:
            return False
        return all(self.served.position(tp) >= end for tp, end in ends.items())

    def _all_stored(self) -> bool:
        ends = {tp: self.scene.closed_end(tp) for tp in PARTITIONS}
        self.ends = {tp: end or 0 for tp, end in ends.items()}
        return None not in ends.values() and all(
            self.observer.next_offset(tp) >= end for tp, end in self.ends.items()
        )

    def _distances(self) -> dict[str, tuple[int, int, int]]:
        """Per partition: the watermark, the end of what is closed, and what was served."""
        return {
            f"{tp[0]}-{tp[1]}": (
                self.observer.next_offset(tp),
                self.ends.get(tp, 0),
                self.served.position(tp),
            )
            for tp in PARTITIONS
        }

    def end(self) -> list[str]:
        """End the sidecars, look once more, and read what everybody has said."""
        problems = [*self._stop_sidecars()]
        self.served.stop()
        self.observer.stop()
        self.observer.look()
        self.observer.check_covered()
        self.expired = sum(self._first_offset(tp) for tp in PARTITIONS)
        for broker in self.scene.cluster.broker_ids:
            process = self.scene.cluster.process_of(broker)
            if not process.running:
                problems.append(f"broker {broker} has ended by itself\n{process.log_tail()}")
            with process.command.log.open(errors="replace") as lines:
                problems += [f"broker {broker}: {line}" for line in broker_errors(lines)]
            problems += sidecar_gaps(broker, self.scene.sidecar_events(broker))
        return problems

    def _stop_sidecars(self) -> Iterator[str]:
        for broker, sidecar in self.scene.sidecars.items():
            process = sidecar.process
            if not process.running:
                code = process.returncode
                yield f"the sidecar of {broker} ended by itself: {code}\n{process.log_tail()}"
            elif (code := sidecar.stop()) != 0:
                yield f"the sidecar of {broker} ended with {code}\n{process.log_tail()}"

    def _first_offset(self, tp: Partition) -> int:
        """How many offsets no broker holds any more."""
        directory = f"{tp[0]}-{tp[1]}"
        bases = [
            int(path.stem)
            for broker in self.scene.cluster.broker_ids
            for path in (self.scene.cluster.log_dirs(broker)[0] / directory).glob("*.log")
        ]
        return min(bases, default=0)
