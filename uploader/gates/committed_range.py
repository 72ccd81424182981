"""Which bytes of a log that still grows are committed. Nothing else decides it.

The high watermark alone proves nothing about bytes: after an unclean election, a truncated log can
hold batches below it that another leader wrote, also of known epochs. So the rule has four steps:

1. Ask the own broker, in the leader epoch in which it leads, for the high watermark.
2. Read whole batches that end at or below it (`choose`, then every byte).
3. Ask again in the same epoch. A leader does not truncate within its epoch, and its high watermark
   does not fall, so the bytes did not change while they were read.
4. Look again: the path still leads to the file that was read, and the directory still belongs to
   the same topic id. Brokers answer by the name of a topic, and the epochs of a topic that is
   created again begin at 0, too.

`confirm` does the last two, in this order, and `refusal` judges the last three. Both `choose` and
`refusal` are pure. The age of the first answer does not matter.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from sidetier.leadership.port import LogOffsetSource
from sidetier.segments.epoch_history import Entry
from sidetier.segments.errors import SegmentError, SidetierError
from sidetier.segments.headers import BatchHeader
from sidetier.segments.offsets import BaseOffset, LeaderEpoch, Offset, TopicPartition
from sidetier.uploader.watching.disk import BatchPosition, LogFile, log_file, topic_id_in
from sidetier.wire.log_offsets import AnsweredOffset, OffsetKind


class NotCommittedError(SegmentError):
    """The bytes are not known to be committed. A later attempt reads them anew."""

    retry = True


class LedLog(NamedTuple):
    """The own broker's first answer about a log.

    Attributes:
        high_watermark: End of the committed records, exclusive.
        last_stable: Below it, every transaction is decided, and every aborted one is in a
            transaction index.
        leader_epoch: The leader epoch in which it leads.
    """

    high_watermark: Offset
    last_stable: Offset
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class CommittedRange:
    """Batches of a segment that are committed if `refusal` agrees after they were read.

    Attributes:
        segment: Base offset of the segment.
        start: First offset.
        end: End, exclusive.
        position: Position of the first batch, in bytes.
        size: Size of all batches, in bytes.
        leader_epoch: The leader epoch in which the broker answered.
        file: The file, and the topic.
    """

    segment: BaseOffset
    start: Offset
    end: Offset
    position: int
    size: int
    leader_epoch: LeaderEpoch
    file: LogFile

    @property
    def behind(self) -> BatchPosition:
        """Where the batch behind the range begins."""
        end = self.position + self.size
        return BatchPosition(self.segment, self.file, self.leader_epoch, self.end, end)


def choose(
    batches: Iterable[tuple[int, BatchHeader]],
    segment: BaseOffset,
    start: Offset,
    led: LedLog,
    file: LogFile,
    max_bytes: int,
) -> CommittedRange | None:
    """Choose the batches from `start` up to the high watermark, and no more than `max_bytes` and
    one batch.

    A control batch at the end counts only below the last stable offset. A broker writes an abort
    marker to the log before it adds the transaction to the `.txnindex`, so that entry may be
    missing for the last batch of a log, and for no other.

    Args:
        batches: Position and header of each batch, from one that begins at `start` or lower. It is
            not read beyond the high watermark: a batch there may be written at this moment.
        segment: Base offset of the segment.
        start: First offset of the range.
        led: The broker's answer.
        file: Where the batches are.
        max_bytes: Size at which the range ends.

    Returns:
        None if no batch is below the high watermark.

    Raises:
        NotCommittedError: A batch contradicts the answer, or there are only control batches above
            the last stable offset.
    """
    position: int | None = None
    end, end_position = start, 0
    for at, header in _committed(batches, start, led):
        position = at if position is None else position
        if not header.is_control or header.next_offset <= led.last_stable:
            end, end_position = header.next_offset, at + header.length
        if end_position - position >= max_bytes:
            break
    if position is None:
        return None
    if end == start:
        raise NotCommittedError(
            f"only transaction markers follow offset {start}, and another transaction is open at "
            f"the last stable offset {led.last_stable}"
        )
    size = end_position - position
    return CommittedRange(segment, start, end, position, size, led.leader_epoch, file)


def _committed(
    batches: Iterable[tuple[int, BatchHeader]], start: Offset, led: LedLog
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the batches that reach above `start`, up to the high watermark."""
    epoch, expected = -1, start
    if start >= led.high_watermark:
        return
    for at, header in batches:
        if header.next_offset <= start:
            continue
        if header.next_offset > led.high_watermark:
            return
        if header.base_offset < expected:
            raise NotCommittedError(
                f"offset {expected} is within a batch that begins at {header.base_offset}"
            )
        if not epoch <= header.leader_epoch <= led.leader_epoch:
            raise NotCommittedError(
                f"the batch at offset {header.base_offset} is of leader epoch "
                f"{header.leader_epoch}, after {epoch}, in a log led in {led.leader_epoch}"
            )
        epoch, expected = header.leader_epoch, header.next_offset
        yield at, header
        if header.next_offset == led.high_watermark:
            return


