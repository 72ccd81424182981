"""Exports of archive and tail packs to files: each record once, of one history."""

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidetier.archive.errors import ArchiveReplacedError, UnreadTailError
from sidetier.archive.objects.watermark import decode_watermark, encode_watermark
from sidetier.archive.tail.pack import PackBuilder, claim
from sidetier.pipeline.errors import NoSuchTopicError, UndecidedRecordsError
from sidetier.pipeline.export.errors import LogTruncatedError, StillOnBrokerError
from sidetier.pipeline.export.held_back import Cause
from sidetier.pipeline.export.sinks.files.options import FilesOptions
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from tests.harness.exported_files import data_files, files_job, manifest_in, offsets_in, rows_of
from tests.harness.intercepted_store import KilledError, MortalStore
from tests.harness.made_archive import LAYOUT
from tests.harness.record_batches import MadeBatch, MadeRecord
from tests.harness.tail_packs import TOPIC_ID, history
from tests.harness.tailed_log import TailedLog, borders, mixed_log, store_pack

COMMITTED = IsolationLevel.READ_COMMITTED
OPTIONS = FilesOptions.model_validate({"isolation": "read_committed"}, strict=False)


def export(
    log: TailedLog,
    target: FakeStorage | MortalStore,
    *,
    with_tail: bool = True,
    **more: Any,  # noqa: ANN401 -- as `files_job`
) -> list[Cause]:
    """Export what there is; return why partitions are held back."""
    with files_job(log.store, target, OPTIONS, with_tail=with_tail, **more) as job:
        remaining = job.commit_all()
        assert remaining is not None
        held_back = job.held_back(remaining, remaining.state.next_offsets)
        return [one.cause for one in held_back if one.is_finding]


def exported(target: FakeStorage) -> list[int]:
    found = offsets_in(target.contents())
    assert set(found.values()) <= {1}, "each record once"
    return sorted(offset for _, offset in found)


def next_offset(target: FakeStorage) -> int:
    return manifest_in(target.contents()).next_offsets[0]


def plain_log(batches: int = 8) -> TailedLog:
    """A log of batches with three records, archived up to 12, and in packs behind."""
    log = TailedLog(store=FakeStorage())
    for _ in range(batches):
        log.write(9, 3, transactional=False)
    log.archived(0, 6, 12)
    log.pack(1, 0, (12, 18), (18, log.next_offset))
    return log


def of_the_new_leader(log: TailedLog, start: int) -> TailedLog:
    """The log of a leader that has other records from an offset on."""
    new = log.elected_uncleanly(start)
    for first in range(start, start + 15, 3):
        records = (MadeRecord(at, value=b"new") for at in range(first, first + 3))
        new.batches.append(MadeBatch(tuple(records)))
        new.next_offset = first + 3
    return new


def test_records_of_packs_are_not_exported_again_as_segments() -> None:
    log, target = mixed_log(), FakeStorage()
    end = log.next_offset
    stable = log.offsets(COMMITTED, end)

    def reached(offset: int) -> list[int]:
        return [at for at in stable if at < offset]

    log.archived(0, 5, 12)
    first = log.pack(1, 0, (12, 14))
    export(log, target)
    # Producer 1 has aborted behind 12, and producer 2 is open from 5 on.
    assert exported(target) == reached(5)
    log.pack(1, 1, (14, 19))
    export(log, target)
    assert exported(target) == reached(16)  # producer 3 is open from there on
    assert next_offset(target) == 16
    assert manifest_in(target.contents()).epochs == {0: ((0, 0),)}
    # The archive is behind, which is no error without packs either.
    assert export(log, target, with_tail=False) == []
    assert next_offset(target) == 16
    log.archived(0, 5, 12, 14)  # ends within what is exported
    log.store.delete_object(first)
    assert export(log, target, with_tail=False) == []
    export(log, target)
    assert next_offset(target) == 16
    log.pack(2, 0, (19, end))
    export(log, target)
    assert exported(target) == stable
    log.archived(0, 5, 12, 14, end)
    for with_tail in (False, True):
        export(log, target, with_tail=with_tail)
        assert exported(target) == stable


