"""The tail's writer against logs of three brokers with elections, lies between the questions, and a
store that fails; with archives that diverge, deleted records, second sidecars of the brokers, and
two stores of one URL. Real files, real packs, and the merge rule of readers.

Every range that is sent must be in the log of the leader that has just answered for it
(`TailSite.check_sent`). After each run the leader's sidecar finishes, and the merged tail must be
the leader's log, record by record. Each mutant of the writer must be found.
"""

import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from sidetier.archive.tail.inventory import TailInventory
from sidetier.archive.tail.merge import ArchivedPart, MergedTail, PackedRow
from sidetier.archive.tail.needed_rows import Need, need_of
from sidetier.archive.tail.pack import TailRow
from sidetier.archive.tail.read import read_rows
from sidetier.segments.batches import split_batches
from sidetier.segments.epoch_history import (
    NO_EPOCHS,
    Entry,
    EpochHistory,
    contradiction,
    extend,
)
from sidetier.segments.errors import BrokerError, SidetierError, StorageError, StoreUnavailableError
from sidetier.segments.headers import BatchHeader
from sidetier.segments.offsets import LeaderEpoch, Offset, TopicPartition
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import RemoteStorage
from sidetier.uploader.gates import committed_range
from sidetier.uploader.gates.committed_range import CommittedRange
from sidetier.uploader.tail import begin as begin_module
from sidetier.uploader.tail import cleaning as cleaning_module
from sidetier.uploader.tail.begin import TailBegin
from sidetier.uploader.tail.board import TailPartition
from sidetier.uploader.tail.cleaning import StoredArchive, TailCleaner
from sidetier.uploader.tail.copying import PackCopy
from sidetier.uploader.tail.cycle import TailCycle
from sidetier.uploader.tail.packs import TailPlace
from sidetier.uploader.watching.disk import LogFile
from sidetier.wire.log_offsets import AnsweredOffset, OffsetKind
from tests.harness.daemons import LAYOUT
from tests.harness.log_dir import PartitionLog
from tests.harness.tail_writing import (
    TailSite,
    TickingClock,
    log_bytes,
    merged,
    replicate,
    tail_bytes,
)

TP = TopicPartition("t", 0)
BROKERS = 3
_SEEDS = 400
_STEPS = 60


class SameUrl:
    """Another store object over the same objects."""

    def __init__(self, store: FakeStorage) -> None:
        self._store = store

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


class Site(TailSite):
    """A sidecar with two stores of one URL."""

    def restart(self) -> None:
        super().restart()
        stores = {"t": self.store, "quiet": cast("RemoteStorage", SameUrl(self.store))}  # type: ignore[arg-type]
        self.cycle = TailCycle(
            self.source,
            lambda topic: TailPlace(stores[topic], LAYOUT, encrypts=False),
            self.inventory_of,
            self.sender,
            self.broker,
            self.time.clock,
        )


