"""What is known of one assigned partition."""

from dataclasses import dataclass
from enum import StrEnum

import confluent_kafka

from sidetier.consumer.client.sources import Archive, Facts, Logical
from sidetier.segments.offsets import OffsetRange, TopicPartition


class Source(StrEnum):
    """Where a partition's records come from now."""

    LOOKING = "looking"
    """Nowhere yet: it is being found out, or waited for."""
    KAFKA = "kafka"
    STORE = "store"


@dataclass(slots=True, eq=False)
class Partition:
    """One assigned partition; belongs to the `Switchboard`.

    Attributes:
        start: what was asked for: an offset, or one of `Logical`, or a tail offset.
        source: where it is read from.
        position: the next offset to hand out; None until one is known.
        consumed: something was handed out since the assignment or the last seek.
        dirty: the position has moved since it was last told to Kafka's offset store.
        paused: by the application.
        behind: Kafka's side stands elsewhere than `position`, and has to be aimed before it flows.
        serial: of this assignment or seek: what answers an older one's questions is dropped.
        asking: questions are under way.
        due: when it is looked at again, in seconds of the clock.
        tries: how often in a row nothing could be read.
        missing_since: since when what the sidecar may still store is missing.
        until: with the store: where Kafka has the rest.
        kafka, archive, refused, gap: what was found out; forgotten when the source is settled.
        detail: what was said of the gap.
        told_nothing: it was said that nothing of it is stored, and where it was looked for.
        stored: what the application itself has stored, to be stored again with a new assignment.
    """

    tp: TopicPartition
    start: int
    serial: int
    source: Source = Source.LOOKING
    position: int | None = None
    leader_epoch: int | None = None
    consumed: bool = False
    dirty: bool = False
    paused: bool = False
    behind: bool = False
    asking: bool = False
    due: float = 0.0
    tries: int = 0
    missing_since: float | None = None
    until: int | None = None
    committed_known: bool = False
    committed: int | None = None
    kafka: OffsetRange | None = None
    archive: Archive | None = None
    refused: bool = False
    gap: OffsetRange | None = None
    detail: str = ""
    told_nothing: bool = False
    stored: confluent_kafka.TopicPartition | None = None

    @property
    def needs_committed(self) -> bool:
        """Whether the group's committed offset must be asked for first."""
        stored = self.start in (Logical.STORED, Logical.INVALID)
        return self.position is None and stored and not self.committed_known

    def facts(self) -> Facts:
        """What a decision is made of."""
        archive = self.archive
        if archive is not None and self.gap is not None:
            archive = Archive(archive.span, archive.away, self.gap)
        return Facts(self._wanted(), self.kafka, archive, self.refused)

    def moved(self, position: int, leader_epoch: int | None) -> None:
        """Something was handed out: this comes next."""
        self.position, self.leader_epoch = position, leader_epoch
        self.consumed = self.dirty = True
        self.tries, self.missing_since = 0, None

    def forget(self) -> None:
        """Ask anew next time."""
        self.committed_known, self.committed = False, None
        self.kafka, self.archive, self.refused, self.gap = None, None, False, None

    def ask_again(self) -> None:
        """Ask both sides anew; what was refused stays so, since what is deleted is not restored."""
        self.kafka, self.archive = None, None

    def settle(self, source: Source, position: int) -> None:
        """It is read from there, from this offset on. A gap of the store stays known there: Kafka
        may refuse the offset too.
        """
        gap = self.gap
        self.source, self.position = source, position
        self.forget()
        if source is Source.KAFKA and gap is not None and position in gap:
            self.gap = gap

    def move(self, start: int, serial: int) -> None:
        """It is to be read from elsewhere: an assignment's start again, or a seek."""
        self.start, self.serial = start, serial
        self.source, self.position, self.until = Source.LOOKING, None, None
        self.consumed, self.dirty = False, False
        self.asking, self.due, self.tries, self.missing_since = False, 0.0, 0, None
        self.leader_epoch = None
        self.forget()

    def _wanted(self) -> int | None:
        if self.position is not None:
            return self.position
        return self.committed if self.committed_known else self.start
