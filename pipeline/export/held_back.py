"""Partitions that an export cannot advance now. It leaves them out and exports the others.

Their next offsets do not change, so a later run exports them as soon as it can.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from sidetier.pipeline.export.errors import BehindError
from sidetier.pipeline.planning.log_offsets import UndecidedTail
from sidetier.segments.offsets import Offset, TopicPartition

TRANSACTION_TIMEOUT_MS: Final = 900_000
"""Default of the brokers' `transaction.max.timeout.ms`: 15 minutes."""


class Cause(StrEnum):
    """Why a partition is held back."""

    ARCHIVE_BEHIND = "archive_behind"
    """The log ends below what was exported: its end was quarantined, and may have been replaced."""
    OPEN_TRANSACTION = "open_transaction"
    """The readable log has no marker that commits or aborts a transaction."""


@dataclass(frozen=True, slots=True)
class HeldBack:
    """One partition that is held back.

    Attributes:
        offset: the next offset, which does not change.
        detail: the problem, and what an operator can do about it.
        is_finding: whether the partition changes the exit code. A transaction that has just begun
            at the end of the archive does not: the next segment decides it.
        offsets: number of offsets that wait.
        age_s: age of the open transaction in seconds, by the wall clock; None if unknown.
    """

    tp: TopicPartition
    cause: Cause
    offset: Offset
    detail: str
    is_finding: bool = True
    offsets: int = 0
    age_s: float | None = None

    def as_json(self) -> dict[str, object]:
        """Return the JSON object. Its field names are stable."""
        return {
            "topic": self.tp.topic,
            "partition": self.tp.partition,
            "cause": self.cause.value,
            "next_offset": self.offset,
            "waiting_offsets": self.offsets,
            "open_seconds": None if self.age_s is None else round(self.age_s),
            "detail": self.detail,
        }


def behind_of_one_topic(
    errors: Iterable[BehindError],
    next_offsets: Mapping[TopicPartition, Offset],
    known: Mapping[str, str],
    present: Mapping[str, str],
) -> Iterator[HeldBack]:
    """Yield the partitions whose log ends below what was exported, although the topic is the same.

    Whether exported records are affected shows once the archive has grown further.

    Args:
        errors: one for each partition.
        next_offsets: next offsets of the export.
        known: topic names and ids of the exported topics.
        present: topic names and ids of the topics that exist now.

    Raises:
        BehindError: a topic's id is unknown or has changed: the topic was probably recreated.
    """
    for error in errors:
        topic = error.tp.topic
        if topic not in known or known[topic] != present.get(topic):
            raise error
        yield HeldBack(
            error.tp,
            Cause.ARCHIVE_BEHIND,
            next_offsets.get(error.tp, Offset(0)),
            f"{error.fact}, of the same topic: brokers have discarded records (an unclean leader "
            "election), or its archive was moved away. The partition is left out until the archive "
            "has grown and shows whether exported records are affected",
        )


def waiting_for_transactions(
    tails: Mapping[TopicPartition, UndecidedTail], now_ms: int, timeout_ms: int
) -> Iterator[HeldBack]:
    """Yield the partitions where the export has reached the start of an open transaction.

    A transaction counts as hung if it is open for longer than `timeout_ms`. For a log on the
    brokers, the wall clock (`now_ms`) decides. For an archive, the time of the newest stored
    records decides: the commit marker can be in the active segment, which is not archived before
    someone writes to the partition.
    """
    for tp, tail in sorted(tails.items()):
        age = since = None
        is_hung = False
        if tail.began_ms is not None:
            age = max(now_ms - tail.began_ms, 0) / 1000
            since = _since(tail.began_ms, age)
            newest_ms = (tail.newest_ms or 0) if tail.is_archived else now_ms
            is_hung = newest_ms - tail.began_ms > timeout_ms
        yield HeldBack(
            tp,
            Cause.OPEN_TRANSACTION,
            tail.first,
            f"{tp}: offsets [{tail.first}, {tail.until}) wait for a transaction: "
            + _opened(tp, tail, since or "")
            + (_remedy(tp, tail.first) if is_hung else ""),
            is_hung,
            tail.until - tail.first,
            age,
        )


def _opened(tp: TopicPartition, tail: UndecidedTail, since: str) -> str:
    at = f"at offset {tail.first}, the last stable offset{since}"
    if tail.is_archived:
        return (
            f"producer {tail.producer_id} opened it {at}, and nothing that is stored commits or "
            "aborts it"
        )
    if tail.producer_id is not None:
        return f"producer {tail.producer_id} opened it {at}, and the brokers have not ended it"
    return (
        f"one was opened {at}, which only the brokers have. Kafka's client library does not show "
        "its producer; this does: kafka-transactions.sh --bootstrap-server HOST:PORT "
        f"describe-producers --topic {tp.topic} --partition {tp.partition}"
    )


def _since(began_ms: int, age_s: float) -> str:
    ago = timedelta(seconds=round(age_s))
    try:
        at = datetime.fromtimestamp(began_ms / 1000, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return ""
    return f", at {at} ({ago} ago)"


def _remedy(tp: TopicPartition, first: Offset) -> str:
    return (
        ". If it hangs, abort it: kafka-transactions.sh --bootstrap-server HOST:PORT abort "
        f"--topic {tp.topic} --partition {tp.partition} --start-offset {first}"
    )