def test_partition_that_only_packs_have() -> None:
    log, target = mixed_log(), FakeStorage()
    log.pack(1, 0, (0, 12))
    empty = TailedLog(store=log.store, tp=TopicPartition("orders", 1))
    empty.claim(1, 1)
    export(log, target)
    assert exported(target) == log.offsets(COMMITTED, 12)
    export(log, target, with_tail=False)  # nothing of the topic is archived
    log.pack(1, 2, (12, log.next_offset))
    export(log, target)
    assert exported(target) == log.offsets(COMMITTED, log.next_offset)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_each_record_once_whenever_it_is_packed_archived_and_exported(data: st.DataObject) -> None:
    log, target = mixed_log(), FakeStorage()
    ends = borders(log)
    stable = log.offsets(COMMITTED, log.next_offset)
    segments, packs, packed = [0], dict[str, int](), 0
    for number in range(data.draw(st.integers(2, 8), label="steps")):
        step = data.draw(st.sampled_from(["pack", "archive", "clean", "export"]), label="step")
        later = [end for end in ends if end > (packed if step == "pack" else segments[-1])]
        if step == "pack" and later:
            end = data.draw(st.sampled_from(later), label="packed up to")
            packs[log.pack(1, number, (packed, end))] = end
            packed = end
        elif step == "archive" and later:
            segments.append(data.draw(st.sampled_from(later), label="archived up to"))
            log.archived(*segments)
            packed = max(packed, segments[-1])
        elif step == "clean":
            for key in [key for key, end in packs.items() if end <= segments[-1]]:
                log.store.delete_object(key)
                del packs[key]
        elif len(segments) > 1 or packs:
            # Without producer snapshots, an early open transaction is found by reading alone.
            with suppress(NoSuchTopicError, UndecidedRecordsError):
                causes = export(log, target, with_tail=data.draw(st.booleans(), label="with tail"))
                assert not causes
            done = exported(target)
            assert done == stable[: len(done)]
    log.archived(*segments, *[log.next_offset] * (segments[-1] < log.next_offset))
    export(log, target, with_tail=data.draw(st.booleans(), label="with tail"))
    assert exported(target) == stable


@pytest.mark.parametrize("shows", ["claim", "pack", "segments"])
@pytest.mark.parametrize("fork", [12, 15])
def test_discarded_records_that_were_exported_from_packs(shows: str, fork: int) -> None:
    log, target = plain_log(), FakeStorage()
    export(log, target)
    assert next_offset(target) == 24
    new = of_the_new_leader(log, fork)
    if shows == "claim":
        log.elected_uncleanly(fork).claim(2, 0)
    elif shows == "pack":
        new.pack(2, 0, (fork, new.next_offset))
    else:
        new.archived(0, 6, 12, fork + 3) if fork == 12 else new.archived(0, 6, 12, 15, 18)
    before = target.contents()
    with pytest.raises(LogTruncatedError, match=rf"offsets \[{fork}, 24\) \(leader epoch 0, now 1"):
        export(log, target, with_tail=shows != "segments")
    assert target.contents() == before
    new.pack(2, 1, (fork, new.next_offset))
    export(log, target, reread=True)
    found = Counter(rows_by_offset(target))
    assert found == Counter(
        (record.offset, record.value) for batch in new.batches for record in batch.records
    )


@pytest.mark.parametrize("fork", [0, 12, 15])
def test_claim_alone_shows_what_was_discarded(fork: int) -> None:
    log, target = plain_log(), FakeStorage()
    if fork == 0:
        log = replace(log, store=FakeStorage(), stored=set())
        log.pack(1, 0, (0, 24))
    export(log, target)
    assert next_offset(target) == 24
    if fork == 15:
        log.archived(0, 6, 12, 15)
    for key in [row.key for row in log.store.list_objects(LAYOUT.tails_prefix())]:
        log.store.delete_object(key)
    log.elected_uncleanly(fork).claim(2, 0)
    with pytest.raises(LogTruncatedError, match=rf"offsets \[{fork}, 24\) \(leader epoch 0, now 1"):
        export(log, target)


@pytest.mark.parametrize("segments", [(0, 5, 12), (0, 3, 7, 12)])
@pytest.mark.parametrize("ends", ["whole", "killed"])
def test_end_that_packs_have_decided_is_no_loss_for_the_archive(
    segments: tuple[int, ...], ends: str
) -> None:
    """The last stable offset of archive and tail is archived, and above that of the archive."""
    log, target = mixed_log(), FakeStorage()
    log.archived(*segments)
    log.pack(1, 0, (12, 14))
    if ends == "whole":
        export(log, target)
        stands = next_offset(target)
        assert stands == 5
        assert export(log, target, with_tail=False) == []
        assert next_offset(target) == stands
        return
    with suppress(KilledError):
        export(log, MortalStore(target, 2))
    with pytest.raises(StillOnBrokerError, match=r"up to offset 5.* end at 3"):
        export(log, target, with_tail=False)


def test_running_export_finds_what_was_discarded_meanwhile() -> None:
    log, target = plain_log(), FakeStorage()
    new = of_the_new_leader(log, 15)
    with files_job(log.store, target, OPTIONS, with_tail=True, most_offsets=15) as job:
        assert job.commit_all(iter([False, True]).__next__) is None
        new.pack(2, 0, (15, new.next_offset))
        assert next_offset(target) == 15
        with pytest.raises(ArchiveReplacedError, match="the records from offset 15 on"):
            job.commit_all()  # the planner has seen the former tail
    export(log, target)
    values = {value for offset, value in rows_by_offset(target) if offset >= 15}
    assert values == {b"new"}
    assert exported(target) == list(range(30))


