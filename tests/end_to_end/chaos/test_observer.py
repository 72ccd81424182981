"""The observer finds violations during a run, with a fake store."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic

import pytest

from sidetier.segments.keys import ArchiveLayout
from tests.end_to_end.chaos.observer import KINDS, History, Look, Observer, Turn
from tests.harness.archive_check import Mark
from tests.harness.batches import make_batch

TP = ("t", 0)
LAYOUT = ArchiveLayout("test", 0)
PREFIX = "test/t-0/"


@dataclass
class Store:
    """A fake store; the ETag of an object is its bytes."""

    objects: dict[str, bytes] = field(default_factory=dict)

    def read(self, key: str) -> bytes | None:
        return self.objects.get(key)

    def listing(self, prefix: str, after: str = "") -> Mapping[str, str]:
        return {
            key: data.hex()
            for key, data in sorted(self.objects.items())
            if key.startswith(prefix) and key > after
        }

    def add(self, base: int, count: int) -> None:
        """Store a whole segment."""
        for kind in KINDS:
            body = make_batch(base, count) if kind == "log" else b"index"
            self.objects[f"{PREFIX}{base:020d}.{kind}"] = body

    def commit(self, base: int, following: int, *listed: int, **owner: object) -> None:
        """Write `_metadata` and the watermark; `owner` has further fields of the watermark."""
        rows = [{"baseOffset": b, "timestamp": 1000 + b, "relativeOffset": 0} for b in listed]
        body = {"metadata": {"timeindex": {"entries": rows}}}
        self.objects[f"{PREFIX}_metadata"] = json.dumps(body).encode()
        second = json.dumps({"next_offset": following, **owner})
        self.objects[f"{PREFIX}offset.wm"] = f"{base:020d}\n{second}\n".encode()


@pytest.fixture
def store() -> Store:
    """A store with two segments, up to offset 10."""
    made = Store()
    made.add(0, 4)
    made.add(4, 6)
    made.commit(4, 10, 0, 4)
    return made


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def observer(store: Store, told: list[str]) -> Observer:
    """An observer that has looked once."""
    made = Observer(store, LAYOUT, [TP], told.append)
    made.look()
    assert told == []
    assert made.next_offset(TP) == 10
    return made


def test_valid_archive_has_no_violation(store: Store, observer: Observer, told: list[str]) -> None:
    store.add(10, 5)
    observer.look()
    store.commit(10, 15, 0, 4, 10)
    observer.look()
    store.objects[f"{PREFIX}{15:020d}.index"] = b"left behind"
    store.add(17, 1)
    store.objects[f"_sidetier/test/gaps/t-0/{15:020d}-{17:020d}.json"] = b"{}"
    store.commit(17, 18, 0, 4, 10, 17)
    observer.look()
    observer.check_covered()
    assert (told, observer.problems) == ([], [])
    assert observer.next_offset(TP) == 18


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([(10, 2), (12, 1), (13, 3)], None),
        ([(10, 2), (11, 2), (13, 3)], "an overlap: 12 was expected, 11 follows"),
        ([(10, 2), (13, 3)], "a gap: 12 was expected, 13 follows"),
    ],
)
@pytest.mark.parametrize("at_once", [False, True])
def test_part_that_is_stored_twice_or_missing_is_found(
    store: Store,
    observer: Observer,
    told: list[str],
    parts: list[tuple[int, int]],
    said: str | None,
    *,
    at_once: bool,
) -> None:
    """Early archiving commits parts of one segment, one after the other."""
    listed = [0, 4]
    for base, count in parts:
        store.add(base, count)
        listed.append(base)
        if not at_once:
            store.commit(base, base + count, *listed)
            observer.look()
    store.commit(13, 16, *listed)
    observer.look()
    assert told == ([] if said is None else [f"t-0: {said}"])


def test_part_that_grows_in_place_is_found(
    store: Store, observer: Observer, told: list[str]
) -> None:
    """Its segment is stored from the same base offset once more when it has closed."""
    store.add(4, 8)
    store.commit(4, 12, 0, 4)
    observer.look()
    assert told == ["t-0: stored up to 10, but the watermark says 12"]
    observer.check_covered()
    assert "was replaced below the watermark" in told[1]


def test_decreasing_watermark_is_found_and_stays_reported(
    store: Store, observer: Observer, told: list[str]
) -> None:
    store.commit(0, 4, 0, 4)
    observer.look()
    assert "went back" in told[0]
    assert observer.next_offset(TP) == 10


def test_deleted_watermark_is_found(store: Store, observer: Observer, told: list[str]) -> None:
    del store.objects[f"{PREFIX}offset.wm"]
    observer.look()
    assert told == ["t-0: the watermark is gone"]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_missing_file_below_the_watermark_is_found(
    store: Store, observer: Observer, told: list[str], kind: str
) -> None:
    store.add(10, 5)
    del store.objects[f"{PREFIX}{10:020d}.{kind}"]
    store.commit(10, 15, 0, 4, 10)
    observer.look()
    assert told, "the watermark covers what is not stored"


def test_watermark_beyond_the_stored_segments_is_found(
    store: Store, observer: Observer, told: list[str]
) -> None:
    store.add(10, 5)
    store.commit(10, 16, 0, 4, 10)
    observer.look()
    assert "t-0: stored up to 15, but the watermark says 16" in told


def test_gap_and_overlap_are_found(store: Store, observer: Observer, told: list[str]) -> None:
    store.add(12, 3)
    store.add(14, 6)
    store.commit(14, 20, 0, 4, 12, 14)
    observer.look()
    assert "t-0: a gap: 10 was expected, 12 follows" in told
    assert "t-0: an overlap: 15 was expected, 14 follows" in told


def test_replaced_or_removed_object_below_the_watermark_is_found(
    store: Store, observer: Observer, told: list[str]
) -> None:
    store.objects[f"{PREFIX}{4:020d}.index"] = b"another"
    store.objects[f"{PREFIX}{4:020d}.log"] = b""
    del store.objects[f"{PREFIX}{0:020d}.timeindex"]
    observer.check_covered()
    assert told == [
        f"t-0: {PREFIX}{0:020d}.timeindex was replaced below the watermark",
        f"t-0: {PREFIX}{4:020d}.index was replaced below the watermark",
        f"t-0: {PREFIX}{4:020d}.log was replaced below the watermark",
    ]
    assert observer.emptied == 0


def test_emptied_index_is_counted_and_no_violation(
    store: Store, observer: Observer, told: list[str]
) -> None:
    store.objects[f"{PREFIX}{4:020d}.index"] = b""
    observer.check_covered()
    assert (told, observer.emptied) == ([], 1)


def quarantine(store: Store, *, epoch: int) -> None:
    """Cut the archive at 6: the first part of the second segment stays."""
    for kind in KINDS:
        del store.objects[f"{PREFIX}{4:020d}.{kind}"]
    store.add(4, 2)
    store.commit(4, 6, 0, 4, leader_epoch=epoch)


def test_archive_cut_after_an_unclean_election_is_watched_from_there_on(
    store: Store, observer: Observer, told: list[str]
) -> None:
    assert observer.pause(TP) == 10
    observer.look()
    assert observer.waiting_since(TP) is None
    before = monotonic()
    observer.turn(TP, Turn(6, epoch=3))
    assert before <= (observer.waiting_since(TP) or 0.0) <= monotonic()
    store.commit(4, 10, 0, 4, leader_epoch=3, pending="somewhere/")
    observer.look()
    store.commit(0, 4, 0, leader_epoch=3, pending="somewhere/")
    observer.look()
    assert observer.is_waiting(TP)
    quarantine(store, epoch=3)
    store.add(6, 9)
    store.commit(6, 15, 0, 4, 6, leader_epoch=4)
    observer.look()
    observer.check_covered()
    assert (told, list(observer.waiting())) == ([], [])
    assert observer.waiting_since(TP) is None
    assert observer.next_offset(TP) == 15


def test_archive_cut_without_lost_records_is_found(
    store: Store, observer: Observer, told: list[str]
) -> None:
    quarantine(store, epoch=3)
    observer.look()
    assert "went back" in told[0]


def test_quarantine_without_a_cause_is_found(
    store: Store, observer: Observer, told: list[str]
) -> None:
    store.commit(4, 10, 0, 4, pending="somewhere/")
    observer.look()
    assert "that nothing calls for" in told[0]


@pytest.mark.parametrize("epoch", [2, 3])
def test_archive_that_is_not_cut_after_an_election_is_found(
    store: Store, observer: Observer, told: list[str], epoch: int
) -> None:
    """With the old leader's epoch it has not followed yet; with the new epoch it contains lost
    records.
    """
    observer.pause(TP)
    observer.turn(TP, Turn(6, epoch=3))
    store.add(10, 5)
    store.commit(10, 15, 0, 10, leader_epoch=epoch)
    for kind in KINDS:
        del store.objects[f"{PREFIX}{4:020d}.{kind}"]
    observer.look()
    assert told or list(observer.waiting())
    assert (told == []) == (epoch == 2)


def test_objects_below_an_unclean_election_must_not_change(
    store: Store, observer: Observer, told: list[str]
) -> None:
    observer.pause(TP)
    observer.turn(TP, Turn(6, epoch=3))
    quarantine(store, epoch=3)
    store.objects[f"{PREFIX}{0:020d}.log"] += b"more"
    observer.look()
    observer.check_covered()
    assert told == [f"t-0: {PREFIX}{0:020d}.log was replaced below the watermark"]


def test_second_turn_before_the_archive_has_followed_counts_from_the_lower_offset(
    store: Store, observer: Observer, told: list[str]
) -> None:
    observer.pause(TP)
    observer.turn(TP, Turn(6, epoch=3))
    assert observer.pause(TP) == 0, "nobody knows how far this history is archived"
    observer.turn(TP, Turn(8, epoch=5))
    store.commit(4, 10, 0, 4, leader_epoch=3)
    observer.look()
    assert observer.is_waiting(TP)
    quarantine(store, epoch=5)
    observer.look()
    assert (told, observer.next_offset(TP)) == ([], 6)


def test_archive_of_a_recreated_topic_restarts_under_its_topic_id(
    store: Store, observer: Observer, told: list[str]
) -> None:
    assert observer.pause(TP) == 10
    observer.turn(TP, Turn(0, topic_id="new"))
    observer.look()
    store.objects.clear()
    observer.look()
    assert observer.is_waiting(TP)
    store.add(0, 3)
    store.commit(0, 3, 0, topic_id="new")
    observer.look()
    observer.check_covered()
    assert (told, observer.next_offset(TP)) == ([], 3)


def test_continued_archive_of_a_recreated_topic_stays_waiting(
    store: Store, observer: Observer
) -> None:
    observer.pause(TP)
    observer.turn(TP, Turn(0, topic_id="new"))
    store.add(10, 5)
    store.commit(10, 15, 0, 4, 10, topic_id="old")
    observer.look()
    assert "has not followed" in next(observer.waiting())


def test_unreadable_store_is_reported(store: Store, observer: Observer, told: list[str]) -> None:
    store.objects[f"{PREFIX}offset.wm"] = b"no watermark"
    observer.look()
    assert "cannot be looked at" in told[0]


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        (((0, 1), (4, 2)), "leaves out [10]"),
        (((0, 1), (4, 2), (10, 3), (15, 4)), "names [15], which are not stored"),
        (((4, 2), (0, 1), (10, 3)), "not in order"),
        (((0, 3), (4, 2), (10, 3)), "timestamps of _metadata fall"),
    ],
)
def test_incomplete_or_unsorted_metadata_is_found(
    listed: tuple[tuple[int, int], ...], said: str
) -> None:
    history = History(Mark(4, 10), {0, 4})
    found = history.judge(Look(Mark(10, 15), listed, {10: KINDS}, {10: (10, 15)}))
    assert any(said in problem for problem in found), found
