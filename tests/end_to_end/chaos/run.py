"""A run from the first server to the verdict."""

import os
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from pathlib import Path
from time import monotonic
from unittest.mock import patch

from devtools.sandbox.kafka import KafkaCluster
from sidetier.segments.offsets import TopicPartition
from tests.end_to_end.chaos.archive import read_archive, read_set_aside
from tests.end_to_end.chaos.disasters import Stage
from tests.end_to_end.chaos.ending import Ending
from tests.end_to_end.chaos.group_verdict import truth_of
from tests.end_to_end.chaos.groups import consumer_config, lines_of_readers
from tests.end_to_end.chaos.ledger import Ledger, Partition
from tests.end_to_end.chaos.live import LiveReaders
from tests.end_to_end.chaos.load import (
    CarelessLoad,
    IdempotentLoad,
    Load,
    LongTransactions,
    PausableLoad,
    TransactionalLoad,
)
from tests.end_to_end.chaos.nemesis import Nemesis
from tests.end_to_end.chaos.observer import Observer
from tests.end_to_end.chaos.readers import unreported_damage
from tests.end_to_end.chaos.recreated import RecreatedReaders
from tests.end_to_end.chaos.scene import (
    ALL_PARTITIONS,
    CLUSTER_PROPERTIES,
    PARTITIONS,
    RECREATED,
    SPECIAL_TOPICS,
    TOPICS,
    TRIMMED_PARTITIONS,
    TWO_LOG_DIRS,
    set_up,
)
from tests.end_to_end.chaos.schedule import FEW_PARTITIONS, NOT_EARLY, draw, draw_early
from tests.end_to_end.chaos.served import LogStarts, Served, high_watermarks, read_tails
from tests.end_to_end.chaos.store import ChaosStore
from tests.end_to_end.chaos.tail import TailReaders
from tests.end_to_end.chaos.verdict import Evidence, found_in, violations
from tests.harness.archive_check import parse_mark
from tests.harness.ci import EXPIRED, ExpiredWaitsError, TooLittleHappenedError
from tests.harness.damaged_logs import Damage
from tests.harness.disks import Disk

PLAIN_RATE = 60.0
CARELESS_RATE = 20.0
PAID_RATE = 50.0
SPECIAL_RATE = 12.0
"""Records per second of each special topic."""
LONG_RATE = 4.0
TAIL_SECONDS = 60.0
_RECORDS_PER_SEGMENT = 100
_FIRST_SEGMENT_SECONDS = 10.0
"""The time until the first segment of a new history is closed; before that there is nothing to
archive.
"""
_LAST_EVENTS = 60
_LONG_SECONDS = 1800.0
_SECONDS_PER_EVENT = 20  # on a loaded machine; an idle one has one per three seconds


def _events(seconds: float) -> int:
    """Minimum number of actions that makes a run of this duration meaningful."""
    return ceil(seconds / _SECONDS_PER_EVENT)


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


