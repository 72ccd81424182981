"""Truncated segments are quarantined, and the archive continues with the new leader's history."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TypeVar

import pytest
from prometheus_client import CollectorRegistry

from sidetier.archive.objects.pinterest_metadata import decode_metadata
from sidetier.archive.objects.watermark import encode_watermark
from sidetier.config.uploader import OnDivergence
from sidetier.segments.crc import crc64nvme
from sidetier.segments.errors import EncryptionKeyError, SidetierError
from sidetier.segments.names import FileKind
from sidetier.segments.notes import NONE, NOTE_KEYS
from sidetier.segments.offsets import BaseOffset, BrokerId, LeaderEpoch, Offset, TopicPartition
from sidetier.segments.txn_index import AbortedTxn, encode_txn_index
from sidetier.storage.bodies import BytesBody
from sidetier.storage.encrypted_format import is_encrypted
from sidetier.storage.encrypting import EncryptingStorage
from sidetier.storage.encryption_keys import Keyring
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import PutOptions, RemoteStorage
from sidetier.telemetry.metrics import Metrics
from sidetier.telemetry.status import PartitionState
from sidetier.uploader.archive import history
from sidetier.uploader.archive.archive_state import ArchiveState, Leader
from sidetier.uploader.archive.history import Histories, HistoryCheck
from sidetier.uploader.errors import DivergedError
from sidetier.uploader.gates.remembered_epochs import RememberedEpochs
from tests.harness.archive_sound import check_archive, recorded_gaps
from tests.harness.daemons import (
    LAYOUT,
    Site,
    key_of,
    place_of,
    stored_logs,
    stored_next,
    watermark_of,
)
from tests.harness.encryption import DecryptedView, encrypting, settings, without_keys
from tests.harness.intercepted_store import InterceptedStore, KilledError, MortalStore, StoreCall
from tests.harness.log_dir import TOPIC_ID, LogDir, PartitionLog, record_batch

T = TypeVar("T")
Part = Callable[[PartitionLog, FakeStorage], None]

pytestmark = pytest.mark.usefixtures("quick_gaps", "quick_divergences")


def archive(log: PartitionLog, store: RemoteStorage) -> None:
    """Archive the closed segments up to the committed end of the log."""
    directory = LogDir(log.path.parent)
    directory.partitions[log.tp] = log
    directory.checkpoint_high_watermarks()
    Site([directory], store).settle()


def part_at(divergence: int, more: int = 30) -> Part:
    """Store four segments; then elect a replica that ends at `divergence` and append to it."""

    def prepare(log: PartitionLog, store: FakeStorage) -> None:
        log.closed_segments(4)
        archive(log, store)
        elect(log, divergence, more)

    return prepare


def elect(log: PartitionLog, divergence: int, more: int = 30) -> None:
    log.truncate(divergence)
    log.lead(log.epoch + 1)
    if more:
        log.append(more)
        log.roll()


def part_in_a_gap(log: PartitionLog, store: FakeStorage) -> None:
    """Record the offsets [10, 30) as a gap; the elected replica ends within it."""
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


SCENARIOS: list[tuple[str, Part]] = [
    ("within a segment", part_at(15)),
    ("at a border", part_at(20)),
    ("before everything", part_at(0)),
    ("within the first segment", part_at(5)),
    ("within the last segment", part_at(35)),
    ("with less data", part_at(15, more=0)),
    ("in a gap", part_in_a_gap),
]


def check_history(log: PartitionLog, store: FakeStorage) -> None:
    """Assert that the archive is sound and holds the new history record by record."""
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
    """Quarantined objects by their name below the partition's quarantine prefix."""
    prefix = LAYOUT.quarantine_prefix(tp)
    return {
        key.removeprefix(prefix): data
        for key, data in store.contents().items()
        if key.startswith(prefix)
    }


