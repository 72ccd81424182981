"""State of one assigned partition."""

from dataclasses import dataclass, replace
from enum import StrEnum

import confluent_kafka

from sidetier.consumer.sources import UNKNOWN, Archive, Facts, Identity, Logical
from sidetier.segments.offsets import OffsetRange, TopicPartition


class Source(StrEnum):
    """The source that a partition's records come from."""

    LOOKING = "looking"
    """No source yet: the router searches one, or waits."""
    KAFKA = "kafka"
    STORE = "store"


@dataclass(slots=True, eq=False)
class Partition:
    """One assigned partition. Owned by `SubscriptionState`.

    Attributes:
        start: requested start: an offset, a `Logical` value, or a tail offset.
        source: where the partition is read from.
        position: the next offset to return; None until it is known.
        leader_epoch: leader epoch of the record before `position`.
        consumed: a record was returned since the assignment or the last seek.
        fetched_id: the topic id under which Kafka's client has returned a record last, since then.
        dirty: the position has moved since it was last given to librdkafka's offset store.
        paused: paused by the application.
        behind: Kafka's consumer is not at `position`, and must be aimed before it fetches again.
        serial: number of the assignment or seek. Answers to questions of an older one are dropped.
        asking: a lookup is under way.
        due: clock time of the next search for a source, in seconds.
        tries: failed reads in a row.
        missing_since: clock time at which neither side was first found to have `position`.
        until: while reading from the store: offset (exclusive) from which Kafka has the rest.
        committed_known: whether the group's committed offset was looked up.
        committed: the group's committed offset; None if there is none.
        kafka, archive, refused, gap: results of lookups, dropped when a source is chosen; see
            `Facts`.
        detail: why the offsets of the gap are missing.
        identity: the topic that `position` is an offset of, as far as it is known.
        recreated: `position` is an offset of a topic that was deleted.
        ended: offset at which the archive reader came to its end last, and how often in a row. None
            if no broker answered then.
        warned_empty: the warning that the store has nothing of the partition was given.
        warned_foreign: the archived topic that the application was warned about.
        stored: offset that the application stored itself, stored again after a new assignment.
    """

    tp: TopicPartition
    start: int
    serial: int
    source: Source = Source.LOOKING
    position: int | None = None
    leader_epoch: int | None = None
    consumed: bool = False
    fetched_id: str | None = None
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
    identity: Identity = UNKNOWN
    recreated: bool = False
    ended: tuple[int, int] | None = None
    warned_empty: bool = False
    warned_foreign: Identity | None = None
    stored: confluent_kafka.TopicPartition | None = None

    @property
    def needs_committed(self) -> bool:
        """Whether the group's committed offset must be looked up first."""
        stored = self.start in (Logical.STORED, Logical.INVALID)
        return self.position is None and stored and not self.committed_known

    def facts(self) -> Facts:
        """Return the input of `decide`."""
        archive = self.archive
        if archive is not None and self.gap is not None:
            archive = replace(archive, gap=self.gap)
        return Facts(self._wanted(), self.kafka, archive, self.refused, self.recreated)

    def identified(self, identity: Identity) -> None:
        """Note which topic the partition belongs to now."""
        if identity.differs(self.identity):
            self.recreated = True
        elif identity.topic_id is None:
            return  # no broker answers now, or brokers before 2.8: nothing new is known
        self.identity = identity

    def moved(self, position: int, leader_epoch: int | None) -> None:
        """Set the next offset after a record was returned."""
        self.position, self.leader_epoch = position, leader_epoch
        self.consumed = self.dirty = True
        if self.source is Source.KAFKA:
            self.fetched_id = self.identity.topic_id
        self.tries, self.missing_since = 0, None

    def forget(self) -> None:
        """Drop all results of lookups."""
        self.committed_known, self.committed = False, None
        self.kafka, self.archive, self.refused, self.gap = None, None, False, None

    def ask_again(self) -> None:
        """Drop what both sides hold, so that both are looked up again.

        `refused` is kept: an offset that the broker has deleted does not come back.
        """
        self.kafka, self.archive = None, None

    def settle(self, source: Source, position: int) -> None:
        """Read from this source, from this position (inclusive) on.

        A gap of the store at this position stays known when Kafka is chosen: Kafka may refuse the
        offset, too.
        """
        gap = self.gap
        self.source, self.position = source, position
        self.forget()
        self.recreated = False
        if source is Source.KAFKA and gap is not None and position in gap:
            self.gap = gap

    def move(self, start: int, serial: int) -> None:
        """Reset the partition to a new start, after an assignment or a seek."""
        self.start, self.serial = start, serial
        self.source, self.position, self.until = Source.LOOKING, None, None
        self.consumed, self.fetched_id, self.dirty = False, None, False
        self.asking, self.due, self.tries, self.missing_since = False, 0.0, 0, None
        self.leader_epoch = None
        self.identity, self.recreated = UNKNOWN, False
        self.ended = None
        self.forget()

    def _wanted(self) -> int | None:
        if self.position is not None:
            return self.position
        return self.committed if self.committed_known else self.start
