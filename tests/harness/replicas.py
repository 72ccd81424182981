"""A follower's copy of a synthetic log: the same batches, with segments of its own."""

import struct
from collections.abc import Iterator

from tests.harness.log_dir import LogDir, PartitionLog

_LENGTH_AND_DELTA = ">qi11xi"


def batches(log: PartitionLog) -> Iterator[tuple[int, int, bytes]]:
    """Every batch of a log: first offset, offset after its last, bytes."""
    for _, data in sorted(log.written.items()):
        position = 0
        while position < len(data):
            first, length, delta = struct.unpack_from(_LENGTH_AND_DELTA, data, position)
            end = position + 12 + length
            yield first, first + delta + 1, data[position:end]
            position = end


def catch_up(follower: PartitionLog, leader: PartitionLog, roll_at: tuple[int, ...] = ()) -> None:
    """Fetch what the leader has more, and roll at these offsets."""
    for first, following, data in batches(leader):
        if first < follower.log_end:
            continue
        if first in roll_at:
            follower.roll()
        follower.append_bytes(data, following - first)
    if follower.log_end in roll_at:
        follower.roll()


def replica(directory: LogDir, leader: PartitionLog, roll_at: tuple[int, ...] = ()) -> PartitionLog:
    """A new follower in another broker's log dir, caught up, whose segments begin at 0 and at
    `roll_at`.
    """
    follower = directory.create(leader.tp.topic, leader.tp.partition, epoch=leader.epoch)
    catch_up(follower, leader, roll_at)
    return follower