class World:
    """One partition on three brokers, each with two sidecars, of which one is mostly paused. A
    quiet partition on each broker, which never moves.
    """

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.rng = rng
        self.time = TickingClock()
        self.store = FakeStorage(now_ms=lambda: int(self.time.wall() * 1000))
        self.sites = [
            Site(root / str(number), self.store, number, self.time) for number in range(BROKERS)
        ]
        self.time.now += 1
        self.twins = [
            Site(root / f"{number}-twin", self.store, number, self.time)
            for number in range(BROKERS)
        ]
        for site, twin in zip(self.sites, self.twins, strict=True):
            site.log_dir.create("quiet", int(site.broker))
            twin.log_dir, twin.source = site.log_dir, site.source
            twin.restart()
        self.busy: list[PartitionLog] = []
        self.topics = 0
        self.epoch = 0
        self.leader = 0
        self.archived = 0
        self.archived_epochs = NO_EPOCHS
        self.archive_batches: set[tuple[str, int, int]] = set()
        """The batches in the archive: topic id, offset and leader epoch."""
        self.size = 20
        self._create()
        for site in self.sites:
            site.source.before = {kind: [] for kind in OffsetKind}

    def _create(self) -> None:
        self.topics += 1
        topic_id = f"topic{self.topics:016d}A"
        self.epoch = self.archived = 0
        self.archived_epochs = NO_EPOCHS
        for site in self.sites:
            site.source.log_starts.pop(TP, None)
            known = site.log_dir.partitions.pop(TP, None)
            if known is not None:
                shutil.rmtree(known.path)
        log = self.sites[self.leader].log_dir.create("t", 0, topic_id=topic_id)
        log.lead(0)

    @property
    def led(self) -> Site:
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
            site = self.sites[follower]
            replicate(self.log, site)
            site.source.log_starts[TP] = self.led.source.log_starts.get(TP, 0)

    def elect(self) -> None:
        """Also unclean: the log of the new leader may be shorter than what was committed."""
        candidates = [
            number
            for number, site in enumerate(self.sites)
            if TP in site.log_dir.partitions
            and site.log_dir.partitions[TP].topic_id == self.log.topic_id
        ]
        self.leader = self.rng.choice(candidates)
        self.epoch += 1 + self.rng.randrange(2)
        self.log.lead(self.epoch)

    def truncate_and_lead(self) -> None:
        """The leader restarts, has lost the end of its log, and leads again (RF 1)."""
        log, start = self.log, self.led.source.log_starts.get(TP, 0)
        # Mostly above what is archived; otherwise the archive diverges.
        lowest = start if self.rng.randrange(4) == 0 else max(self.archived, start)
        ends = [end for end in _batch_ends(log) if end >= lowest]
        if ends and log.log_end > lowest:
            log.truncate(self.rng.choice(ends))
        self.epoch += 1
        log.lead(self.epoch)

    def delete_records(self) -> None:
        """Within the active segment: the file stays, and the checkpoint is cut."""
        self.quarantine()
        active, start = self.log.bases()[-1], self.led.source.log_starts.get(TP, 0)
        ends = [end for end in _batch_ends(self.log) if end > max(active, start)]
        if ends:
            start = self.rng.choice(ends)
            self.log.start_at(start)
            self.led.source.log_starts[TP] = start

    def recreate(self) -> None:
        if self.rng.randrange(3) == 0:
            self._create()
            self.produce()

    def archive(self) -> None:
        """The leader's sidecar archives more, or finds that the archive has diverged."""
        self.quarantine()
        ends = [end for end in _batch_ends(self.log) if end >= self.archived]
        if ends:
            end = self.rng.choice(ends)
            self.archive_batches |= {
                (self.log.topic_id, header.base_offset, header.leader_epoch)
                for header in _headers(self.log)
                if self.archived <= header.base_offset < end
            }
            epochs = extend(self.archived_epochs, self.history, Offset(self.archived), Offset(end))
            self.archived, self.archived_epochs = end, epochs

    def quarantine(self) -> None:
        found = contradiction(self.archived_epochs, self.history, self.archived)
        if found is not None:
            self.archived = found.offset
            self.archived_epochs = self.archived_epochs.up_to(found.offset)
            self.archive_batches = {
                batch for batch in self.archive_batches if batch[1] < found.offset
            }

    @property
    def history(self) -> EpochHistory:
        """Also of what the checkpoint has lost by DeleteRecords."""
        epochs: dict[int, int] = {}
        for header in _headers(self.log):
            epochs.setdefault(header.leader_epoch, header.base_offset)
        epochs |= {epoch: at for epoch, at in self.log.epochs() if epoch not in epochs}
        return EpochHistory(tuple((LeaderEpoch(e), Offset(at)) for e, at in sorted(epochs.items())))

    def led_by(self, site: TailSite) -> dict[TopicPartition, TailPartition]:
        """What a sidecar knows now."""
        site.archive_ends[TP], site.archived_epochs[TP] = self.archived, self.archived_epochs
        return site.led()

    # -- the sidecars ----------------------------------------------------------------------------

    def run(self) -> None:
        """The leader's sidecar, or one whose view is old; something happens between its steps."""
        site = self.led if self.rng.randrange(4) else self.rng.choice(self.sites + self.twins)
        led = self.led_by(site)
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

    def write_quietly(self) -> None:
        site = self.rng.choice(self.sites)
        site.log_dir.partitions[TopicPartition("quiet", int(site.broker))].append(1)

    def kill(self) -> None:
        self.rng.choice(self.sites + self.twins).restart()

    def clean(self) -> None:
        """A sidecar cleans whose broker leads, or has led."""
        number = self.rng.randrange(BROKERS)
        site = (self.sites if self.rng.randrange(3) else self.twins)[number]
        end = Offset(self.archived)
        part = ArchivedPart(end, self.archived_epochs, self.log.topic_id)
        by = TailCleaner(
            site.cycle.stores,
            lambda numbers: TailInventory(numbers.store, numbers.layout),
            lambda _: TailPlace(self.store, LAYOUT, encrypts=False),
            lambda tp: StoredArchive(part, lambda: ()) if tp == TP and end else None,
            lambda *_: (),
            site.broker,
            self.time.clock,
        )
        led = self.led_by(site)
        if number != self.leader:
            led.pop(TP, None)
        if self.rng.randrange(4) == 0:
            self.store.fail("put", StoreUnavailableError("killed"), nth=1 + self.rng.randrange(2))
        before = self.stored()
        for _ in range(3):
            with suppress(StorageError, SidetierError):
                by.run(lambda: led)
            self.time.now += 3700
        self.calm()
        for batch in before - self.stored():
            is_elsewhere = batch in self.archive_batches or batch[1:] in self.quarantined()
            assert is_elsewhere or batch[0] != self.log.topic_id, "the only copy is gone"

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
            + [self.recreate, self.delete_records, self.write_quietly]
        )
        self.rng.choice(steps)()

    def finish(self) -> MergedTail:
        """Let the sidecars run until nothing is left to do."""
        self.calm()
        self.quarantine()
        for _ in range(4):
            self.time.now += 90
            for site in self.sites:
                site.cycle.run(self.led_by(site))
                site.cycle.settle(0)
        return merged(self.store, self.log, self.archived, self.archived_epochs)

    def check(self) -> None:
        tail = self.finish()
        log = log_bytes(self.log)
        found = tail_bytes(self.store, tail)
        assert log.endswith(found) if found else True, "the tail has other records than the log"
        assert tail.end == self.log.log_end, "the tail does not reach the end of the log"
        assert len(found) == len(log) - _position(self.log, self.archived), "records are missing"
        assert self.led.cycle.safe()[TP].safe_up_to == tail.end
        for site in self.sites:
            quiet = site.log_dir.partitions[TopicPartition("quiet", int(site.broker))]
            assert site.cycle.safe()[quiet.tp].safe_up_to == quiet.log_end
            assert merged(self.store, quiet).end == quiet.log_end


