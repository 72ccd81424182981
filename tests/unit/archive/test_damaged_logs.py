"""Damaged, exchanged and overwritten segments: all readers report them, and a reader that does not
is found out.
"""

import random
from dataclasses import replace

import pytest

from sidetier.storage.port import StoredObject
from tests.harness.archived_log import LAYOUT, TP, StoredArchive, archive_log
from tests.harness.damaged_logs import (
    Damage,
    Reading,
    Segment,
    Witnesses,
    can_be_trimmed,
    damaged,
    deep_findings,
    read_range,
    segments_of,
    unreported,
)

WITHIN = [damage for damage in Damage if not damage.other_partition]


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StoredObject]:
    return archive_log(tmp_path_factory.mktemp("log"))[1]


@pytest.fixture
def archive(objects: dict[str, StoredObject]) -> StoredArchive:
    return StoredArchive(objects)


def witnesses(
    archive: StoredArchive, damage: Damage, victim: Segment, other: Segment
) -> tuple[frozenset[str], Witnesses]:
    log = archive.data(victim.key)
    before = read_range(archive.access, TP, *victim.around)
    could = can_be_trimmed(archive.store, LAYOUT, victim, log)
    with damaged(archive.store, damage, victim, other, random.Random(1)) as keys:
        after = read_range(archive.access, TP, *victim.around)
        findings = deep_findings(archive.access, dict.fromkeys(keys, TP))
        can = can_be_trimmed(archive.store, LAYOUT, victim, log)
    return keys, Witnesses(before, after, findings, could, can)


@pytest.mark.parametrize("step", [-2, -1, 1, 2])
@pytest.mark.parametrize("damage", WITHIN)
def test_every_reader_reports_a_damaged_segment(
    archive: StoredArchive, damage: Damage, step: int
) -> None:
    """All segments have the same size, so the metadata of an exchanged one fits by its size."""
    segments = segments_of(archive.store, LAYOUT, TP)
    whole = {key: archive.data(key) for key in (segment.key for segment in segments)}
    for number, victim in enumerate(segments):
        other = segments[(number + step) % len(segments)]
        keys, seen = witnesses(archive, damage, victim, other)
        assert list(unreported(damage, keys, seen)) == []
        assert seen.is_reported(damage)
        assert {key: archive.data(key) for key in whole} == whole, "it was not restored"


READ = Reading({1: (b"k", b"v"), 2: (b"k", b"w")})
LOST = Reading({1: (b"k", b"v")}, [(2, 3)])
SEEN = Witnesses(READ, LOST, ["key: checksum_mismatch"], trimmed_before=True, trimmed=False)


def test_reported_damage_is_no_violation() -> None:
    assert list(unreported(Damage.PUT, ["key"], SEEN)) == []
    assert SEEN.is_reported(Damage.PUT)


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (replace(SEEN, after=Reading({1: (b"k", b"v")})), "a reader has skipped [2]"),
        (replace(SEEN, after=Reading({1: (b"k", b"v")}, [(3, 4)])), "a reader has skipped [2]"),
        (replace(SEEN, after=Reading({**READ.records, 2: (b"k", b"x")})), "other records at [2]"),
        (replace(SEEN, after=Reading({**READ.records, 3: (b"k", b"x")})), "other records at [3]"),
        (replace(SEEN, findings=[]), "`sidetier verify --deep` finds nothing"),
        (replace(SEEN, trimmed=True), "local retention would delete"),
    ],
)
def test_unreported_damage_is_a_violation(seen: Witnesses, said: str) -> None:
    (problem,) = unreported(Damage.COPIED, ["key"], seen)
    assert said in problem


def test_valid_batches_of_the_right_offsets_show_only_by_checksum_and_metadata() -> None:
    seen = replace(SEEN, after=Reading({**READ.records, 2: (b"k", b"x")}))
    for damage in (Damage.REWRITTEN, Damage.PUT_ELSEWHERE, Damage.COPIED_ELSEWHERE):
        assert list(unreported(damage, ["key"], seen)) == []
        assert seen.is_reported(damage)
