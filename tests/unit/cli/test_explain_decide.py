"""Each answer of `explain`, with given facts."""

from dataclasses import replace
from typing import Any

import pytest

from sidetier.archive.inventory.contents import ArchiveEnd
from sidetier.archive.objects.acknowledgements import Acknowledgement
from sidetier.archive.objects.watermark import Watermark
from sidetier.cli.commands.explain import ExplainResult
from sidetier.cli.inspect.archive import ArchivedOffset, RecordedGap, StoredHolder
from sidetier.cli.inspect.explain import Gate, Kind, decide
from sidetier.cli.inspect.facts import Exclusion, RecordFacts, RollRules
from sidetier.cli.inspect.local_log import LocalLog, LocalSegment, Place
from sidetier.cli.inspect.local_retention import PartitionRetention
from sidetier.cli.inspect.sidecar import SidecarPartition
from sidetier.config.uploader import EarlyLimits
from sidetier.leadership.cluster_map import LogOffsets, ReplicaSet
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.telemetry.status import (
    PartitionState,
    PartitionStatus,
    PinnedRange,
    SegmentStatus,
)
from sidetier.uploader.trim.decision import LocalSegment as KeptSegment
from sidetier.uploader.trim.decision import Trim, bounded_by_archive

EARLY = EarlyLimits(64_000, 900.0)
NOW = 1_700_000_000_000
TP = TopicPartition("orders", 3)


def on_disk(base: int, end: int | None, place: Place = Place.CLOSED) -> LocalSegment:
    until = None if end is None else Offset(end)
    return LocalSegment(BaseOffset(base), until, place, f"/d/{base:020d}.log", 1000, NOW)


LOG = LocalLog(
    "/d",
    (
        on_disk(0, 50, Place.MARKED_FOR_DELETION),
        on_disk(50, 100),
        on_disk(100, 200),
        on_disk(200, 260, Place.ACTIVE),
    ),
    first_timestamp_ms=NOW - 60_000,
)


def archive(done: int | None = 100, **more: Any) -> ArchivedOffset:  # noqa: ANN401 -- fields
    mark = ArchiveEnd(problem="no offset.wm")
    if done is not None:
        mark = ArchiveEnd(Watermark(BaseOffset(done - 50), Offset(done)), Offset(done))
    known: dict[str, Any] = {"first_base": BaseOffset(0) if done else None}
    return ArchivedOffset("s3://b/orders-3/", mark, **{**known, **more})


def holder(base: int, end: int) -> StoredHolder:
    return StoredHolder(f"orders-3/{base:020d}.log", BaseOffset(base), Offset(end), 1000)


def segment(base: int, end: int, stage: str = "closed", **more: Any) -> SegmentStatus:  # noqa: ANN401 -- fields
    known = SegmentStatus(
        BaseOffset(base), Offset(end), 100, stage, pinned=True, marked_for_deletion=False
    )
    return replace(known, **more)


def sidecar(*segments: SegmentStatus, **more: Any) -> SidecarPartition:  # noqa: ANN401 -- fields
    status = PartitionStatus(
        "orders",
        0,
        PartitionState.WAITING,
        next_offset=Offset(100),
        unstored_segments=len(segments),
        segments=segments,
    )
    return SidecarPartition(1, replace(status, **more))


FACTS = RecordFacts(
    TP,
    offset=Offset(120),
    now_ms=NOW,
    broker_id=1,
    local=LOG,
    sidecar=sidecar(segment(100, 200)),
    archive=archive(),
    replicas=ReplicaSet(1, (1, 2), (1, 2)),
    known_to_cluster=True,
    log_offsets=LogOffsets(Offset(50), Offset(260)),
    roll=RollRules(segment_bytes=4000, segment_ms=3_600_000),
)


def facts(offset: int = 120, **changes: Any) -> RecordFacts:  # noqa: ANN401 -- fields
    changed = replace(FACTS, offset=Offset(offset), **changes)
    end = None if changed.archive is None else changed.archive.watermark.next_offset
    return replace(changed, archived_up_to=end)


def test_offset_below_the_watermark_in_a_stored_segment_is_stored() -> None:
    answer = decide(facts(60, archive=archive(holder=holder(50, 100))))
    assert (answer.kind, answer.code) == (Kind.STORED, 0)
    assert "segment 50 (offsets [50, 100))" in answer.text
    assert "archived up to 100" in answer.text