def rows_by_offset(target: FakeStorage) -> list[tuple[int, bytes]]:
    files = data_files(target.contents())
    return [(row["offset"], row["value"]) for key in files for row in rows_of(key, files[key])]


def test_tail_that_is_not_known_is_not_the_end() -> None:
    log, target = plain_log(), FakeStorage()
    log.store.put_object(LAYOUT.tail_pack_key(3, 0), BytesBody(b"damaged"))
    with pytest.raises(UnreadTailError, match="cannot be read"):
        export(log, target)
    assert not target.contents()


@pytest.mark.parametrize("shows", ["pack", "claim"])
def test_archived_records_that_were_discarded_are_not_exported(shows: str) -> None:
    log, target = plain_log(), FakeStorage()
    export(log, target, with_tail=False)
    assert next_offset(target) == 12
    new = of_the_new_leader(log, 9)
    if shows == "claim":
        log.elected_uncleanly(9).claim(2, 0)
    else:
        new.pack(2, 0, (9, new.next_offset))
    for where in (target, FakeStorage()):
        with pytest.raises(UnreadTailError, match=r"offset 11 of leader epoch 0.* quarantine"):
            export(log, where)
    fresh = FakeStorage()
    export(log, fresh, with_tail=False)
    assert manifest_in(fresh.contents()).epochs == {0: ((0, 0),)}, "of what was read"
    quarantine(new, 6)
    new.archived(0, 6, 9, new.next_offset)
    for where in (target, fresh):
        with pytest.raises(LogTruncatedError, match=r"offsets \[9, 12\) \(leader epoch 0, now 1"):
            export(log, where)
    export(log, target, reread=True)
    assert [at for at, value in rows_by_offset(target) if value == b"new"] == list(range(9, 24))


def quarantine(log: TailedLog, start: int) -> None:
    """Delete the archived segments from an offset on."""
    for row in list(log.store.list_objects("")):
        name = row.key.rsplit("/", 1)[1]
        if name.endswith(".log") and int(name[:20]) >= start:
            log.store.delete_object(row.key)
    log.stored = {span for span in log.stored if span[1] <= start}


def test_archived_records_keep_their_epochs_when_the_newest_history_is_cut() -> None:
    log, target = plain_log(), FakeStorage()
    builder = PackBuilder()
    builder.add(claim(log.tp, TOPIC_ID, history((5, 30)), Offset(30), Offset(30)))
    store_pack(log.store, log.layout, builder, 2, 0)
    export(log, target)
    assert next_offset(target) == 12, "nothing proves the packs"
    assert manifest_in(target.contents()).epochs == {0: ((0, 0),)}


def test_tail_behind_epochs_that_offset_wm_does_not_note() -> None:
    log, target = plain_log(), FakeStorage()
    key = log.layout.watermark_key(log.tp)
    watermark = decode_watermark(bytes(log.store.get_object(key).data), key)
    other = replace(watermark, epoch_history="00000000")
    log.store.put_object(key, BytesBody(encode_watermark(other)))
    export(log, target)
    assert manifest_in(target.contents()).epochs == {0: ((0, 12),)}
    new = of_the_new_leader(log, 15)
    new.pack(2, 0, (15, new.next_offset))
    with pytest.raises(LogTruncatedError, match=r"offsets \[15, 24\)"):
        export(log, target)


@pytest.mark.parametrize("first", ["late", "damaged"])
def test_partition_without_an_archive_waits_for_its_first_pack(first: str) -> None:
    whole, target = plain_log(), FakeStorage()
    log = replace(whole, store=FakeStorage(), stored=set())
    if first == "damaged":
        log.store.put_object(LAYOUT.tail_pack_key(1, 0), BytesBody(b"damaged"))
    log.pack(1, 1, (12, 18))
    log.pack(1, 2, (18, 21))
    with pytest.raises(UnreadTailError, match=r"no pack has the offsets \[0, 12\)|cannot be read"):
        export(log, target)
    assert not exported(target)
    if first == "late":
        log.pack(1, 0, (0, 12))
    log.archived(0, 6, 12)
    export(log, target)
    assert exported(target) == list(range(21))


def test_plan_with_packs_is_carried_out_once_its_records_are_archived() -> None:
    log, target = plain_log(), FakeStorage()
    with suppress(KilledError):
        export(log, MortalStore(target, 2))  # killed before the first file
    assert manifest_in(target.contents()).pending is not None
    with pytest.raises(StillOnBrokerError, match="with --tail kafka or packs, up to offset 24"):
        export(log, target, with_tail=False)
    log.archived(0, 6, 12, 24)
    for key in [row.key for row in log.store.list_objects(LAYOUT.tails_prefix())]:
        log.store.delete_object(key)
    export(log, target, with_tail=False)
    assert exported(target) == list(range(24))
