"""The pipeline of a partition, driven by hand: no threads, and a clock that the test sets."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from sidetier.archive.access import range_reader
from sidetier.archive.locate import Locator
from sidetier.archive.partition_archive import PartitionArchive
from sidetier.archive.reader import Failed, Gap, ReachedEnd, ReaderSettings, Records, Taken
from sidetier.archive.reader.decoder import Decoder
from sidetier.archive.reader.partition import HandOut, Partition
from sidetier.archive.reader.pipeline import Open, Refresh
from sidetier.archive.reader.source import ArchiveSource, Opening, Stuck
from sidetier.archive.segment_bytes import MemoryBudget, Range
from sidetier.archive.settings_check import SettingsCheck
from sidetier.segments.errors import SidetierError, StoreUnavailableError
from sidetier.segments.offsets import Offset
from tests.harness.made_archive import TP, Clock, MadeArchive, access_to, offsets

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
            pipeline.opened(request.run, error or self._answer(request))
        self.partition.notice_changes(self.clock())

    def _answer(self, request: Open) -> Opening | SidetierError:
        start = request.run.start
        try:
            if isinstance(start, Stuck):
                return self.source.open_elsewhere(start)
            return self.source.open(start, request.max_age)
        except SidetierError as error:
            return error

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
    driver.partition.is_paused = True
    assert list(driver.results()) == []
    driver.partition.is_paused = False
    assert offsets(driver.results()) == list(range(int(first.next_offset), END))


def test_results_that_are_not_handed_out_are_read_again(driver: Driver) -> None:
    driver.partition.touch(HandOut())
    assert offsets(driver.results()) == list(range(END))
    assert driver.partition.settled[0] == 0

    driver.partition.restart(driver.clock())

    assert offsets(driver.results()) == list(range(END))
    assert driver.partition.settled[0] == END
