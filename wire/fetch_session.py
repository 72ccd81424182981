"""Incremental fetch sessions (KIP-227): a Fetch names only the partitions that have changed.

The broker keeps the partitions of a session, and answers only for those that have something new. As
Kafka's `FetchSessionHandler`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from sidetier.segments.offsets import UNKNOWN_EPOCH, LeaderEpoch, Offset, TopicPartition

NO_SESSION: Final = 0
"""Session id of a request without a session, and of a broker that has no room for another one."""
FULL: Final = 0
"""Epoch of a request that names all partitions, and asks for a new session in place of its own."""
LONE: Final = -1
"""Epoch of a request that asks for no session."""
_MAX_EPOCH: Final = 2**31 - 1
_REFUSALS: Final = frozenset(
    {
        ErrorCode.fetch_session_id_not_found,
        ErrorCode.invalid_fetch_session_epoch,
        ErrorCode.fetch_session_topic_id_error,
        ErrorCode.inconsistent_topic_id,
    }
)


@dataclass(frozen=True, slots=True)
class FetchPosition:
    """Position from which to read a partition.

    `leader_epoch` is the leader epoch that the client knows; -1 makes the broker skip the check.
    """

    partition: TopicPartition
    offset: Offset
    max_bytes: int
    leader_epoch: LeaderEpoch = UNKNOWN_EPOCH


class Forgotten(NamedTuple):
    """A partition that leaves a session; the id is None if the session names topics."""

    partition: TopicPartition
    topic_id: UUID | None


class FetchChanges(NamedTuple):
    """What a Fetch names: its session, and the partitions that are new, changed or forgotten.

    `by_id` is whether topics are named by their ids, which is the same in all requests of a
    session.
    """

    session_id: int
    epoch: int
    positions: Sequence[FetchPosition]
    forgotten: Sequence[Forgotten]
    by_id: bool


@dataclass(slots=True)
class FetchSession:
    """A session with one broker, for one request at a time.

    A broker without room answers with NO_SESSION: then each request names all partitions.
    """

    _id: int = NO_SESSION
    _epoch: int = FULL
    _known: dict[TopicPartition, tuple[FetchPosition, UUID | None]] = field(default_factory=dict)
    _is_by_id: bool = False

    def changes(self, positions: Sequence[FetchPosition], ids: Mapping[str, UUID]) -> FetchChanges:
        """Return what the next request names, so that the session has these positions."""
        named = {each.partition: (each, ids.get(each.partition.topic)) for each in positions}
        by_id = all(topic_id is not None for _, topic_id in named.values())
        if by_id is not self._is_by_id:
            self.restart()
        before = self._known if self._epoch != FULL else {}
        self._known, self._is_by_id = named, by_id
        changed = [
            position
            for tp, (position, topic_id) in named.items()
            if before.get(tp) != (position, topic_id)
        ]
        forgotten = [
            Forgotten(tp, topic_id if by_id else None)
            for tp, (_, topic_id) in before.items()
            # A topic that was created again is another one for the broker.
            if tp not in named or (by_id and named[tp][1] != topic_id)
        ]
        return FetchChanges(self._id, self._epoch, changed, forgotten, by_id)

    def is_refused(self, error_code: int, session_id: int) -> bool:
        """Take an answer; return whether the request is to be repeated, with all partitions: the
        broker has given the session's room to another one, or has missed a request of it.
        """
        was_full = self._epoch == FULL
        if not error_code:
            self._id = session_id
            following = 1 if self._epoch == _MAX_EPOCH else self._epoch + 1
            self._epoch = FULL if session_id == NO_SESSION else following
            return False
        if error_code == ErrorCode.fetch_session_id_not_found:
            self._id = NO_SESSION
        self.restart()
        return error_code in _REFUSALS and not was_full

    def restart(self) -> None:
        """Name all partitions in the next request: it may not be known what the broker has."""
        self._epoch = FULL
