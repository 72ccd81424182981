"""A divergence below the archive end that the epoch of the archive end does not show.

A sidecar with a stale view has stored, in the name of a later epoch, records that an election had
discarded before. Only the stored `leader-epoch-checkpoint` shows this; it is compared before
anything is uploaded.
"""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TypeVar

import pytest
from prometheus_client import CollectorRegistry

from sidetier.archive.objects.watermark import encode_watermark
from sidetier.config.uploader import OnDivergence
from sidetier.leadership.port import HighWatermark, TopicConfig
from sidetier.segments.epoch_history import (
    Contradiction,
    EpochHistory,
    encode_leader_epoch_checkpoint,
)
from sidetier.segments.errors import ArchiveConflictError, SidetierError
from sidetier.segments.names import FileKind
from sidetier.segments.notes import EPOCHS_KEY, PLACE_KEY, RECORDS_KEY, SIZE_KEY
from sidetier.segments.offsets import BaseOffset, BrokerId, LeaderEpoch, Offset
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import RemoteStorage
from sidetier.telemetry.metrics import Metrics
from sidetier.telemetry.status import PartitionState
from sidetier.uploader.archive.archive_state import ArchiveState
from sidetier.uploader.archive.history import Histories
from sidetier.uploader.archive.requests import RequestWork
from sidetier.uploader.errors import DivergedError, DivergenceBelowError
from sidetier.uploader.state.events import Request
from sidetier.uploader.state.partition import Partition
from tests.harness.archive_sound import check_archive, recorded_gaps
from tests.harness.daemons import (
    LAYOUT,
    HighWatermarksByHand,
    LeadershipByHand,
    Site,
    place_of,
    stored_logs,
    stored_next,
    watermark_of,
)
from tests.harness.intercepted_store import InterceptedStore, KilledError, StoreCall
from tests.harness.log_dir import TOPIC_ID, LogDir, PartitionLog
from tests.unit.uploader.test_quarantine import (
    SleepingStore,
    Takeover,
    archive,
    batches_of,
    check_history,
    copied,
    elect,
    go_on,
    killed_at_every_request,
    outcome,
    quarantined,
)

T = TypeVar("T")

pytestmark = pytest.mark.usefixtures("quick_gaps", "quick_divergences")
FORKS = [0, 5, 15, 20, 35]
"""Below all segments, within the first segment, within another one, at a segment boundary, within
the last one.
"""


def part_unseen(log: PartitionLog, store: FakeStorage, divergence: int) -> None:
    """Archive four segments of epoch 0. From `divergence` on, the log has other segments of epoch
    1, and its leader has epoch 2; but the watermark says that a leader of epoch 1 stored
    everything.
    """
    log.closed_segments(4)
    archive(log, store)
    elect(log, divergence, more=60)
    log.lead(2)
    _write_in_epoch(store, log, 1)


def _write_in_epoch(
    store: FakeStorage, log: PartitionLog, epoch: int, *, epoch_history: bool = True
) -> None:
    watermark = watermark_of(store, log.tp)
    assert watermark is not None
    noted = watermark.epoch_history if epoch_history else None
    later = replace(watermark, leader_epoch=LeaderEpoch(epoch), nonce="n", epoch_history=noted)
    store.put_object(LAYOUT.watermark_key(log.tp), BytesBody(encode_watermark(later)))


def _write_epoch_history(store: FakeStorage, log: PartitionLog, *rows: tuple[int, int]) -> None:
    epoch_history = EpochHistory(
        tuple((LeaderEpoch(epoch), Offset(start)) for epoch, start in rows)
    )
    body = BytesBody(encode_leader_epoch_checkpoint(epoch_history).encode())
    store.put_object(LAYOUT.epoch_checkpoint_key(log.tp), body)


