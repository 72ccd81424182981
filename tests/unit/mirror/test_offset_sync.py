"""A running mirror stores its offset map and sets groups of the target, never too far."""

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from sidetier.mirror.copy.offset_map import (
    MapChunk,
    MapRecord,
    OffsetMap,
    OffsetMapWriter,
    Run,
    decode_map_record,
    encode_map_record,
    most_chunks,
)
from sidetier.mirror.offsets.offset_sync import LAST_PAUSES, STORE_SECONDS, OffsetSync
from sidetier.mirror.offsets.stored_map import MapStore, StoredMap
from sidetier.mirror.offsets.translate import OffsetMapReader
from sidetier.mirror.topics.rules import Lineage
from sidetier.segments.errors import BrokerUnavailableError, StoreTimeoutError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.fake import FakeStorage
from tests.harness.mirror_groups import FakeGroups, FakeLog

SOURCE = TopicPartition("orders", 0)
TARGET = TopicPartition("copy.orders", 0)
MAP = TopicPartition("sidetier-mirror-dr-offsets", 0)
PROGRESS = "sidetier-mirror-dr"
LINEAGE = Lineage("orders", ("a",)).encoded()
LAYOUT = ArchiveLayout("prod", 5)
KEY = "_sidetier/prod/mirrors/dr/offsets/copy.orders-0.json"


@dataclass
class World:
    """Two clusters with one mirrored partition, and a store."""

    source: FakeGroups = field(default_factory=FakeGroups)
    target: FakeGroups = field(default_factory=FakeGroups)
    log: FakeLog = field(default_factory=FakeLog)
    store: FakeStorage = field(default_factory=FakeStorage)
    copies: dict[TopicPartition, TopicPartition] = field(default_factory=lambda: {SOURCE: TARGET})
    now: float = 0.0
    max_runs: int = 1024
    killed_after: int | None = None
    """Number of records after which a kill ends the shortening of the map."""

    def shorten(self, records: Sequence[MapRecord]) -> None:
        for record in records[: self.killed_after]:
            self.log.append(MAP, record.key, record.value)

    def chunks(self) -> dict[bytes, MapChunk]:
        """Records of the map topic that remain after compaction."""
        newest = {record.key: record.value for record in self.log.records[MAP] if record.key}
        return {
            key: decode_map_record(key, value) for key, value in newest.items() if value is not None
        }

    def mirror(self, *runs: Run, progress: int) -> None:
        """Record that the mirror has copied these source offsets and that its progress is
        `progress`.
        """
        if runs:
            topic_id = self.target.ids.get(TARGET.topic, "")
            record = encode_map_record(MapChunk(TARGET, runs, topic_id))
            self.log.append(MAP, record.key, record.value)
        self.target.set(PROGRESS, TARGET, progress, LINEAGE)

    def maps(self) -> MapStore:
        return MapStore(self.store, LAYOUT, "dr")

    def sync(self, patterns: Sequence[str] = ("billing",), *, stores: bool = True) -> OffsetSync:
        return OffsetSync(
            lambda: self.copies,
            PROGRESS,
            OffsetMapReader(self.log, MAP.topic, self.max_runs),
            self.source,
            self.target,
            shorten=self.shorten,
            store=self.maps() if stores else None,
            patterns=[re.compile(pattern) for pattern in patterns],
            interval=10.0,
            clock=lambda: self.now,
            wall_clock=lambda: 1700.0,
        )

    def stored(self) -> StoredMap:
        stored = self.maps().read(TARGET)
        assert stored is not None
        return stored


def test_groups_follow_the_source_and_never_pass_the_mirror() -> None:
    world = World()
    world.source.set("billing", SOURCE, 12, "note")
    world.source.set("other", SOURCE, 12)
    world.mirror(Run(10, 0, 5), progress=15)
    sync = world.sync()
    sync.take_turn()
    assert world.target.offsets["billing"][TARGET].offset == 2
    assert world.target.offsets["billing"][TARGET].metadata == "note"
    assert "other" not in world.target.offsets
    world.source.set("billing", SOURCE, 90)
    world.now += 10
    sync.take_turn()
    assert world.target.at("billing", TARGET) == 5
    assert sync.counts.group_offsets_set == 2
    assert sync.counts.groups_translated == 1
    assert sync.counts.synced_at == 1700.0


