"""Settings that the router's decisions follow, and backoff between tries."""

from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaError

from sidetier.consumer.sources import Mode, Reset

FIRST_PAUSE: Final = 0.25
"""Backoff before both sources are asked again, in seconds. Doubles up to `LONGEST_PAUSE`."""
LONGEST_PAUSE: Final = 10.0
SETTLED_PAUSE: Final = 60.0
"""Seconds until a partition that stopped with a permanent error is tried again."""
TOLD_EVERY: Final = 10
"""A permanent error that continues is reported to the application at every tenth try."""

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
    """Settings for decisions.

    Attributes:
        mode: `tiered.storage.mode`.
        reset: `auto.offset.reset`, applied to both sources as one log.
        skip_gaps: skip offsets that neither source has, instead of an error.
        patience: seconds to wait for the sidecar's upload of offsets that Kafka has deleted and the
            archive does not have yet. After that they count as a gap.
        say_end: return an event at the end of the archive (`enable.partition.eof`).
    """

    mode: Mode
    reset: Reset = Reset.LATEST
    skip_gaps: bool = False
    patience: float = 60.0
    say_end: bool = False


def pause_after(tries: int) -> float:
    """Return the backoff in seconds after this number of failed tries in a row."""
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(tries - 1, 10)) if tries > 0 else 0.0


def passes(error: KafkaError) -> bool:
    """Whether an error of Kafka is transient. librdkafka reports such errors to `error_cb`."""
    return error.code() in _PASSING or error.retriable()