@dataclass
class Sidecar:
    """The requests of a leader's sidecar up to the point where uploads may begin, on this thread.

    Calls of `look` are three seconds apart; `named` is the delay after each of them until a broker
    names its epoch as the leader's, or None if no broker ever does.
    """

    log: PartitionLog
    epoch: int | None = None
    named: float | None = 1.0
    on_divergence: OnDivergence = "quarantine"
    compacted: bool = False
    now: float = 100.0
    histories: Histories = field(init=False)

    def __post_init__(self) -> None:
        metrics = Metrics(CollectorRegistry())
        self.histories = Histories(self.on_divergence, "halt", lambda: self.now, metrics)

    def settle(self, store: RemoteStorage) -> ArchiveState:
        """Call `look` until it finds nothing more."""
        for _ in range(4):
            with suppress(ArchiveConflictError):
                return self.look(store)
        return self.look(store)

    def look(self, store: RemoteStorage) -> ArchiveState:
        self.now += 3
        archive = self._make(store, Request.LOAD, None)
        while archive.present is None:
            archive = self._make(store, Request.PREPARE, archive)
        return archive

    def _make(
        self, store: RemoteStorage, request: Request, archive: ArchiveState | None
    ) -> ArchiveState:
        log, epoch = self.log, LeaderEpoch(self.log.epoch if self.epoch is None else self.epoch)
        partition = Partition(log.tp, epoch, TOPIC_ID, archive=archive)
        partition.directory, partition.log.active = str(log.path), log.active
        partition.epoch_from_cluster, partition.config = True, TopicConfig(compacted=self.compacted)
        if archive is not None and archive.next_offset is None:
            partition.archive = archive.beginning_at(Offset(0))
        place = place_of(store)
        begun = partition.asked(request)
        assert begun is not None
        work = RequestWork(
            BrokerId(2),
            lambda *_: float("-inf") if self.named is None else self.now - 3 + self.named,
            self.histories,
            from_latest=False,
        ).of(partition, begun, place)
        assert work is not None
        return work.run()


@pytest.mark.parametrize("divergence", FORKS)
def test_archive_continues_with_the_leaders_history_and_quarantines_the_rest(
    log_dir: LogDir, log: PartitionLog, store: FakeStorage, divergence: int
) -> None:
    part_unseen(log, store, divergence)
    before = batches_of(stored_logs(store, log.tp))
    log_dir.checkpoint_high_watermarks()
    Site([log_dir], store).settle()
    check_history(log, store)
    assert stored_next(store, log.tp) == log.active
    aside = {n: d for n, d in quarantined(store, log.tp).items() if n.endswith(".log")}
    assert before <= batches_of(stored_logs(store, log.tp)) | batches_of(aside)
    assert {name.split("/")[0] for name in aside} == {f"{divergence:020d}-epoch-2"}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("divergence", [0, 15, 20])
def test_kill_at_any_request_is_repaired_by_the_next_start(
    log: PartitionLog, store: FakeStorage, divergence: int, *, after: bool
) -> None:
    part_unseen(log, store, divergence)
    undisturbed = copied(store)
    assert Sidecar(log).settle(undisturbed).next_offset == divergence
    expected = outcome(undisturbed, log.tp)

    def settle(living: RemoteStorage) -> ArchiveState:
        return Sidecar(log).settle(living)

    assert killed_at_every_request(log, store, settle, expected, after=after) >= 25


@pytest.mark.parametrize("lives", range(2, 60, 3))
def test_requests_of_a_paused_sidecar_change_nothing(
    log_dir: LogDir, log: PartitionLog, store: FakeStorage, lives: int
) -> None:
    """Two sidecars believe they lead. One is paused at a request; the sidecar of a later leader
    quarantines the diverged segments and continues; then the first one sends its remaining
    requests.
    """
    part_unseen(log, store, 15)
    sleeper = SleepingStore(store, lives, lambda: go_on(log_dir, log, store))
    with suppress(SidetierError):
        Sidecar(log, epoch=log.epoch).settle(sleeper)
    assert sleeper.slept
    assert _without_quarantine(store) == sleeper.seen
    check_history(log, store)


