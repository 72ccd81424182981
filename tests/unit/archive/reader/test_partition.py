"""The state machine of a partition, driven by hand: no threads, and a clock that the test sets."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from sidetier.archive.access import range_reader
from sidetier.archive.locate import IndexCache, Locator
from sidetier.archive.partition_archive import PartitionArchive
from sidetier.archive.reader import Failed, Gap, ReachedEnd, ReaderSettings, Records, Taken
from sidetier.archive.reader.memory import MemoryBudget
from sidetier.archive.reader.opening import Opener, Opening
from sidetier.archive.reader.partition import (
    Action,
    DecodeRange,
    DecodeRecords,
    Fetch,
    Open,
    OpenElsewhere,
    PartitionReader,
    TakeSnapshot,
)
from sidetier.archive.settings_check import SettingsCheck
from sidetier.segments.errors import SidetierError, StoreUnavailableError
from sidetier.segments.offsets import Offset
from tests.harness.made_archive import TP, Clock, MadeArchive, access_to, offsets

AWAY = StoreUnavailableError("the store is away")
END = 300


@dataclass
class Driver:
    """Carries out actions and work, one after the other, and lists the actions by name."""

    archive: MadeArchive
    clock: Clock = field(default_factory=Clock)
    settings: ReaderSettings = field(default_factory=ReaderSettings)
    names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        access = access_to(self.archive.store)
        read = range_reader(access, TP.topic)
        self.opener = Opener(
            PartitionArchive(TP, access, SettingsCheck(access), self.clock),
            Locator(IndexCache(1 << 20), lambda _key, _reason: None),
            read,
            lambda row, start, end: memoryview(read(row, start, end)),
        )
        self.budget = MemoryBudget(self.settings.memory_budget)
        self.partition = PartitionReader(TP, self.opener, self.settings, self.budget)

    def next_action(self) -> Action | None:
        return self.partition.next_action(self.clock(), may_exceed=False)

    def carry_out(self, action: Action, error: SidetierError | None = None) -> None:
        """Carry an action out, or let it end with this error."""
        self.names.append(type(action).__name__)
        archive = self.opener.archive
        if isinstance(action, Fetch):
            wanted = action.range
            data = self.opener.fetch(wanted.log.row, wanted.start, wanted.end)
            self.partition.range_fetched(wanted, None if error else data, error)
        elif isinstance(action, TakeSnapshot):
            archive.snapshot(action.max_age)
            self.partition.snapshot_taken(archive.latest, self.clock())
        else:
            answer = error or self._answer(action)
            self.partition.opened(action.ticket, answer, archive.latest, self.clock())

    def _answer(self, action: Open | OpenElsewhere) -> Opening | SidetierError:
        try:
            if isinstance(action, Open):
                return self.opener.open(action.target, action.max_age)
            return self.opener.open_elsewhere(action.stuck)
        except SidetierError as error:
            return error

    def take(self) -> Taken | None:
        """Do all work that is there, up to the first result."""
        while True:
            self.partition.apply_answer(self.clock())
            work = self.partition.next_work()
            if isinstance(work, DecodeRange):
                self.partition.range_decoded(work, work.run(), self.clock())
            elif isinstance(work, DecodeRecords):
                records, _ = self.partition.records_decoded(work, work.run(1000))
                self.partition.work_recorded()
                if records is not None:
                    return records
            else:
                self.partition.work_recorded()
                return work

    def results(self) -> Iterator[Taken]:
        """Carry out every action, and yield every result, until there is nothing to do."""
        while True:
            taken = self.take()
            if taken is not None:
                yield taken
                continue
            action = self.next_action()
            if action is None:
                return
            self.carry_out(action)


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
    assert driver.names == ["Open", "Fetch", "Fetch", "Fetch"]
    assert driver.partition.position == END
    driver.partition.close()
    assert driver.budget.used == 0


def test_the_end_is_checked_again_after_the_interval(driver: Driver) -> None:
    list(driver.results())
    driver.clock.now += driver.settings.look_interval - 0.1
    assert driver.next_action() is None
    driver.archive.segment(END, [])
    driver.clock.now += 0.2
    assert isinstance(driver.next_action(), Open)


def test_an_answer_from_before_a_seek_is_ignored(driver: Driver) -> None:
    late = driver.next_action()
    assert late is not None
    driver.partition.seek(Offset(250), driver.clock())
    driver.carry_out(late)

    assert offsets(driver.results()) == list(range(250, END))


def test_a_range_that_a_seek_has_dropped_gives_its_memory_back(driver: Driver) -> None:
    for _ in range(2):
        action = driver.next_action()
        assert action is not None
        if isinstance(action, Open):
            driver.carry_out(action)
    assert isinstance(action, Fetch)
    assert driver.budget.used == action.range.size
    driver.partition.seek(Offset(250), driver.clock())
    assert driver.budget.used == action.range.size  # the request still fills the memory
    driver.carry_out(action)
    assert driver.budget.used == 0


@pytest.mark.parametrize("failing", [Open, Fetch])
def test_a_failure_that_may_pass_is_told_and_tried_again(
    driver: Driver, failing: type[Open | Fetch]
) -> None:
    while not isinstance(action := driver.next_action(), failing):
        assert action is not None
        driver.carry_out(action)
        driver.take()
    driver.carry_out(action, AWAY)

    assert driver.take() == Failed(TP, Offset(0), AWAY)
    assert driver.next_action() is None
    driver.clock.now += driver.settings.failed_pause
    assert offsets(driver.results()) == list(range(END))


def test_after_a_gap_nothing_happens_until_a_seek(driver: Driver) -> None:
    driver.archive.lose(100)
    taken = list(driver.results())

    assert offsets(taken) == list(range(100))
    gap = taken[-1]
    assert isinstance(gap, Gap)
    assert gap.offsets == (100, 200)
    assert "OpenElsewhere" in driver.names
    driver.clock.now += 1000
    assert driver.next_action() is None
    driver.partition.seek(gap.offsets.end, driver.clock())
    assert offsets(driver.results()) == list(range(200, END))


def test_a_paused_partition_does_nothing_and_keeps_its_position(driver: Driver) -> None:
    first = next(driver.results())
    assert isinstance(first, Records)
    driver.partition.pause(driver.clock())
    assert list(driver.results()) == []
    driver.partition.resume(driver.clock())
    assert offsets(driver.results()) == list(range(int(first.next_offset), END))


@pytest.mark.parametrize("interrupted", [DecodeRange, DecodeRecords])
def test_interrupted_work_is_done_again(
    driver: Driver, interrupted: type[DecodeRange | DecodeRecords]
) -> None:
    while not isinstance(work := driver.partition.next_work(), interrupted):
        driver.partition.apply_answer(driver.clock())
        if isinstance(work, DecodeRange):
            driver.partition.range_decoded(work, work.run(), driver.clock())
        elif (action := driver.next_action()) is not None:
            driver.carry_out(action)
    work.run(1000) if isinstance(work, DecodeRecords) else work.run()  # and no report of it

    driver.partition.end_interrupted_work(driver.clock)

    assert driver.budget.used == 0
    assert offsets(driver.results()) == list(range(END))
