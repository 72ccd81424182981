"""The tail's writer against logs of three brokers with elections, lies between the questions, and a
store that fails. Real files, real packs, and the merge rule of readers.

Every range that is sent must be in the log of the leader that has just answered for it
(`TailSite.check_sent`). After each run the leader's sidecar finishes, and the merged tail must be
the leader's log, record by record. Each mutant of the writer must be found.
"""

import random
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from sidetier.archive.tail.inventory import TailInventory
from sidetier.archive.tail.merge import ArchivedPart, MergedTail
from sidetier.archive.tail.needed_rows import Need, need_of
from sidetier.archive.tail.pack import PackBuilder, TailRow
from sidetier.archive.tail.read import read_rows
from sidetier.leadership.port import LedLog
from sidetier.segments.batches import split_batches
from sidetier.segments.epoch_history import Entry
from sidetier.segments.errors import BrokerError, SidetierError, StorageError, StoreUnavailableError
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.fake import FakeStorage
from sidetier.uploader.gates import committed_range
from sidetier.uploader.gates.committed_range import CommittedRange
from sidetier.uploader.tail import cleaning as cleaning_module
from sidetier.uploader.tail import cycle as cycle_module
from sidetier.uploader.tail.cleaning import TailCleaner, copy_of
from sidetier.uploader.tail.packs import TailPlace
from sidetier.uploader.watching.disk import LogFile
from sidetier.wire.log_offsets import OffsetKind
from tests.harness.daemons import LAYOUT
from tests.harness.log_dir import PartitionLog
from tests.harness.tail_writing import (
    TailSite,
    TickingClock,
    archived_epochs,
    log_bytes,
    merged,
    replicate,
    tail_bytes,
)

TP = TopicPartition("t", 0)
BROKERS = 3
_SEEDS = 400
_STEPS = 60


