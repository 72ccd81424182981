"""The settings that decisions follow, and how long is waited between two tries."""

from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaError

from sidetier.consumer.client.sources import Mode, Reset

FIRST_PAUSE: Final = 0.25
"""Seconds before both sides are asked again, doubling up to `LONGEST_PAUSE`."""
LONGEST_PAUSE: Final = 10.0
SETTLED_PAUSE: Final = 60.0
"""Seconds after which a partition that stands still for an error is looked at again."""
TOLD_EVERY: Final = 10
"""An error that stays is told to the application again after so many tries."""

_PASSING: Final = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._DESTROY_BROKER,
        KafkaError._NO_OFFSET,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._WAIT_CACHE,
        KafkaError._WAIT_COORD,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
    }
)


@dataclass(frozen=True, slots=True)
class Rules:
    """What decisions follow.

    Attributes:
        mode: not KAFKA_ONLY.
        reset: auto.offset.reset, of the union of both sides.
        skip_gaps: step over what neither side has, instead of an error.
        patience: seconds that Kafka may have deleted what is not stored yet, before it is a gap.
        say_end: hand out an event when the archive's end is reached (enable.partition.eof).
    """

    mode: Mode
    reset: Reset = Reset.LATEST
    skip_gaps: bool = False
    patience: float = 60.0
    say_end: bool = False


def pause_after(tries: int) -> float:
    """Seconds until the next try after so many in a row."""
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(tries - 1, 10)) if tries > 0 else 0.0


def passes(error: KafkaError) -> bool:
    """Whether Kafka's answer will be another one soon; librdkafka tells `error_cb` of those that
    are worth it.
    """
    return error.code() in _PASSING or error.retriable()
