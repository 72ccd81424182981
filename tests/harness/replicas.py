"""A follower's copy of a synthetic log: the same batches in its own segments."""

import struct
from collections.abc import Iterator

from tests.harness.log_dir import LogDir, PartitionLog

_LENGTH_AND_DELTA = ">qi11xi"


def batches(log: PartitionLog) -> Iterator[tuple[int, int, bytes]]:
    """Yield every batch of a log: first offset, next offset, bytes."""
    for _, data in sorted(log.written.items()):
        position = 0
        while position < len(data):
            first, length, delta = struct.unpack_from(_LENGTH_AND_DELTA, data, position)
            end = position + 12 + length
            yield first, first + delta + 1, data[position:end]
            position = end


def catch_up(follower: PartitionLog, leader: PartitionLog, roll_at: tuple[int, ...] = ()) -> None:
    """Fetch the batches that only the leader has, and roll at these offsets."""
    for first, following, data in batches(leader):
        if first < follower.log_end:
            continue
        if first in roll_at:
            follower.roll()
        follower.append_bytes(data, following - first)
    if follower.log_end in roll_at:
        follower.roll()


def replica(directory: LogDir, leader: PartitionLog, roll_at: tuple[int, ...] = ()) -> PartitionLog:
    """Create a caught-up follower in another log dir, with segments from 0 and `roll_at`."""
    follower = directory.create(leader.tp.topic, leader.tp.partition, epoch=leader.epoch)
    catch_up(follower, leader, roll_at)
    return follower
