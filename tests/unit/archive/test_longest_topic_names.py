"""Records of the partitions with the longest topic names, whose keys were too long for files."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from sidetier.archive.objects.starts import (
    StartRecords,
    keep_earliest_start,
    read_earliest_start,
    settle_start,
)
from sidetier.mirror.copy.offset_map import OffsetMap, Run
from sidetier.mirror.offsets.stored_map import MapStore, StoredMap
from sidetier.segments.errors import InvalidRequestError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.storage.local import LocalStorage
from sidetier.uploader.archive.history import store_clock_ahead_ms
from sidetier.uploader.archive.quarantine.mover import MoveContext
from sidetier.uploader.archive.quarantine.retirement import is_there, retire
from tests.harness.intercepted_store import KilledError, MortalStore

LAYOUT = ArchiveLayout("prod", 5)
LONGEST = TopicPartition("t" * 249, 0)
FORMER = f"_sidetier/prod/starts/{LONGEST}.json"
CURRENT = f"_sidetier/prod/starts/{LONGEST}/start.json"
MAPS = f"_sidetier/prod/mirrors/dr/offsets/{LONGEST}"
ID = "id"


@pytest.mark.parametrize("tp", [TopicPartition("t", 0), TopicPartition("t" * 248, 9)])
def test_keys_that_fit_stay_as_they_were(tp: TopicPartition) -> None:
    assert LAYOUT.start_keys(tp) == (f"_sidetier/prod/starts/{tp}.json",)
    assert LAYOUT.clock_key(tp) == f"_sidetier/prod/clock/{tp}.json"
    assert LAYOUT.mirror_map_keys("dr", tp) == (f"_sidetier/prod/mirrors/dr/offsets/{tp}.json",)


@pytest.mark.parametrize("number", [0, 10, 99_999])
@pytest.mark.parametrize("length", range(240, 250))
def test_no_component_is_longer_than_a_file_system_allows(length: int, number: int) -> None:
    tp = TopicPartition("t" * length, number)
    keys = (LAYOUT.start_key(tp), LAYOUT.clock_key(tp), LAYOUT.mirror_map_key("dr", tp))
    assert max(len(part) for key in keys for part in key.split("/")) <= 255


def test_file_store_takes_the_records(tmp_path: Path) -> None:
    store = LocalStorage(tmp_path)
    assert settle_start(store, LAYOUT, LONGEST, Offset(7), ID) == 7
    assert settle_start(store, LAYOUT, LONGEST, Offset(9), ID) == 7
    assert read_earliest_start(store, LAYOUT, LONGEST, ID) is None
    assert keep_earliest_start(store, LAYOUT, LONGEST, Offset(5), ID) == 5
    assert StartRecords(store, LAYOUT).read_earliest(LONGEST, ID) == 5
    assert abs(store_clock_ahead_ms(store, LAYOUT, LONGEST, lambda: 0.0)) > 0
    maps = MapStore(store, LAYOUT, "dr")
    assert maps.read(LONGEST) is None
    assert maps.write(stored_map(7))
    assert ends(maps) == {LONGEST: 7}


def ends(maps: MapStore) -> dict[TopicPartition, int]:
    return {tp: int(stored.mirrored_to) for tp, stored in maps.read_all().items()}


def read_end(maps: MapStore) -> int | None:
    stored = maps.read(LONGEST)
    return None if stored is None else stored.mirrored_to


def stored_map(end: int) -> StoredMap:
    runs = OffsetMap([Run(0, 0, end)])
    return StoredMap(TopicPartition("source", 0), LONGEST, "id", Offset(end), runs)


def former_record(start: int) -> FakeStorage:
    """Return a store with the record of an earlier version."""
    store, earlier = FakeStorage(), TopicPartition("earlier", 0)
    keep_earliest_start(store, LAYOUT, earlier, Offset(start), ID)
    data = store.get_object(LAYOUT.start_key(earlier)).data
    store.delete_object(LAYOUT.start_key(earlier))
    store.put_object(FORMER, BytesBody(data))
    return store


def test_start_of_an_earlier_version_is_read_and_then_moved() -> None:
    store = former_record(30)
    assert read_earliest_start(store, LAYOUT, LONGEST, ID) == 30
    assert StartRecords(store, LAYOUT).read_earliest(LONGEST, ID) == 30
    assert list(store.contents()) == [FORMER]
    assert keep_earliest_start(store, LAYOUT, LONGEST, Offset(40), ID) == 30
    assert list(store.contents()) == [CURRENT]
    assert read_earliest_start(store, LAYOUT, LONGEST, ID) == 30


@pytest.mark.parametrize("key", [FORMER, CURRENT])
@pytest.mark.parametrize("read", [read_earliest_start, settle_start, keep_earliest_start])
def test_refused_request_does_not_mean_that_no_start_is_stored(
    read: Callable[..., Offset], key: str
) -> None:
    """A wrong setting, or a damaged answer of a gateway: the start would be another one."""
    store = former_record(30)
    if key == CURRENT:
        store.put_object(CURRENT, BytesBody(store.get_object(FORMER).data))
        store.delete_object(FORMER)
    store.fail("get", InvalidRequestError("400"), key=key)
    with pytest.raises(InvalidRequestError):
        read(store, LAYOUT, LONGEST, *([ID] if read is read_earliest_start else [Offset(40), ID]))
    assert keep_earliest_start(store, LAYOUT, LONGEST, Offset(40), ID) == 30


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("write", [settle_start, keep_earliest_start])
def test_kill_at_any_request_leaves_one_start(write: Callable[..., Offset], *, after: bool) -> None:
    for lives in count():
        store = former_record(30)
        try:
            write(MortalStore(store, lives, after=after), LAYOUT, LONGEST, Offset(40), ID)
        except KilledError:
            assert read_earliest_start(store, LAYOUT, LONGEST, ID) == 30
        else:
            break
        assert write(store, LAYOUT, LONGEST, Offset(40), ID) == 30
        assert list(store.contents()) == [CURRENT]
    assert lives >= 4


@pytest.mark.parametrize("keys", [(FORMER,), (CURRENT,), (FORMER, CURRENT)])
def test_retirement_leaves_no_start(keys: tuple[str, ...]) -> None:
    store = FakeStorage()
    for key in keys:
        store.put_object(key, BytesBody(b'{"version": 1, "start_offset": 0}'))
    assert is_there(store, LAYOUT, LONGEST)
    plan = retire(MoveContext(store, LAYOUT), LONGEST, None, "by a test")
    assert plan is not None
    assert not is_there(store, LAYOUT, LONGEST)
    assert len([key for key in store.contents() if "/retired/" in key and "start" in key]) == len(
        keys
    )


def test_current_start_counts_where_an_earlier_version_has_written_later() -> None:
    store = former_record(90)
    former = store.get_object(FORMER).data
    store.delete_object(FORMER)
    keep_earliest_start(store, LAYOUT, LONGEST, Offset(30), ID)
    store.put_object(FORMER, BytesBody(former))
    assert read_earliest_start(store, LAYOUT, LONGEST, ID) == 30
    assert keep_earliest_start(store, LAYOUT, LONGEST, Offset(95), ID) == 30
    assert list(store.contents()) == [CURRENT]


def test_map_of_an_earlier_version_is_read_and_then_replaced() -> None:
    store = FakeStorage()
    assert MapStore(store, LAYOUT, "dr").write(stored_map(7))
    former = store.get_object(f"{MAPS}/map.json").data
    store.delete_object(f"{MAPS}/map.json")
    store.put_object(f"{MAPS}.json", BytesBody(former))
    maps = MapStore(store, LAYOUT, "dr")
    assert read_end(maps) == 7
    assert ends(maps) == {LONGEST: 7}
    assert maps.write(stored_map(9))
    assert list(store.contents()) == [f"{MAPS}/map.json"]
    # A kill before the deletion leaves both.
    store.put_object(f"{MAPS}.json", BytesBody(former))
    assert ends(maps) == {LONGEST: 9}
    assert read_end(MapStore(store, LAYOUT, "dr")) == 9
