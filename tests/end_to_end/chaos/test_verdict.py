"""Each promise's check finds what breaks it, and finds nothing where all is well."""

from dataclasses import replace

import pytest

from tests.end_to_end.chaos.archive import Archived
from tests.end_to_end.chaos.ledger import Fate, Sums
from tests.end_to_end.chaos.observer import KINDS
from tests.end_to_end.chaos.verdict import (
    Evidence,
    broker_errors,
    ranges,
    sidecar_gaps,
    violations,
)
from tests.harness.archive_check import Mark

TP = ("t", 0)
RECORDS = [(offset, offset + 100) for offset in range(9)]
"""Offset 9 is a transaction's marker, 10 and 11 are not stored yet."""

ARCHIVED = Archived(
    mark=Mark(5, 10),
    files={0: KINDS, 5: KINDS, 10: frozenset({"index"})},
    extents={0: (0, 5), 5: (5, 10)},
    listed=((0, 1000), (5, 2000)),
    records=Sums(*RECORDS),
    fates=Sums(*((offset, Fate.COMMITTED) for offset in range(9))),
    controls=frozenset({9}),
)
WELL = Evidence(
    acknowledged={TP: Sums(*RECORDS, (10, 110))},
    fates={TP: Sums((7, Fate.COMMITTED), (10, Fate.ABORTED))},
    served={TP: Sums(*RECORDS, (10, 110), (11, 111))},
    tails={TP: Sums((10, 110), (11, 111))},
    archives={TP: ARCHIVED},
    ends={TP: 10},
)


def without(pairs: list[tuple[int, int]], *offsets: int) -> Sums:
    return Sums(*(pair for pair in pairs if pair[0] not in offsets))


def stored(**changes: object) -> Evidence:
    """All is well but for these parts of the archive."""
    return replace(WELL, archives={TP: replace(ARCHIVED, **changes)})  # type: ignore[arg-type]


def test_nothing_is_said_where_all_is_well() -> None:
    assert violations(WELL) == []


def test_records_that_nobody_acknowledged_are_well_when_they_were_served() -> None:
    told = without(RECORDS, 3)
    assert violations(replace(WELL, acknowledged={TP: told})) == []


def test_records_that_the_consumer_missed_are_well_when_they_were_acknowledged() -> None:
    assert violations(replace(WELL, served={TP: without(RECORDS, 3)})) == []


BROKEN: dict[str, tuple[Evidence, str]] = {
    "an acknowledged record is nowhere": (
        replace(WELL, tails={TP: Sums((11, 111))}),
        "neither stored nor served: 1 records (10)",
    ),
    "an acknowledged record has other bytes at the brokers": (
        replace(WELL, tails={TP: Sums((10, 999))}),
        "other bytes than are held: 1 records (10)",
    ),
    "an acknowledged record is not stored, though a broker has it": (
        replace(
            stored(records=without(RECORDS, 3)), tails={TP: Sums((3, 103), (10, 110), (11, 111))}
        ),
        "below the watermark 10, and not stored: 1 records (3)",
    ),
    "an acknowledged record is stored with other bytes": (
        stored(records=Sums(*RECORDS[:8], (8, 999))),
        "below the watermark 10, and not stored: 1 records (8)",
    ),
    "a gap is recorded": (
        stored(gaps=((2, 3),)),
        "a gap was recorded from 2 to 3",
    ),
    "something is stored that was never served": (
        replace(WELL, acknowledged={}, served={TP: without(RECORDS, 3, 4)}),
        "never acknowledged nor served like that: 2 records (3-4)",
    ),
    "what is stored was served with other bytes": (
        replace(WELL, acknowledged={}, served={TP: Sums(*RECORDS[:8], (8, 999))}),
        "never acknowledged nor served like that: 1 records (8)",
    ),
    "what is stored was acknowledged, and served with other bytes": (
        replace(WELL, served={TP: Sums(*RECORDS[:8], (8, 999))}),
        "never acknowledged nor served like that: 1 records (8)",
    ),
    "a marker is stored where a record was served": (
        replace(WELL, served={TP: Sums(*RECORDS, (9, 109))}),
        "markers are stored where records were served: 1 records (9)",
    ),
    "a hole between two files": (
        stored(extents={0: (0, 4), 5: (5, 10)}),
        "a hole in the archive: 4 was expected",
    ),
    "a hole before the first file": (
        stored(extents={5: (5, 10)}),
        "a hole in the archive: 0 was expected",
    ),
    "two files overlap": (
        stored(extents={0: (0, 7), 5: (5, 10)}),
        "an overlap in the archive: 7 was expected",
    ),
    "the watermark has run ahead": (
        stored(mark=Mark(5, 12)),
        "the archive ends at 10, its watermark says 12",
    ),
    "offsets fall within a file": (
        stored(disorder=("x.log: offset 3 follows on 4",)),
        "offset 3 follows on 4",
    ),
    "an index is missing": (
        stored(files={0: KINDS, 5: frozenset({"log", "timeindex"})}),
        "5 has only ['log', 'timeindex']",
    ),
    "_metadata leaves one out": (
        stored(listed=((5, 2000),)),
        "_metadata leaves out [0]",
    ),
    "_metadata invents one": (
        stored(listed=((0, 1000), (5, 2000), (10, 3000))),
        "_metadata names [10], which are not stored",
    ),
    "_metadata's times fall": (
        stored(listed=((0, 2000), (5, 1000))),
        "_metadata is not in order",
    ),
    "_metadata names one twice": (
        stored(listed=((0, 1000), (0, 1000), (5, 2000))),
        "_metadata is not in order",
    ),
    "the archive does not catch up": (
        replace(WELL, ends={TP: 11}),
        "stored up to 10, though segments are closed up to 11",
    ),
    "an abort is stored as a commit": (
        replace(WELL, fates={TP: Sums((7, Fate.ABORTED))}),
        "committed is stored as aborted, or aborted as committed: 1 records (7)",
    ),
    "nothing is stored at all": (
        replace(WELL, archives={}),
        "records were acknowledged, nothing is stored",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_promise_is_found(name: str) -> None:
    evidence, said = BROKEN[name]
    found = violations(evidence)
    assert any(said in problem and problem.startswith("t-0: ") for problem in found), found


GONE = "[d] ERROR Error while deleting segments for t-0 in dir /x: NoSuchFileException"
HEARD = [
    "[d] ERROR Failed to clean up log for t-0 (kafka.log.LogManager)",
    f"{GONE} (org.apache.kafka.storage.internals.log.LogDirFailureChannel)",
]
UNHEARD = [
    "[d] INFO Failed to nothing (kafka.log.LogManager)",
    "[d] ERROR Connection to node 2 failed (org.apache.kafka.clients.NetworkClient)",
]


def test_what_a_broker_says_about_its_files_is_heard() -> None:
    assert broker_errors([*HEARD, *UNHEARD]) == HEARD


def test_what_a_sidecar_says_it_has_lost_is_heard() -> None:
    well = [{"event": "segment.uploaded"}, {"event": "request.failed", "kind": "ConflictError"}]
    assert list(sidecar_gaps(1, well)) == []
    bad = [{"event": "gap.recorded"}, {"event": "request.failed", "kind": "DivergedError"}]
    assert len(list(sidecar_gaps(1, bad))) == 2


def test_ranges_are_short() -> None:
    assert ranges([5, 6, 9]) == "3 records (5-6, 9)"
    assert ranges(list(range(0, 40, 2))).endswith("(0, 2, 4, 6, 8, ...)")
