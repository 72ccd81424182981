"""The check of each promise finds its violations, and reports none for valid evidence."""

from dataclasses import replace

import pytest

from tests.end_to_end.chaos.archive import Archived
from tests.end_to_end.chaos.ledger import Fate, LogStart, OpenTransaction, Sums, ThrownAway
from tests.end_to_end.chaos.observer import KINDS
from tests.end_to_end.chaos.verdict import (
    Evidence,
    broker_errors,
    found_in,
    ranges,
    sidecar_gaps,
    skipped_markers,
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
    """Valid evidence with these parts of the archive replaced."""
    return replace(WELL, archives={TP: replace(ARCHIVED, **changes)})  # type: ignore[arg-type]


def test_valid_evidence_has_no_violation() -> None:
    assert violations(WELL) == []


def test_unacknowledged_records_are_valid_if_they_were_served() -> None:
    told = without(RECORDS, 3)
    assert violations(replace(WELL, acknowledged={TP: told})) == []


def test_unserved_records_are_valid_if_they_were_acknowledged() -> None:
    assert violations(replace(WELL, served={TP: without(RECORDS, 3)})) == []


def test_records_at_unknown_offsets_are_valid_if_they_were_acknowledged() -> None:
    told = without(RECORDS, 3)
    evidence = replace(WELL, acknowledged={TP: told}, served={TP: told}, unplaced={TP: {103}})
    assert violations(evidence) == []


LOST = ThrownAway(TP, 7, 9, Sums((7, 807), (8, 808), (9, 809)))
"""Two of the three discarded records were archived."""
KEPT = {7: frozenset({807}), 8: frozenset({1, 808})}

DELETED = replace(
    stored(
        records=without(RECORDS, 2, 3),
        gaps=((2, 4),),
        extents={0: (0, 2), 4: (4, 5), 5: (5, 10)},
        files={0: KINDS, 4: KINDS, 5: KINDS},
        listed=((0, 1), (4, 2), (5, 3)),
    ),
    log_starts={TP: 4},
)
"""The log starts at 4, and the deleted records below it are a gap."""


def test_lost_records_are_valid_if_their_archived_part_is_quarantined() -> None:
    assert violations(replace(WELL, by_elections=[LOST], quarantined={TP: KEPT})) == []
    retired = {(TP, "old"): KEPT}
    gone = replace(LOST, topic_id="old")
    assert violations(replace(WELL, by_deletions=[gone], retired=retired)) == []
    assert found_in(LOST, KEPT) == 2


def test_deleted_records_may_be_missing_below_the_log_start_in_a_recorded_gap() -> None:
    assert violations(DELETED) == []


def test_deleted_records_may_be_missing_above_the_watermark() -> None:
    assert violations(replace(WELL, tails={TP: Sums((11, 111))}, log_starts={TP: 11})) == []


TRIMMED = replace(
    WELL,
    fates={TP: Sums((7, Fate.COMMITTED), (8, Fate.ABORTED))},
    committed={TP: Sums((7, 107))},
    transactions=[OpenTransaction(TP, 7, 20.0)],
    log_starts_seen=[LogStart(TP, 7, 19.0), LogStart(TP, 9, 20.0)],
    archives={
        TP: replace(ARCHIVED, fates=Sums((7, Fate.COMMITTED), (8, Fate.ABORTED))),
    },
)


def test_log_may_begin_at_an_open_transaction_and_behind_a_decided_one() -> None:
    assert violations(TRIMMED) == []
    other = [LogStart(("t", 1), 9, 19.0)]
    assert violations(replace(TRIMMED, log_starts_seen=other)) == []


BROKEN: dict[str, tuple[Evidence, str]] = {
    "the log begins behind the first record of an open transaction": (
        replace(TRIMMED, log_starts_seen=[LogStart(TP, 8, 19.0)]),
        "the log began at 8, while a transaction was open from 7 on",
    ),
    "an aborted record is served as committed": (
        replace(TRIMMED, committed={TP: Sums((7, 107), (8, 108))}),
        "aborted, and served as committed: 1 records (8)",
    ),
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
    "a gap between two files": (
        stored(extents={0: (0, 4), 5: (5, 10)}),
        "a gap in the archive: 4 was expected",
    ),
    "a gap before the first file": (
        stored(extents={5: (5, 10)}),
        "a gap in the archive: 0 was expected",
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
        "stored up to 10, and not up to 11",
    ),
    "an abort is stored as a commit": (
        replace(WELL, fates={TP: Sums((7, Fate.ABORTED))}),
        "committed is stored as aborted, or aborted as committed: 1 records (7)",
    ),
    "what an unclean election threw away is not in quarantine": (
        replace(WELL, by_elections=[LOST], quarantined={TP: {8: frozenset({1, 808})}}),
        "thrown away from 7 on, archived up to 9, and not in quarantine: 1 records (7)",
    ),
    "what is in quarantine has other bytes": (
        replace(WELL, by_elections=[LOST], quarantined={TP: KEPT | {7: frozenset({999})}}),
        "not in quarantine: 1 records (7)",
    ),
    "what is stored is what an unclean election threw away": (
        replace(
            stored(records=Sums(*RECORDS[:8], (8, 808))),
            acknowledged={TP: Sums(*RECORDS[:8])},
            served={TP: Sums(*RECORDS[:8])},
            by_elections=[LOST],
            quarantined={TP: KEPT},
        ),
        "never acknowledged nor served like that: 1 records (8)",
    ),
    "a deleted topic's archive is not retired": (
        replace(WELL, by_deletions=[replace(LOST, topic_id="old")], quarantined={TP: KEPT}),
        "not retired with old: 2 records (7-8)",
    ),
    "another topic's archive is retired": (
        replace(WELL, by_deletions=[replace(LOST, topic_id="old")], retired={(TP, "other"): KEPT}),
        "not retired with old: 2 records (7-8)",
    ),
    "a gap reaches above the log start": (
        replace(DELETED, log_starts={TP: 3}),
        "a gap was recorded from 2 to 4, the log begins at 3",
    ),
    "a record in a gap is above the log start": (
        replace(DELETED, log_starts={TP: 3}),
        "below the watermark 10, and not stored: 1 records (3)",
    ),
    "a record below the log start is missing without a gap": (
        replace(stored(records=without(RECORDS, 3)), log_starts={TP: 4}),
        "below the watermark 10, and not stored: 1 records (3)",
    ),
    "a record below the log start is stored with other bytes": (
        replace(
            stored(records=Sums(*without(RECORDS, 3).items(), (3, 999)), gaps=((3, 4),)),
            log_starts={TP: 4},
        ),
        "below the watermark 10, and not stored: 1 records (3)",
    ),
    "a record at the log start is nowhere": (
        replace(WELL, tails={TP: Sums()}, log_starts={TP: 10}),
        "neither stored nor served: 1 records (10)",
    ),
    "a record of an unknown offset is not the one that is stored": (
        replace(
            WELL,
            acknowledged={TP: without(RECORDS, 3)},
            served={TP: without(RECORDS, 3)},
            unplaced={TP: {104}},
        ),
        "never acknowledged nor served like that: 1 records (3)",
    ),
    "nothing is stored at all": (
        replace(WELL, archives={}),
        "records were acknowledged, nothing is stored",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_promise_is_found(name: str) -> None:
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


def test_broker_errors_about_its_files_are_reported() -> None:
    assert broker_errors([*HEARD, *UNHEARD]) == HEARD


def test_broker_errors_about_a_deliberately_broken_log_dir_are_ignored() -> None:
    assert broker_errors([*HEARD, *UNHEARD], ["/x"]) == HEARD[:1]
    assert broker_errors(HEARD, ["/y"]) == HEARD


SKIPPED = (
    "2026-11-23T03:01:51,050 INFO [Transaction Marker Channel Manager 1]: Couldn't find leader "
    "endpoint for partitions Set(t-0, paid-2) while trying to send transaction markers for id-7, "
    "these partitions are likely deleted already and hence can be skipped (kafka.coordinator)"
)


def test_log_decides_where_a_broker_reports_a_skipped_marker() -> None:
    aborted = replace(WELL, fates={TP: Sums((7, Fate.ABORTED))})
    assert violations(aborted)
    assert skipped_markers([*HEARD, SKIPPED]) == {TP, ("paid", 2)}
    assert not violations(replace(aborted, markers_skipped=skipped_markers([SKIPPED])))
    assert violations(replace(aborted, markers_skipped=skipped_markers(HEARD)))


def test_losses_reported_by_a_sidecar_count_except_for_the_special_topics() -> None:
    def heard(*events: dict[str, str]) -> int:
        return len(list(sidecar_gaps(1, events, may_diverge="unclean", may_have_gaps="short")))

    gap = {"event": "gap.recorded"}
    diverged = {"event": "request.failed", "kind": "DivergedError"}
    assert heard({"event": "segment.uploaded"}, {**diverged, "kind": "ConflictError"}) == 0
    assert heard(gap, diverged) == 2
    assert heard({**gap, "topic": "short"}, {**diverged, "topic": "unclean"}) == 0
    assert heard({**gap, "topic": "unclean"}, {**diverged, "topic": "short"}) == 2


def test_ranges_are_formatted_compactly() -> None:
    assert ranges([5, 6, 9]) == "3 records (5-6, 9)"
    assert ranges(list(range(0, 40, 2))).endswith("(0, 2, 4, 6, 8, ...)")
