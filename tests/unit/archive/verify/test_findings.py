"""Each kind of damage has its finding, and no other object has one."""

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from sidetier.archive.inventory.contents import Inventory
from sidetier.archive.inventory.stored_partition import StoredPartition
from sidetier.archive.objects.acknowledgements import Acknowledgement, acknowledge_gap
from sidetier.archive.objects.chapters import chapter_entry, encode_chapter
from sidetier.archive.objects.gaps import write_gap
from sidetier.archive.objects.watermark import decode_watermark, encode_watermark
from sidetier.archive.verify import light
from sidetier.archive.verify import run as verification
from sidetier.archive.verify.findings import KINDS, Finding, FindingKind, Severity
from sidetier.archive.verify.run import Verification, VerifyReport, VerifyRequest
from sidetier.segments.crc import crc64nvme
from sidetier.segments.errors import ChecksumMismatchError, StoreUnavailableError
from sidetier.segments.names import FileKind
from sidetier.segments.notes import PLACE_KEY, TOPIC_ID_KEY
from sidetier.segments.offsets import (
    BaseOffset,
    BrokerId,
    LeaderEpoch,
    Offset,
    OffsetRange,
    TopicPartition,
)
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import PutOptions
from sidetier.storage.token_bucket import TokenBucket
from sidetier.uploader.archive.unresolved import read_unresolved
from tests.harness.archived_log import LAYOUT, TP, StoredArchive
from tests.harness.cut_logs import cut_log
from tests.harness.log_dir import PartitionLog
from tests.harness.markdown import ROOT

WATERMARK = LAYOUT.watermark_key(TP)
METADATA = LAYOUT.metadata_key(TP)
EPOCHS = LAYOUT.epoch_checkpoint_key(TP)
DEEP = VerifyRequest(deep=True, threads=2)
LIGHT = VerifyRequest(threads=2)


def verify(
    archive: StoredArchive, options: VerifyRequest = DEEP, **settings: object
) -> VerifyReport:
    run = Verification(
        archive.access,
        options,
        lambda: time.time_ns() // 1_000_000,
        **settings,  # type: ignore[arg-type]
    )
    return run.run([TP])


def kinds(report: VerifyReport) -> list[tuple[str, OffsetRange | None]]:
    assert not report.unread
    return [(f.kind.value, f.offsets) for f in report.findings()]


def test_archive_without_damage_has_no_finding(archive: StoredArchive) -> None:
    report = verify(archive)

    assert kinds(report) == []
    totals = report.totals
    assert (totals.partitions, totals.segments, totals.checked_segments) == (1, 5, 5)
    assert totals.checked_size == totals.size > 10_000


