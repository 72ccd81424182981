"""Repairs make an archive clean again, and never write over a change of another process."""

import json
from collections.abc import Callable

import pytest

from sidetier.archive.gc.collector import PartitionCollector
from sidetier.archive.gc.retention import Need, Retention
from sidetier.archive.inventory.stored_partition import StoredPartition
from sidetier.archive.verify.findings import FindingKind
from sidetier.archive.verify.light import read_partition
from sidetier.archive.verify.run import Verification, VerifyRequest
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import Offset
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import PutOptions
from sidetier.uploader.archive.repair import (
    Repairer,
    RepairOutcome,
    carry_out,
    planned_repairs,
)
from tests.harness.archived_log import LAYOUT, TP, StoredArchive
from tests.harness.log_dir import TOPIC_ID

METADATA = LAYOUT.metadata_key(TP)
EPOCHS = LAYOUT.epoch_checkpoint_key(TP)


def kinds(archive: StoredArchive) -> list[FindingKind]:
    run = Verification(archive.access, VerifyRequest(deep=True, threads=2), lambda: 0)
    run.run([TP])
    assert not run.report.unread
    return [finding.kind for finding in run.report.findings()]


def repair(
    archive: StoredArchive, between: Callable[[], object] = lambda: None
) -> list[RepairOutcome]:
    run = Verification(archive.access, VerifyRequest(deep=True, threads=2), lambda: 0)
    run.run([TP])
    objects, _ = read_partition(StoredPartition(archive.store, LAYOUT, TP))
    repairs = planned_repairs(objects, run.report.findings(), LAYOUT)
    between()
    outcomes: list[RepairOutcome] = []
    carry_out(
        Repairer(StoredPartition(archive.store, LAYOUT, TP), objects), repairs, outcomes.append
    )
    return outcomes


def swapped_entries(archive: StoredArchive) -> None:
    key = archive.key(60, FileKind.INDEX)
    data = archive.data(key)
    archive.store.put_object(key, BytesBody(data[8:16] + data[:8] + data[16:]))


def without_entries(archive: StoredArchive) -> None:
    document = json.loads(archive.data(METADATA))
    index = document["metadata"]["timeindex"]
    index["entries"] = index["entries"][:2]
    archive.rot(METADATA, json.dumps(document).encode())


Damage = Callable[[StoredArchive], object]


@pytest.mark.parametrize(
    ("damage", "key"),
    [
        (lambda a: a.remove(a.key(60, FileKind.INDEX)), "00000000000000000060.index"),
        (lambda a: a.remove(a.key(60, FileKind.TIMEINDEX)), "00000000000000000060.timeindex"),
        (lambda a: a.rot(a.key(60, FileKind.INDEX), b"cut"), "00000000000000000060.index"),
        (swapped_entries, "00000000000000000060.index"),
        (lambda a: a.remove(METADATA), "_metadata"),
        (lambda a: a.rot(METADATA, b"{}"), "_metadata"),
        (without_entries, "_metadata"),
        (lambda a: a.remove(EPOCHS), "leader-epoch-checkpoint"),
        (lambda a: a.rot(EPOCHS, b"nonsense"), "leader-epoch-checkpoint"),
        (lambda a: a.rot(EPOCHS, b"0\n2\n0 0\n4 120\n"), "leader-epoch-checkpoint"),
    ],
)
def test_repaired_object_is_what_it_was(damage: Damage, key: str, archive: StoredArchive) -> None:
    before = archive.store.contents()
    damage(archive)
    assert kinds(archive)

    [outcome] = repair(archive)
    assert outcome.problem is None
    assert outcome.repair.key.endswith(f"/{key}")
    assert kinds(archive) == []
    assert repair(archive) == []
    after = archive.store.contents()
    changed = {name for name in before if after[name] != before[name]}
    # The times in a new `_metadata`, and the interval of rebuilt index entries, may differ.
    assert changed <= {outcome.repair.key}
    assert {name for name in after if name.endswith((".log", ".wm"))} == {
        name for name in before if name.endswith((".log", ".wm"))
    }
    if key == "leader-epoch-checkpoint":
        assert not changed


