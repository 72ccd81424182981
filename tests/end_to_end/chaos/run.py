"""A run from the first server to the verdict."""

from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from pathlib import Path
from time import monotonic

from sidetier.sandbox.kafka import KafkaCluster
from tests.end_to_end.chaos.archive import read_archive
from tests.end_to_end.chaos.ending import Ending
from tests.end_to_end.chaos.ledger import Ledger
from tests.end_to_end.chaos.load import CarelessLoad, IdempotentLoad, Load, TransactionalLoad
from tests.end_to_end.chaos.nemesis import Nemesis
from tests.end_to_end.chaos.observer import BucketEye, Observer
from tests.end_to_end.chaos.scene import (
    CLUSTER_PROPERTIES,
    PARTITIONS,
    set_up,
)
from tests.end_to_end.chaos.schedule import draw
from tests.end_to_end.chaos.served import Served, read_tails
from tests.end_to_end.chaos.verdict import Evidence, violations
from tests.harness.ci import TooLittleHappenedError
from tests.harness.s3 import S3Bucket

PLAIN_RATE = 70.0
CARELESS_RATE = 20.0
PAID_RATE = 60.0
TAIL_SECONDS = 60.0
_LAST_EVENTS = 60
_SECONDS_PER_EVENT = 20  # on a loaded machine; a quiet one has one in three seconds


def _events(seconds: float) -> int:
    """How many things must go wrong in a run of so many seconds for it to prove anything."""
    return ceil(seconds / _SECONDS_PER_EVENT)


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
        enough = {
            "events": sum(self.counts.values()) >= _events(self.seconds),
            "records": self.stored >= 1000,
            "segments": self.segments >= 50,
            "expired records": self.expired > 0,
        }
        few = [name for name, there in enough.items() if not there]
        if few:
            message = f"too few {', '.join(few)} to prove anything\n{self.text}"
            raise TooLittleHappenedError(message)


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
                nemesis.wait(_events(self._schedule.seconds))
            problems = [f"the nemesis failed: {error!r}" for error in nemesis.errors]
            self.tell("the trouble is over")
            scene.wait_until_healed()
            for load in loads:
                load.stop()
            self.tell("all is acknowledged")
            ending = Ending(scene, observer, served, careless)
            return self._judge(ending, nemesis.counts, problems)

    def _lag(self, observer: Observer) -> float:
        now = monotonic()
        return max(self._ledger.lag(tp, observer.next_offset(tp), now) for tp in PARTITIONS)

    def _judge(self, ending: Ending, counts: Mapping[str, int], problems: list[str]) -> Report:
        problems += ending.catch_up()
        self.tell("caught up, or given up")
        starts = {tp: ending.observer.next_offset(tp) for tp in PARTITIONS}
        tails = read_tails(ending.scene.cluster.bootstrap_servers, starts, TAIL_SECONDS)
        problems += ending.end()
        eye, layout = BucketEye(ending.scene.bucket), ending.scene.layout
        read = {tp: read_archive(eye, layout, tp) for tp in PARTITIONS}
        archives = {tp: archived for tp, archived in read.items() if archived is not None}
        problems += self._ledger.problems + ending.served.problems + ending.observer.problems
        problems += violations(
            Evidence(
                acknowledged=self._ledger.acknowledged,
                fates=self._ledger.fates,
                served=ending.served.sums,
                tails=tails,
                archives=archives,
                ends=ending.ends,
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
            expired=ending.expired,
            thrown_away=ending.careless.thrown_away(ending.served.sums),
            emptied=ending.observer.emptied,
            looks=ending.observer.looks,
        )