@pytest.mark.parametrize("prepare", [row[1] for row in SCENARIOS], ids=[r[0] for r in SCENARIOS])
def test_archive_continues_with_the_new_history_and_loses_no_batch(
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


def test_new_history_below_a_start_that_a_killed_gc_has_moved_is_in_the_archive(
    log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    """The start was moved to 20 by gc, which deleted nothing yet; then the log diverges at 15."""
    part_at(15)(log, store)
    watermark = watermark_of(store, log.tp)
    assert watermark is not None
    moved = replace(watermark, start_offset=Offset(20))
    store.put_object(LAYOUT.watermark_key(log.tp), BytesBody(encode_watermark(moved)))
    log_dir.checkpoint_high_watermarks()
    Site([log_dir], store).settle()
    watermark = watermark_of(store, log.tp)
    assert watermark is not None
    assert watermark.start_offset == 15
    assert watermark.next_offset == Offset(log.active)


@dataclass
class Takeover:
    """Load the archive on this thread as a new leader's sidecar in the daemon does."""

    log: PartitionLog
    now: float = 0.0
    told: bool = True
    named_at: float = float("inf")
    uploading: bool = False
    on_divergence: OnDivergence = "quarantine"
    active: BaseOffset | None = None
    metrics: Metrics = field(default_factory=lambda: Metrics(CollectorRegistry()))
    epochs: RememberedEpochs = field(default_factory=RememberedEpochs)
    histories: Histories = field(init=False)

    def __post_init__(self) -> None:
        self.histories = Histories(self.on_divergence, "halt", lambda: self.now, self.metrics)

    def load(self, store: RemoteStorage) -> ArchiveState:
        return self.histories.load(place_of(store), self.look())

    def look(self) -> HistoryCheck:
        log = self.log
        leader = Leader(BrokerId(2), LeaderEpoch(log.epoch), TOPIC_ID)
        return HistoryCheck(
            log.tp,
            leader,
            str(log.path),
            log.active if self.active is None else self.active,
            epoch_from_cluster=self.told,
            named_at=self.named_at,
            uploading=self.uploading,
            epochs=self.epochs,
        )

    def settle(self, store: RemoteStorage) -> ArchiveState:
        """Load until the archive has a single history."""
        for _ in range(3):
            with suppress(DivergedError):
                return self.load(store)
            self.now += 3
        return self.load(store)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("prepare", [row[1] for row in SCENARIOS], ids=[r[0] for r in SCENARIOS])
def test_kill_at_any_request_of_a_quarantine_is_repaired_by_the_next_start(
    log: PartitionLog, store: FakeStorage, prepare: Part, *, after: bool
) -> None:
    prepare(log, store)
    undisturbed = copied(store)
    Takeover(log).settle(undisturbed)
    check_history(log, undisturbed)
    expected = outcome(undisturbed, log.tp)

    def settle(living: RemoteStorage) -> ArchiveState:
        return Takeover(log).settle(living)

    assert killed_at_every_request(log, store, settle, expected, after=after) >= 20


def killed_at_every_request(
    log: PartitionLog,
    store: FakeStorage,
    settle: Callable[[RemoteStorage], object],
    expected: object,
    *,
    after: bool,
) -> int:
    """Kill a start at each request and let the next start repair it; return the number of requests
    of one start.
    """
    before = batches_of(stored_logs(store, log.tp))
    for lives in count():
        survivor = copied(store)
        try:
            settle(MortalStore(survivor, lives, after=after))
        except KilledError:
            check_between(survivor, log, before)
        else:
            return lives
        settle(survivor)
        check_history(log, survivor)
        assert outcome(survivor, log.tp) == expected, f"after a kill at request {lives + 1}"
    raise AssertionError("never reached")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_the_kept_part_of_an_encrypted_segment_stays_encrypted_after_encryption_was_turned_off(
    log: PartitionLog, *, after: bool
) -> None:
    store = DecryptedView(lambda: 0)
    log.closed_segments(3)
    archive(log, encrypting(store))
    elect(log, 25)
    keys = Keyring(settings(None))

    def settle(living: RemoteStorage) -> ArchiveState:
        return Takeover(log).settle(EncryptingStorage(living, keys))

    undisturbed = copied(store)
    settle(undisturbed)
    check_history(log, undisturbed)
    assert [len(batches(data)) for data in stored_logs(undisturbed, log.tp).values()] == [2, 2, 1]
    raw = FakeStorage.contents(undisturbed)
    assert all(is_encrypted(raw[key_of(log.tp, base)]) for base in (0, 10, 20))
    expected = outcome(undisturbed, log.tp)
    assert killed_at_every_request(log, store, settle, expected, after=after) >= 20


def test_nothing_is_quarantined_without_the_key_of_the_segment_to_cut(log: PartitionLog) -> None:
    store = FakeStorage()
    log.closed_segments(3)
    archive(log, encrypting(store))
    elect(log, 25)
    before = store.contents()
    with pytest.raises(
        EncryptionKeyError, match=r"'k1', which is not .* storage\.encryption\.keys"
    ):
        Takeover(log).settle(without_keys(store))
    assert store.contents() == before


def copied(store: FakeStorage) -> FakeStorage:
    """Copy of the store with the same objects, including metadata."""
    another = DecryptedView(lambda: 0) if isinstance(store, DecryptedView) else FakeStorage()
    for row in list(store.list_objects("")):
        found = store.get_object(row.key)
        another.put_object(
            row.key,
            BytesBody(found.data),
            PutOptions(metadata=found.head.metadata, checksum=found.head.checksum),
        )
    return another


def check_between(store: FakeStorage, log: PartitionLog, before: set[bytes]) -> None:
    """Assert that nothing is lost, and that offsets below the watermark are complete and of one
    history.
    """
    tp = log.tp
    watermark = watermark_of(store, tp)
    if watermark is not None and int(watermark.base_offset) != watermark.next_offset:
        check_archive(store, tp)
    metadata = store.contents().get(LAYOUT.metadata_key(tp))
    if metadata is not None:
        named = {entry.base_offset for entry in decode_metadata(metadata, "_metadata").entries}
        assert named <= stored_logs(store, tp).keys()
    aside = {n: d for n, d in quarantined(store, tp).items() if n.endswith(".log")}
    there = batches_of(stored_logs(store, tp)) | batches_of(aside)
    assert before <= there, "a kill has lost what was stored"


def batches_of(logs: "dict[int, bytes] | dict[str, bytes]") -> set[bytes]:
    return {batch for data in logs.values() for batch in batches(data)}


def outcome(
    store: FakeStorage, tp: TopicPartition
) -> tuple[dict[int, bytes], int | None, list[tuple[int, int]], dict[str, bytes]]:
    aside = {n: d for n, d in quarantined(store, tp).items() if not n.endswith(".json")}
    return stored_logs(store, tp), stored_next(store, tp), recorded_gaps(store, tp), aside


def test_log_that_begins_within_a_stored_batch_proves_the_divergence(
    log: PartitionLog, store: FakeStorage
) -> None:
    """Found by random runs. The new leader's replica was truncated below its start, so an empty log
    begins there. Only the end offset shows that the batch [15, 20) is another one.
    """
    log.closed_segments(4)
    archive(log, store)
    before = batches_of(stored_logs(store, log.tp))
    log.begin_at(18)
    log.lead(1)
    log.closed_segments(2)
    assert Takeover(log).settle(store).next_offset == 15
    aside = {n: d for n, d in quarantined(store, log.tp).items() if n.endswith(".log")}
    assert before <= batches_of(stored_logs(store, log.tp)) | batches_of(aside)
    stored = stored_logs(store, log.tp)
    assert (list(stored), len(batches(stored[10]))) == ([0, 10], 1)


def test_late_segment_of_an_old_history_does_not_hide_the_divergence(
    log: PartitionLog, store: FakeStorage
) -> None:
    """Found by random runs. The segment overlaps the archive, belongs to a history that was
    truncated before, and `_metadata` does not list it.
    """
    log.lead(1)
    log.closed_segments(4)
    archive(log, store)
    late = record_batch(5, [b"late"] * 3, epoch=0)
    for kind, data in ((FileKind.INDEX, b""), (FileKind.TIMEINDEX, b""), (FileKind.LOG, late)):
        store.put_object(LAYOUT.object_key(log.tp, BaseOffset(5), kind), BytesBody(data))
    elect(log, 10)
    assert Takeover(log).settle(store).next_offset == 10
    check_history(log, store)
    assert list(stored_logs(store, log.tp)) == [0]
    assert "00000000000000000010-epoch-2/00000000000000000005.log" in quarantined(store, log.tp)


# -- false or unproven divergences -----------------------------------------------------------------


def untouched(store: FakeStorage, takeover: Takeover) -> DivergedError:
    """Assert that repeated loads write nothing; return the last error."""
    before, errors = store.contents(), []
    for _ in range(4):
        with pytest.raises(DivergedError) as caught:
            takeover.load(store)
        errors.append(caught.value)
        takeover.now += 60
    assert store.contents() == before
    return errors[-1]


def test_divergence_must_be_seen_twice_and_some_time_apart(
    log: PartitionLog, store: FakeStorage
) -> None:
    part_at(15)(log, store)
    before, takeover = store.contents(), Takeover(log)
    takeover.histories = Histories("quarantine", "halt", lambda: takeover.now, takeover.metrics)
    for _ in range(3):
        with pytest.raises(DivergedError, match="the sidecar checks again"):
            takeover.load(store)
    assert store.contents() == before


def test_retention_between_the_two_checks_does_not_restart_them(
    log: PartitionLog, store: FakeStorage
) -> None:
    """Retention moves the start of the first epoch in the checkpoint."""
    part_at(15)(log, store)
    takeover = Takeover(log)
    with pytest.raises(DivergedError, match="the sidecar checks again"):
        takeover.load(store)
    log.unlink(0)
    (log.path / "leader-epoch-checkpoint").write_text(f"0\n1\n{log.epoch} 25\n")
    takeover.now += 3
    assert takeover.load(store).next_offset == 15
    check_history(log, store)


def test_leader_that_has_not_written_its_epoch_yet_proves_no_divergence(
    log: PartitionLog, store: FakeStorage
) -> None:
    log.closed_segments(4)
    archive(log, store)
    log.truncate(15)
    log.epoch = 1
    assert "ends with 0" in str(untouched(store, Takeover(log)))


def test_shorter_log_without_an_election_proves_no_divergence(
    log: PartitionLog, store: FakeStorage
) -> None:
    log.closed_segments(4)
    archive(log, store)
    log.truncate(15)
    assert "no leader was elected" in str(untouched(store, Takeover(log)))


def test_listing_from_before_a_roll_proves_no_divergence(
    log: PartitionLog, store: FakeStorage
) -> None:
    """The election lost no record: the segment listed as active was closed just after the
    listing.
    """
    log.closed_segments(4)
    archive(log, store)
    log.lead(1)
    log.append(5)
    before = store.contents()
    assert Takeover(log, active=BaseOffset(20)).settle(store).next_offset == 40
    assert store.contents() == before


def test_epoch_that_no_broker_has_confirmed_proves_no_divergence(
    log: PartitionLog, store: FakeStorage
) -> None:
    part_at(15)(log, store)
    assert "gives no leader epoch" in str(untouched(store, Takeover(log, told=False)))


def test_quarantine_waits_for_uploads_under_way(log: PartitionLog, store: FakeStorage) -> None:
    part_at(15)(log, store)
    takeover = Takeover(log, uploading=True)
    untouched(store, takeover)
    takeover.uploading = False
    takeover.load(store)
    check_history(log, store)


def test_on_divergence_halt_moves_nothing_and_reports_the_reason(
    log: PartitionLog, store: FakeStorage
) -> None:
    part_at(15)(log, store)
    error = untouched(store, Takeover(log, on_divergence="halt"))
    assert "uploader.on_divergence is halt" in str(error)


@pytest.mark.parametrize("start", [20, 35, 60])
def test_deleted_records_are_no_divergence(
    log: PartitionLog, store: FakeStorage, start: int
) -> None:
    """Retention and DeleteRecords move the first start in the checkpoint."""
    log.closed_segments(4)
    archive(log, store)
    log.lead(1)
    log.closed_segments(3)
    for base in [base for base in log.bases() if base + 10 <= start]:
        log.unlink(base)
    epoch = 0 if start < 40 else 1
    rows = [(epoch, start), (1, 40)][: 2 - epoch]
    text = "".join(f"{row[0]} {row[1]}\n" for row in rows)
    (log.path / "leader-epoch-checkpoint").write_text(f"0\n{len(rows)}\n{text}")
    assert Takeover(log).load(store).next_offset == 40
    assert not quarantined(store, log.tp)


# -- two sidecars at once --------------------------------------------------------------------------


@pytest.mark.parametrize("lives", range(8, 53, 3))
def test_sidecar_paused_during_a_quarantine_changes_nothing_afterwards(
    log_dir: LogDir, log: PartitionLog, store: FakeStorage, lives: int
) -> None:
    """It is paused within a quarantine; a later leader finishes the quarantine and archives the new
    history. Then the paused sidecar sends its remaining requests.
    """
    part_at(15)(log, store)
    sleeper = SleepingStore(store, lives, lambda: go_on(log_dir, log, store))
    with suppress(SidetierError):
        Takeover(log).settle(sleeper)
    assert sleeper.slept
    after = {k: v for k, v in store.contents().items() if "/quarantine/" not in k}
    assert after == sleeper.seen
    check_history(log, store)


def go_on(log_dir: LogDir, log: PartitionLog, store: FakeStorage) -> dict[str, bytes]:
    log.lead(log.epoch + 1)
    log.closed_segments(2)
    log_dir.checkpoint_high_watermarks()
    Site([log_dir], store).settle()
    check_history(log, store)
    return {k: v for k, v in store.contents().items() if "/quarantine/" not in k}


class SleepingStore(InterceptedStore):
    """Pause the caller once (SIGSTOP) right before a request, while other sidecars work."""

    def __init__(
        self, store: FakeStorage, lives: int, meanwhile: Callable[[], dict[str, bytes]]
    ) -> None:
        super().__init__(store)
        self._left = lives
        self._meanwhile = meanwhile
        self.slept = False
        self.seen: dict[str, bytes] = {}

    def intercept(self, call: StoreCall) -> object:
        self._left -= 1
        if self._left == 0:
            self.slept = True
            self.seen = self._meanwhile()
        return super().intercept(call)


# -- files beside the segment that is cut ----------------------------------------------------------


@pytest.mark.parametrize(
    ("markers", "left"), [((12, 17), (12,)), ((17,), ())], ids=["some stay", "none stays"]
)
def test_abort_markers_from_the_divergence_on_are_removed_too(
    log: PartitionLog, store: FakeStorage, markers: tuple[int, ...], left: tuple[int, ...]
) -> None:
    log.closed_segments(4)
    archive(log, store)
    whole = encode_txn_index(aborted(*markers))
    store.put_object(key_of(log.tp, 10, FileKind.TXNINDEX), BytesBody(whole))
    note_beside(store, key_of(log.tp, 10), whole)
    elect(log, 15)
    Takeover(log).settle(store)
    contents = store.contents()
    expected = encode_txn_index(aborted(*left))
    assert contents.get(key_of(log.tp, 10, FileKind.TXNINDEX)) == (expected or None)
    told = store.head_object(key_of(log.tp, 10)).metadata[NOTE_KEYS[FileKind.TXNINDEX]]
    assert told == (f"{crc64nvme(expected):016x}" if left else NONE)
    assert whole in quarantined(store, log.tp).values()


def aborted(*markers: int) -> list[AbortedTxn]:
    return [AbortedTxn(7, Offset(10), Offset(marker), Offset(marker + 1)) for marker in markers]


def note_beside(store: FakeStorage, key: str, txn_index: bytes) -> None:
    found = store.get_object(key)
    note = {NOTE_KEYS[FileKind.TXNINDEX]: f"{crc64nvme(txn_index):016x}"}
    store.put_object(
        key, BytesBody(found.data), PutOptions(metadata={**found.head.metadata, **note})
    )


def test_status_reports_a_running_quarantine(
    log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    """From the first suspicion on. It is not a halt, because the partition continues by itself."""
    part_at(15)(log, store)
    log_dir.checkpoint_high_watermarks()
    with Site([log_dir], store).running() as running:
        with store.hold("copy"):
            running.wait(lambda: store.count("copy"), "the first copy")
            says = "from offset 15 on, are being moved to _sidetier/c/quarantine/t-0/"
            running.wait(
                lambda: (s := running.status(log.tp)) and says in (s.waiting_for or ""), "a status"
            )
            status = running.status(log.tp)
            assert status is not None
            assert status.state is PartitionState.QUARANTINING
        running.wait(
            lambda: (s := running.status(log.tp)) and s.state is PartitionState.ARCHIVED, "the end"
        )


def test_suspected_divergence_is_not_reported_as_a_halt(
    log_dir: LogDir, log: PartitionLog, store: FakeStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "CONFIRM_SECONDS", 3600.0)
    part_at(15)(log, store)
    log_dir.checkpoint_high_watermarks()
    with Site([log_dir], store).running() as running:
        running.wait(
            lambda: (
                (s := running.status(log.tp))
                and s.state is PartitionState.QUARANTINING
                and "the sidecar checks again" in (s.waiting_for or "")
            ),
            "the suspicion",
        )


def test_divergence_that_needs_an_operator_is_a_halt(
    log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    part_at(15)(log, store)
    log_dir.checkpoint_high_watermarks()
    with Site([log_dir], store).running(on_divergence="halt") as running:
        running.wait(
            lambda: (s := running.status(log.tp)) and s.state is PartitionState.HALTED, "the halt"
        )


def test_segments_of_another_history_above_the_watermark_are_quarantined(
    log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    """A former leader had begun these uploads; the watermark itself shows no divergence."""
    log.closed_segments(4)
    archive(log, store)
    watermark = watermark_of(store, log.tp)
    assert watermark is not None
    before = replace(watermark, base_offset=BaseOffset(10), next_offset=Offset(20), nonce="x")
    store.put_object(LAYOUT.watermark_key(log.tp), BytesBody(encode_watermark(before)))
    stored = batches_of(stored_logs(store, log.tp))
    elect(log, 20)
    log_dir.checkpoint_high_watermarks()
    Site([log_dir], store).settle()
    check_history(log, store)
    assert stored_next(store, log.tp) == log.active
    aside = {n: d for n, d in quarantined(store, log.tp).items() if n.endswith(".log")}
    assert stored <= batches_of(stored_logs(store, log.tp)) | batches_of(aside)


def test_segments_of_a_deleted_topic_are_quarantined_before_the_first_watermark(
    log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    """The topic was deleted before its first watermark; epochs and offsets of the new one are the
    same.
    """
    log.closed_segments(2)
    archive(log, store)
    store.delete_object(LAYOUT.watermark_key(log.tp))
    old = batches_of(stored_logs(store, log.tp))
    shutil.rmtree(log.path)
    another = log_dir.create(log.tp.topic, log.tp.partition, topic_id="BBBBBBBBBBBBBBBBBBBBBQ")
    another.closed_segments(3, 7)
    log_dir.checkpoint_high_watermarks()
    Site([log_dir], store).settle()
    check_history(another, store)
    assert stored_next(store, log.tp) == another.active
    aside = {n: d for n, d in quarantined(store, log.tp).items() if n.endswith(".log")}
    assert batches_of(aside) == old