def test_active_or_ahead_group_is_not_moved() -> None:
    world = World()
    world.mirror(Run(0, 0, 50), progress=50)
    for name in ("behind", "running", "joining"):
        world.source.set(name, SOURCE, 30)
        world.target.set(name, TARGET, 10)
    world.target.set("behind", TARGET, 40)
    world.target.with_members.add("running")
    world.target.joins_unseen.add("joining")
    sync = world.sync([".*"])
    sync.take_turn()
    assert world.target.at("behind", TARGET) == 40
    assert world.target.at("running", TARGET) == 10
    assert world.target.at("joining", TARGET) == 10
    assert sync.counts.group_offsets_set == 0
    assert sync.counts.groups_with_members == 2


def test_groups_of_mirrors_are_never_set() -> None:
    world = World()
    world.mirror(Run(0, 0, 50), progress=50)
    world.source.set(PROGRESS, SOURCE, 3, LINEAGE)
    world.sync([".*"]).take_turn()
    assert world.target.at(PROGRESS, TARGET) == 50
    assert SOURCE not in world.target.offsets[PROGRESS]


def test_groups_are_set_once_per_interval() -> None:
    world = World()
    world.mirror(Run(0, 0, 50), progress=50)
    world.source.set("billing", SOURCE, 10)
    sync = world.sync()
    sync.take_turn()
    world.source.set("billing", SOURCE, 20)
    world.now += 9
    sync.take_turn()
    assert world.target.at("billing", TARGET) == 10
    world.now += 1
    sync.take_turn()
    assert world.target.at("billing", TARGET) == 20


def test_map_is_read_incrementally_and_stored_when_it_has_changed() -> None:
    world = World()
    world.mirror(Run(0, 0, 5), progress=5)
    sync = world.sync()
    sync.take_turn()
    assert world.store.count("put") == 1
    world.mirror(Run(5, 6, 5), progress=10)
    world.now += STORE_SECONDS
    sync.take_turn()
    assert world.log.reads == [(0, 1), (1, 2)]
    assert world.stored().map.runs == (Run(0, 0, 5), Run(5, 6, 5))
    assert world.stored().mirrored_to == 10
    world.now += STORE_SECONDS
    sync.take_turn()
    assert world.store.count("put") == 2
    assert sync.counts.maps_stored == 2


def test_a_lost_topic_does_not_change_the_stored_map() -> None:
    """The map topic is deleted, and the mirror creates a new one: groups are still set exactly,
    except for offsets between the stored map and the new topic's content.
    """
    world = World()
    world.mirror(Run(0, 0, 5), Run(5, 6, 5), progress=10)
    world.sync().take_turn()
    del world.log.records[MAP]
    world.mirror(Run(20, 18, 5), progress=25)
    expected = {3: 3, 7: 8, 15: 11, 22: 20}
    for source, target in expected.items():
        world.source.set(f"billing{source}", SOURCE, source)
        world.sync([f"billing{source}"]).take_turn(is_last=True)
        assert world.target.at(f"billing{source}", TARGET) == target
    assert world.stored().map.exact_from == 20
    assert world.stored().mirrored_to == 25


def test_without_the_topic_no_group_moves_past_the_stored_map() -> None:
    world = World()
    world.mirror(Run(0, 0, 5), progress=5)
    world.sync().take_turn()
    del world.log.records[MAP]
    world.target.set(PROGRESS, TARGET, 90, LINEAGE)  # copied since, and not stored
    world.source.set("billing", SOURCE, 80)
    world.sync().take_turn()
    assert world.target.at("billing", TARGET) == 5


def test_map_of_a_recreated_topic_is_ignored() -> None:
    world = World()
    world.target.ids["copy.orders"] = "first"
    world.mirror(Run(0, 0, 50), progress=50)
    world.sync().take_turn()
    world.target.ids["copy.orders"] = "second"
    del world.log.records[MAP]
    world.mirror(Run(40, 0, 5), progress=45)
    world.source.set("billing", SOURCE, 30)
    world.sync().take_turn()
    assert world.target.at("billing", TARGET) == 0


