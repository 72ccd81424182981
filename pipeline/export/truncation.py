"""Ask the archive for leader epochs: which exported offsets have the brokers discarded since?"""

from collections.abc import Mapping

from sidetier.pipeline.export.epoch_history import (
    Position,
    Positions,
    Truncated,
    position_at,
    truncated,
)
from sidetier.pipeline.planning.planner import Planner
from sidetier.segments.offsets import Offset, TopicPartition


def find_truncated(planner: Planner, positions: Positions) -> tuple[Truncated, ...]:
    """Return the exported ranges that the brokers have discarded since, as the archive shows now.

    Makes no request if no position has a known epoch history.

    Raises:
        ArchiveError, StorageError: see `Planner.newest_epoch_histories`.
    """
    known = {tp: entry for tp, entry in sorted(positions.items()) if entry.epoch_history.entries}
    if not known:
        return ()
    epoch_histories = planner.newest_epoch_histories(known)
    doubtful = [
        tp for tp, now in epoch_histories.items() if truncated(tp, known[tp], now) is not None
    ]
    # Gaps can explain a contradiction. They cost a listing, so only doubtful partitions are asked.
    gaps = planner.gaps(doubtful)
    truncated_ranges = [truncated(tp, known[tp], epoch_histories[tp], gaps[tp]) for tp in doubtful]
    return tuple(entry for entry in truncated_ranges if entry is not None)


def archived_positions(
    planner: Planner, ends: Mapping[TopicPartition, Offset]
) -> dict[TopicPartition, Position]:
    """Return the positions that an export keeps at these ends, if all records below them are
    archived.

    Raises:
        ArchiveError, StorageError: see `Planner.epoch_histories`.
    """
    epoch_histories = planner.epoch_histories(ends) if ends else {}
    return {
        tp: position_at(ends[tp], epoch_history) for tp, epoch_history in epoch_histories.items()
    }