def test_late_request_of_a_killed_sidecar_is_harmless(
    log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    """The sidecar is killed before every request in turn. The request itself arrives after the next
    start has quarantined everything and has stored the leader's history under the same keys.
    """
    log.closed_segments(4)
    archive(log, store)
    log.truncate(20)
    log.lead(1)
    log.closed_segments(4)
    log.lead(2)
    _write_in_epoch(store, log, 1)
    log_dir.checkpoint_high_watermarks()
    for lives in count():
        late = LateStore(copied(store), lives)
        try:
            Sidecar(log).settle(late)
        except KilledError:
            pass
        else:
            break
        Site([log_dir], late.store).settle()
        check_history(log, late.store)
        seen = _without_quarantine(late.store)
        late.arrive()
        assert _without_quarantine(late.store) == seen, f"request {lives + 1} came late"
    assert lives >= 25


class LateStore(InterceptedStore):
    """Kill the caller at a request that is already on the wire and arrives later."""

    def __init__(self, store: FakeStorage, lives: int) -> None:
        super().__init__(store)
        self._left = lives
        self._late: list[StoreCall] = []

    def arrive(self) -> None:
        """Let the request take effect or be refused; the sender sees no answer."""
        self._left = -1
        with suppress(SidetierError):
            self._late[0].effect(self.store)

    def intercept(self, call: StoreCall) -> object:
        if self._left == 0:
            self._late.append(call)
            raise KilledError
        self._left -= 1
        return super().intercept(call)


def _without_quarantine(store: FakeStorage) -> dict[str, bytes]:
    return {key: data for key, data in store.contents().items() if "/quarantine/" not in key}


# -- cases that must be left alone -----------------------------------------------------------------


def untouched(store: FakeStorage, sidecar: Sidecar) -> DivergedError:
    """Assert that repeated looks write nothing; return the last error."""
    before, errors = store.contents(), []
    for _ in range(4):
        with pytest.raises(DivergedError) as caught:
            sidecar.look(store)
        errors.append(caught.value)
    assert store.contents() == before
    return errors[-1]


@pytest.mark.parametrize("named", [None, -1000.0], ids=["never", "before it was suspected"])
def test_nothing_is_moved_before_a_broker_names_the_leader_again(
    log: PartitionLog, store: FakeStorage, named: float | None
) -> None:
    part_unseen(log, store, 15)
    error = untouched(store, Sidecar(log, named=named))
    assert "waits until a broker confirms that this broker leads in epoch 2" in str(error)


@pytest.mark.parametrize("ours", [10, 20])
def test_stale_log_never_quarantines_segments_of_a_later_leader(
    log: PartitionLog, store: FakeStorage, ours: int
) -> None:
    """Our broker led in epoch 1 from there on and has not heard that epoch 3 began at 20; the
    writer of the archive believed in an even earlier epoch.
    """
    log.append(20)
    log.roll()
    log.lead(3)
    log.closed_segments(2)
    archive(log, store)
    _write_in_epoch(store, log, 0)
    log.truncate(ours)
    log.lead(1)
    log.append(40)
    error = untouched(store, Sidecar(log))
    assert "nothing is moved: no leader was elected since" in str(error)
    assert "(epoch 3)" in str(error)


def test_broker_that_follows_another_leader_proves_nothing(
    log: PartitionLog, store: FakeStorage
) -> None:
    part_unseen(log, store, 15)
    error = untouched(store, Sidecar(log, epoch=1))
    assert "leads in epoch 1, but its leader-epoch-checkpoint ends with 2" in str(error)


def test_on_divergence_halt_moves_nothing_and_reports_the_reason(
    log: PartitionLog, store: FakeStorage
) -> None:
    part_unseen(log, store, 15)
    error = untouched(store, Sidecar(log, on_divergence="halt"))
    assert "offset 15 is of leader epoch 0 in the archive and of 1 in the log" in str(error)
    assert "uploader.on_divergence is halt" in str(error)


def test_nothing_is_moved_when_the_stored_batches_match_the_log(
    log: PartitionLog, store: FakeStorage
) -> None:
    """Only the stored checkpoint contradicts the log: the checkpoint is damaged, not the archive.
    Where the watermark proves that, the checkpoint is written again.
    """
    log.closed_segments(2)
    log.lead(1)
    log.closed_segments(2)
    archive(log, store)
    log.lead(2)
    key, told = LAYOUT.epoch_checkpoint_key(log.tp), copied(store)
    for one in (store, told):
        _write_epoch_history(one, log, (0, 0))
    assert Sidecar(log).look(told).next_offset == 40
    assert told.contents()[key] == b"0\n2\n0 0\n1 20\n"
    _write_in_epoch(store, log, 1, epoch_history=False)  # as an earlier sidetier version did
    halted = str(untouched(store, Sidecar(log)))
    assert "are of this log's epoch history: nothing is moved" in halted
    store.delete_object(key)  # as operations.md says: the file is written again
    assert Sidecar(log).look(store).next_offset == 40


def test_divergence_below_segments_of_a_restarted_log_is_detected(
    log: PartitionLog, store: FakeStorage
) -> None:
    """Found by random runs. A truncation below its start emptied the log; it began again at 20, and
    its leader continued there. The next leader knows that epoch 1 began at 15 and which records
    were truncated.
    """
    log.closed_segments(2)
    archive(log, store)
    log.truncate(15)
    log.lead(1)
    log.append(5)
    log.roll()
    log.closed_segments(2)
    known, log._epochs = log._epochs, [(1, 20)]
    log._write_epochs()
    below = {path: path.read_bytes() for base in (0, 10) for path in log.path.glob(f"{base:020}.*")}
    for path in below:
        path.unlink()
    archive(log, store)
    log._epochs = known
    for path, data in below.items():
        path.write_bytes(data)
    log.lead(2)
    assert stored_next(store, log.tp) == 40
    assert Sidecar(log).settle(store).next_offset == 15
    check_history(log, store)


@pytest.mark.parametrize("divergence", FORKS)
def test_divergence_is_detected_after_the_leader_overwrote_the_epoch_history(
    log_dir: LogDir, log: PartitionLog, store: FakeStorage, divergence: int
) -> None:
    """A follower archived the truncated records in the leader's epoch, because its own checkpoint
    no longer reached back that far. The leader's commit lost the race, but its epoch history was
    written last.
    """
    part_unseen(log, store, divergence)
    _write_in_epoch(store, log, 2)
    _write_epoch_history(store, log, *([(0, 0)] if divergence else []), (1, divergence))
    log_dir.checkpoint_high_watermarks()
    Site([log_dir], store).settle()
    check_history(log, store)
    assert stored_next(store, log.tp) == log.active
    assert any(name.endswith(".log") for name in quarantined(store, log.tp))


def test_segment_cut_at_a_divergence_notes_what_it_still_has(
    log: PartitionLog, store: FakeStorage
) -> None:
    """Otherwise nothing shows that the epoch history of another writer replaced the true one."""
    part_unseen(log, store, 15)
    assert Sidecar(log).settle(store).next_offset == 15
    cut = LAYOUT.object_key(log.tp, BaseOffset(10), FileKind.LOG)
    head = store.head_object(cut)
    assert head.metadata[EPOCHS_KEY] == "0@10"
    assert head.metadata[RECORDS_KEY] == "5"
    assert head.metadata[SIZE_KEY] == str(head.size)
    assert head.metadata[PLACE_KEY] == f"{log.tp}/{10:020d}"


@pytest.mark.parametrize(
    ("compacted", "rows"), [(False, "0 0\n1 23\n2 50\n"), (True, "0 0\n2 50\n")]
)
def test_compaction_is_not_taken_for_an_election(
    log: PartitionLog, store: FakeStorage, rows: str, *, compacted: bool
) -> None:
    """Compaction removed the first records of epoch 1 from the log before the topic's settings
    changed; or it removed all of them from the replica this one was copied from.
    """
    log.closed_segments(2)
    log.lead(1)
    log.closed_segments(3)
    archive(log, store)
    log.lead(2)
    count = rows.count("\n")
    (log.path / "leader-epoch-checkpoint").write_text(f"0\n{count}\n{rows}")
    assert Sidecar(log, compacted=compacted).look(store).next_offset == 50
    assert not quarantined(store, log.tp)


def test_divergence_that_no_stored_batch_shows_is_left_alone(
    log: PartitionLog, store: FakeStorage
) -> None:
    """The last segment is followed by a gap whose record is missing; epoch 1 began within the
    gap.
    """
    log.closed_segments(4)
    archive(log, store)
    watermark = watermark_of(store, log.tp)
    assert watermark is not None
    moved = replace(watermark, next_offset=Offset(50), leader_epoch=LeaderEpoch(1))
    store.put_object(LAYOUT.watermark_key(log.tp), BytesBody(encode_watermark(moved)))
    log.append(5)
    log.lead(1)
    log.append(15)
    log.lead(2)
    assert "no stored record batch is of another history" in str(untouched(store, Sidecar(log)))


def test_epoch_that_began_in_a_gap_is_no_divergence(
    log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    log.closed_segment()
    archive(log, store)
    log.append(5)
    log.lead(1)
    log.append(5)
    lost = BaseOffset(log.active)
    log.roll()
    log.closed_segments(2)
    for base in (0, lost):
        log.unlink(base)
    log_dir.checkpoint_high_watermarks()
    Site([log_dir], store).settle()
    log.closed_segments(1)
    log_dir.checkpoint_high_watermarks()
    Site([log_dir], store).settle()
    assert recorded_gaps(store, log.tp) == [(lost, 20)]
    assert stored_next(store, log.tp) == log.active
    assert not quarantined(store, log.tp)
    check_archive(store, log.tp)


def test_epochs_of_an_abandoned_commit_do_not_survive_a_gap(
    log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    """They were noted where the gap is now, and belong to another history than the leader's."""
    log.closed_segment()
    archive(log, store)
    key = LAYOUT.epoch_checkpoint_key(log.tp)
    store.put_object(key, BytesBody(b"0\n2\n0 0\n3 12\n"))
    log.lead(4)
    lost, *_ = log.closed_segments(2)
    for base in (0, lost):
        log.unlink(base)
    log_dir.checkpoint_high_watermarks()
    with Site([log_dir], store).running() as running:
        running.wait(lambda: stored_next(store, log.tp) == log.active, "what lies behind the gap")
    assert recorded_gaps(store, log.tp) == [(lost, 20)]
    assert store.contents()[key] == b"0\n2\n0 0\n4 10\n"


def test_suspicion_that_did_not_persist_is_forgotten(log: PartitionLog, store: FakeStorage) -> None:
    """The same finding a day later counts as the first one."""
    part_unseen(log, store, 15)
    sidecar = Sidecar(log)
    with pytest.raises(DivergedError, match="the sidecar checks again"):
        sidecar.look(store)
    checkpoint = log.path / "leader-epoch-checkpoint"
    text = checkpoint.read_text()
    checkpoint.write_text("0\n1\n0 0\n")
    sidecar.look(store)
    checkpoint.write_text(text)
    with pytest.raises(DivergedError, match="the sidecar checks again"):
        sidecar.look(store)


# -- the whole daemon ------------------------------------------------------------------------------


def test_daemon_continues_once_a_broker_names_the_leader(
    log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    part_unseen(log, store, 15)
    log_dir.checkpoint_high_watermarks()
    brokers = HighWatermarksByHand({log.tp: HighWatermark(Offset(75), LeaderEpoch(3))})
    with Site([log_dir], store, high_watermarks=brokers).running() as running:
        running.wait(
            lambda: (
                (s := running.status(log.tp))
                and s.state is PartitionState.QUARANTINING
                and "waits until a broker confirms" in (s.waiting_for or "")
            ),
            "the suspicion",
        )
        running.wait(lambda: len(brokers.asked) > 5, "brokers were asked, again and again")
        assert not quarantined(store, log.tp)
        brokers.answers[log.tp] = HighWatermark(Offset(75), LeaderEpoch(2))
        running.wait(lambda: stored_next(store, log.tp) == log.active, "the leader's history")
    check_history(log, store)


def test_divergence_during_uploads_is_detected_at_the_commit(
    log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    """The sidecar moves nothing until it hears of the election."""
    log.closed_segments(4)
    log_dir.checkpoint_high_watermarks()
    leadership = LeadershipByHand({log.tp: 0})
    with Site([log_dir], store, leadership).running() as running:
        running.wait(lambda: stored_next(store, log.tp) == 40, "what was there")
        before = stored_logs(store, log.tp)
        elect(log, 15, more=60)
        log_dir.checkpoint_high_watermarks()
        running.wait(
            lambda: (s := running.status(log.tp)) and "ends with 1" in (s.last_error or ""),
            "the refusal",
        )
        assert stored_next(store, log.tp) == 40
        assert stored_logs(store, log.tp).items() >= before.items()
        assert not quarantined(store, log.tp)
        leadership.lead(log.tp, 1)
        running.wait(lambda: stored_next(store, log.tp) == log.active, "the leader's history")
    check_history(log, store)


def test_divergence_noted_by_a_segment_counts_after_the_checkpoint_dropped_it(
    log: PartitionLog, store: FakeStorage
) -> None:
    """The broker has deleted the records of both histories around the divergence; a segment that
    begins there was stored before that.
    """
    part_unseen(log, store, 15)
    for base in [base for base in log.bases() if base < 50]:
        log.unlink(base)
    (log.path / "leader-epoch-checkpoint").write_text("0\n2\n1 50\n2 75\n")
    takeover = Takeover(log)
    archived = takeover.load(store)
    assert archived.next_offset == 40
    told = Contradiction(Offset(15), LeaderEpoch(0), LeaderEpoch(1), LeaderEpoch(0))
    error = DivergenceBelowError("offset 15 is of another leader epoch in the log", told)
    with pytest.raises(DivergedError, match="the sidecar checks again"):
        takeover.histories.resolve(place_of(store), takeover.look(), archived, error)
    takeover.now += 3
    mended = takeover.histories.resolve(place_of(store), takeover.look(), archived, error)
    assert mended.next_offset == 15
    check_history(log, store)
