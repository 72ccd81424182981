"""Errors of a `TieredConsumer`, as `KafkaException` with a `KafkaError`."""

from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message

from sidetier.config.archive_options import in_readers_names
from sidetier.leadership.cluster import NO_ANSWER
from sidetier.segments.errors import AccessDeniedError, SegmentError, SidetierError
from sidetier.segments.offsets import TopicPartition

ARCHIVE_FAILED: Final = KafkaError._FS
STORE_UNREACHABLE: Final = KafkaError._TRANSPORT


class TieredError(KafkaException):
    """A partition cannot be read further. `args[0]` is the `KafkaError`, as in confluent-kafka."""

    def __init__(self, error: KafkaError, tp: TopicPartition, offset: int | None = None) -> None:
        super().__init__(error)
        self.error = error
        self.topic, self.partition, self.offset = tp.topic, tp.partition, offset

    def message(self) -> Message:
        """Return the error as a message with the error's text as value, as `poll` does."""
        return Message(
            topic=self.topic,
            partition=self.partition,
            offset=-1 if self.offset is None else self.offset,
            value=self.error.str().encode(),
            error=self.error,
        )


class GapError(TieredError):
    """Neither Kafka nor the store has the offsets from `first` (inclusive) to `end` (exclusive)."""

    def __init__(self, tp: TopicPartition, first: int, end: int, detail: str = "") -> None:
        text = (
            f"{tp}: offsets [{first}, {end}) are neither on Kafka nor on the store"
            f"{f' ({detail})' if detail else ''}; seek to {end} to continue behind them, or set "
            "tiered.storage.on.gap to skip"
        )
        super().__init__(KafkaError(KafkaError.OFFSET_OUT_OF_RANGE, text), tp, first)
        self.first, self.end = first, end


class NoOffsetError(TieredError):
    """`auto.offset.reset` is `error`, and there is no valid offset to read from."""

    def __init__(self, tp: TopicPartition, offset: int | None, why: str) -> None:
        error = KafkaError(KafkaError._AUTO_OFFSET_RESET, f"{tp}: {why}")
        super().__init__(error, tp, offset)


class StoreError(TieredError):
    """The archive cannot be read. `__cause__` is the error of the store or of the decoder.

    Args:
        tp: the partition.
        offset: the offset that cannot be read; None if it is not known.
        cause: the error.
        has_file: keep the names of settings as the sidecar's file has them.
    """

    def __init__(
        self, tp: TopicPartition, offset: int | None, cause: SidetierError, *, has_file: bool
    ) -> None:
        text = str(cause) if has_file else in_readers_names(str(cause))
        super().__init__(KafkaError(_code(cause), f"{tp}: {text}"), tp, offset)
        self.__cause__ = cause

    @property
    def passes(self) -> bool:
        """Whether the same read may succeed later although nobody changes anything."""
        return isinstance(self.__cause__, SidetierError) and self.__cause__.retry


class EndReachedError(TieredError):
    """The end of the archive was reached. An event for `enable.partition.eof`, not a failure."""

    def __init__(self, tp: TopicPartition, offset: int) -> None:
        super().__init__(KafkaError(KafkaError._PARTITION_EOF), tp, offset)


def not_configured(what: str) -> KafkaException:
    """Return the error for a method that this consumer's configuration does not support."""
    return KafkaException(KafkaError(KafkaError._NOT_CONFIGURED, what))


def not_assigned(tp: TopicPartition, *, known: bool = True) -> KafkaException:
    """Return librdkafka's error for a partition that is not assigned.

    Args:
        tp: the partition.
        known: whether a partition of its topic was assigned before.
    """
    code = KafkaError._STATE if known else KafkaError._UNKNOWN_PARTITION
    return KafkaException(KafkaError(code, f"{tp} is not assigned"))


def cannot_remove(tp: TopicPartition) -> KafkaException:
    """Return librdkafka's error for the removal of a partition that is not assigned."""
    return KafkaException(KafkaError(KafkaError._INVALID_ARG, f"{tp} is not assigned"))


def _code(cause: SidetierError) -> int:
    if isinstance(cause, SegmentError):
        return KafkaError._BAD_MSG
    if isinstance(cause, AccessDeniedError):
        return KafkaError._AUTHENTICATION
    return STORE_UNREACHABLE if cause.retry else ARCHIVE_FAILED


def already_assigned(tp: TopicPartition) -> KafkaException:
    """Return librdkafka's error for a partition that is assigned already."""
    text = f"{tp} is already part of the current assignment"
    return KafkaException(KafkaError(KafkaError._CONFLICT, text))


def given_twice(tp: TopicPartition) -> KafkaException:
    """Return librdkafka's error for a partition that occurs twice in one list."""
    return KafkaException(KafkaError(KafkaError._INVALID_ARG, f"{tp} is given twice"))


_PASSING: Final = NO_ANSWER | frozenset(
    {
        KafkaError._DESTROY_BROKER,
        KafkaError._NO_OFFSET,
        KafkaError._RESOLVE,
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


def is_transient(error: KafkaError) -> bool:
    """Whether an error of Kafka is transient. librdkafka reports such errors to `error_cb`."""
    return error.code() in _PASSING or error.retriable()
