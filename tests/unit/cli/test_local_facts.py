"""Search for one partition in log dirs."""

from pathlib import Path

import pytest

from sidetier.cli.inspect.local_log import LocalLog, Place, local_log
from tests.harness.log_dir import START_MS, LogDir, PartitionLog


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    """Closed segments 0, 10 and 20, and an active one with the records 30 to 36."""
    directory = LogDir(tmp_path / "logs")
    created = directory.create()
    created.closed_segments(3)
    created.append(7)
    directory.checkpoint_high_watermarks({created.tp: 33})
    return created


def look(log: PartitionLog) -> LocalLog:
    found = local_log([str(log.path.parent)], log.tp)
    assert found is not None
    return found


def test_each_offset_is_found_in_its_segment(log: PartitionLog) -> None:
    log.stage(0)
    found = look(log)
    places = [(one.base_offset, one.next_offset, one.place) for one in found.segments]
    assert places == [
        (0, 10, Place.MARKED_FOR_DELETION),
        (10, 20, Place.CLOSED),
        (20, 30, Place.CLOSED),
        (30, 37, Place.ACTIVE),
    ]
    assert (found.start, found.end, found.checkpointed) == (10, 37, 33)
    held = [found.holder(offset) for offset in (0, 9, 10, 29, 30, 36, 37)]
    assert [None if one is None else one.base_offset for one in held] == [
        0,
        0,
        10,
        20,
        30,
        30,
        None,
    ]
    first = found.holder(0)
    assert first is not None
    assert Path(first.path) == log.file(0, deleted=True)
    assert first.size_bytes == len(log.written[0])


def test_first_batch_gives_the_start_time_of_the_active_segment(log: PartitionLog) -> None:
    assert look(log).first_timestamp_ms == START_MS + 34
    log.roll()
    assert look(log).first_timestamp_ms is None


def test_bytes_between_offsets_count_every_touched_segment(log: PartitionLog) -> None:
    found, sizes = look(log), [len(log.written[base]) for base in (0, 10, 20, 30)]
    assert found.bytes_between(5, 11) == sizes[0] + sizes[1]
    assert found.bytes_between(10, 20) == sizes[1]
    assert found.bytes_between(0, 100) == sum(sizes)
    assert found.bytes_between(37, 50) == 0


def test_live_segment_takes_precedence_over_a_leftover_of_unknown_end(log: PartitionLog) -> None:
    """Truncation left a `.deleted` segment with a higher base offset whose end is unknown."""
    log.truncate(20)
    log.append(25)
    found = look(log)
    held = found.holder(32)
    assert held is not None
    assert (held.base_offset, held.place) == (20, Place.ACTIVE)


def test_partition_in_no_log_dir_is_none(log: PartitionLog, tmp_path: Path) -> None:
    there, nowhere = str(log.path.parent), str(tmp_path / "nowhere")
    assert local_log([nowhere, there], log.tp) is not None
    log.delete_topic()
    assert local_log([there], log.tp) is None
    with pytest.raises(OSError, match=f"log dir {nowhere} cannot be read"):
        local_log([nowhere, there], log.tp)


def test_broken_link_is_reported(log: PartitionLog, tmp_path: Path) -> None:
    log.delete_topic()
    log.path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(OSError, match=f"{log.path} is a symbolic link"):
        local_log([str(log.path.parent)], log.tp)
