"""The runs that find early segments: bounded, in turn, and each partition's error is its own."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from sidetier.config.uploader import EarlyConfig, EarlyOverride
from sidetier.leadership.port import TopicConfig
from sidetier.segments.errors import BrokerUnavailableError, LeadershipError, SidetierError
from sidetier.segments.listing import ClosedSegment
from sidetier.segments.offsets import BaseOffset, BrokerId, LeaderEpoch, Offset, TopicPartition
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader import early
from sidetier.uploader.archive.archive_state import ArchiveState
from sidetier.uploader.early import EarlySegments, EarlyWanted, Searched, find_part
from sidetier.uploader.effects import Effects
from sidetier.uploader.gates.committed_range import CommittedRange, LedLog, NotCommittedError
from sidetier.uploader.log_tail import LogTail
from sidetier.uploader.sending.queue import UploadQueue
from sidetier.uploader.state.events import (
    EarlyFailed,
    EarlyFound,
    EarlySearched,
    ReportUploadFailed,
)
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.state.plan import PlannedSegment
from sidetier.uploader.state.segment import SegmentState, Timeline, TrackedSegment
from sidetier.uploader.unexpected import UnexpectedErrors
from sidetier.uploader.watching.disk import BatchPosition, LogFile, log_file
from sidetier.uploader.workers import StoreGate
from sidetier.wire.log_offsets import AnsweredOffset, OffsetKind
from tests.harness.log_dir import PartitionLog

if TYPE_CHECKING:
    from sidetier.uploader.clock import Clock
    from sidetier.uploader.pinning.table import PinTable
    from sidetier.uploader.sending.upload import Uploader
    from sidetier.uploader.state.events import Event
    from sidetier.uploader.stores import PlaceOf
    from sidetier.uploader.workers import SharedPool, Task, WorkerPool

TAIL = LogTail(Offset(90), 500, 1000.0, 500, has_batch=True)
FILE = LogFile(1, 1, None)
LED = 2000
RULES = EarlyConfig(topics=("t",), bytes=100, age=60.0)


class Pool:
    """A worker pool whose task runs when the test says so."""

    def __init__(self) -> None:
        self.task: Task[Any] | None = None

    @property
    def free(self) -> int:
        return int(self.task is None)

    def submit(self, task: "Task[Any]") -> None:
        self.task = task

    def run(self) -> Any:  # noqa: ANN401 - an event
        task, self.task = self.task, None
        assert task is not None
        try:
            return task.run()
        except Exception as error:  # noqa: BLE001 - as a worker does
            return task.failed(error)


class Broker:
    """Leads every partition, and counts the questions."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.refuses: dict[TopicPartition, SidetierError] = {}
        self.away: SidetierError | None = None

    def offsets(
        self, kind: OffsetKind, partitions: Sequence[tuple[TopicPartition, LeaderEpoch]]
    ) -> Sequence[AnsweredOffset | SidetierError]:
        if kind is OffsetKind.HIGH_WATERMARK:
            self.asked.append(len(partitions))
        if self.away is not None:
            raise self.away
        answer = AnsweredOffset(Offset(90), LeaderEpoch(1))
        return [self.refuses.get(tp, answer) for tp, _ in partitions]

    def close(self) -> None:
        pass


class Sidecar:
    """The part of the daemon that finds early segments of `LED` partitions."""

    def __init__(self, rules: EarlyConfig = RULES, topics: Sequence[str] = ("t",)) -> None:
        self.now = 2000.0
        self.partitions = [_ready(number, topics[number % len(topics)]) for number in range(LED)]
        self.broker, self.pool = Broker(), Pool()
        clock = cast("Clock", self)
        self.registry = CollectorRegistry()
        metrics = Metrics(self.registry)
        self.early = EarlySegments(
            rules,
            self.broker,
            cast("WorkerPool[Any]", self.pool),
            clock,
            metrics,
            UnexpectedErrors(metrics, clock),
        )
        self.found: dict[int, CommittedRange] = {}
        self.searched: list[int] = []

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def measure(self) -> None:
        """Look at all partitions, always in the same order."""
        for partition in self.partitions:
            self.early.consider(partition, TAIL)
        self.early.ask()

    def run(self) -> int:
        """Handle the result of one run, and begin the next one. Returns the partitions found."""
        before = len(self.found)
        for tp, event in self.early.handle(self.pool.run()):
            partition = self.partitions[tp.partition]
            if isinstance(event, EarlyFound):
                self.found[tp.partition] = event.committed
                partition.generation += 1
            elif isinstance(event, EarlyFailed):
                partition.early_hold.fail(str(event.error), self.now)
            else:
                assert isinstance(event, EarlySearched)
                self.searched.append(event.position.offset)
        self.early.ask()
        return len(self.found) - before

    def run_all(self) -> None:
        while self.pool.task is not None:
            self.run()