def test_leader_epochs_are_read_from_batches_where_no_metadata_has_them(
    archive: StoredArchive,
) -> None:
    before = archive.data(EPOCHS)
    for base in range(0, 300, 60):
        archive.note(archive.key(base), sidetier_epochs=None, sidetier_leader_epoch=None)
    archive.remove(EPOCHS)

    [outcome] = repair(archive)
    assert outcome.written == "leader epochs 0@0,4@180"
    assert archive.data(EPOCHS) == before


def test_change_of_another_process_is_not_overwritten(archive: StoredArchive) -> None:
    key = archive.key(60, FileKind.INDEX)
    archive.remove(key)
    archive.rot(EPOCHS, b"nonsense")

    def other() -> None:
        archive.store.put_object(key, BytesBody(b""))

    first, second = repair(archive, other)
    assert first.problem is not None
    assert "written by another process meanwhile; repeat the command" in first.problem
    assert archive.data(key) == b""
    assert second.problem is None


def test_entries_are_added_to_what_a_sidecar_has_written_meanwhile(archive: StoredArchive) -> None:
    whole = archive.data(METADATA)
    without_entries(archive)
    other = json.loads(whole)
    other["metadata"]["timeindex"]["entries"].append(
        {"timestamp": 2_000_000_000_000, "relativeOffset": 0, "baseOffset": 300}
    )
    del other["metadata"]["timeindex"]["entries"][2]

    [outcome] = repair(
        archive, lambda: archive.store.put_object(METADATA, BytesBody(json.dumps(other).encode()))
    )
    assert outcome.written == "1 entries added, 6 in total"


def test_segments_that_gc_deletes_meanwhile_get_no_entries(archive: StoredArchive) -> None:
    without_entries(archive)
    retention, needs = Retention(age=1.0), [Need(Offset(240), "test", TOPIC_ID)]
    gc = PartitionCollector(archive.store, LAYOUT, TP, retention, needs=needs)

    [outcome] = repair(archive, gc.collect)
    assert outcome.problem is not None
    assert "`sidetier gc`); repeat the command" in outcome.problem
    assert '"baseOffset":180' not in archive.data(METADATA).decode()
    [outcome] = repair(archive)
    assert outcome.written is not None
    assert kinds(archive) == []


def test_segment_that_is_replaced_meanwhile_gets_no_index(archive: StoredArchive) -> None:
    archive.remove(archive.key(60, FileKind.INDEX))
    log = archive.store.get_object(archive.key(60))

    [outcome] = repair(
        archive,
        lambda: archive.store.put_object(
            archive.key(60), BytesBody(log.data), PutOptions(metadata=log.head.metadata)
        ),
    )
    assert outcome.problem is not None
    assert "was replaced while it was read" in outcome.problem
    assert archive.key(60, FileKind.INDEX) not in archive.store.contents()


def test_metadata_of_overlapping_segments_is_not_guessed(archive: StoredArchive) -> None:
    stored = archive.store.get_object(archive.key(60))
    archive.remove(METADATA)
    for kind in (FileKind.INDEX, FileKind.TIMEINDEX):
        archive.store.put_object(archive.key(70, kind), BytesBody(b""))
    archive.store.put_object(
        archive.key(70), BytesBody(stored.data[70:]), PutOptions(metadata=stored.head.metadata)
    )

    outcomes = {o.repair.key: o.problem for o in repair(archive)}
    assert "overlaps" in (outcomes[METADATA] or "")
    assert METADATA not in archive.store.contents()


def test_damaged_log_is_not_touched(archive: StoredArchive) -> None:
    archive.remove(archive.key(60, FileKind.INDEX))
    archive.rot_bit(archive.key(60), 700)
    before = archive.store.contents()

    [outcome] = repair(archive)
    assert outcome.problem is not None
    assert "CRC32C" in outcome.problem
    assert archive.store.contents() == before
