"""The tail of one partition in one leader epoch, as its writer knows it. Pure."""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

import structlog

from sidetier.archive.tail.pack import TailRow
from sidetier.segments.epoch_history import NO_EPOCHS, EpochHistory
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.uploader.state.segment import Backoff
from sidetier.uploader.tail.begin import TailBegin, divergence_offset
from sidetier.uploader.tail.board import TailPartition
from sidetier.uploader.tail.progress import Reached, SentRange, TailProgress
from sidetier.uploader.watching.disk import BatchPosition
from sidetier.wire.log_offsets import AnsweredOffset

log: Final = structlog.get_logger()


@dataclass(slots=True)
class LedTail:
    """The tail of a partition in one leader epoch.

    Attributes:
        led: What the daemon knows.
        answered_at: When the broker has answered last, in monotonic seconds.
        waiting_since: When records were found that are not stored yet, in monotonic seconds.
        history: The epoch history of the log; it does not change within a leader epoch.
        begin: Where it begins; None until the packs were read.
        progress: What is stored; None until the begin is taken.
        claims: Whether a claim must be sent.
        is_late: Whether the packs have been read for longer than a cycle. Then the claim is sent
            before the end of the reading.
        log_start: The log start offset in the last row.
        position: Where the last range has ended.
        hold: After a range that was refused.
        answer: The high watermark; None if the broker has not answered for this partition.
        last_stable: The last stable offset, if it was asked for before the high watermark.
        looks_again_at: When the packs are read again, in monotonic seconds: one could not be read.
    """

    led: TailPartition
    answered_at: float
    waiting_since: float | None
    history: EpochHistory = NO_EPOCHS
    begin: TailBegin | None = None
    progress: TailProgress | None = None
    claims: bool = True
    is_late: bool = False
    log_start: Offset = Offset(0)  # noqa: RUF009 - a number
    position: BatchPosition | None = None
    hold: Backoff = field(default_factory=Backoff)
    answer: AnsweredOffset | None = None
    last_stable: Offset | None = None
    looks_again_at: float | None = None

    @property
    def tp(self) -> TopicPartition:
        """The partition."""
        return self.led.tp

    @property
    def all_is_safe(self) -> bool:
        """Whether readers get all committed records that the broker has last answered for."""
        if self.answer is None or self.progress is None:
            return False
        return self.answer.offset <= max(self.progress.safe_up_to, self.led.archive_end)

    def follow(self, entry: TailPartition) -> bool:
        """Take what the daemon knows now. Return False if the tail begins anew: in another leader
        epoch, or because the archive has diverged or a divergence was quarantined.
        """
        known = self.led
        if (known.leader_epoch, known.topic_id) != (entry.leader_epoch, entry.topic_id):
            return False
        if self._turns(entry):
            return False
        if known.directory != entry.directory:
            self.position = None
        self.led = entry
        self.archived()
        return True

    def _turns(self, entry: TailPartition) -> bool:
        known, begin = self.led, self.begin
        if (known.archive_end, known.archived_epochs) == (entry.archive_end, entry.archived_epochs):
            return False
        if entry.archive_end < known.archive_end:
            return True
        if begin is not None and begin.joined_to is not None:
            return True
        gaps = () if begin is None else begin.gaps
        at = divergence_offset(entry.archived_epochs, self.history, entry.archive_end, gaps)
        return at is not None

    def archived(self) -> None:
        """Note how far it is archived."""
        if self.progress is not None and self.progress.archived(self.led.archive_end):
            self.position = None

    def begin_now(self, look_again_at: float) -> bool:
        """Begin if the packs were read and the broker has answered: it is the witness for what they
        have. Return whether it has begun.

        Args:
            look_again_at: When to read the packs again if one could not be read.
        """
        begin, answer = self.begin, self.answer
        if begin is None or answer is None:
            return False
        reached = begin.reached
        if reached.end > max(answer.offset, begin.start):
            log.warning(
                "tail.beyond_log",
                topic=self.tp.topic,
                partition=self.tp.partition,
                stored_up_to=reached.end,
                high_watermark=answer.offset,
            )
            reached = Reached(begin.start, None)
        self.history = begin.history
        self.progress = TailProgress(reached, begin.unjoined)
        self.log_start = begin.log_start
        self.claims = self.claims and not begin.has_claim
        self.looks_again_at = None if begin.unread is None else look_again_at
        self.hold.clear()
        self.archived()
        return True


class SentPart(NamedTuple):
    """What a pack in flight has of one partition; no range for a claim."""

    tail: LedTail
    row: TailRow
    progress: TailProgress | None
    sent: SentRange | None
    behind: BatchPosition | None

    def note(self, now: float) -> None:
        """Note in the tail that it is in flight."""
        self.tail.log_start = self.row.log_start
        if self.tail.hold.until <= now:  # nothing behind it was refused
            self.tail.hold.clear()
        if self.progress is None or self.sent is None:
            self.tail.claims = False
        else:
            self.progress.send(self.sent)
            self.tail.position = self.behind

    def stored(self) -> None:
        """Note in the tail that it is stored."""
        tail, progress = self.tail, self.progress
        if progress is None or self.sent is None:
            if tail.looks_again_at is not None:
                tail.looks_again_at = 0.0  # this claim may show what readers need
            return
        progress.succeeded(self.sent)
        if tail.all_is_safe:
            tail.waiting_since = None

    def lost(self) -> None:
        """Note in the tail that it is not known to be stored."""
        self.tail.position = None
        if self.progress is None or self.sent is None:
            self.tail.claims = True
        else:
            self.progress.failed(self.sent)
