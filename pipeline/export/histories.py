"""Positions of exports, compared with the epoch history that the archive has now."""

from collections.abc import Mapping

from sidetier.pipeline.export.epoch_history import Position, Truncated, position_at, truncated
from sidetier.pipeline.planning.planner import Planner
from sidetier.segments.offsets import Offset, TopicPartition

Positions = Mapping[TopicPartition, Position]


def find_truncated(planner: Planner, positions: Positions) -> tuple[Truncated, ...]:
    """What of these was exported, and then thrown away by the brokers. Costs nothing where no
    epoch history is known of the positions.

    Raises:
        ArchiveError, StorageError: as `Planner.epoch_histories`.
    """
    known = {tp: one for tp, one in sorted(positions.items()) if one.epoch_history.entries}
    if not known:
        return ()
    epoch_histories = planner.epoch_histories(known)
    doubtful = [
        tp for tp, now in epoch_histories.items() if truncated(tp, known[tp], now) is not None
    ]
    gaps = planner.gaps(doubtful)
    found = [truncated(tp, known[tp], epoch_histories[tp], gaps[tp]) for tp in doubtful]
    return tuple(one for one in found if one is not None)


def archived_positions(planner: Planner, ends: Mapping[TopicPartition, Offset]) -> Positions:
    """What an export keeps that goes up to these ends, all of it archived; raises as
    `Planner.epoch_histories`.
    """
    epoch_histories = planner.epoch_histories(ends) if ends else {}
    return {
        tp: position_at(ends[tp], epoch_history) for tp, epoch_history in epoch_histories.items()
    }
