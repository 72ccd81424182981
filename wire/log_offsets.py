"""The offsets of a log that a broker answers for, as values. Light: nothing of Kafka's messages."""

from enum import Enum
from typing import NamedTuple

from sidetier.segments.offsets import LeaderEpoch, Offset


class OffsetKind(Enum):
    """Which offset is asked for: timestamp and isolation level of ListOffsets."""

    HIGH_WATERMARK = (-1, 0)
    LAST_STABLE = (-1, 1)
    LOG_START = (-2, 0)


class AnsweredOffset(NamedTuple):
    """The answer for one partition.

    Attributes:
        offset: The offset.
        leader_epoch: The newest epoch of the leader's log; of `LOG_START`, its oldest one.
    """

    offset: Offset
    leader_epoch: LeaderEpoch