class World:
    """One partition on three brokers, each with a sidecar."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.rng = rng
        self.time = TickingClock()
        self.store = FakeStorage(now_ms=lambda: int(self.time.wall() * 1000))
        self.sites = [
            TailSite(root / str(number), self.store, number, self.time) for number in range(BROKERS)
        ]
        self.busy: list[PartitionLog] = []
        self.topics = 0
        self.epoch = 0
        self.leader = 0
        self.archived = 0
        self.size = 20
        self._create()
        for site in self.sites:
            site.source.before = {kind: [] for kind in OffsetKind}

    def _create(self) -> None:
        self.topics += 1
        topic_id = f"topic{self.topics:016d}A"
        self.epoch = self.archived = 0
        for site in self.sites:
            known = site.log_dir.partitions.pop(TP, None)
            if known is not None:
                shutil.rmtree(known.path)
        log = self.sites[self.leader].log_dir.create("t", 0, topic_id=topic_id)
        log.lead(0)

    @property
    def led(self) -> TailSite:
        return self.sites[self.leader]

    @property
    def log(self) -> PartitionLog:
        return self.led.log_dir.partitions[TP]

    # -- the cluster -----------------------------------------------------------------------------

    def produce(self) -> None:
        self.size += 1  # no two batches of the same place have the same bytes
        self.log.append(self.rng.randrange(1, 8), batch=3, size=self.size)
        if self.rng.randrange(4) == 0:
            self.log.roll()

    def fetch(self) -> None:
        """A follower becomes equal to the leader."""
        follower = self.rng.randrange(BROKERS)
        if follower != self.leader:
            replicate(self.log, self.sites[follower])

    def elect(self) -> None:
        """Also unclean: the log of the new leader may be shorter than what was committed."""
        candidates = [
            number
            for number, site in enumerate(self.sites)
            if TP in site.log_dir.partitions
            and site.log_dir.partitions[TP].topic_id == self.log.topic_id
        ]
        # If the new leader lacks archived records, the archive diverges: not part of this.
        archived = log_bytes(self.log)[: _position(self.log, self.archived)]
        self.leader = self.rng.choice(
            [
                number
                for number in candidates
                if log_bytes(self.sites[number].log_dir.partitions[TP]).startswith(archived)
            ]
        )
        self.epoch += 1 + self.rng.randrange(2)
        self.log.lead(self.epoch)

    def truncate_and_lead(self) -> None:
        """The leader restarts, has lost the end of its log, and leads again (RF 1)."""
        log = self.log
        if log.log_end > self.archived:
            ends = [end for end in _batch_ends(log) if end >= self.archived]
            if ends:
                log.truncate(self.rng.choice(ends))
        self.epoch += 1
        log.lead(self.epoch)

    def recreate(self) -> None:
        if self.rng.randrange(3) == 0:
            self._create()
            self.produce()

    def archive(self) -> None:
        ends = [end for end in _batch_ends(self.log) if end >= self.archived]
        if ends:
            self.archived = self.rng.choice(ends[: len(ends) // 2 + 1])

    # -- the sidecars ----------------------------------------------------------------------------

    def run(self) -> None:
        """The leader's sidecar, or one whose view is old; something happens between its steps."""
        site = self.led if self.rng.randrange(4) else self.rng.choice(self.sites)
        if TP not in site.log_dir.partitions:
            return
        site.archive_ends[TP] = self.archived
        led = site.led([TP])
        if self.rng.randrange(3) == 0:
            kind = self.rng.choice(list(OffsetKind))
            acts = [self.truncate_and_lead, self.recreate, self.elect, self.produce, self.fetch]
            skipped = [lambda: None] * self.rng.randrange(2)
            site.source.before[kind] = [*skipped, self.rng.choice(acts)]
        if self.rng.randrange(6) == 0:
            self.store.fail("put", StoreUnavailableError("away"), after=bool(self.rng.randrange(2)))
        self.time.now += 90
        with suppress(BrokerError):
            site.cycle.run(led)
        site.cycle.settle(0)
        self.calm()

    def kill(self) -> None:
        self.rng.choice(self.sites).restart()

    def clean(self) -> None:
        """A sidecar cleans whose broker leads, or has led."""
        site = self.rng.choice(self.sites)
        log, end = self.log, self.archived
        site.archive_ends[TP] = end
        part = ArchivedPart(Offset(end), archived_epochs(log, end), log.topic_id)
        by = TailCleaner(
            site.cycle.stores,
            lambda numbers: TailInventory(numbers.store, numbers.layout),
            lambda _: TailPlace(self.store, LAYOUT, encrypts=False),
            lambda _: part if end else None,
            site.broker,
            self.time.clock,
        )
        led = site.led([TP]) if site is self.led else {}
        if self.rng.randrange(4) == 0:
            self.store.fail("put", StoreUnavailableError("killed"), nth=1 + self.rng.randrange(2))
        before = self.stored()
        for _ in range(3):
            with suppress(StorageError, SidetierError):
                by.run(led)
            self.time.now += 3700
        self.calm()
        archived = {(log.topic_id, *batch[:2]) for batch in _batches(log) if batch[0] < end}
        for batch in before - self.stored():
            is_elsewhere = batch in archived or batch[1:] in self.quarantined()
            assert is_elsewhere or batch[0] != log.topic_id, "the only copy is gone"

    def stored(self) -> set[tuple[str, int, int]]:
        """The batches in live packs: topic id, offset and leader epoch."""
        contents = TailInventory(self.store, LAYOUT).read()
        rows = [source for source in contents.rows.get(TP, ()) if not source.row.is_claim]
        return {
            (source.row.topic_id, header.base_offset, header.leader_epoch)
            for source, data in read_rows(self.store, rows)
            for _, header in split_batches(memoryview(data))
        }

    def quarantined(self) -> set[tuple[int, int]]:
        """The batches of tail packs in quarantine: offset and leader epoch."""
        objects = self.store.contents()
        return {
            (header.base_offset, header.leader_epoch)
            for key, data in objects.items()
            if key.startswith(LAYOUT.quarantine_prefix(TP)) and key.endswith(".log")
            for _, header in split_batches(memoryview(data))
        }

    def calm(self) -> None:
        for site in self.sites:
            site.source.before = {kind: [] for kind in OffsetKind}
        self.store._faults.clear()  # faults that were not met

    def act(self) -> None:
        steps = (
            [self.produce] * 6
            + [self.fetch] * 3
            + [self.run] * 10
            + [self.elect, self.truncate_and_lead, self.archive, self.kill]
            + [self.clean] * 2
            + [self.recreate]
        )
        self.rng.choice(steps)()

    def finish(self) -> MergedTail:
        """Let the leader's sidecar run until nothing is left to do."""
        self.calm()
        site = self.led
        site.archive_ends[TP] = self.archived
        for _ in range(4):
            self.time.now += 90
            site.cycle.run(site.led([TP]))
            site.cycle.settle(0)
        return merged(self.store, self.log, self.archived)

    def check(self) -> None:
        tail = self.finish()
        log = log_bytes(self.log)
        found = tail_bytes(self.store, tail)
        assert log.endswith(found) if found else True, "the tail has other records than the log"
        assert tail.end == self.log.log_end, "the tail does not reach the end of the log"
        assert len(found) == len(log) - _position(self.log, self.archived), "records are missing"