def test_offset_below_the_archive_start_is_not_stored() -> None:
    mark = Watermark(BaseOffset(80), Offset(100), start_offset=Offset(80))
    found = ArchiveEnd(mark, Offset(100))
    known = replace(archive(holder=holder(50, 90)), watermark=found)
    answer = decide(facts(60, archive=known))
    assert (answer.kind, answer.code) == (Kind.NEVER_STORED, 3)
    assert "begins at offset 80" in answer.text
    assert decide(facts(85, archive=known)).kind is Kind.STORED


def test_recorded_gap_is_explained_with_its_time_and_broker() -> None:
    gap = RecordedGap("k", Offset(40), Offset(70), 1_600_000_000_000, broker_id=7, leader_epoch=2)
    answer = decide(facts(60, archive=archive(gap=gap)))
    assert (answer.kind, answer.code) == (Kind.GAP, 4)
    assert answer.text == (
        "deleted before it was archived: the gap [40, 70) was recorded on "
        "2020-09-13T12:26:40+00:00 by broker 7's sidecar"
    )
    accepted = replace(gap, acknowledgement=Acknowledgement("INC-42", "ann", 1))
    answer = decide(facts(60, archive=archive(gap=accepted)))
    assert answer.text.endswith("; acknowledged by ann: INC-42")
    unverified = replace(gap, archive_below="unverified")
    answer = decide(facts(60, archive=archive(gap=unverified)))
    assert "archive below offset 40 may have another history" in answer.text


@pytest.mark.parametrize(
    ("offset", "changes", "kind", "code", "words"),
    [
        (
            30,
            {"archive": archive(first_base=BaseOffset(40))},
            Kind.NEVER_STORED,
            3,
            "begins at offset 40",
        ),
        (
            30,
            {"archive": archive(None, start_offset=Offset(90))},
            Kind.NEVER_STORED,
            3,
            "begins at offset 90; this host still has its bytes",
        ),
        (
            30,
            {"archive": archive(first_base=BaseOffset(40)), "local": None},
            Kind.NEVER_STORED,
            4,
            "begins at offset 40",
        ),
        (60, {}, Kind.MISSING, 3, "no stored segment and no recorded gap"),
        (
            60,
            {"local": None, "replicas": None, "log_offsets": LogOffsets()},
            Kind.MISSING,
            4,
            "missing",
        ),
        (260, {}, Kind.NOT_WRITTEN, 4, "the log ends at offset 260"),
        (
            260,
            {"local": None},
            Kind.NOT_WRITTEN,
            4,
            "not written, or not committed yet: the high watermark is at offset 260",
        ),
        (
            30,
            {"archive": archive(None), "local": None, "sidecar": sidecar()},
            Kind.GONE,
            4,
            "the log now begins at offset 50, and no gap is recorded",
        ),
        (
            30,
            {"archive": archive(None), "local": None, "sidecar": None},
            Kind.GONE,
            4,
            "a sidecar that was not asked may still hold it open",
        ),
        (
            30,
            {"archive": archive(None, moved_away=("_sidetier/x",)), "local": None},
            Kind.MOVED_AWAY,
            3,
            "in quarantine or retired: _sidetier/x",
        ),
        (
            5,
            {
                "local": None,
                "archive": archive(None),
                "replicas": None,
                "known_to_cluster": False,
                "log_offsets": LogOffsets(),
                "sidecar": None,
            },
            Kind.NO_SUCH_PARTITION,
            2,
            "neither the cluster nor the archive has it",
        ),
        (
            30,
            {
                "archive": archive(None),
                "local": None,
                "replicas": None,
                "log_offsets": LogOffsets(),
                "problems": {"cluster": "no answer"},
            },
            Kind.UNKNOWN,
            1,
            "cluster: no answer",
        ),
    ],
)
def test_offset_that_is_neither_stored_nor_waiting_is_explained(
    offset: int, changes: dict[str, object], kind: Kind, code: int, words: str
) -> None:
    answer = decide(facts(offset, **changes))
    assert (answer.kind, answer.code) == (kind, code)
    assert words in answer.text


ELSEWHERE = ReplicaSet(2, (1, 2), (1, 2))
ERROR: dict[str, Any] = {"error": "put x: 403", "retry_at_ms": NOW + 30_000}