def _batch_ends(log: PartitionLog) -> list[int]:
    return [header.next_offset for header in _headers(log)]


def _headers(log: PartitionLog) -> Iterator[BatchHeader]:
    for base in log.bases():
        for _, header in split_batches(memoryview(log.written[base])):
            yield header


def _position(log: PartitionLog, offset: int) -> int:
    return sum(header.length for header in _headers(log) if header.next_offset <= offset)


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
    agreed = AnsweredOffset(wanted.end, wanted.leader_epoch)
    return _refusal(wanted, epochs, end, agreed, file)


def _without_look_again(
    wanted: CommittedRange,
    epochs: Sequence[Entry],
    end: Offset | None,
    again: AnsweredOffset | SidetierError,
    _: object,
) -> str | None:
    return _refusal(wanted, epochs, end, again, wanted.file)


def _without_claim(*args: object) -> TailBegin:
    return TailBegin(*args)._replace(has_claim=True)  # type: ignore[arg-type]


def _below_the_end(row: TailRow, archived: ArchivedPart) -> Need:
    is_below = row.topic_id == archived.topic_id and row.end <= (archived.end or 0)
    return Need.ARCHIVED if is_below else need_of(row, archived)


def _without_the_first(
    store: RemoteStorage, sources: Sequence[PackedRow], before_read: Callable[[int], None]
) -> PackCopy:
    return PackCopy(store, sources[1:] or sources, before_read)


@contextmanager
def _mutant(patch: pytest.MonkeyPatch, name: str) -> Iterator[None]:
    if name == "without the second ask":
        patch.setattr(committed_range, "refusal", _without_second_ask)
    elif name == "without the look again":
        patch.setattr(committed_range, "refusal", _without_look_again)
        patch.setattr(committed_range, "topic_id_in", lambda _: None)
    elif name == "without claims":
        patch.setattr(begin_module, "TailBegin", _without_claim)
    elif name == "cleaning drops what lies below the archive end":
        patch.setattr(cleaning_module, "need_of", _below_the_end)
    elif name == "cleaning copies other bytes":
        patch.setattr(cleaning_module, "PackCopy", _without_the_first)
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