def _batch_ends(log: PartitionLog) -> list[int]:
    return [end for _, _, end, _ in _batches(log)]


def _batches(log: PartitionLog) -> Iterator[tuple[int, int, int, int]]:
    """Base offset, leader epoch, end and size of each batch."""
    for base in log.bases():
        data, at = log.written[base], 0
        while at < len(data):
            length = int.from_bytes(data[at + 8 : at + 12]) + 12
            first = int.from_bytes(data[at : at + 8])
            epoch = int.from_bytes(data[at + 12 : at + 16])
            yield first, epoch, first + int.from_bytes(data[at + 23 : at + 27]) + 1, length
            at += length


def _position(log: PartitionLog, offset: int) -> int:
    return sum(length for _, _, end, length in _batches(log) if end <= offset)


def simulate(seed: int, steps: int = _STEPS) -> None:
    root = Path(tempfile.mkdtemp(prefix="tail-"))
    try:
        world = World(root, random.Random(seed))
        for _ in range(steps):
            world.act()
        world.check()
    finally:
        shutil.rmtree(root)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Packs are copied in short runs, too.
    monkeypatch.setattr(cleaning_module, "MAX_SMALL_PACKS", 2)
    with structlog.testing.capture_logs():
        yield


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**63))
def test_the_merged_tail_is_the_leaders_log(seed: int) -> None:
    simulate(seed)


# -- mutants ------------------------------------------------------------------------------------

_refusal = committed_range.refusal


def _without_second_ask(
    wanted: CommittedRange,
    epochs: Sequence[Entry],
    end: Offset | None,
    _: object,
    file: LogFile | None,
) -> str | None:
    agreed = LedLog(wanted.end, wanted.end, wanted.leader_epoch)
    return _refusal(wanted, epochs, end, agreed, file)


def _without_look_again(
    wanted: CommittedRange,
    epochs: Sequence[Entry],
    end: Offset | None,
    again: LedLog | SidetierError | None,
    _: object,
) -> str | None:
    return _refusal(wanted, epochs, end, again, wanted.file)


def _below_the_end(row: TailRow, archived: ArchivedPart) -> Need:
    is_below = row.topic_id == archived.topic_id and row.end <= (archived.end or 0)
    return Need.ARCHIVED if is_below else need_of(row, archived)


def _without_the_first(rows: Iterable[tuple[TailRow, bytes]]) -> PackBuilder:
    rows = list(rows)
    return copy_of(rows[1:] or rows)


@contextmanager
def _mutant(patch: pytest.MonkeyPatch, name: str) -> Iterator[None]:
    if name == "without the second ask":
        patch.setattr(cycle_module, "refusal", _without_second_ask)
    elif name == "without the look again":
        patch.setattr(cycle_module, "refusal", _without_look_again)
        patch.setattr(cycle_module, "topic_id_in", lambda _: None)
    elif name == "without claims":
        patch.setattr(cycle_module, "_proves", lambda *_: True)
    elif name == "cleaning drops what lies below the archive end":
        patch.setattr(cleaning_module, "need_of", _below_the_end)
    elif name == "cleaning copies other bytes":
        patch.setattr(cleaning_module, "copy_of", _without_the_first)
    yield


MUTANTS = (
    "without the second ask",
    "without the look again",
    "without claims",
    "cleaning drops what lies below the archive end",
    "cleaning copies other bytes",
)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_writer_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with _mutant(monkeypatch, name):
        for seed in range(_SEEDS):
            try:
                simulate(seed)
            except (AssertionError, SidetierError):
                return
    pytest.fail(f"{_SEEDS} runs of a writer {name} find nothing")