@pytest.mark.parametrize(
    ("offset", "changes", "gate", "words"),
    [
        (
            120,
            {"exclusion": Exclusion("compacted", "topic orders is compacted")},
            Gate.EXCLUDED,
            "never archived: topic",
        ),
        (120, {"replicas": ELSEWHERE}, Gate.OTHER_BROKER, "led by broker 2, not by broker 1"),
        (
            120,
            {"replicas": ELSEWHERE, "broker_id": None, "local": None},
            Gate.OTHER_BROKER,
            "led by broker 2: ask",
        ),
        (120, {"replicas": ReplicaSet(None, (1, 2), (1,))}, Gate.NO_LEADER, "on brokers 1, 2"),
        (
            120,
            {
                "sidecar": sidecar(
                    state=PartitionState.HALTED, waiting_for="offsets [1, 6) are gone"
                )
            },
            Gate.HALTED,
            "halted until an operator acts: offsets [1, 6) are gone",
        ),
        (
            210,
            {},
            Gate.ACTIVE_SEGMENT,
            "full (1.0 kB of 4.0 kB) or with the first append after 2023-11-14T23:12:20+00:00, in",
        ),
        (
            210,
            {"roll": RollRules(None, 500)},
            Gate.ACTIVE_SEGMENT,
            "it closes with the next append (segment.ms has passed)",
        ),
        (210, {"roll": RollRules()}, Gate.ACTIVE_SEGMENT, "which the broker did not return"),
        (
            210,
            {
                "early": EARLY,
                "sidecar": sidecar(unarchived_bytes=1500, unarchived_age_seconds=240.0),
            },
            Gate.ACTIVE_SEGMENT,
            "early, at 64.0 kB (1.5 kB now) or an age of 15 min (in 11 min); it closes when full",
        ),
        (
            210,
            {
                "early": EARLY,
                "sidecar": sidecar(unarchived_age_seconds=1000.0, last_error="fenced"),
                "log_offsets": LogOffsets(Offset(50), Offset(205)),
                "roll": RollRules(),
            },
            Gate.ACTIVE_SEGMENT,
            "(in 0.0 s); this one is not committed yet: the high watermark is at 205; the last err",
        ),
        (
            210,
            {"early": EARLY, "sidecar": None, "problems": {"sidecar": "refused"}},
            Gate.ACTIVE_SEGMENT,
            "its sidecar would archive it early (uploader.early), and does not answer: refused; it",
        ),
        (120, {"sidecar": None, "problems": {"sidecar": "refused"}}, Gate.NO_SIDECAR, "refused"),
        (
            120,
            {"sidecar": SidecarPartition(1)},
            Gate.NOT_FOLLOWED,
            "does not know (yet) that this broker leads",
        ),
        (
            120,
            {"sidecar": sidecar(segment(100, 200), last_error="no answer", retry_at_ms=NOW - 5)},
            Gate.HELD,
            "the partition waits after an error, next attempt now: no answer",
        ),
        (
            120,
            {"sidecar": sidecar(segment(100, 200, **ERROR))},
            Gate.HELD,
            "segment 100 waits after an error, next attempt in 30 s: put x: 403",
        ),
        (120, {"sidecar": sidecar(segment(100, 200, "uploading"))}, Gate.UPLOADING, "segment 100"),
        (120, {"sidecar": sidecar(segment(100, 200, "queued"))}, Gate.QUEUED, "upload thread"),
        (
            120,
            {"sidecar": sidecar(segment(100, 200, "stored"))},
            Gate.WATERMARK,
            "its commit is next",
        ),
        (
            120,
            {"sidecar": sidecar(segment(50, 100, **ERROR), segment(100, 200, "stored"))},
            Gate.EARLIER_SEGMENT,
            "waits for segment 50, which waits after an error (next attempt in 30 s): put x: 403",
        ),
        (
            120,
            {"log_offsets": LogOffsets(Offset(0), Offset(150))},
            Gate.HIGH_WATERMARK,
            "the high watermark is at 150, and must reach 200",
        ),
        (
            120,
            {"sidecar": sidecar(segment(50, 100, "uploading"), segment(100, 200))},
            Gate.EARLIER_SEGMENT,
            "segment 100 waits for segment 50, which is being uploaded",
        ),
        (
            120,
            {"sidecar": sidecar(segment(0, 50), segment(50, 100), unstored_segments=90)},
            Gate.EARLIER_SEGMENT,
            "waits for segment 0, which has not been started; 90 closed segments are not archived",
        ),
        (
            120,
            {"sidecar": sidecar(segment(50, 100), segment(100, 200), waiting_for="the broker")},
            Gate.EARLIER_SEGMENT,
            "waits for segment 50, which has not been started: the broker",
        ),
        (
            120,
            {"sidecar": sidecar(segment(100, 200), waiting_for="a source that answers")},
            Gate.OTHER,
            "the sidecar waits for a source that answers",
        ),
        (120, {"sidecar": sidecar()}, Gate.OTHER, "its upload is due: ask again"),
    ],
)
def test_waiting_offset_is_explained_with_its_gate(
    offset: int, changes: dict[str, object], gate: Gate, words: str
) -> None:
    answer = decide(facts(offset, **changes))
    assert (answer.kind, answer.gate, answer.code) == (Kind.WAITS, gate, 3)
    assert words in answer.text