def _ready(number: int, topic: str = "t") -> Partition:
    partition = Partition(TopicPartition(topic, number), LeaderEpoch(1))
    partition.move_to(f"/logs/{topic}-{number}", 1)
    partition.config, partition.log.active = TopicConfig(), BaseOffset(0)
    partition.archive = ArchiveState(next_offset=Offset(5))
    return partition


@pytest.fixture
def sidecar() -> Sidecar:
    return Sidecar()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[object]]:
    """Stand in for the reading of files: the test gives errors and positions by partition."""
    answers: dict[int, list[object]] = {}

    def find(wanted: EarlyWanted, led: LedLog) -> object:
        rest = answers.get(wanted.topic_partition.partition)
        answer = rest.pop(0) if rest else None
        if isinstance(answer, Exception):
            raise answer
        if answer is not None:
            return answer
        start, end, size = wanted.start, led.high_watermark, wanted.max_bytes
        return CommittedRange(wanted.segment, start, end, 0, size, led.leader_epoch, FILE)

    monkeypatch.setattr(early, "find_part", find)
    return lambda number: answers.setdefault(number, [])


@pytest.mark.usefixtures("read")
def test_many_due_partitions_are_asked_for_in_bounded_runs(sidecar: Sidecar) -> None:
    """In turn, although the first ones are due again at once."""
    sidecar.measure()
    for _ in range(LED // 100):
        assert sidecar.run() == 100
        sidecar.measure()
    assert len(sidecar.found) == LED
    assert set(sidecar.broker.asked) == {100}


@pytest.mark.usefixtures("read")
def test_parts_are_due_and_end_by_the_limits_of_their_topic() -> None:
    """`TAIL` has 500 bytes, and its oldest record is 1000 s old at the start."""
    overrides = (
        EarlyOverride(topics="small|large", bytes=200),
        EarlyOverride(topics="large|old", bytes=9000, age=1010.0),
    )
    rules = EarlyConfig(topics=("small", "large", "old", "t"), age=9999.0, overrides=overrides)
    sidecar = Sidecar(rules, ["small", "large", "old", "t", "other"])

    def found() -> Mapping[str, set[int]]:
        sidecar.measure()
        sidecar.run_all()
        sizes: dict[str, set[int]] = {}
        for number, committed in sidecar.found.items():
            topic = sidecar.partitions[number].topic_partition.topic
            sizes.setdefault(topic, set()).add(committed.size)
        return sizes

    assert found() == {"small": {200}, "large": {200}}, "by bytes; the first match applies"
    sidecar.now += 10
    assert found() == {"small": {200}, "large": {200}, "old": {9000}}, "and one by age"


def test_partition_that_takes_long_is_behind_the_others_and_goes_on(
    sidecar: Sidecar, read: Callable[[int], list[object]]
) -> None:
    segment, epoch = BaseOffset(0), LeaderEpoch(1)
    for n in (1, 2, 3):
        position = BatchPosition(segment, FILE, epoch, Offset(n), 10 * n)
        read(0).append(Searched(position, goes_on=True))
    read(1).append(Searched(position, goes_on=False))
    sidecar.measure()
    for _ in range(LED // 100 - 1):
        sidecar.run()
    assert len(sidecar.found) == LED - 100 - 2
    assert not {0, 1} & set(sidecar.found)
    sidecar.run_all()
    assert set(range(LED)) - set(sidecar.found) == {1}, "it has too few bytes"
    assert sidecar.broker.asked[-2:] == [1, 1]
    assert sorted(sidecar.searched) == [1, 2, 3, 3]


@pytest.mark.usefixtures("read")
def test_run_ends_after_a_second_and_the_rest_comes_first(
    sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts that are found do not wait for the searches in other segments."""
    find = early.find_part

    def slow(*args: Any) -> Any:  # noqa: ANN401
        sidecar.now += 0.3
        return find(*args)

    monkeypatch.setattr(early, "find_part", slow)
    sidecar.measure()
    assert sidecar.run() == 4
    assert sidecar.run() == 4
    assert sorted(sidecar.found) == list(range(8))
    sidecar.run_all()
    assert len(sidecar.found) == LED


def test_error_of_one_partition_is_its_own(
    sidecar: Sidecar, read: Callable[[int], list[object]]
) -> None:
    """Also an unexpected one, such as a defect that one file brings to light."""
    read(0).append(KeyError("a defect"))
    read(1).append(PermissionError("not readable"))
    sidecar.broker.refuses[TopicPartition("t", 2)] = LeadershipError("fenced")
    sidecar.measure()
    with capture_logs() as logged:
        sidecar.run_all()
    assert set(range(LED)) - set(sidecar.found) == {0, 1, 2}
    events = [entry["event"] for entry in logged]
    assert events == ["error.unexpected", "early.refused"]
    assert logged[1]["partitions"] == 2


@pytest.mark.usefixtures("read")
def test_lasting_error_is_logged_once_until_it_changes(sidecar: Sidecar) -> None:
    del sidecar.partitions[3:]
    tp = TopicPartition("t", 2)

    def attempt() -> list[str]:
        sidecar.now += 100
        with capture_logs() as logged:
            sidecar.measure()
            sidecar.run_all()
        return [str(entry["event"]) for entry in logged]

    sidecar.broker.refuses[tp] = LeadershipError("fenced")
    assert [attempt(), attempt(), attempt()] == [["early.refused"], [], []]
    assert sidecar.partitions[2].early_hold.failures == 3, "the pause grows"
    sidecar.broker.refuses[tp] = LeadershipError("unknown topic")
    assert [attempt(), attempt()] == [["early.refused"], []]
    sidecar.broker.away = BrokerUnavailableError("away")
    assert [attempt(), attempt()] == [["early.unavailable"], []]
    sidecar.broker.away = None
    assert attempt() == []
    sidecar.broker.away = BrokerUnavailableError("away")
    assert attempt() == ["early.unavailable"]
    count = sidecar.registry.get_sample_value
    assert count("sidetier_errors_total", {"kind": "BrokerUnavailableError"}) == 3


def test_lasting_refusal_of_an_upload_is_logged_once_until_it_changes() -> None:
    """The pause grows, although the logs are measured while an upload is under way."""
    partition, file = _ready(0), LogFile(1, 1, None)
    part = (BaseOffset(0), Offset(5), Offset(7), 50, 20, LeaderEpoch(1), file)

    def attempt(error: Exception) -> ReportUploadFailed:
        partition.note_early(due=True, now=100.0)
        early = TrackedSegment.of_active(CommittedRange(*part), 100.0, partition.early_hold)
        early.stage, partition.log.early = SegmentState.UPLOADING, early
        partition.note_early(due=False, now=100.0)
        report, _ = partition._upload_failed(early, error, 1.0, unlinked=False)
        assert isinstance(report, ReportUploadFailed)
        return report

    fenced, away = NotCommittedError("fenced"), BrokerUnavailableError("away")
    reports = [attempt(error) for error in (fenced, fenced, away, away, fenced)]
    assert [report.repeated for report in reports] == [False, True, False, True, False]
    assert [report.failures for report in reports] == [1, 2, 3, 4, 5]
    metrics = Metrics(registry := CollectorRegistry())
    unused = cast("Any", None)
    effects = Effects(unused, unused, unused, unused, metrics, unused)
    with capture_logs() as logged:
        for report in reports:
            effects._upload_failed(partition.topic_partition, report)
    assert [entry["error"] for entry in logged] == ["fenced", "away", "fenced"]
    kind = {"kind": "NotCommittedError"}
    assert registry.get_sample_value("sidetier_errors_total", kind) == 3


def test_refusal_does_not_delay_the_next_topic_of_the_name() -> None:
    partition = _ready(0)
    partition.early_hold.fail("refused", 100.0)
    partition.note_early(due=True, now=100.0)
    partition.begin_anew("another")
    assert not partition.early_due
    assert (partition.early_hold.error, partition.early_hold.until) == (None, 0.0)


def test_partition_that_is_not_led_any_more_is_not_asked_for(sidecar: Sidecar) -> None:
    sidecar.measure()
    sidecar.measure()  # the run is under way: its partitions do not wait again
    sidecar.early.forget(TopicPartition("t", 150))
    sidecar.early.consider(sidecar.partitions[151], None)
    sidecar.run_all()
    assert sum(sidecar.broker.asked) == LED - 2


@pytest.mark.parametrize(
    ("epoch", "active", "offset", "known"),
    [
        (1, 0, 7, True),
        (1, 0, 9, True),
        (-1, 0, 7, False),  # the broker perhaps did not lead yet
        (1, 8, 8, False),  # another segment
        (1, 0, 10, False),  # the archive has moved back since
    ],
)
@pytest.mark.usefixtures("read")
def test_search_begins_at_the_known_position(
    sidecar: Sidecar, epoch: int, active: int, offset: int, *, known: bool
) -> None:
    partition = sidecar.partitions[0]
    partition.log.active = BaseOffset(active)
    position = BatchPosition(BaseOffset(0), FILE, LeaderEpoch(epoch), Offset(offset), 70)
    partition.archive = ArchiveState(next_offset=Offset(9), position=position)
    sidecar.early.consider(partition, TAIL)
    found = sidecar.early._waiting[partition.topic_partition].known
    assert found == (position if known else None)


def test_long_search_goes_on_where_it_has_ended(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early, "_MAX_SEARCHED", 3)
    log.append(50)  # ten batches
    led = LedLog(Offset(50), Offset(50), LeaderEpoch(0))
    file = log_file(str(log.path), log.active)
    assert file is not None

    def find(known: BatchPosition | None, start: int = 45, least: int = 0) -> object:
        wanted = EarlyWanted(
            log.tp,
            str(log.path),
            log.active,
            Offset(start),
            LeaderEpoch(0),
            file.topic_id,
            0,
            known,
            least,
            1 << 20,
        )
        return find_part(wanted, led)

    ends = []
    found: object = None
    while not isinstance(found, CommittedRange):
        found = find(found.position if isinstance(found, Searched) else None)
        if isinstance(found, Searched):
            assert found.goes_on
            ends.append((found.position.offset, found.position.position))
    assert ends == [(15, 3 * 296), (30, 6 * 296), (45, 9 * 296)]
    assert (found.start, found.end, found.position) == (45, 50, 9 * 296)
    assert find(None, start=50) is None, "nothing is committed there, so nothing is read"
    elsewhere = BatchPosition(log.active, file._replace(inode=1), LeaderEpoch(0), Offset(45), 2664)
    again = find(elsewhere)
    assert isinstance(again, Searched)
    assert again.position.offset == 15, "another file: from its begin"
    last = BatchPosition(log.active, file, LeaderEpoch(0), Offset(45), 2664)
    assert find(last, least=999) == Searched(last, goes_on=False), "too few bytes"


def test_parts_are_uploaded_in_turn_and_after_closed_segments() -> None:
    """Also where the broker keeps records for ever, and every segment is equally urgent."""
    place = SimpleNamespace(gate=StoreGate())
    queue = UploadQueue(
        cast("Uploader", None),
        cast("SharedPool[Event]", SimpleNamespace(has_room=lambda _: True)),
        cast("PinTable", None),
        cast("PlaceOf", lambda _: place),
        BrokerId(1),
        time.monotonic,
    )
    started: list[PlannedSegment] = []
    queue._start = lambda _, entry: started.append(entry.planned)  # type: ignore[method-assign, assignment]
    for number, (base, is_early) in enumerate([(700, True), (5, True), (900, False), (300, False)]):
        partition, file = _ready(number), LogFile(1, 1, None)
        if is_early:
            end = Offset(base + 9)
            part = (BaseOffset(base), Offset(base), end, 0, 9, LeaderEpoch(1), file)
            committed, hold = CommittedRange(*part), partition.early_hold
            tracked = partition.log.early = TrackedSegment.of_active(committed, 0.0, hold)
        else:
            closed = ClosedSegment(
                BaseOffset(base), BaseOffset(base + 9), marked_for_deletion=False
            )
            tracked = TrackedSegment(closed, 9, 9, Timeline(0.0), math.inf)
            partition.log.tracked[BaseOffset(base)] = tracked
        queue.offer(partition, tracked, PlannedSegment(tracked.segment, Offset(base)))
    queue.start_some()
    assert [planned.start for planned in started] == [300, 900, 700, 5]
