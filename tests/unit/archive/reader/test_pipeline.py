"""The pipeline of a partition, driven by hand: no threads, and a clock that the test sets."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from sidetier.archive.access import range_reader
from sidetier.archive.errors import ArchiveReplacedError
from sidetier.archive.locate import Locator
from sidetier.archive.partition_archive import PartitionArchive
from sidetier.archive.reader import Failed, Gap, ReachedEnd, ReaderSettings, Records, Taken
from sidetier.archive.reader.decoder import Decoder
from sidetier.archive.reader.partition import HandOut, Partition
from sidetier.archive.reader.pipeline import Open, Refresh
from sidetier.archive.reader.source import ArchiveSource, opening_at
from sidetier.archive.segment_bytes import MemoryBudget, Range
from sidetier.archive.settings_check import SettingsCheck
from sidetier.segments.errors import SidetierError, StoreUnavailableError
from sidetier.segments.offsets import Offset
from tests.harness.made_archive import TP, Clock, MadeArchive, access_to, batches, offsets
from tests.harness.record_batches import TransactionalLog

AWAY = StoreUnavailableError("the store is away")
END = 300


@dataclass
class Driver:
    """Makes requests and does work, one after the other, and lists the requests by name."""

    archive: MadeArchive
    clock: Clock = field(default_factory=Clock)
    settings: ReaderSettings = field(default_factory=ReaderSettings)
    names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        access = access_to(self.archive.store)
        self.source = ArchiveSource(
            PartitionArchive(TP, access, SettingsCheck(access), self.clock),
            Locator(1 << 20, lambda _key, _reason: None),
            range_reader(access, TP.topic),
        )
        self.budget = MemoryBudget(self.settings.memory_budget)
        self.partition = Partition(TP, self.source, self.settings, None)

    def next_request(self) -> Open | Refresh | Range | None:
        return self.partition.next_request(self.clock(), self.budget, may_exceed=False)

    def carry_out(
        self, request: Open | Refresh | Range, error: SidetierError | None = None
    ) -> None:
        """Make a request, or let it end with this error."""
        self.names.append(type(request).__name__)
        pipeline = self.partition.pipeline
        if isinstance(request, Range):
            data = self.source.fetch(request.part.log, request.start, request.end)
            request.data, request.error = (None, error) if error else (data, None)
            pipeline.ended(error)
        elif isinstance(request, Refresh):
            self.source.refresh(request.max_age)
            pipeline.refreshed(self.source.as_of, self.clock())
        else:
            opening = error or opening_at(self.source, request.run.start, request.max_age)
            pipeline.opened(request.run, opening)
        self.partition.notice_changes(self.clock())

    def take(self) -> Taken | None:
        """Do all work that is there, up to the first result."""
        pipeline = self.partition.pipeline
        while self.partition.takeable:
            work = pipeline.step(self.clock())
            if isinstance(work, Range):
                pipeline.scanned(work, pipeline.scan(work), self.budget.share)
            elif isinstance(work, Decoder):
                records = pipeline.decoded(work, work.next_records(1000))
                if records is not None:
                    return records
            elif work is not None:
                return work
        return None

    def results(self) -> Iterator[Taken]:
        """Make every request, and yield every result, until there is nothing to do."""
        while True:
            taken = self.take()
            if taken is not None:
                yield taken
                continue
            request = self.next_request()
            if request is None:
                return
            self.carry_out(request)


@pytest.fixture
def driver() -> Driver:
    made = MadeArchive()
    made.segments(0, 100, 200, END)
    driver = Driver(made)
    driver.partition.seek(Offset(0), driver.clock())
    return driver


def test_one_request_opens_and_one_reads_each_segment(driver: Driver) -> None:
    taken = list(driver.results())

    assert offsets(taken) == list(range(END))
    assert taken[-1] == ReachedEnd(TP, Offset(END))
    assert driver.names == ["Open", "Range", "Range", "Range"]
    assert driver.partition.settled == (END, END)


def test_the_end_is_checked_again_after_the_interval(driver: Driver) -> None:
    list(driver.results())
    driver.clock.now += driver.settings.look_interval - 0.1
    assert driver.next_request() is None
    driver.archive.segment(END, [])
    driver.clock.now += 0.2
    assert isinstance(driver.next_request(), Open)


def test_an_answer_from_before_a_seek_is_ignored(driver: Driver) -> None:
    late = driver.next_request()
    assert late is not None
    driver.partition.seek(Offset(250), driver.clock())
    driver.carry_out(late)

    assert offsets(driver.results()) == list(range(250, END))


def test_a_range_from_before_a_seek_belongs_to_nobody(driver: Driver) -> None:
    while not isinstance(request := driver.next_request(), Range):
        assert request is not None
        driver.carry_out(request)
    driver.partition.seek(Offset(250), driver.clock())
    driver.carry_out(request)

    assert driver.partition.held_bytes == 0
    assert offsets(driver.results()) == list(range(250, END))


@pytest.mark.parametrize("failing", [Open, Range])
def test_a_failure_that_may_pass_is_told_and_tried_again(
    driver: Driver, failing: type[Open | Range]
) -> None:
    while not isinstance(request := driver.next_request(), failing):
        assert request is not None
        driver.carry_out(request)
        driver.take()
    driver.carry_out(request, AWAY)

    assert driver.take() == Failed(TP, Offset(0), AWAY)
    assert driver.next_request() is None
    driver.clock.now += driver.settings.failed_pause
    assert offsets(driver.results()) == list(range(END))


def test_after_a_gap_nothing_happens_until_a_seek(driver: Driver) -> None:
    driver.archive.lose(100)
    taken = list(driver.results())

    assert offsets(taken) == list(range(100))
    gap = taken[-1]
    assert isinstance(gap, Gap)
    assert gap.offsets == (100, 200)
    driver.clock.now += 1000
    assert driver.next_request() is None
    driver.partition.seek(gap.offsets.end, driver.clock())
    assert offsets(driver.results()) == list(range(200, END))


def test_a_paused_partition_does_nothing_and_keeps_its_position(driver: Driver) -> None:
    first = next(driver.results())
    assert isinstance(first, Records)
    driver.partition.pause(driver.clock(), is_paused=True)
    assert driver.partition.held_bytes == 0
    assert list(driver.results()) == []
    driver.partition.pause(driver.clock(), is_paused=False)
    assert offsets(driver.results()) == list(range(int(first.next_offset), END))


def test_results_that_are_not_handed_out_are_read_again(driver: Driver) -> None:
    hand_out = HandOut()
    driver.partition.touch(hand_out)
    assert offsets(driver.results()) == list(range(END))
    assert driver.partition.settled[0] == 0

    driver.partition.restart(driver.clock())

    assert offsets(driver.results()) == list(range(END))
    hand_out.is_returned = True
    assert driver.partition.settled[0] == END


@pytest.mark.parametrize("interrupted", [Range, Decoder])
def test_interrupted_work_is_done_again(driver: Driver, interrupted: type[Range | Decoder]) -> None:
    partition = driver.partition
    partition.touch(HandOut())
    while not isinstance(work := partition.pipeline.step(driver.clock()), interrupted):
        if isinstance(work, Range):
            partition.pipeline.scanned(work, partition.pipeline.scan(work), driver.budget.share)
        elif (request := driver.next_request()) is not None:
            driver.carry_out(request)
    # No report of it.
    if isinstance(work, Range):
        partition.pipeline.scan(work)
    else:
        assert work.next_records(1000) is not None

    partition.restart(driver.clock())

    assert partition.held_bytes == 0
    assert offsets(driver.results()) == list(range(END))


def test_results_that_are_lost_late_are_read_again_although_the_archive_has_changed(
    driver: Driver,
) -> None:
    hand_out = HandOut()
    driver.partition.touch(hand_out)
    assert offsets(driver.results()) == list(range(END))
    hand_out.is_returned = True
    driver.partition.restart(driver.clock())
    assert driver.partition.settled[0] == END

    hand_out.is_returned = False

    assert driver.partition.has_lost_results(HandOut())
    assert not driver.partition.has_lost_results(hand_out)
    driver.partition.restart(driver.clock())
    assert offsets(driver.results()) == list(range(END))


def replace_from_200(driver: Driver) -> None:
    driver.archive.lose(200)
    driver.archive.segment(200, batches(200, 240))
    driver.archive.segment(240, batches(240, 400))
    driver.archive.mark(240, 400, leader_epoch=5)
    driver.clock.now += 2 * driver.settings.look_interval


@pytest.mark.parametrize("event", ["exception", "seek", "pause", "another change", "unnoticed"])
def test_another_history_is_an_error_until_the_partition_is_assigned(
    driver: Driver, event: str
) -> None:
    partition, hand_out = driver.partition, HandOut()
    list(driver.results())
    replace_from_200(driver)
    partition.touch(hand_out)
    if event == "unnoticed":
        driver.source.refresh(0)
    else:
        assert isinstance(next(driver.results()), Failed)
        hand_out.is_returned = event != "exception"
    match event:
        case "exception":
            assert partition.has_lost_results(HandOut())
            partition.restart(driver.clock())
        case "seek":
            partition.seek(Offset(0), driver.clock())
        case "another change":
            driver.archive.lose(240)
            driver.archive.segment(240, batches(240, 500))
            driver.archive.mark(240, 500, leader_epoch=6)
            driver.source.refresh(0)
            partition.notice_changes(driver.clock())
        case _:
            partition.pause(driver.clock(), is_paused=True)
            partition.pause(driver.clock(), is_paused=False)

    (failed,) = driver.results()

    assert isinstance(failed, Failed)
    assert isinstance(failed.error, ArchiveReplacedError)
    assert failed.error.first == 200
    again = Partition(TP, driver.source, driver.settings, None)
    again.seek(Offset(250), driver.clock())
    driver.partition = again
    assert offsets(driver.results())[0] == 250


def test_a_change_above_the_handed_out_results_is_read_as_it_is_now(driver: Driver) -> None:
    hand_out = HandOut()
    driver.partition.touch(hand_out)
    first = next(driver.results())
    hand_out.is_returned = True
    assert isinstance(first, Records)
    assert first.next_offset <= 200
    driver.partition.touch(HandOut())
    replace_from_200(driver)
    driver.source.refresh(0)
    driver.partition.notice_changes(driver.clock())

    assert offsets(driver.results()) == list(range(int(first.next_offset), 400))


def test_an_outage_is_one_failure_and_one_probe(driver: Driver) -> None:
    ranges: list[Range] = []
    while (request := driver.next_request()) is not None:
        if isinstance(request, Range):
            ranges.append(request)
        else:
            driver.carry_out(request)
    assert len(ranges) > 1
    for one in ranges:
        driver.carry_out(one, AWAY)

    assert list(iter(driver.take, None)) == [Failed(TP, Offset(0), AWAY)]
    driver.clock.now += driver.settings.failed_pause
    opening = driver.next_request()
    assert isinstance(opening, Open)
    driver.carry_out(opening, AWAY)
    assert list(iter(driver.take, None)) == [Failed(TP, Offset(0), AWAY)]
    assert driver.next_request() is None


def test_a_failed_range_is_read_again_alone_while_a_transaction_is_open() -> None:
    made = MadeArchive()
    log = TransactionalLog()
    for _ in range(40):
        log.write(7, 5)
    log.mark(7, commit=True)
    made.segment(0, log.encoded)
    made.mark(0, log.next_offset)
    driver = Driver(made, settings=ReaderSettings(first_range=500, largest_range=500))
    driver.partition.seek(Offset(0), driver.clock())
    starts: list[int] = []
    taken: list[Taken] = []
    while not (taken and isinstance(taken[-1], ReachedEnd)):
        if (one := driver.take()) is not None:
            taken += [] if isinstance(one, Failed) else [one]
        elif (request := driver.next_request()) is None:
            driver.clock.now += 1
        elif isinstance(request, Range):
            starts.append(request.start)
            driver.carry_out(request, AWAY if len(starts) % 2 else None)
        else:
            driver.carry_out(request)
        assert len(starts) < 200, "reads from the transaction on after each failure"

    assert offsets(taken) == list(range(200))