class ReadLog(NamedTuple):
    """What was read of a log, before the broker is asked again.

    Attributes:
        tp: The partition.
        directory: Its directory.
        topic_id: The topic that the directory must belong to.
        leader_epoch: The leader epoch in which the broker has answered.
        wanted: The range; None if only the leader epoch and the topic are to be confirmed.
        epochs: Each run of batches of one leader epoch that was read, with its first offset.
        end: End of the batches that were read, exclusive; None without a batch.
    """

    tp: TopicPartition
    directory: str
    topic_id: str | None
    leader_epoch: LeaderEpoch
    wanted: CommittedRange | None = None
    epochs: Sequence[Entry] = ()
    end: Offset | None = None


def confirm(source: LogOffsetSource, logs: Sequence[ReadLog]) -> list[str | None]:
    """Ask again in one request, then look again. Return for each log why it must not be stored;
    None if what was read is committed.

    Raises:
        BrokerError, LeadershipError: The broker does not answer.
    """
    asked = {log.tp: log.leader_epoch for log in logs}
    answers = source.offsets(OffsetKind.HIGH_WATERMARK, list(asked.items()))
    again = dict(zip(asked, answers, strict=True))
    # The look comes last: brokers answer by name, so the answer before it is about the topic whose
    # directory is still there.
    return [_look_again(log, again[log.tp]) for log in logs]


def _look_again(log: ReadLog, again: AnsweredOffset | SidetierError) -> str | None:
    if log.wanted is not None:
        file = log_file(log.directory, log.wanted.segment)
        return refusal(log.wanted, log.epochs, log.end, again, file)
    reason = _unconfirmed(log.leader_epoch, Offset(0), again)
    if reason is None and topic_id_in(log.directory) != log.topic_id:
        reason = f"{log.directory} belongs to another topic than {log.topic_id}"
    return reason


def _unconfirmed(
    leader_epoch: LeaderEpoch, end: Offset, again: AnsweredOffset | SidetierError
) -> str | None:
    """Return why the answer does not confirm the leader epoch and the offsets below `end`."""
    if not isinstance(again, AnsweredOffset):
        return f"the broker does not confirm leader epoch {leader_epoch}: {again}"
    if again.leader_epoch != leader_epoch or again.offset < end:
        return (
            f"the broker led in epoch {leader_epoch}, and now reports epoch {again.leader_epoch} "
            f"and the high watermark {again.offset}"
        )
    return None


def refusal(
    wanted: CommittedRange,
    epochs: Sequence[Entry],
    end: Offset | None,
    again: AnsweredOffset | SidetierError,
    file: LogFile | None,
) -> str | None:
    """Return why the bytes that were read must not be stored; None if they are committed.

    Magic, CRC and order of the batches were checked while they were read.

    Args:
        wanted: The range.
        epochs: Each run of batches of one leader epoch that was read, with its first offset.
        end: End of the batches that were read, exclusive; None without a batch.
        again: The broker's second answer, asked after the reading.
        file: Where the path leads after the second answer; None if the file is gone.
    """
    reason = _unconfirmed(wanted.leader_epoch, wanted.end, again)
    if reason is not None:
        return reason
    if file != wanted.file:
        return f"{wanted.file} was read, and the path leads to {file}"
    if not epochs or end != wanted.end or epochs[0][1] < wanted.start:
        return f"offsets {wanted.start} to {wanted.end} were wanted, and others were read"
    falls = any(before >= after for (before, _), (after, _) in pairwise(epochs))
    if falls or epochs[-1][0] > wanted.leader_epoch:
        return f"batches of leader epochs {[epoch for epoch, _ in epochs]} were read in that order"
    return None
