"""Partitions that an export cannot take farther now: it leaves them out, and exports the others.

Their next offsets stay as they are, so a later run exports them once it can.
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
"""The default of the brokers' `transaction.max.timeout.ms`."""


class Cause(StrEnum):
    """Why a partition is held back."""

    ARCHIVE_BEHIND = "archive_behind"
    """The log ends below what was exported: its end was quarantined, and may have been replaced."""
    OPEN_TRANSACTION = "open_transaction"
    """Nothing that is stored commits or aborts a transaction."""


@dataclass(frozen=True, slots=True)
class HeldBack:
    """One partition.

    Attributes:
        offset: its next offset, which stays.
        detail: what is the matter, and what an operator can do.
        is_finding: whether the exit code tells of it. A transaction that has just begun where the
            archive ends is none: the next segment decides it.
        offsets: how many stored offsets wait.
        age_s: of the open transaction, by the clock; None where nobody knows.
    """

    tp: TopicPartition
    cause: Cause
    offset: Offset
    detail: str
    is_finding: bool = True
    offsets: int = 0
    age_s: float | None = None

    def as_json(self) -> dict[str, object]:
        """By the names that stay."""
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
    found: Mapping[str, str],
) -> Iterator[HeldBack]:
    """Partitions whose log ends below what was exported, where the topic is the same: whether what
    was exported is concerned shows once the archive has come farther.

    Args:
        errors: one for each partition.
        next_offsets: of the export.
        known: the ids of the topics that were exported.
        found: the ids of the topics that are there now.

    Raises:
        BehindError: an id is not known, or is another: the topic was probably created again.
    """
    for error in errors:
        topic = error.tp.topic
        if topic not in known or known[topic] != found.get(topic):
            raise error
        yield HeldBack(
            error.tp,
            Cause.ARCHIVE_BEHIND,
            next_offsets.get(error.tp, Offset(0)),
            f"{error.fact}, of the same topic: brokers have thrown records away (an unclean leader "
            "election), or its archive was set aside. The partition is left out until the archive "
            "has come farther and shows whether exported records are concerned",
        )


def waiting_for_transactions(
    tails: Mapping[TopicPartition, UndecidedTail], now_ms: int, timeout_ms: int
) -> Iterator[HeldBack]:
    """Partitions whose log ends in an open transaction, at which an export has arrived.

    A transaction counts as hung where it is open for longer than `timeout_ms`. On the brokers the
    clock tells that. In an archive the time of the newest stored records does: a marker can be in
    the active segment, which is not archived yet, for as long as nobody writes to the partition.
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
            + (_way_on(tp, tail.first) if is_hung else ""),
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


def _way_on(tp: TopicPartition, first: Offset) -> str:
    return (
        ". If it hangs, abort it: kafka-transactions.sh --bootstrap-server HOST:PORT abort "
        f"--topic {tp.topic} --partition {tp.partition} --start-offset {first}"
    )
