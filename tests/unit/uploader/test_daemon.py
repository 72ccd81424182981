"""The daemon in normal operation: it finds closed segments, stores each once, follows
leadership.
"""

import pytest

from sidetier.archive.objects.acknowledgements import Acknowledgement, accept_loss
from sidetier.archive.objects.drill_record import DrillRecord, encode_drill, record_drill
from sidetier.archive.objects.notes import noted_records
from sidetier.archive.objects.watermark import Watermark, encode_watermark
from sidetier.leadership.port import HighWatermark, TopicConfig
from sidetier.segments.errors import PreconditionFailedError
from sidetier.segments.offsets import LeaderEpoch, Offset, OffsetRange, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.storage.retrying import RetryingStorage
from sidetier.telemetry.status import DrillStatus, PartitionState
from sidetier.uploader.clock import SYSTEM_CLOCK, Clock
from tests.harness.archive_sound import check_archive, recorded_gaps
from tests.harness.batches import make_batch
from tests.harness.daemons import (
    LAYOUT,
    ConfigsByHand,
    HighWatermarksByHand,
    LeadershipByHand,
    RunningDaemon,
    Site,
    key_of,
    stored_logs,
    stored_next,
    watermark_of,
)
from tests.harness.log_dir import TOPIC_ID, LogDir, PartitionLog


def wait_for_next(running: RunningDaemon, store: FakeStorage, log: PartitionLog) -> None:
    running.wait(
        lambda: stored_next(store, log.tp) == log.active, f"{log.tp} to be stored to {log.active}"
    )


def test_every_closed_segment_is_stored_unchanged(
    site: Site, log_dir: LogDir, store: FakeStorage
) -> None:
    logs = [log_dir.create(topic, number) for topic in ("a", "b") for number in (0, 1)]
    for log in logs:
        log.closed_segments(3)
        log.append(4)
    log_dir.checkpoint_high_watermarks()
    site.settle()
    for log in logs:
        assert stored_logs(store, log.tp) == {base: log.written[base] for base in (0, 10, 20)}
        assert stored_next(store, log.tp) == 30
        check_archive(store, log.tp)


def test_watermark_names_broker_leader_epoch_and_topic_id(
    site: Site, log: PartitionLog, store: FakeStorage
) -> None:
    log.lead(4)
    log.closed_segments(1)
    site.log_dirs[0].checkpoint_high_watermarks()
    site.broker_id = 7
    site.settle()
    watermark = watermark_of(store, log.tp)
    assert watermark is not None
    assert (watermark.base_offset, watermark.next_offset) == (0, 10)
    assert (watermark.broker_id, watermark.leader_epoch) == (7, 4)
    assert watermark.topic_id == TOPIC_ID
    assert watermark.nonce