def test_pinned_segment_alone_counts_as_waiting() -> None:
    pin = PinnedRange("orders", 3, Offset(100), Offset(200), 1000)
    gone = replace(sidecar(segment(100, 200)), pins=(pin,))
    answer = decide(
        facts(local=None, log_offsets=LogOffsets(Offset(220), Offset(260)), sidecar=gone)
    )
    assert answer.kind is Kind.WAITS
    unpinned = replace(gone, pins=())
    answer = decide(
        facts(local=None, log_offsets=LogOffsets(Offset(220), Offset(260)), sidecar=unpinned)
    )
    assert answer.kind is Kind.GONE


def test_segment_above_the_watermark_is_not_committed_yet() -> None:
    above = archive(holder=holder(100, 200))
    answer = decide(facts(archive=above, local=None, log_offsets=LogOffsets()))
    assert (answer.kind, answer.code) == (Kind.WAITS, 3)
    assert answer.text.startswith("uploaded, but not committed: ")


@pytest.mark.parametrize(
    ("offset", "changes", "kind", "code", "words"),
    [
        (120, {}, Kind.WAITS, 3, "not archived yet"),
        (60, {}, Kind.UNKNOWN, 1, "every offset below 100 is archived, or in a recorded gap"),
        (
            120,
            {"sidecar": None},
            Kind.UNKNOWN,
            1,
            "unknown whether it is archived: timed out; if it is not",
        ),
        (
            120,
            {"sidecar": None, "local": None},
            Kind.UNKNOWN,
            1,
            "unknown whether it is archived: timed out",
        ),
    ],
)
def test_next_offset_of_the_sidecar_is_used_without_the_store(
    offset: int, changes: dict[str, object], kind: Kind, code: int, words: str
) -> None:
    answer = decide(facts(offset, archive=None, problems={"archive": "timed out"}, **changes))
    assert (answer.kind, answer.code) == (kind, code)
    assert words in answer.text


TRIM = Trim(
    TP,
    (
        KeptSegment(BaseOffset(0), Offset(50), 2000, 0.0),
        KeptSegment(BaseOffset(50), Offset(100), 3000, 0.0),
        KeptSegment(BaseOffset(100), None, 10, 0.0),
    ),
    retained_from=Offset(100),
    end=Offset(100),
)


@pytest.mark.parametrize(
    ("trim", "words"),
    [
        (None, "on; no closed segment of the log is beyond it"),
        (TRIM, "on; the next pass deletes offsets [0, 100) (5.0 kB) here"),
        (
            bounded_by_archive(TRIM, Offset(60)),
            (
                "deletes offsets [0, 50) (2.0 kB) here if the store proves to have them; offsets "
                "[50, 100) (3.0 kB) stay: the log is archived up to 60 (archive_behind)"
            ),
        ),
    ],
)
def test_local_retention_is_explained(trim: Trim | None, words: str) -> None:
    known = facts(local_retention=PartitionRetention(trim))
    shown = ExplainResult(known, decide(known)).as_tables()[1]
    [text] = [str(cells[1]) for cells in shown.rows if cells[0] == "local retention"]
    assert words in text, text


def test_local_retention_of_another_leader_and_of_none() -> None:
    elsewhere = facts(
        local_retention=PartitionRetention(TRIM), replicas=ReplicaSet(2, (1, 2), (1, 2))
    )
    assert "sidecar of the partition's leader" in str(
        ExplainResult(elsewhere, decide(elsewhere)).as_tables()[1].rows[-1]
    )
    rows = ExplainResult(facts(), decide(facts())).as_tables()[1].rows
    assert "local retention" not in [cells[0] for cells in rows]
