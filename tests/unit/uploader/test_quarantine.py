"""What the cluster has thrown away is set aside, and the archive goes on with the new history."""

import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from sidetier.segments.metadata import decode_metadata
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.uploader.daemon import DaemonDiedError
from tests.harness.archive_sound import check_archive, recorded_gaps
from tests.harness.daemons import (
    LAYOUT,
    Site,
    stored_logs,
    stored_next,
    watermark_of,
)
from tests.harness.log_dir import LogDir, PartitionLog
from tests.harness.mortal_store import MortalStore

Part = Callable[[PartitionLog, FakeStorage], None]
ONE_AT_A_TIME = {"threads": 1, "request_threads": 1}

pytestmark = pytest.mark.usefixtures("quick_gaps", "quick_forks")


def archive(log: PartitionLog, store: FakeStorage) -> None:
    """What is closed goes up, as far as the log says that it is committed."""
    directory = LogDir(log.path.parent)
    directory.partitions[log.tp] = log
    directory.checkpoint_high_watermarks()
    Site([directory], store).settle()


def part_at(fork: int, more: int = 30) -> Part:
    """Four segments are stored; then a replica that ends at `fork` is elected, and goes on."""

    def prepare(log: PartitionLog, store: FakeStorage) -> None:
        log.closed_segments(4)
        archive(log, store)
        elect(log, fork, more)

    return prepare


def elect(log: PartitionLog, fork: int, more: int = 30) -> None:
    log.truncate(fork)
    log.lead(log.epoch + 1)
    if more:
        log.append(more)
        log.roll()


def part_in_a_gap(log: PartitionLog, store: FakeStorage) -> None:
    """The records 10 to 29 are a recorded gap, and the replica that is elected ends within it."""
    log.closed_segments(1)
    archive(log, store)
    log.closed_segments(3)
    for base in (0, 10, 20):
        log.unlink(base)
    archive(log, store)
    assert recorded_gaps(store, log.tp) == [(10, 30)]
    shutil.rmtree(log.path)
    vars(log).update(vars(PartitionLog(log.path, log.tp, 0, 0)))  # another replica: the same bytes
    log.append(15)
    log.lead(1)
    log.append(30)
    log.roll()


def part_of_the_peers(log: PartitionLog, store: FakeStorage) -> None:
    """The archive is Pinterest's: no epoch, no note on any object, and no checksum."""
    part_at(15, more=10)(log, store)
    for key, data in store.contents().items():
        if key.startswith(LAYOUT.partition_prefix(log.tp)):
            text = data.split(b"\n")[0] if key.endswith("offset.wm") else data
            store.put_object(key, BytesBody(text))
    store.delete_object(LAYOUT.epoch_checkpoint_key(log.tp))


SCENARIOS: list[tuple[str, Part]] = [
    ("within a segment", part_at(15)),
    ("at a border", part_at(20)),
    ("before everything", part_at(0)),
    ("within the first segment", part_at(5)),
    ("within the last segment", part_at(35)),
    ("with less data", part_at(15, more=0)),
    ("in a gap", part_in_a_gap),
    ("of the peer", part_of_the_peers),
]


def check_history(log: PartitionLog, store: FakeStorage) -> None:
    """The archive is sound, and holds the new history record by record."""
    check_archive(store, log.tp)
    watermark = watermark_of(store, log.tp)
    assert watermark is None or watermark.pending is None
    new = {batch for data in log.written.values() for batch in batches(data)}
    covered = watermark.base_offset if watermark else -1
    for base, data in stored_logs(store, log.tp).items():
        assert base <= covered, "nothing of the thrown-away history is left above the watermark"
        assert set(batches(data)) <= new, f"{base}.log holds what the cluster has thrown away"


