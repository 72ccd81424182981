"""Accepted targets of a restore, and progress from which it may continue."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from sidetier.mirror.restore.plan import (
    KEEPS_RECORDS,
    PartitionRestore,
    RestoreNote,
    archived_topic,
    cleanup_problem,
    decode_note,
    progress_problem,
    same_topic_problem,
    settings_left,
    target_problems,
)
from sidetier.mirror.topics.planning import PlannedCopy, SourceTopic
from sidetier.mirror.topics.rules import NOT_COPIED, Lineage, decode_lineage
from sidetier.segments.cluster_state import TopicDefinition
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.wire.requests import CommittedOffset
from tests.harness.made_archive import TP
from tests.harness.mirror_target import TARGET

LINEAGE = Lineage("orders", ("lost",))
NOTE = RestoreNote(LINEAGE, Offset(10))


def wanted(
    start: int = 10, end: int = 50, note: RestoreNote = NOTE, **more: int
) -> PartitionRestore:
    return PartitionRestore(
        TP,
        TARGET,
        Offset(start),
        Offset(end),
        archive_end=Offset(more.get("archive_end", 50)),
        last_stable_offset=Offset(more.get("last_stable_offset", 50)),
        note=note,
        restored_to=None if "restored_to" not in more else Offset(more["restored_to"]),
    )


def planned(*, exists: bool = True, target: str = TARGET.topic) -> PlannedCopy:
    return PlannedCopy("orders", target, 1, LINEAGE, KEEPS_RECORDS, exists)


def problem_of(
    settings: Mapping[str, str],
    *,
    records: int = 0,
    progress: Mapping[TopicPartition, CommittedOffset] | None = None,
    accept_cleanup: bool = False,
) -> str | None:
    return target_problems(
        [planned()],
        progress or {},
        {TARGET.topic: settings},
        {TARGET: records},
        accept_cleanup=accept_cleanup,
    ).get(TARGET.topic)


def test_progress_metadata_round_trips_and_names_the_source() -> None:
    note = RestoreNote(LINEAGE, Offset(7), "_sidetier/prod-a/retired/orders-0/id/")
    assert decode_note(note.encoded()) == note
    assert decode_lineage(note.encoded()) == LINEAGE
    assert decode_note(LINEAGE.encoded()) is None
    assert decode_note("") is None


def test_topic_is_created_so_that_no_record_is_deleted_refused_or_changed() -> None:
    archived = {
        "retention.ms": "604800000",
        "cleanup.policy": "compact,delete",
        "message.timestamp.type": "LogAppendTime",
        "message.timestamp.before.max.ms": "1000",
        "min.insync.replicas": "2",
        "max.message.bytes": "2000000",
    }
    created = archived_topic("orders", [0, 4], TopicDefinition(3, 3, archived))
    kept = {"max.message.bytes", "message.timestamp.before.max.ms", "min.insync.replicas"}
    assert created == SourceTopic(5, {**archived, **KEEPS_RECORDS})
    assert settings_left(archived, created.settings).keys() == archived.keys() - kept
    assert kept - NOT_COPIED == {"max.message.bytes"}


def test_topic_keeps_partitions_that_were_never_archived() -> None:
    assert archived_topic("orders", [0], TopicDefinition(6, 1, {})).partitions == 6
    assert archived_topic("orders", [0, 1], None) == SourceTopic(2, KEEPS_RECORDS)


def test_topic_is_not_created_with_two_billion_partitions() -> None:
    with pytest.raises(ConfigurationError, match="orders-2147483000 is stored, but hardly any"):
        archived_topic("orders", [0, 2147483000], None)


def test_target_with_other_records_is_refused() -> None:
    assert "12 offsets that are not of this restore" in (
        problem_of(KEEPS_RECORDS, records=12) or ""
    )
    progress = {TARGET: CommittedOffset(Offset(20), metadata=NOTE.encoded())}
    assert problem_of(KEEPS_RECORDS, records=12, progress=progress) is None
    assert problem_of(KEEPS_RECORDS) is None


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"retention.ms": "604800000"}, "retention.ms=604800000"),
        ({"retention.bytes": "1000"}, "retention.bytes=1000"),
        ({"cleanup.policy": "compact"}, "cleanup.policy=compact"),
    ],
)
def test_target_that_may_delete_restored_records_is_refused_unless_accepted(
    settings: dict[str, str], named: str
) -> None:
    every = {**KEEPS_RECORDS, **settings}
    assert named in (problem_of(every) or "")
    assert problem_of(every, accept_cleanup=True) is None


def test_retention_of_a_compact_only_topic_deletes_nothing() -> None:
    assert (
        "retention"
        not in (
            cleanup_problem("t", {"cleanup.policy": "compact", "retention.ms": "1"}) or ""
        ).partition(": the broker")[0]
    )


def test_source_topic_is_refused_as_the_target() -> None:
    same = planned(target="orders")
    assert "--rename" in (same_topic_problem(same, "lost") or "")
    assert same_topic_problem(same, "another") is None
    assert same_topic_problem(planned(), "lost") is None


def test_a_restore_continues_only_from_its_own_progress() -> None:
    assert progress_problem(wanted(), NOTE) is None
    created = replace(NOTE, lineage=replace(LINEAGE, target_id="known since the first run"))
    assert progress_problem(wanted(), created) is None
    assert "another program uses the progress group" in (progress_problem(wanted(), None) or "")
    assert "began at offset 10, and --from is offset 12 now" in (
        progress_problem(wanted(start=12), NOTE) or ""
    )
    other = RestoreNote(Lineage("payments", ("lost",)), Offset(10))
    assert "has copied payments-0 into this partition" in (progress_problem(wanted(), other) or "")
    first, second = (replace(LINEAGE, source_id=topic_id) for topic_id in ("first", "second"))
    kept, now = RestoreNote(first, Offset(10)), wanted(note=RestoreNote(second, Offset(10)))
    assert "copied records of the topic with id first" in (progress_problem(now, kept) or "")
    assert progress_problem(wanted(note=kept), kept) is None
    # Progress of an earlier version has no id.
    assert progress_problem(now, NOTE) is None
    folder = RestoreNote(LINEAGE, Offset(10), "_sidetier/prod-a/retired/orders-0/id/")
    assert "into this partition from _sidetier" in (progress_problem(wanted(), folder) or "")


def test_restored_records_that_the_archive_no_longer_has_are_a_problem() -> None:
    assert progress_problem(wanted(restored_to=50), NOTE) is None
    for tail_end, where in ((None, "the archive"), (Offset(52), "the archive with its tail")):
        with_tail = replace(wanted(restored_to=60), tail_end=tail_end)
        problem = progress_problem(with_tail, NOTE) or ""
        assert f"up to offset 60, and {where} ends at {tail_end or 50} now" in problem
    assert progress_problem(replace(wanted(restored_to=60), tail_end=Offset(60)), NOTE) is None


def test_omitted_and_undecided_offsets_are_computed() -> None:
    assert wanted().offsets_left == 40
    assert wanted(restored_to=30).offsets_left == 20
    assert wanted(restored_to=60).offsets_left == 0
    assert wanted(end=40, archive_end=50, last_stable_offset=40).undecided == 10
    assert wanted(end=30, archive_end=50, last_stable_offset=40).undecided == 0