@dataclass(frozen=True, slots=True)
class Report:
    """Result of a run."""

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
    drawn: frozenset[str] = frozenset()
    by_elections: int = 0
    quarantined: int = 0
    by_deletions: int = 0
    retired: int = 0
    deleted: int = 0
    markers_skipped: int = 0
    changed_logs: int = 0
    damages: Mapping[str, int] = field(default_factory=dict)
    trims: int = 0
    trims_held: int = 0
    live: int = 0
    live_kills: int = 0
    early: frozenset[str] = frozenset()
    parts: int = 0
    tail_interval: float | None = None
    from_tail: int = 0

    @property
    def summary(self) -> str:
        """One-line summary."""
        done = _listed(self.counts)
        tail = "no tail"
        if self.tail_interval is not None:
            tail = f"readers of a tail every {self.tail_interval:g} s received {self.from_tail} "
            tail += "offsets before they were archived"
        never, early = ", ".join(self.never) or "nothing", ", ".join(sorted(self.early))
        return (
            f"{self.acknowledged} records acknowledged, {self.stored} stored in {self.segments} "
            f"segments, {self.expired} expired at the brokers, {self.thrown_away} thrown away by "
            f"them; {self.by_elections} lost to unclean elections, {self.quarantined} of them "
            f"archived before and found in quarantine; {self.by_deletions} lost with deleted "
            f"topics, {self.retired} of them found in retired archives; {self.deleted} offsets "
            f"deleted below log starts; {self.emptied} indexes emptied, {self.looks} looks; "
            f"readers came {self.changed_logs} times from a deleted topic into the one created "
            f"again; "
            f"plain readers of the endpoint received {self.live} records, and it was killed "
            f"{self.live_kills} times; "
            f"segments damaged at the end and reported: {_listed(self.damages)}; "
            f"{self.parts} parts of active segments stored early, of {early or 'no topic'}; "
            f"{tail}; "
            f"{self.trims} trims by local retention seen, held {self.trims_held} times by an open "
            f"transaction; brokers have left out transaction markers of {self.markers_skipped} "
            f"partitions; "
            f"{done}; drawn, but never happened: {never}"
        )

    @property
    def never(self) -> list[str]:
        """Kinds of actions that were drawn and did not happen."""
        return sorted(kind for kind in self.drawn if not self.counts.get(kind))

    @property
    def text(self) -> str:
        """All information needed to find the cause."""
        return "\n".join(
            [
                f"{self.title}: {len(self.violations)} violations; logs are in {self.directory}",
                *self.violations,
                "--- the last events",
                *self.events,
                self.summary,
            ]
        )

    def check(self) -> None:
        """Raise if there are violations, if hardly anything happened, or if some kind of action
        never happened in a long run.
        """
        if self.violations:
            expired = all(one.startswith(EXPIRED) for one in self.violations)
            raise (ExpiredWaitsError if expired else AssertionError)(self.text)
        enough = {
            "events": sum(self.counts.values()) >= _events(self.seconds),
            "records": self.stored >= 1000,
            "segments": self.segments >= 50,
            "expired records": self.expired > 0,
            "records of the endpoint": self.live >= self.stored,
            "parts of active segments": self.parts > 0 or not self.early,
            "records that came from packs": self.tail_interval is None or self.from_tail > 0,
            **{f"damages {kind.name}": self.damages.get(kind.name, 0) > 0 for kind in Damage},
        }
        few = [name for name, there in enough.items() if not there]
        if self.seconds >= _LONG_SECONDS:
            few += self.never
            counts = {"trims": self.trims, "trims held by a transaction": self.trims_held}
            few += [name for name, count in counts.items() if not count]
        if few:
            message = f"too few {', '.join(few)} to prove anything\n{self.text}"
            raise TooLittleHappenedError(message)


