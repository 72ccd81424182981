"""Following a metadata log through appends, rolls, snapshots, cleaning and truncation."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from sidetier.leadership.kraft.metadata_log import MetadataLog
from sidetier.segments.errors import LeadershipError, LeadershipUnavailableError
from sidetier.segments.offsets import BrokerId, LeaderEpoch, TopicPartition
from tests.harness import metadata_log as written
from tests.harness.metadata_log import CONTROL, MetadataLogWriter

ID = b"A" * 16
US = BrokerId(1)


@pytest.fixture
def writer(tmp_path: Path) -> MetadataLogWriter:
    writer = MetadataLogWriter(tmp_path).create()
    writer.append(b"leader change", attributes=CONTROL)
    writer.append(written.topic("orders", ID), written.partition(ID, 0, 1))
    return writer


@pytest.fixture
def log(writer: MetadataLogWriter) -> MetadataLog:
    log = MetadataLog(writer.directory)
    assert log.poll()
    return log


def led(log: MetadataLog) -> Mapping[TopicPartition, LeaderEpoch]:
    return log.image.leads(US)


def orders(*partitions: int, epoch: int = 0) -> dict[TopicPartition, int]:
    return {TopicPartition("orders", number): epoch for number in partitions}


def test_appended_records_are_read(writer: MetadataLogWriter, log: MetadataLog) -> None:
    assert led(log) == orders(0)
    writer.append(written.partition(ID, 1, 1))
    assert log.poll()
    assert led(log) == orders(0, 1)
    assert log.reloads == 1


def test_idle_log_reports_no_change(writer: MetadataLogWriter, log: MetadataLog) -> None:
    writer.append(written.no_op())
    assert not log.poll()
    assert not log.poll()
    assert log.reloads == 1


def test_incomplete_batch_is_waited_for(writer: MetadataLogWriter, log: MetadataLog) -> None:
    data = written.batch(writer.next_offset, [written.partition(ID, 1, 1)])
    for cut in (30, 70, len(data) - 1):
        with writer.active.open("ab") as file:
            file.write(data[:cut])
        assert not log.poll()
        writer.truncate(writer.active.stat().st_size - cut, writer.next_offset)
    with writer.active.open("ab") as file:
        file.write(data)
    assert log.poll()
    assert led(log) == orders(0, 1)
    assert log.reloads == 1


def test_roll_is_followed(writer: MetadataLogWriter, log: MetadataLog) -> None:
    writer.append(written.partition(ID, 1, 1))
    writer.roll()
    writer.append(written.partition(ID, 2, 1))
    writer.roll()
    assert log.poll()
    assert led(log) == orders(0, 1, 2)
    writer.append(written.partition(ID, 3, 1))
    assert log.poll()
    assert led(log) == orders(0, 1, 2, 3)
    assert log.reloads == 1


def test_snapshot_and_cleaned_segments_do_not_affect_an_up_to_date_reader(
    writer: MetadataLogWriter, log: MetadataLog
) -> None:
    writer.snapshot(written.topic("orders", ID), written.partition(ID, 0, 1))
    writer.roll()
    writer.append(written.no_op())
    log.poll()
    writer.clean()
    writer.append(written.partition(ID, 1, 1))
    assert log.poll()
    assert led(log) == orders(0, 1)
    assert log.reloads == 1


def test_new_reader_begins_with_the_newest_snapshot(writer: MetadataLogWriter) -> None:
    writer.snapshot(written.topic("orders", ID), written.partition(ID, 0, 1, epoch=3))
    writer.append(written.partition_change(ID, 0, 1))
    log = MetadataLog(writer.directory)
    log.poll()
    assert led(log) == orders(0, epoch=4), "the segment's own earlier records are passed over"


def test_snapshot_that_ends_within_a_batch_is_applied_to_the_record(
    writer: MetadataLogWriter,
) -> None:
    writer.append(written.partition_change(ID, 0, 1), written.partition_change(ID, 0, 1))
    path = writer.snapshot(written.topic("orders", ID), written.partition(ID, 0, 1, epoch=1))
    path.rename(path.with_name(f"{writer.next_offset - 1:020d}-{writer.epoch:010d}.checkpoint"))
    log = MetadataLog(writer.directory)
    log.poll()
    assert led(log) == orders(0, epoch=2)


def test_reader_behind_cleaned_segments_restarts_from_the_snapshot(
    writer: MetadataLogWriter, log: MetadataLog
) -> None:
    writer.append(written.partition(ID, 1, 2))
    writer.roll()
    writer.append(written.partition(ID, 2, 1))
    writer.snapshot(written.topic("orders", ID), *(written.partition(ID, n, 1) for n in (0, 2, 3)))
    writer.clean()
    assert log.poll()
    assert led(log) == orders(0, 2, 3)
    assert log.reloads == 2


def test_snapshot_fetched_in_place_of_the_log_is_read(
    writer: MetadataLogWriter, log: MetadataLog
) -> None:
    old = writer.active
    writer.next_offset = 5000
    writer.snapshot(written.topic("orders", ID), written.partition(ID, 9, 1, epoch=7))
    writer.roll()
    old.unlink()
    assert log.poll()
    assert led(log) == orders(9, epoch=7)
    writer.append(written.partition(ID, 8, 1, epoch=7))
    assert log.poll()
    assert led(log) == orders(8, 9, epoch=7)


def test_truncated_tail_is_forgotten(writer: MetadataLogWriter, log: MetadataLog) -> None:
    size, offset = writer.active.stat().st_size, writer.next_offset
    writer.append(written.topic("ghost", b"G" * 16), written.partition(b"G" * 16, 0, 1))
    log.poll()
    assert TopicPartition("ghost", 0) in led(log)
    writer.truncate(size, offset)
    assert log.poll()
    assert led(log) == orders(0)
    assert log.reloads == 2


def test_tail_rewritten_to_the_same_length_is_detected(
    writer: MetadataLogWriter, log: MetadataLog
) -> None:
    size, offset = writer.active.stat().st_size, writer.next_offset
    writer.append(written.partition(ID, 1, 1))
    log.poll()
    writer.truncate(size, offset)
    writer.epoch += 1
    writer.append(written.partition(ID, 2, 1))
    writer.append(written.partition(ID, 3, 1))
    assert log.poll()
    assert led(log) == orders(0, 2, 3)
    assert log.reloads == 2


def test_truncation_across_a_roll_is_detected(writer: MetadataLogWriter, log: MetadataLog) -> None:
    size, offset, segment = writer.active.stat().st_size, writer.next_offset, writer.segment
    writer.append(written.partition(ID, 1, 1))
    writer.roll()
    log.poll()
    writer.active.unlink()
    writer.segment = segment
    writer.truncate(size, offset)
    writer.epoch += 1
    writer.append(written.partition(ID, 1, 2))
    writer.roll()  # at the same base as before
    assert log.poll()
    assert led(log) == orders(0)


@pytest.mark.parametrize("chunk_bytes", [61, 100, 1000])
def test_log_larger_than_a_chunk_is_read(writer: MetadataLogWriter, chunk_bytes: int) -> None:
    writer.append(*(written.partition(ID, n, 1) for n in range(50)))
    for number in range(50, 60):
        writer.append(written.partition(ID, number, 1))
    log = MetadataLog(writer.directory, chunk_bytes=chunk_bytes)
    log.poll()
    assert led(log) == orders(*range(60))


def test_missing_directory_may_appear_later(tmp_path: Path) -> None:
    log = MetadataLog(tmp_path / "__cluster_metadata-0")
    with pytest.raises(LeadershipUnavailableError, match="__cluster_metadata-0"):
        log.poll()
    writer = MetadataLogWriter(tmp_path).create()
    writer.append(written.topic("orders", ID), written.partition(ID, 0, 1))
    assert log.poll()
    assert led(log) == orders(0)


def test_log_without_its_beginning_is_unavailable(writer: MetadataLogWriter) -> None:
    writer.roll()
    writer.clean()
    with pytest.raises(LeadershipUnavailableError, match="no segment contains offset 0"):
        MetadataLog(writer.directory).poll()


def test_gap_between_segments_is_unavailable(writer: MetadataLogWriter) -> None:
    writer.next_offset += 1
    writer.roll()
    with pytest.raises(LeadershipUnavailableError, match="segment 4 does not follow offset 3"):
        MetadataLog(writer.directory).poll()


def test_truncated_snapshot_is_unavailable(writer: MetadataLogWriter) -> None:
    path = writer.snapshot(written.topic("orders", ID))
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(LeadershipUnavailableError, match="is cut off at byte"):
        MetadataLog(writer.directory).poll()


def test_flipped_bit_is_unavailable(writer: MetadataLogWriter) -> None:
    writer.append(written.no_op())
    data = bytearray(writer.active.read_bytes())
    data[-80] ^= 0xFF
    writer.active.write_bytes(bytes(data))
    with pytest.raises(LeadershipUnavailableError):
        MetadataLog(writer.directory).poll()


def test_record_of_a_future_version_is_a_permanent_error(writer: MetadataLogWriter) -> None:
    writer.append(written.frame(3, 9, b""))
    with pytest.raises(LeadershipError, match="version 9 of PartitionRecord") as caught:
        MetadataLog(writer.directory).poll()
    assert not caught.value.retry


def test_unreadable_log_that_recovers_is_read_from_the_snapshot(
    writer: MetadataLogWriter, log: MetadataLog
) -> None:
    hidden = writer.directory.with_name("hidden")
    writer.directory.rename(hidden)
    with pytest.raises(LeadershipUnavailableError):
        log.poll()
    hidden.rename(writer.directory)
    assert log.poll()
    assert led(log) == orders(0)