def test_long_partitions_are_bounded_and_short_ones_are_read_beside_them(
    archive: StoredArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two threads, sixteen partitions are read at once, but only two of them if long."""
    real, guard = light.read_partition, threading.Lock()
    begun, pair = threading.Barrier(16), threading.Barrier(2)
    reading, most = 0, 0

    def read(
        stored: StoredPartition, before_more: Callable[[], object]
    ) -> tuple[Inventory, Sequence[Finding]]:
        nonlocal reading, most
        begun.wait(20)
        before_more()
        before_more()  # the partition has changed, and is read again
        with guard:
            reading += 1
            most = max(most, reading)
        pair.wait(20)
        with guard:
            reading -= 1
        return real(stored)

    monkeypatch.setattr(verification, "read_partition", read)
    run = Verification(archive.access, LIGHT, lambda: 0)
    run.light([TopicPartition("orders", number) for number in range(16)])
    assert run.report.totals.partitions == 16
    assert most == 2


def segment(base: int) -> OffsetRange:
    return OffsetRange(Offset(base), Offset(base + 60))


def rewritten_watermark(archive: StoredArchive, **changes: object) -> None:
    watermark = decode_watermark(archive.data(WATERMARK), WATERMARK)
    archive.rot(WATERMARK, encode_watermark(replace(watermark, **changes)))  # type: ignore[arg-type]


def without_entry(archive: StoredArchive, base: int) -> None:
    document = json.loads(archive.data(METADATA))
    index = document["metadata"]["timeindex"]
    index["entries"] = [e for e in index["entries"] if e["baseOffset"] != base]
    archive.rot(METADATA, json.dumps(document).encode())


def without_segment(archive: StoredArchive, base: int) -> None:
    for kind in FileKind:
        if archive.key(base, kind) in archive.store.contents():
            archive.remove(archive.key(base, kind))


def swapped_entries(archive: StoredArchive, kind: FileKind, size: int) -> None:
    """Swap the first two entries of an index, and keep its checksum right."""
    key = archive.key(60, kind)
    data = archive.data(key)
    assert len(data) >= 2 * size
    changed = data[size : 2 * size] + data[:size] + data[2 * size :]
    metadata = {
        name: value
        for name, value in archive.head(key).metadata.items()
        if name != "sidetier-crc64nvme"
    }
    archive.store.put_object(key, BytesBody(changed), PutOptions(metadata=metadata))


def foreign_epochs(archive: StoredArchive) -> None:
    """The checkpoint says that the second epoch began one segment earlier."""
    archive.rot(EPOCHS, b"0\n2\n0 0\n4 120\n")


Damage = Callable[[StoredArchive], object]
LIGHT_DAMAGE: list[tuple[Damage, list[tuple[FindingKind, OffsetRange | None]]]] = [
    (
        lambda a: a.remove(a.key(60)),
        [
            (FindingKind.MISSING_OFFSETS, segment(60)),
            (FindingKind.MISSING_LOG, segment(60)),
        ],
    ),
    (
        lambda a: without_segment(a, 60),
        [
            (FindingKind.MISSING_OFFSETS, segment(60)),
            (FindingKind.MISSING_LOG, segment(60)),
        ],
    ),
    (
        lambda a: without_segment(a, 240),
        [
            (FindingKind.MISSING_OFFSETS, segment(240)),
            (FindingKind.WRONG_WATERMARK, segment(240)),
        ],
    ),
    (
        lambda a: without_segment(a, 0),
        [(FindingKind.DELETED_START, segment(0))],
    ),
    (lambda a: a.remove(a.key(60, FileKind.INDEX)), [(FindingKind.MISSING_INDEX, segment(60))]),
    (
        lambda a: a.remove(a.key(60, FileKind.TIMEINDEX)),
        [(FindingKind.MISSING_TIMEINDEX, segment(60))],
    ),
    (
        lambda a: a.rot(a.key(60, FileKind.INDEX), b"cut"),
        [(FindingKind.DAMAGED_INDEX, segment(60))],
    ),
    (
        lambda a: a.rot(a.key(60, FileKind.TIMEINDEX), b"cut"),
        [(FindingKind.DAMAGED_TIMEINDEX, segment(60))],
    ),
    (lambda a: a.rot(a.key(60), b""), [(FindingKind.EMPTY_LOG, segment(60))]),
    (lambda a: a.rot(WATERMARK, b"nonsense"), [(FindingKind.DAMAGED_WATERMARK, None)]),
    (
        lambda a: rewritten_watermark(a, next_offset=Offset(310)),
        [(FindingKind.MISSING_OFFSETS, OffsetRange(Offset(300), Offset(310)))],
    ),
    (
        lambda a: rewritten_watermark(a, next_offset=Offset(299)),
        [(FindingKind.WRONG_WATERMARK, OffsetRange(Offset(299), Offset(300)))],
    ),
    (
        lambda a: rewritten_watermark(a, pending="_sidetier/prod-a/quarantine/x"),
        [(FindingKind.UNFINISHED_MOVE, None)],
    ),
    (lambda a: a.remove(METADATA), [(FindingKind.MISSING_METADATA, None)]),
    (lambda a: a.rot(METADATA, b"{}"), [(FindingKind.DAMAGED_METADATA, None)]),
    (lambda a: without_entry(a, 60), [(FindingKind.UNLISTED_SEGMENT, segment(60))]),
    (lambda a: a.remove(EPOCHS), [(FindingKind.MISSING_EPOCHS, None)]),
    (lambda a: a.rot(EPOCHS, b"nonsense"), [(FindingKind.DAMAGED_EPOCHS, None)]),
    (foreign_epochs, [(FindingKind.WRONG_EPOCHS, None)]),
]


@pytest.mark.parametrize(("damage", "expected"), LIGHT_DAMAGE)
def test_listing_shows_the_damage(
    damage: Damage,
    expected: list[tuple[FindingKind, OffsetRange | None]],
    archive: StoredArchive,
) -> None:
    damage(archive)

    found = [
        (kind, None if kind == FindingKind.UNLISTED_SEGMENT else offsets)
        for kind, offsets in kinds(verify(archive, LIGHT))
    ]
    wanted = [
        (kind.value, None if kind is FindingKind.UNLISTED_SEGMENT else offsets)
        for kind, offsets in expected
    ]
    assert found == wanted


def wrong_note(**notes: str | None) -> Damage:
    return lambda archive: archive.note(archive.key(60), **notes)


DEEP_DAMAGE: list[tuple[Damage, set[tuple[FindingKind, OffsetRange | None]]]] = [
    (
        lambda a: a.rot_bit(a.key(60), 700),
        {(FindingKind.DAMAGED_LOG, segment(60)), (FindingKind.CHECKSUM_MISMATCH, segment(60))},
    ),
    (
        # The CRC of a batch does not cover its leader epoch: only the checksum shows the change.
        lambda a: a.rot_bit(a.key(60), 15),
        {
            (FindingKind.CHECKSUM_MISMATCH, segment(60)),
            (FindingKind.WRONG_OBJECT_METADATA, segment(60)),
            (FindingKind.WRONG_EPOCHS, segment(60)),
        },
    ),
    (
        lambda a: a.rot(a.key(60), a.data(a.key(60))[:-1]),
        {
            (FindingKind.DAMAGED_LOG, segment(60)),
            (FindingKind.CHECKSUM_MISMATCH, segment(60)),
            (FindingKind.WRONG_SIZE, segment(60)),
        },
    ),
    (
        wrong_note(sidetier_next_offset="119"),
        {
            (FindingKind.WRONG_NEXT_OFFSET, OffsetRange(Offset(60), Offset(119))),
            (FindingKind.MISSING_OFFSETS, OffsetRange(Offset(119), Offset(120))),
        },
    ),
    (wrong_note(sidetier_max_timestamp="5"), {(FindingKind.WRONG_OBJECT_METADATA, segment(60))}),
    (wrong_note(sidetier_record_count="59"), {(FindingKind.WRONG_OBJECT_METADATA, segment(60))}),
    (wrong_note(sidetier_leader_epoch="3"), {(FindingKind.WRONG_OBJECT_METADATA, segment(60))}),
    (wrong_note(sidetier_epochs="3@60"), {(FindingKind.WRONG_OBJECT_METADATA, segment(60))}),
    (
        wrong_note(sidetier_txnindex="0123456789abcdef"),
        {(FindingKind.MISSING_TXNINDEX, segment(60))},
    ),
    (
        wrong_note(sidetier_snapshot="0123456789abcdef"),
        {(FindingKind.MISSING_SNAPSHOT, segment(60))},
    ),
    (
        lambda a: swapped_entries(a, FileKind.INDEX, 8),
        {(FindingKind.DAMAGED_INDEX, segment(60))},
    ),
    (
        lambda a: swapped_entries(a, FileKind.TIMEINDEX, 12),
        {(FindingKind.DAMAGED_TIMEINDEX, segment(60))},
    ),
    (
        lambda a: a.rot_bit(a.key(60, FileKind.INDEX), 3),
        {(FindingKind.DAMAGED_INDEX, segment(60))},
    ),
    (foreign_epochs, {(FindingKind.WRONG_EPOCHS, segment(120)), (FindingKind.WRONG_EPOCHS, None)}),
]


@pytest.mark.parametrize(("damage", "expected"), DEEP_DAMAGE)
def test_reading_shows_the_damage(
    damage: Damage,
    expected: set[tuple[FindingKind, OffsetRange | None]],
    archive: StoredArchive,
) -> None:
    damage(archive)

    assert set(kinds(verify(archive))) == {(kind.value, offsets) for kind, offsets in expected}


@pytest.mark.parametrize(
    ("base", "options"),
    [(240, LIGHT), (60, replace(LIGHT, heads=True)), (60, DEEP)],
    ids=["the last one without an option", "--heads", "--deep"],
)
def test_a_segment_that_has_lost_its_last_batches_is_a_finding(
    archive: StoredArchive, base: int, options: VerifyRequest
) -> None:
    key = archive.key(base)
    size = archive.head(key).size
    cut_log(archive.store, key, batches=3)

    found = {f.kind: f for f in verify(archive, options).findings()}
    left = archive.head(key).size
    assert found[FindingKind.WRONG_SIZE].detail == (
        f"{key} has {left} bytes, but {size} bytes were archived"
    )
    assert found[FindingKind.WRONG_SIZE].offsets == segment(base)
    assert options.deep or len(found) == 1


def test_a_chapter_shows_that_a_segment_was_cut_since(archive: StoredArchive) -> None:
    """Without an option: the listed version is not the one in the chapter."""
    heads = {base: archive.head(archive.key(base)) for base in range(0, 300, 60)}
    rows = {row.key: row for row in archive.store.list_objects("")}
    entries = [chapter_entry(BaseOffset(b), rows[head.key], head) for b, head in heads.items()]
    topic_id = decode_watermark(archive.data(WATERMARK), WATERMARK).topic_id
    chapter = LAYOUT.chapter_key(TP, topic_id, Offset(0), Offset(300))
    known = [entry for entry in entries if entry is not None]
    archive.store.put_object(chapter, BytesBody(encode_chapter(known)))
    assert kinds(verify(archive, LIGHT)) == []

    cut_log(archive.store, archive.key(60))
    assert kinds(verify(archive, LIGHT)) == [("wrong_size", segment(60))]


@pytest.mark.parametrize("options", [replace(LIGHT, heads=True), DEEP], ids=["--heads", "--deep"])
def test_a_segment_that_was_copied_over_another_one_is_a_finding(
    archive: StoredArchive, options: VerifyRequest
) -> None:
    """From another partition with the same offsets, and from a deleted topic of the same name."""
    stored = archive.store.get_object(archive.key(60))
    others = {PLACE_KEY: f"orders-1/{60:020d}", TOPIC_ID_KEY: "other"}
    other = {**stored.head.metadata, **others}
    archive.store.put_object(archive.key(60), BytesBody(stored.data), PutOptions(metadata=other))
    ours = archive.head(archive.key(0)).metadata[TOPIC_ID_KEY]

    found = verify(archive, options).findings()
    assert [(f.kind, f.offsets) for f in found] == [(FindingKind.WRONG_PLACE, segment(60))] * 2
    key = archive.key(60)
    assert {f.detail for f in found} == {
        f"{key} was archived as the segment orders-1/{60:020d}",
        f"{key} has topic id other, and the archive has {ours}",
    }


@pytest.mark.parametrize("kind", [FileKind.TXNINDEX, FileKind.SNAPSHOT])
def test_optional_file_with_other_bytes_is_a_finding(
    kind: FileKind, archive: StoredArchive
) -> None:
    archive.note(archive.key(60), **{f"sidetier_{kind.value[1:]}": "0123456789abcdef"})
    archive.store.put_object(archive.key(60, kind), BytesBody(b"other bytes"))

    assert kinds(verify(archive)) == [(f"damaged_{kind.value[1:]}", segment(60))]


def test_index_that_a_sidecar_has_emptied_fits(archive: StoredArchive) -> None:
    for kind in (FileKind.INDEX, FileKind.TIMEINDEX):
        archive.store.put_object(archive.key(60, kind), BytesBody(b""))

    assert kinds(verify(archive)) == []


def test_segment_that_no_object_names_shows_by_the_ends_of_its_neighbours(
    archive: StoredArchive,
) -> None:
    without_segment(archive, 60)
    without_entry(archive, 60)

    assert kinds(verify(archive, LIGHT)) == []
    expected = [("missing_offsets", segment(60))]
    assert kinds(verify(archive, VerifyRequest(heads=True))) == expected
    assert kinds(verify(archive)) == expected


def test_recorded_gap_explains_missing_offsets(archive: StoredArchive) -> None:
    without_segment(archive, 60)
    without_entry(archive, 60)
    write_gap(archive.store, LAYOUT, TP, segment(60), BrokerId(1), LeaderEpoch(4))

    assert kinds(verify(archive)) == [("recorded_gap", segment(60))]

    acknowledged = Acknowledgement("retention was too short", "ann", 1)
    assert acknowledge_gap(archive.store, LAYOUT, TP, segment(60), acknowledged)
    report = verify(archive)
    assert kinds(report) == [("acknowledged_gap", segment(60))]
    assert report.findings()[0].severity is Severity.INFO


@pytest.mark.parametrize(
    ("start", "expected"),
    [(119, [("recorded_gap", segment(60))]), (120, [])],
)
def test_gap_below_the_start_of_the_archive_is_no_finding(
    start: int, expected: list[tuple[str, OffsetRange | None]], archive: StoredArchive
) -> None:
    """`sidetier gc` has moved the start: up to the last offset of the gap, or beyond it."""
    for base in (0, 60):
        without_segment(archive, base)
        without_entry(archive, base)
    write_gap(archive.store, LAYOUT, TP, segment(60), BrokerId(1), LeaderEpoch(4))
    rewritten_watermark(archive, start_offset=Offset(start))

    assert kinds(verify(archive, LIGHT)) == expected


def test_gap_that_is_too_short_leaves_missing_offsets(archive: StoredArchive) -> None:
    without_segment(archive, 60)
    without_entry(archive, 60)
    gap = OffsetRange(Offset(60), Offset(100))
    write_gap(archive.store, LAYOUT, TP, gap, BrokerId(1), LeaderEpoch(4))

    missing = OffsetRange(Offset(100), Offset(120))
    assert kinds(verify(archive)) == [("missing_offsets", missing), ("recorded_gap", gap)]


def test_segments_above_the_archive_end_are_only_reported(archive: StoredArchive) -> None:
    data = archive.data(archive.key(60))
    archive.store.put_object(archive.key(300, FileKind.INDEX), BytesBody(b"half of it"))
    archive.store.put_object(archive.key(360), BytesBody(data[:-3]))

    report = verify(archive)
    assert [f.kind for f in report.findings()] == [FindingKind.NOT_COMMITTED]


@pytest.mark.parametrize(
    ("age_ms", "with_entries", "kind"),
    [
        (300_000, True, FindingKind.NOT_COMMITTED),
        (700_000, True, FindingKind.STALE_WATERMARK),
        (700_000, False, FindingKind.NOT_COMMITTED),
        (3_700_000, False, FindingKind.STALE_WATERMARK),
    ],
)
def test_watermark_that_was_rolled_back_is_a_finding(
    archive: StoredArchive,
    age_ms: int,
    with_entries: bool,  # noqa: FBT001
    kind: FindingKind,
) -> None:
    """From 300 to 120: two committed segments are above it."""
    rewritten_watermark(archive, base_offset=60, next_offset=120, epoch_history=None)
    if not with_entries:
        for base in (120, 180, 240):
            without_entry(archive, base)
    now = max(archive.head(archive.key(base)).modified_ms for base in (120, 180, 240)) + age_ms
    run = Verification(archive.access, LIGHT, lambda: now)
    run.light([TP])

    (found,) = run.report.findings()
    assert (found.kind, found.offsets) == (kind, OffsetRange(Offset(120), Offset(241)))
    if kind is FindingKind.STALE_WATERMARK:
        assert found.severity is Severity.WARNING
        named = 3 if with_entries else 0
        assert found.key == WATERMARK
        assert found.detail == (
            f"it ends at 120; 3 older segments are above it, {named} of them with an entry in "
            "_metadata"
        )


def test_orphan_is_only_reported(archive: StoredArchive) -> None:
    """A former leader's late segment begins within a committed one, and `_metadata` lacks it."""
    archive.store.put_object(archive.key(70), BytesBody(b"whatever"))

    assert [f.kind for f in verify(archive).findings()] == [FindingKind.ORPHAN_SEGMENT]


@pytest.mark.parametrize(
    ("age_ms", "kind"),
    [(60_000, FindingKind.NOT_COMMITTED), (7_200_000, FindingKind.MISSING_WATERMARK)],
)
def test_archive_without_watermark_is_a_finding_unless_it_is_new(
    age_ms: int, kind: FindingKind, archive: StoredArchive
) -> None:
    archive.remove(WATERMARK)
    now = archive.head(archive.key(0)).modified_ms + age_ms
    run = Verification(archive.access, LIGHT, lambda: now)
    run.light([TP])

    assert [f.kind for f in run.report.findings()] == [kind]


def test_archive_of_pinterest_is_checked_as_far_as_it_proves_anything(
    archive: StoredArchive,
) -> None:
    archive.rot(WATERMARK, f"{240:020d}\n".encode())
    for base in range(0, 300, 60):
        archive.note(
            archive.key(base),
            **dict.fromkeys(
                name.replace("-", "_") for name in archive.head(archive.key(base)).metadata
            ),
        )
    assert [f.kind for f in verify(archive).findings()] == [FindingKind.NOT_TAKEN_OVER]

    archive.rot_bit(archive.key(60), 700)
    found = [f.kind for f in verify(archive).findings()]
    assert found == [
        FindingKind.DAMAGED_LOG,
        FindingKind.CHECKSUM_MISMATCH,
        FindingKind.NOT_TAKEN_OVER,
    ]


def test_error_of_one_object_does_not_end_the_run(archive: StoredArchive) -> None:
    archive.rot_bit(archive.key(120), 700)
    archive.store.fail("stream", StoreUnavailableError("503"), key=archive.key(60), times=None)

    report = verify(archive)
    assert {f.kind for f in report.findings()} == {
        FindingKind.DAMAGED_LOG,
        FindingKind.CHECKSUM_MISMATCH,
    }
    [unread] = report.unread.values()
    assert (unread.key, unread.error) == (archive.key(60), "503")
    assert report.totals.checked_segments == 4


def test_segment_that_is_replaced_meanwhile_is_read_again(archive: StoredArchive) -> None:
    """As after a quarantine: the etag that was listed is gone, and the new object is whole."""
    stored, key = archive.store.get_object(archive.key(60)), archive.key(60)
    body, options = BytesBody(stored.data), PutOptions(metadata=stored.head.metadata)
    archive.store.race("head", lambda: archive.store.put_object(key, body, options), key=key)
    report = verify(archive)

    assert archive.store.count("put", key) == 1
    assert kinds(report) == []
    assert report.totals.checked_segments == 5


def test_every_byte_is_announced_to_the_bandwidth_cap(
    archive: StoredArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced: list[int] = []

    def reserve(_bucket: TokenBucket, size: int) -> float:
        announced.append(size)
        return 0.0

    monkeypatch.setattr(TokenBucket, "reserve", reserve)
    run = Verification(archive.access, VerifyRequest(deep=True, threads=1, rate=1))
    run.light([TP])
    assert not announced, "listings and small objects are not limited"
    run.segments([TP])
    names = tuple(kind.value for kind in FileKind)
    files = [data for key, data in archive.store.contents().items() if key.endswith(names)]
    assert sum(announced) == sum(map(len, files))


def test_sample_is_the_same_for_a_seed(archive: StoredArchive) -> None:
    first, again, other = (
        {
            base
            for base in range(0, 6000, 60)
            if VerifyRequest(sample=0.3, seed=seed).takes(archive.key(base))
        }
        for seed in (0, 0, 1)
    )
    assert first == again != other
    assert 15 < len(first) < 45


def test_time_selects_the_segments_to_read(archive: StoredArchive) -> None:
    entries = json.loads(archive.data(METADATA))["metadata"]["timeindex"]["entries"]
    for number, entry in enumerate(entries):
        entry["timestamp"] = 1000 + number
    document = json.loads(archive.data(METADATA))
    document["metadata"]["timeindex"]["entries"] = entries
    archive.rot(METADATA, json.dumps(document).encode())

    report = verify(archive, VerifyRequest(deep=True, since_ms=1002, until_ms=1003))
    assert report.totals.checked_segments == report.totals.segments == 2


def test_local_files_are_compared(archive: StoredArchive, log: PartitionLog) -> None:
    options = VerifyRequest(threads=2)
    directories = {TP: str(log.path)}
    report = verify(archive, options, directories=directories)
    assert kinds(report) == []
    assert report.totals.compared_segments == 5

    # The store has other bytes than the broker, under a checksum of their own.
    before = archive.data(archive.key(60))
    data = bytearray(before)
    data[700] ^= 1
    metadata = dict(archive.head(archive.key(60)).metadata)
    del metadata["sidetier-crc64nvme"]
    archive.store.put_object(archive.key(60), BytesBody(bytes(data)), PutOptions(metadata=metadata))
    report = verify(archive, options, directories=directories)
    assert kinds(report) == [("local_difference", segment(60))]

    # Another program has replaced the bytes, and kept the metadata.
    noted = {**metadata, "sidetier-crc64nvme": f"{crc64nvme(before):016x}"}
    archive.store.put_object(archive.key(60), BytesBody(before), PutOptions(metadata=noted))
    archive.store.overwrite(archive.key(60), bytes(data))
    report = verify(archive, options, directories=directories)
    assert kinds(report) == [("local_difference", segment(60))]


def test_every_kind_is_documented() -> None:
    assert set(KINDS) == set(FindingKind)
    page = (ROOT / "docs" / "verify.md").read_text(encoding="utf-8")
    for kind, (severity, meaning, remedy) in KINDS.items():
        assert f"| `{kind.value}` | {severity.value} | {meaning} | {remedy} |\n" in page
    severities = [KINDS[kind].severity for kind in KINDS]
    assert severities == sorted(severities, key=list(Severity).index)
    finding = Finding(FindingKind.MISSING_OFFSETS, TP, "k", segment(0), "d").as_json()
    assert (finding["severity"], finding["start_offset"], finding["end_offset"]) == ("error", 0, 60)


def at_first_listing(archive: StoredArchive, change: Callable[[], object]) -> None:
    """Let another process change the archive after `offset.wm` was read, before the listing."""
    archive.store.race("list", change, key=LAYOUT.partition_prefix(TP))


def without_last_segment(archived: StoredArchive) -> tuple[StoredArchive, Callable[[], None]]:
    """Return an archive up to 240, and the upload and commit of its last segment."""
    keys = [key for key in archived.store.contents() if f"/{240:020d}." in key]
    objects = {key: archived.store.get_object(key) for key in (*keys, WATERMARK, METADATA, EPOCHS)}
    for key in keys:
        archived.remove(key)
    without_entry(archived, 240)
    rewritten_watermark(
        archived, base_offset=BaseOffset(180), next_offset=Offset(240), epoch_history=None
    )

    def commit() -> None:
        for key in (*keys, EPOCHS, METADATA, WATERMARK):
            stored = objects[key]
            body = BytesBody(stored.data)
            archived.store.put_object(key, body, PutOptions(metadata=stored.head.metadata))

    return archived, commit


def test_commit_during_the_listing_is_no_finding(archive: StoredArchive) -> None:
    growing, commit = without_last_segment(archive)
    at_first_listing(growing, commit)

    report = verify(growing, LIGHT)
    assert [f.kind for f in report.findings()] == [FindingKind.NOT_COMMITTED]
    assert report.totals.segments == 4
    assert kinds(verify(growing)) == []


def test_half_an_upload_is_no_finding(archive: StoredArchive) -> None:
    """The files of a segment are stored one after the other, `.log` and `offset.wm` last."""
    growing, commit = without_last_segment(archive)
    growing.store.fail("put", StoreUnavailableError("killed"), nth=3)
    with pytest.raises(StoreUnavailableError):
        commit()

    assert [f.kind for f in verify(growing).findings()] == [FindingKind.NOT_COMMITTED]


def test_retention_during_the_listing_is_no_finding(archive: StoredArchive) -> None:
    def delete_oldest() -> None:
        watermark = decode_watermark(archive.data(WATERMARK), WATERMARK)
        moved = encode_watermark(replace(watermark, start_offset=Offset(60), nonce="another"))
        archive.store.put_object(WATERMARK, BytesBody(moved))
        without_entry(archive, 0)
        without_segment(archive, 0)

    at_first_listing(archive, delete_oldest)
    report = verify(archive, LIGHT)
    assert kinds(report) == []
    assert report.totals.segments == 4


def test_archive_that_changes_during_each_listing_is_not_judged(archive: StoredArchive) -> None:
    def delete_oldest() -> None:
        watermark = decode_watermark(archive.data(WATERMARK), WATERMARK)
        start = Offset((watermark.start_offset or 0) + 60)
        moved = encode_watermark(replace(watermark, start_offset=start, nonce=f"{start}"))
        archive.store.put_object(WATERMARK, BytesBody(moved))
        without_entry(archive, start - 60)
        without_segment(archive, start - 60)
        at_first_listing(archive, delete_oldest)

    at_first_listing(archive, delete_oldest)
    report = verify(archive, LIGHT)
    assert report.findings() == []
    [unread] = report.unread.values()
    assert "during each of 3 listings" in unread.error


def test_quarantine_during_the_listing_is_no_finding(archive: StoredArchive) -> None:
    """The last segment has moved, and its replacement is not committed yet."""

    def quarantine() -> None:
        watermark = decode_watermark(archive.data(WATERMARK), WATERMARK)
        moved = replace(
            watermark,
            base_offset=BaseOffset(180),
            next_offset=Offset(240),
            leader_epoch=LeaderEpoch(9),
            epoch_history=None,
        )
        without_segment(archive, 240)
        without_entry(archive, 240)
        archive.store.put_object(WATERMARK, BytesBody(encode_watermark(moved)))

    at_first_listing(archive, quarantine)
    assert kinds(verify(archive, LIGHT)) == []


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        (WATERMARK, FindingKind.DAMAGED_WATERMARK),
        (METADATA, FindingKind.DAMAGED_METADATA),
        (EPOCHS, FindingKind.DAMAGED_EPOCHS),
    ],
)
def test_small_object_whose_checksum_is_wrong_is_a_finding(
    key: str, kind: FindingKind, archive: StoredArchive
) -> None:
    """Adapters compare whole objects with the checksum of the upload."""
    error = ChecksumMismatchError("the CRC64NVME is another one")
    archive.store.fail("get", error, key=key, times=None)

    assert [found for found, _ in kinds(verify(archive, LIGHT))] == [kind.value]