def batches(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        end = at + 12 + int.from_bytes(data[at + 8 : at + 12])
        found.append(data[at:end])
        at = end
    return found


def quarantined(store: FakeStorage, tp: TopicPartition) -> dict[str, bytes]:
    """What was set aside, by its name below the partition's quarantine."""
    prefix = LAYOUT.quarantine_prefix(tp)
    return {
        key.removeprefix(prefix): data
        for key, data in store.contents().items()
        if key.startswith(prefix)
    }


@pytest.mark.parametrize("prepare", [row[1] for row in SCENARIOS], ids=[r[0] for r in SCENARIOS])
def test_the_archive_goes_on_with_the_new_history_and_nothing_is_lost(
    log_dir: LogDir, log: PartitionLog, store: FakeStorage, prepare: Part
) -> None:
    prepare(log, store)
    before = stored_logs(store, log.tp)
    log_dir.checkpoint_high_watermarks()
    Site([log_dir], store).settle()
    check_history(log, store)
    assert (stored_next(store, log.tp) or 0) in {log.active, 15}
    kept = {batch for data in stored_logs(store, log.tp).values() for batch in batches(data)}
    aside = {
        batch
        for name, data in quarantined(store, log.tp).items()
        if name.endswith(".log")
        for batch in batches(data)
    }
    assert {batch for data in before.values() for batch in batches(data)} <= kept | aside


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("prepare", [row[1] for row in SCENARIOS], ids=[r[0] for r in SCENARIOS])
def test_a_kill_at_any_request_of_a_quarantine_is_mended_by_the_next_start(
    tmp_path: Path, prepare: Part, *, after: bool
) -> None:
    expected = _undisturbed(tmp_path / "undisturbed", prepare)
    kills = 0
    for lives in count():
        store = FakeStorage()
        log_dir = LogDir(tmp_path / f"killed-{lives}")
        log = log_dir.create()
        prepare(log, store)
        log_dir.checkpoint_high_watermarks()
        before = _batches_of(stored_logs(store, log.tp))
        site = Site([log_dir], MortalStore(store, lives, after=after))
        try:
            site.settle(**ONE_AT_A_TIME)
        except DaemonDiedError:
            kills += 1
        else:
            break
        _check_between(store, log, before)
        site.store = store
        site.settle()
        check_history(log, store)
        assert _outcome(store, log.tp) == expected, f"after a kill at request {lives + 1}"
    assert kills >= 15


def _check_between(store: FakeStorage, log: PartitionLog, before: set[bytes]) -> None:
    """Nothing is lost, and below the watermark nothing is missing, nor from two histories."""
    tp = log.tp
    watermark = watermark_of(store, tp)
    if watermark is not None and watermark.base_offset != watermark.next_offset:
        if watermark.next_offset is not None:
            check_archive(store, tp)
    metadata = store.contents().get(LAYOUT.metadata_key(tp))
    if metadata is not None:
        named = {entry.base_offset for entry in decode_metadata(metadata, "_metadata").entries}
        assert named <= stored_logs(store, tp).keys()
    aside = {n: d for n, d in quarantined(store, tp).items() if n.endswith(".log")}
    there = _batches_of(stored_logs(store, tp)) | _batches_of(aside)
    assert before <= there, "a kill has lost what was stored"


def _batches_of(logs: "dict[int, bytes] | dict[str, bytes]") -> set[bytes]:
    return {batch for data in logs.values() for batch in batches(data)}


def _outcome(
    store: FakeStorage, tp: TopicPartition
) -> tuple[dict[int, bytes], int | None, list[tuple[int, int]], dict[str, bytes]]:
    aside = {n: d for n, d in quarantined(store, tp).items() if n.endswith((".log", ".index"))}
    return stored_logs(store, tp), stored_next(store, tp), recorded_gaps(store, tp), aside


def _undisturbed(
    path: Path, prepare: Part
) -> tuple[dict[int, bytes], int | None, list[tuple[int, int]], dict[str, bytes]]:
    store = FakeStorage()
    log_dir = LogDir(path)
    log = log_dir.create()
    prepare(log, store)
    log_dir.checkpoint_high_watermarks()
    Site([log_dir], store).settle(**ONE_AT_A_TIME)
    check_history(log, store)
    return _outcome(store, log.tp)