def test_record_count_of_a_segment_is_stored_in_its_metadata(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    log.closed_segments(2)
    log_dir.checkpoint_high_watermarks()
    site.settle()
    assert noted_records(store.head_object(key_of(log.tp, 10))) == 10


def test_restart_uploads_nothing_again(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    log.closed_segments(4)
    log_dir.checkpoint_high_watermarks()
    site.settle()
    puts, requests = store.count("put"), len(store.requests)
    site.settle()
    assert store.count("put") == puts
    assert len(store.requests) == requests + 1, "one look at the watermark is all it takes"


def test_segment_of_three_files_takes_at_most_six_requests(
    site: Site, log_dir: LogDir, store: FakeStorage
) -> None:
    for number in range(4):
        log_dir.create("t", number).closed_segments(5)
    log_dir.checkpoint_high_watermarks()
    site.settle(threads=1, request_threads=1)
    assert len(store.requests) <= 6 * 4 * 5


@pytest.mark.parametrize("mode", ["inotify", "polling"])
def test_partition_created_while_the_daemon_runs_is_found(
    site: Site, log_dir: LogDir, store: FakeStorage, mode: str
) -> None:
    leadership = site.leadership = LeadershipByHand()
    with site.running(watch=mode, poll_interval=0.02) as running:
        tp = TopicPartition("new", 3)
        leadership.lead(tp, 0)  # the leader is known before the directory is there
        log = log_dir.create("new", 3)
        log.closed_segments(2)
        log_dir.checkpoint_high_watermarks()
        wait_for_next(running, store, log)


# -- the high watermark gate ----------------------------------------------------------------------


def test_segments_truncated_above_the_high_watermark_are_never_uploaded(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    """Observed on a broker: segments above the high watermark close and are truncated, and the same
    base offset gets other records under a later leader.
    """
    log.closed_segments(3)
    log.append(3)
    dropped = log.written[10]
    log_dir.checkpoint_high_watermarks({log.tp: 10})
    leadership = site.leadership = LeadershipByHand({log.tp: 0})
    with site.running() as running:
        running.wait(lambda: stored_next(store, log.tp) == 10, "what is committed")
        leadership.lose(log.tp)
        log.truncate(10)
        log.lead(2)
        log.closed_segments(2)
        log_dir.checkpoint_high_watermarks()
        leadership.lead(log.tp, 2)
        wait_for_next(running, store, log)
    assert stored_logs(store, log.tp) == {base: log.written[base] for base in (0, 10, 20)}
    assert dropped not in store.contents().values()
    assert recorded_gaps(store, log.tp) == []


def test_high_watermark_of_another_leader_epoch_is_ignored(
    site: Site, log: PartitionLog, store: FakeStorage
) -> None:
    log.closed_segments(2)
    asked = HighWatermarksByHand({log.tp: HighWatermark(Offset(20), LeaderEpoch(1))})
    site.high_watermarks = asked
    with site.running() as running:
        running.wait(lambda: len(asked.asked) >= 3, "three questions")
        assert stored_logs(store, log.tp) == {}
        asked.answers[log.tp] = HighWatermark(Offset(20), LeaderEpoch(0))
        wait_for_next(running, store, log)
    assert asked.closed


# -- leadership -----------------------------------------------------------------------------------


def test_watermark_beyond_the_log_end_stops_uploads_and_gap_records(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    ahead = Watermark(log.active, Offset(1000), nonce="n")
    store.put_object(LAYOUT.watermark_key(log.tp), BytesBody(encode_watermark(ahead)))
    log.closed_segments(2)
    log_dir.checkpoint_high_watermarks()
    with site.running() as running:
        running.wait(
            lambda: (s := running.status(log.tp)) is not None and "1000" in (s.last_error or ""),
            "the status to say how far the archive reaches",
        )
    assert store.count("put") == 1
    assert watermark_of(store, log.tp) == ahead


def test_two_daemons_that_both_believe_they_lead_can_share_a_store(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    """Equal replicas in the same epoch: the loser of a race finds the same bytes in the store."""
    log.closed_segments(20)
    log_dir.checkpoint_high_watermarks()
    other = Site([log_dir], store, broker_id=2)
    with site.running() as one, other.running() as two:
        for running in (one, two):
            wait_for_next(running, store, log)
    check_archive(store, log.tp)
    assert stored_logs(store, log.tp) == {base: log.written[base] for base in range(0, 200, 10)}


def test_segment_beyond_retention_bytes_is_due_at_once(
    site: Site, log_dir: LogDir, store: FakeStorage
) -> None:
    """Kafka deletes from the log start while at least retention.bytes remain."""
    log = log_dir.create("t")
    log.closed_segments(3)
    for base in (0, 10, 20):
        log.set_age(base, 0)
    site.topic_configs = ConfigsByHand(
        {"t": TopicConfig(retention=86400.0, retention_bytes=2 * len(log.written[0]))}
    )
    store.refuse(key_of(log.tp, 0))
    log_dir.checkpoint_high_watermarks()
    with site.running(rescan_interval=0.2, local_delete_delay=60) as running:

        def due() -> bool:
            status = running.status(log.tp)
            left = None if status is None else status.seconds_until_local_deletion
            return left is not None and left <= 60

        running.wait(due, "the deletion by size")


def test_records_of_the_active_segment_are_reported_as_not_archived(
    site: Site, log_dir: LogDir, store: FakeStorage
) -> None:
    archived, never_rolled = log_dir.create("archived"), log_dir.create("never-rolled")
    archived.closed_segments(2)
    archived.append(7)
    never_rolled.append(5)
    log_dir.checkpoint_high_watermarks()
    with site.running() as running:
        wait_for_next(running, store, archived)

        def told(log: PartitionLog, start: int, records: int) -> bool:
            status = running.status(log.tp)
            return status is not None and (
                status.state is PartitionState.ARCHIVED
                and status.log_end == start + records
                and status.unarchived_records == records
                and status.unarchived_bytes == len(log.written[start])
                and status.unarchived_age_seconds is not None
                and status.unarchived_age_seconds < 3600
            )

        running.wait(lambda: told(archived, 20, 7), "the records of the active segment")
        running.wait(lambda: told(never_rolled, 0, 5), "those of a log without a closed segment")


def test_gaps_and_quarantines_are_reported_until_they_are_acknowledged(
    site: Site, log_dir: LogDir, store: FakeStorage
) -> None:
    """Also after a restart: the status comes from the store, not from memory."""
    log = log_dir.create("t")
    log.closed_segments(1)
    log_dir.checkpoint_high_watermarks()
    gap = LAYOUT.gap_key(log.tp, Offset(100), Offset(120))
    quarantine = f"{LAYOUT.quarantine_prefix(log.tp)}one/"
    for key in (gap, f"{quarantine}plan.json"):
        store.put_object(key, BytesBody(b"{}"))
    ahead = 0.0
    site.clock = Clock(lambda: SYSTEM_CLOCK.monotonic() + ahead, SYSTEM_CLOCK.wall)
    with site.running() as running:
        wait_for_next(running, store, log)

        def told() -> tuple[int | None, int | None, tuple[tuple[Offset, Offset], ...]]:
            status = running.status(log.tp)
            assert status is not None
            return status.unresolved_gap_records, status.unresolved_quarantines, status.gaps

        gaps = ((Offset(100), Offset(120)),)
        assert told() == (None, None, ())
        ahead += 60
        running.wait(lambda: told() == (20, 1, gaps), "the first reading")
        for key in (gap, f"{quarantine.rstrip('/')}.json"):
            store.put_object(LAYOUT.acknowledgement_key(key), BytesBody(b"{}"))
        ahead += 600
        running.wait(lambda: told() == (0, 0, gaps), "the acknowledgements")


def test_last_drill_is_reported_as_recorded_in_the_store(
    site: Site, log_dir: LogDir, store: FakeStorage
) -> None:
    log = log_dir.create("t")
    log.closed_segments(1)
    log_dir.checkpoint_high_watermarks()
    ahead = 0.0
    site.clock = Clock(lambda: SYSTEM_CLOCK.monotonic() + ahead, SYSTEM_CLOCK.wall)
    with site.running() as running:
        wait_for_next(running, store, log)

        def told() -> DrillStatus | None:
            return running.daemon.status.snapshot().last_drill

        assert told() is None
        success = DrillRecord(7000, succeeded=True, seed=1, partitions=1, records=1, bytes=1)
        record_drill(store, LAYOUT, success)
        ahead += 60
        expected = DrillStatus(7000, succeeded=True, last_successful_ms=7000)
        running.wait(lambda: told() == expected, "the first reading")
        store.put_object(LAYOUT.drill_key(), BytesBody(b"{}"))
        ahead += 600
        running.wait(lambda: told() is None, "a record that does not parse")
        record = DrillRecord(9000, False, 1, 1, 1, 1, ("t-0: x",), 7000)  # noqa: FBT003
        store.put_object(LAYOUT.drill_key(), BytesBody(encode_drill(record)))
        ahead += 600
        expected = DrillStatus(9000, succeeded=False, last_successful_ms=7000, problem="t-0: x")
        running.wait(lambda: told() == expected, "a drill that failed")


def test_archive_of_an_upgraded_topic_begins_behind_the_old_message_format(
    site: Site, log_dir: LogDir, store: FakeStorage
) -> None:
    """Its records of the old format have no leader epoch, so the log's epochs begin later."""
    log = log_dir.create("t")
    log.closed_segments(4)
    for base in (0, 10):
        log.file(base).write_bytes(make_batch(base, 10, magic=0))
    log.path.joinpath("leader-epoch-checkpoint").write_text("0\n1\n0 20\n")
    log_dir.checkpoint_high_watermarks()
    lost = OffsetRange(Offset(0), Offset(20))
    assert accept_loss(store, LAYOUT, log.tp, lost, Acknowledgement("INC-1"))
    with site.running() as running:
        wait_for_next(running, store, log)
        status = running.status(log.tp)
        assert status is not None
        assert status.last_error is None
    assert recorded_gaps(store, log.tp) == [(0, 20)]
    assert sorted(stored_logs(store, log.tp)) == [20, 30]
    assert stored_next(store, log.tp) == 40


@pytest.mark.parametrize("name", ["offset.wm", "_metadata", "leader-epoch-checkpoint"])
def test_store_that_refuses_conditions_that_hold_is_named(
    site: Site, log_dir: LogDir, store: FakeStorage, name: str
) -> None:
    """It is no conflict: no other process writes the object."""
    site.store = RetryingStorage(store, url="s3://archive")
    log = log_dir.create("t")
    log.closed_segments(2)
    log_dir.checkpoint_high_watermarks()
    site.settle()
    store.refuse(f"{LAYOUT.partition_prefix(log.tp)}{name}", PreconditionFailedError("412"))
    log.lead(1)
    log.closed_segments(2)
    log_dir.checkpoint_high_watermarks()
    with site.running() as running:

        def waits() -> str:
            status = running.status(log.tp)
            return "" if status is None else str(status.waiting_for)

        running.wait(lambda: "s3://archive refuses a condition that holds" in waits(), "the error")
        assert stored_next(store, log.tp) == 20
        store.heal()
        wait_for_next(running, store, log)