@pytest.mark.parametrize("copied_again", [False, True])
def test_chunks_of_a_recreated_topic_are_never_used(*, copied_again: bool) -> None:
    """The map topic on the target has chunks of both topic IDs."""
    world = World()
    world.target.ids["copy.orders"] = "first"
    world.mirror(Run(0, 7, 50), progress=50)
    sync = world.sync(stores=False)
    sync.take_turn()
    world.target.ids["copy.orders"] = "second"
    world.source.set("billing", SOURCE, 30)
    if copied_again:
        world.mirror(Run(0, 0, 20), progress=20)
    for each in (sync, world.sync(stores=False)):
        each.take_turn(is_last=True)
        assert world.target.at("billing", TARGET) == (20 if copied_again else None)


def mirrored(world: World, transactions: int, writer: OffsetMapWriter, first: int = 0) -> None:
    """Transactions of 8 records, each followed by a marker on the target."""
    newest = {}
    for number in range(first, first + transactions):
        record = writer.add(TARGET, [Run(8 * number, 9 * number, 8)], "id")
        newest[record.key] = record.value
    for key, value in newest.items():  # remaining after compaction
        world.log.append(MAP, key, value)
    world.target.set(PROGRESS, TARGET, 8 * (first + transactions), LINEAGE)


@pytest.mark.parametrize("killed_after", [None, 0, 1, 3, 10])
def test_map_topic_stays_short_and_no_group_misses_a_record(
    killed_after: int | None,
) -> None:
    world = World(max_runs=256, killed_after=killed_after)
    world.target.ids["copy.orders"] = "id"
    writer = OffsetMapWriter()
    turns, each = 4, 500
    for turn in range(turns):
        mirrored(world, each, writer, turn * each)
        world.sync(stores=False).take_turn(is_last=True)
    if killed_after is None:
        assert len(world.chunks()) <= most_chunks(256)
    world.killed_after = None
    last = turns * each
    for source in (5, 8 * 300 + 3, 8 * (last - 700), 8 * (last - 100) + 1, 8 * last - 1):
        exact = 9 * (source // 8) + source % 8
        world.source.set(f"group{source}", SOURCE, source)
        world.sync([f"group{source}"], stores=False).take_turn(is_last=True)
        set_to = world.target.at(f"group{source}", TARGET)
        assert set_to is not None
        assert set_to <= exact, "records would be left out"
        if source >= 8 * (last - 100):
            assert set_to == exact, "the newest part of the map is exact"
    assert len(world.chunks()) <= most_chunks(256)


def test_chunk_being_written_by_the_mirror_is_kept() -> None:
    world = World(max_runs=256)
    world.target.ids["copy.orders"] = "id"
    writer = OffsetMapWriter()
    mirrored(world, 1000, writer)
    sync = world.sync(stores=False)
    sync.take_turn(is_last=True)
    mirrored(world, 3, writer, 1000)
    sync.take_turn(is_last=True)
    runs = [run for chunk in world.chunks().values() for run in chunk.runs]
    offsets = OffsetMap(runs)
    newest = range(8 * 900, 8 * 1003)
    assert [offsets.target_of(at) for at in newest] == [9 * (at // 8) + at % 8 for at in newest]


def test_chunks_of_a_former_topic_id_are_deleted() -> None:
    world = World()
    world.target.ids["copy.orders"] = "first"
    world.mirror(Run(0, 0, 50), Run(60, 70, 5), progress=70)
    world.target.ids["copy.orders"] = "second"
    world.mirror(Run(0, 0, 20), progress=20)
    assert len(world.chunks()) == 2
    world.sync().take_turn()
    (left,) = world.chunks().values()
    assert (left.topic_id, left.runs) == ("second", (Run(0, 0, 20),))
    before = len(world.log.records[MAP])
    world.sync().take_turn()
    assert len(world.log.records[MAP]) == before


def test_two_workers_that_store_the_same_partition_lose_no_run() -> None:
    world = World()
    world.mirror(Run(0, 0, 5), progress=5)
    first, second = world.sync(), world.sync()
    first.take_turn()
    second.take_turn(is_last=True)
    world.mirror(Run(5, 6, 5), progress=10)
    second.take_turn(is_last=True)
    world.mirror(Run(10, 12, 5), progress=15)
    first.take_turn(is_last=True)  # refused: its own map was the last one it read
    assert world.stored().mirrored_to == 10
    first.take_turn(is_last=True)
    assert world.stored().map.runs == (Run(0, 0, 5), Run(5, 6, 5), Run(10, 12, 5))
    assert world.stored().mirrored_to == 15


@pytest.mark.parametrize("after", [False, True])
def test_map_killed_at_its_write_is_completed_by_the_next_run(*, after: bool) -> None:
    world = World()
    world.mirror(Run(0, 0, 5), progress=5)
    world.sync().take_turn()
    world.mirror(Run(5, 6, 5), progress=10)
    world.store.fail("put", StoreTimeoutError("cut"), key=KEY, after=after)
    with pytest.raises(StoreTimeoutError):
        world.sync().take_turn()
    assert world.stored().mirrored_to == (10 if after else 5)
    world.sync().take_turn()
    assert world.stored().map.runs == (Run(0, 0, 5), Run(5, 6, 5))


def test_failed_turn_is_counted_and_retried_at_the_next() -> None:
    world = World()
    world.mirror(Run(0, 0, 5), progress=5)
    world.source.set("billing", SOURCE, 3)
    failures = iter([BrokerUnavailableError("away")])

    def fails_once(step: str) -> None:
        del step
        for error in failures:
            raise error

    world.source.fault = fails_once
    turns: list[float] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            turns.append(timeout or 0.0)
            return len(turns) > 1

    sync = world.sync()
    sync.run(Stop())
    assert turns == [10.0, 10.0]
    assert sync.counts.failures == 1
    assert world.target.at("billing", TARGET) == 3


class NoPause(threading.Event):
    """Record the lengths of the pauses."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses.append(timeout or 0.0)
        return self.is_set()


def away(times: int) -> Callable[[str], None]:
    left = iter([BrokerUnavailableError("away")] * times)

    def fault(step: str) -> None:
        del step
        for error in left:
            raise error

    return fault


def last_turn(sync: OffsetSync, *, is_urgent: bool = False) -> tuple[list[float], str | None]:
    """The pauses after its failed attempts, and the reason why the groups are not set."""
    ended, abandon = threading.Event(), NoPause()
    ended.set()
    if is_urgent:
        abandon.set()
    sync.run(ended, abandon)
    return abandon.pauses, sync.groups_problem


def test_last_turn_is_retried_and_reports_whether_groups_are_set() -> None:
    world = World()
    world.mirror(Run(0, 0, 5), progress=5)
    world.source.set("billing", SOURCE, 3)
    sync = world.sync()
    world.source.fault = away(2)
    assert last_turn(sync) == (list(LAST_PAUSES[:2]), None)
    assert world.target.at("billing", TARGET) == 3
    world.source.fault = away(99)
    assert last_turn(sync) == (list(LAST_PAUSES), "away")
    assert last_turn(sync, is_urgent=True) == ([LAST_PAUSES[0]], "away")


def test_failure_to_store_the_map_is_no_problem_of_groups() -> None:
    world = World()
    world.mirror(Run(0, 0, 5), progress=5)
    world.source.set("billing", SOURCE, 3)
    world.store.fail("put", StoreTimeoutError("slow"), key=KEY, times=None)
    assert last_turn(world.sync()) == (list(LAST_PAUSES), None)
    world.target.fault = away(99)
    assert last_turn(world.sync(())) == (list(LAST_PAUSES), None)


def test_new_partitions_get_their_map_from_the_beginning() -> None:
    world = World(copies={})
    world.mirror(Run(0, 0, 5), progress=5)
    sync = world.sync()
    sync.take_turn()
    assert world.log.reads == []
    world.copies[SOURCE] = TARGET
    world.source.set("billing", SOURCE, 3)
    world.now += 10
    sync.take_turn()
    assert world.target.at("billing", TARGET) == 3