def test_empty_acknowledgement_of_earlier_versions_counts(archive: StoredArchive) -> None:
    """The runbook once told operators to store an empty object."""
    without_segment(archive, 60)
    without_entry(archive, 60)
    write_gap(archive.store, LAYOUT, TP, segment(60), BrokerId(1), LeaderEpoch(4))
    assert read_unresolved(archive.store, LAYOUT, ()).gap_records == {TP: 60}
    key = LAYOUT.acknowledgement_key(LAYOUT.gap_key(TP, Offset(60), Offset(120)))
    archive.store.put_object(key, BytesBody(b""))

    [finding] = verify(archive, LIGHT).findings()
    assert finding.kind is FindingKind.ACKNOWLEDGED_GAP
    assert finding.detail == "60 offsets, acknowledged"


def test_acknowledged_gap_is_no_longer_counted_by_sidecars(archive: StoredArchive) -> None:
    write_gap(archive.store, LAYOUT, TP, segment(60), BrokerId(1), LeaderEpoch(4))
    acknowledged = Acknowledgement("INC-42", "ann", 1)
    archive.store.fail("put", StoreUnavailableError("the answer is lost"), after=True)
    with pytest.raises(StoreUnavailableError):
        acknowledge_gap(archive.store, LAYOUT, TP, segment(60), acknowledged)

    assert not acknowledge_gap(archive.store, LAYOUT, TP, segment(60), acknowledged)
    assert read_unresolved(archive.store, LAYOUT, ()).gap_records == {}
    [finding] = verify(archive, LIGHT).findings()
    assert finding.detail == "60 offsets, acknowledged by ann: INC-42"