class Chaos:
    """A run with one seed, one directory and a duration of faults."""

    def __init__(
        self, seed: int, seconds: float, directory: Path, tail_interval: float | None = None
    ) -> None:
        self.title = f"chaos seed {seed}, {seconds:g} s"
        self.properties = {**CLUSTER_PROPERTIES, **TWO_LOG_DIRS}
        self._schedule = draw(seed, seconds, len(PARTITIONS))
        # A short run on a slow machine has no time for it: the archive lags, and few faults begin.
        self._early = NOT_EARLY
        if seconds >= _LONG_SECONDS:
            self._early = draw_early(seed, [*TOPICS, *SPECIAL_TOPICS])
        self._tail_interval = tail_interval
        self._directory = directory
        self._began = monotonic()
        self._events: deque[str] = deque(maxlen=_LAST_EVENTS)
        self._log = directory / "chaos.log"
        self._ledger = Ledger()

    @property
    def retention(self) -> float:
        """Retention in seconds: far longer than any outage, and far shorter than the run."""
        return min(90.0, max(45.0, self._schedule.seconds / 3))

    def tell(self, event: str) -> None:
        """Write to the log; called from every thread."""
        line = f"{monotonic() - self._began:8.2f} {event}"
        self._events.append(line)
        with self._log.open("a") as log:
            log.write(f"{line}\n")

    def run(self, cluster: KafkaCluster, store: ChaosStore, disks: Mapping[int, Disk]) -> Report:
        """Execute the run, and check the result."""
        self.tell(f"{self.title}; {self._early}; tail every {self._tail_interval} s")
        bootstrap, seed = cluster.bootstrap_servers, self._schedule.seed
        with ExitStack() as stack:
            enter = stack.enter_context
            enter(lines_of_readers(self._directory / "readers.log"))
            scene = enter(
                set_up(
                    cluster,
                    store,
                    self._directory,
                    self.retention,
                    disks=disks,
                    early=self._early,
                    tail_interval=self._tail_interval,
                )
            )
            partitions = list(ALL_PARTITIONS)
            observer = enter(Observer(store.eye, scene.layout, partitions, self.tell))
            served = enter(Served(bootstrap, PARTITIONS))
            plain = [tp for tp in PARTITIONS if tp[0] == "plain"]
            paid = [tp for tp in PARTITIONS if tp[0] == "paid"]
            starts = enter(LogStarts(bootstrap, TRIMMED_PARTITIONS))
            trimmed = list(TRIMMED_PARTITIONS)
            long = LongTransactions(self._ledger, bootstrap, trimmed, LONG_RATE, seed)
            careless = CarelessLoad(bootstrap, plain, CARELESS_RATE, seed)
            loads: list[Load] = [
                enter(IdempotentLoad(self._ledger, bootstrap, plain, PLAIN_RATE, seed)),
                enter(TransactionalLoad(self._ledger, bootstrap, paid, PAID_RATE, seed)),
                enter(careless),
                enter(long),
            ]
            special = {
                topic: enter(
                    PausableLoad(self._ledger, bootstrap, topic, FEW_PARTITIONS, SPECIAL_RATE, seed)
                )
                for topic in SPECIAL_TOPICS
            }
            loads += special.values()
            lag = partial(self._lag, observer)
            enter(patch.dict(os.environ, store.direct.environment))
            config = consumer_config(scene, self._directory)
            readers = enter(RecreatedReaders(config, self.tell))
            live = enter(LiveReaders(scene, self._directory, self.tell))

            def archive_end(tp: Partition) -> int:
                data = store.eye.read(scene.layout.watermark_key(TopicPartition(*tp)))
                return 0 if data is None else parse_mark(data).next

            tail = None if self._tail_interval is None else enter(TailReaders(config, archive_end))
            stage = Stage(
                scene,
                self._ledger,
                observer,
                special,
                self.tell,
                readers.begin_again,
            )
            nemesis = Nemesis(stage, self._schedule, lag, careless.burst)
            with nemesis:
                nemesis.wait(_events(self._schedule.seconds))
            problems = [f"the nemesis failed: {error!r}" for error in nemesis.errors]
            self.tell("the trouble is over")
            scene.wait_until_healed()
            for load in loads:
                load.stop()
            self._close_segments(special.values())
            self.tell("all is acknowledged")
            ending = Ending(scene, observer, served, careless, stage.broken)
            return self._judge(ending, readers, live, tail, nemesis.counts, problems, long, starts)

    def _close_segments(self, loads: Iterable[PausableLoad]) -> None:
        """Close segments: lost records are quarantined once the archive continues with the next
        segment.
        """
        for load in loads:
            for tp in load.partitions:
                with load.held(tp):
                    load.send(tp, _RECORDS_PER_SEGMENT)

    def _lag(self, observer: Observer) -> float:
        now, lags = monotonic(), [0.0]
        for tp in ALL_PARTITIONS:
            since = observer.waiting_since(tp)
            if since is not None:
                lags.append(now - since - _FIRST_SEGMENT_SECONDS)
            elif not observer.is_waiting(tp):
                lags.append(self._ledger.lag(tp, observer.next_offset(tp), now))
        return max(lags)

    def _judge(  # noqa: PLR0913, PLR0917 - everything that a run leaves behind
        self,
        ending: Ending,
        readers: RecreatedReaders,
        live: LiveReaders,
        tail: TailReaders | None,
        counts: Mapping[str, int],
        problems: list[str],
        long: LongTransactions,
        log_starts: LogStarts,
    ) -> Report:
        problems += ending.catch_up()
        self.tell("caught up, or given up")
        starts = {tp: ending.observer.next_offset(tp) for tp in ALL_PARTITIONS}
        truth = truth_of(self._ledger, (), (RECREATED,))
        problems += readers.end(truth, starts)
        problems += live.end(self._ledger)
        if tail is not None:
            problems += tail.end(self._ledger)
        self.tell("the readers have ended")
        bootstrap = ending.scene.cluster.bootstrap_servers
        tails = read_tails(bootstrap, starts, TAIL_SECONDS)
        committed = read_tails(
            bootstrap, dict.fromkeys(TRIMMED_PARTITIONS, 0), TAIL_SECONDS, "read_committed"
        )
        problems += ending.end()
        if tail is not None:
            problems += tail.promote(self.tell)
            ending.ends |= high_watermarks(bootstrap, PARTITIONS)
        eye, layout = ending.scene.store.eye, ending.scene.layout
        read = {tp: read_archive(eye, layout, tp) for tp in ALL_PARTITIONS}
        archives = {tp: archived for tp, archived in read.items() if archived is not None}
        problems += self._ledger.problems + ending.served.problems + ending.observer.problems
        ledger = self._ledger
        quarantined = {
            tp: read_set_aside(eye, layout.quarantine_prefix(TopicPartition(*tp)))
            for tp in ALL_PARTITIONS
        }
        retired = {
            (gone.tp, gone.topic_id or ""): read_set_aside(
                eye, f"{layout.retired_prefix(TopicPartition(*gone.tp))}{gone.topic_id}"
            )
            for gone in ledger.by_deletions
        }
        problems += violations(
            Evidence(
                acknowledged=ledger.acknowledged,
                fates=ledger.fates,
                served=ending.served.sums,
                tails=tails,
                archives=archives,
                ends=ending.ends,
                unplaced=ledger.unplaced,
                log_starts=ledger.log_starts,
                by_elections=ledger.by_elections,
                by_deletions=ledger.by_deletions,
                quarantined=quarantined,
                retired=retired,
                markers_skipped=ending.markers_skipped,
                log_starts_seen=log_starts.seen,
                transactions=long.book,
                committed=committed,
            )
        )
        # Last: it damages the archives.
        damages, unreported = unreported_damage(
            ending.scene.store.direct, layout, archives, self._schedule.seed
        )
        problems += unreported
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
            drawn=self._schedule.kinds,
            by_elections=sum(len(gone.records) for gone in ledger.by_elections),
            quarantined=sum(
                found_in(gone, quarantined.get(gone.tp, {})) for gone in ledger.by_elections
            ),
            by_deletions=sum(len(gone.records) for gone in ledger.by_deletions),
            retired=sum(
                found_in(gone, retired[gone.tp, gone.topic_id or ""])
                for gone in ledger.by_deletions
            ),
            deleted=sum(ledger.log_starts.values()),
            markers_skipped=len(ending.markers_skipped),
            changed_logs=readers.changes(truth),
            damages=damages,
            trims=len(log_starts.seen),
            trims_held=ending.trims_held,
            live=live.received,
            live_kills=live.kills,
            early=frozenset(self._early.topics),
            parts=ending.parts,
            from_tail=0 if tail is None else tail.from_packs,
            tail_interval=self._tail_interval,
        )
