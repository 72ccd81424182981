"""Snapshots of the cluster's state, taken by one sidecar of the cluster at a time.

Every sidecar reads the index `latest.json` once per `interval`. The sidecar that wrote it last
takes the snapshots. Another sidecar takes over when the index has not changed for three intervals:
it first claims the index with a conditional put, and asks the brokers only if that succeeds.

What a kill right after each durable step leaves:

- the claim (the index with our nonce): this sidecar continues at once after its next start, another
  sidecar after three intervals;
- a snapshot: it is not in the index, but a restore finds it. The next turn stores the state again,
  under a later time;
- the index: a finished turn;
- the removal of an old snapshot: fewer snapshots. The next turn removes the rest.

Two sidecars that both believe that it is their turn store two equally valid snapshots under
different keys. The index accepts one of them.
"""

import math
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from sidetier.archive.objects.cluster_snapshots import (
    IndexEntry,
    SnapshotIndex,
    StoredIndex,
    checksum_of,
    content_json,
    encode_index,
    encode_snapshot,
    read_index,
    read_snapshot,
    snapshot_times,
)
from sidetier.config.uploader import ClusterSnapshotsConfig
from sidetier.leadership.port import ClusterStateSource
from sidetier.segments.cluster_state import SnapshotContent, SnapshotKind
from sidetier.segments.errors import (
    LeadershipError,
    MalformedObjectError,
    ObjectNotFoundError,
    PermanentStorageError,
    PreconditionFailedError,
    SidetierError,
)
from sidetier.segments.keys import parse_cluster_snapshot_key
from sidetier.segments.offsets import BrokerId
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import PutOptions, unchanged
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.clock import Clock
from sidetier.uploader.periodic import PeriodicTask
from sidetier.uploader.stores import Place
from sidetier.uploader.unexpected import UnexpectedErrors
from sidetier.uploader.workers import WorkerPool

log: Final = structlog.get_logger()

FIRST_SECONDS: Final = 30.0
"""Seconds from the start to the first turn: the `offset.wm` objects are read first."""
_TURNS_MISSED: Final = 3
_REMOVED_AT_ONCE: Final = 100
_SPREAD: Final = 0.25
"""The share of an interval over which the requests for one kind are spread."""


@dataclass(frozen=True, slots=True)
class TurnResult:
    """The result of one turn.

    Attributes:
        index: The index after the turn; None where there is none.
        is_writer: Whether this sidecar takes the snapshots.
        problems: Why a kind could not be read, or not completely.
    """

    index: SnapshotIndex | None
    is_writer: bool = False
    problems: Mapping[SnapshotKind, str] = field(default_factory=dict)


class SnapshotWriter:
    """Reads the cluster's state, and stores it where it has changed.

    `take_turn` makes requests to the store and the brokers. Only one thread at a time calls it.
    """

    def __init__(
        self,
        config: ClusterSnapshotsConfig,
        source: ClusterStateSource,
        place: Place,
        broker_id: BrokerId,
        clock: Clock,
    ) -> None:
        self._config = config
        self._source = source
        self._place = place
        self._store, self._layout = place.store, place.layout
        self._broker_id = broker_id
        self._clock = clock
        self._nonce: str | None = None
        """Nonce of the index that this sidecar wrote last."""
        self._seen: tuple[str, float] | None = None
        """Nonce of an index of another sidecar, and when it was first seen."""
        self._contents: dict[SnapshotKind, tuple[str, SnapshotContent]] = {}
        """The last content of each kind, with its checksum."""
        self._read_at: dict[SnapshotKind, float] = {}
        self._may_remove = True

    def take_turn(self) -> TurnResult:
        """Take snapshots if it is this sidecar's turn.

        Raises:
            ConfigurationError: the store must not be written to.
            MalformedObjectError: the index does not parse.
        """
        self._place.archive_writer.admit()
        stored = read_index(self._store, self._layout)
        if not self._is_our_turn(stored):
            return _as_reader(stored)
        if stored is None or stored.index.nonce != self._nonce:
            # Claim first, ask the brokers after: two sidecars that see the
            # same outdated index would otherwise both ask every broker.
            claimed = self._write(stored, stored.index if stored else None)
            if claimed is None:
                return _as_reader(read_index(self._store, self._layout))
            self._read_at.clear()  # the new writer reads every kind in its first turn
            stored = claimed
        return self._take_due(stored)

    def _is_our_turn(self, stored: StoredIndex | None) -> bool:
        if stored is None or stored.index.nonce == self._nonce:
            return True
        # The age of the index is measured with the monotonic clock of this machine: the time in it
        # is from another machine, whose clock may be wrong.
        now, nonce = self._clock.monotonic(), stored.index.nonce
        if self._seen is None or self._seen[0] != nonce:
            self._seen = nonce, now
        # The index is of this broker's sidecar, before its
        # restart: there is no other writer to wait for.
        restarted = self._nonce is None and stored.index.broker_id == self._broker_id
        return restarted or now - self._seen[1] >= _TURNS_MISSED * self._config.interval

    def _take_due(self, stored: StoredIndex) -> TurnResult:
        snapshots = dict(stored.index.snapshots)
        problems = dict(stored.index.problems)
        due = [kind for kind in SnapshotKind if self._is_due(kind)]
        unread = 0
        for kind in due:
            # Before the request: a kind that fails is asked
            # again after its interval, not at each turn.
            self._read_at[kind] = self._clock.monotonic()
            before = self._stored_content(kind, snapshots.get(kind))
            problems.pop(kind, None)
            try:
                read = self._source.read(kind, before, self._config.interval * _SPREAD)
            except LeadershipError as error:
                problems[kind] = str(error)
                unread += 1
                continue
            snapshots[kind] = self._store_if_changed(kind, read.content, snapshots.get(kind))
            if read.problem is not None:
                problems[kind] = read.problem
        index = replace(stored.index, snapshots=snapshots, problems=problems)
        if due and unread == len(due):
            # No broker answers this sidecar. It leaves the index unchanged, so that another sidecar
            # takes over.
            return TurnResult(index, is_writer=True, problems=problems)
        written = self._write(stored, index)
        if written is None:
            return _as_reader(read_index(self._store, self._layout))
        return TurnResult(written.index, is_writer=True, problems=problems)

    def _is_due(self, kind: SnapshotKind) -> bool:
        if kind.value in self._config.exclude or kind not in self._source.kinds:
            return False
        if kind is SnapshotKind.GROUP_OFFSETS:
            return True
        since = self._clock.monotonic() - self._read_at.get(kind, -math.inf)
        return since >= self._config.definitions_interval

    def _stored_content(
        self, kind: SnapshotKind, entry: IndexEntry | None
    ) -> SnapshotContent | None:
        """Return the content of the newest snapshot; None if there is none, or it is damaged."""
        if entry is None:
            return None
        known = self._contents.get(kind)
        if known is not None and known[0] == entry.content_sha256:
            return known[1]
        try:
            return read_snapshot(self._store, entry.key).content
        except (ObjectNotFoundError, MalformedObjectError) as error:
            log.warning("cluster_snapshot.unreadable", key=entry.key, error=str(error))
            return None

    def _store_if_changed(
        self, kind: SnapshotKind, content: SnapshotContent, before: IndexEntry | None
    ) -> IndexEntry:
        text = content_json(content)
        checksum = checksum_of(text)
        self._contents[kind] = checksum, content
        now_ms = int(self._clock.wall() * 1000)
        if before is not None and before.content_sha256 == checksum:
            return replace(before, confirmed_ms=now_ms)
        taken_ms = max(now_ms, self._taken_ms(kind, before) + 1)  # the clock may have been set back
        key = self._layout.cluster_snapshot_key(kind, taken_ms, self._broker_id)
        data = encode_snapshot(kind, self._layout.cluster, taken_ms, self._broker_id, text)
        # Without a condition: the key has the time and
        # this broker's id, and no other sidecar writes it.
        self._store.put_object(key, BytesBody(data))
        # After the new one is stored, so that at no moment fewer than `history` snapshots are kept.
        self._remove_old(kind)
        return IndexEntry(key, checksum, now_ms)

    def _taken_ms(self, kind: SnapshotKind, entry: IndexEntry | None) -> int:
        prefix = self._layout.cluster_snapshots_prefix(kind)
        taken = None if entry is None else parse_cluster_snapshot_key(entry.key, prefix)
        return -1 if taken is None else taken

    def _remove_old(self, kind: SnapshotKind) -> None:
        if not self._may_remove:
            return
        keys = list(snapshot_times(self._store, self._layout, kind))
        try:
            # A lowered `history` can leave thousands to remove: not all in one turn.
            for key in keys[: -self._config.history][:_REMOVED_AT_ONCE]:
                self._store.delete_object(key)
        except PermanentStorageError as error:
            self._may_remove = False  # permission is missing: do not fail, and log, at each turn
            log.warning("cluster_snapshot.not_removed", error=str(error))

    def _write(self, stored: StoredIndex | None, index: SnapshotIndex | None) -> StoredIndex | None:
        """Replace the index that was read. Return None if another sidecar has replaced it."""
        ours = SnapshotIndex(
            nonce=uuid.uuid4().hex,
            broker_id=self._broker_id,
            written_ms=int(self._clock.wall() * 1000),
            snapshots=index.snapshots if index else {},
            problems=index.problems if index else {},
        )
        condition = unchanged(None if stored is None else stored.etag)
        key = self._layout.cluster_index_key()
        try:
            etag = self._store.put_object(
                key, BytesBody(encode_index(ours)), PutOptions(condition=condition)
            )
        except PreconditionFailedError:
            current = read_index(self._store, self._layout)
            # With our nonce, the stored index is our own: the store has written it, but its answer
            # was lost, and the retry was refused.
            if current is None or current.index.nonce != ours.nonce:
                return None
            etag = current.etag
        self._nonce = ours.nonce
        return StoredIndex(ours, etag)


def _as_reader(stored: StoredIndex | None) -> TurnResult:
    if stored is None:
        return TurnResult(None)
    return TurnResult(stored.index, problems=stored.index.problems)


@dataclass(frozen=True, slots=True)
class TurnFailed:
    """A turn has raised an error."""

    error: Exception


class ClusterSnapshots:
    """Starts a turn of the writer when it is due, on a worker thread.

    Args:
        writer: Takes the turns; None where snapshots are off, or there are no brokers to ask.
        interval: Time from one turn to the next, in seconds.
        pool: A pool with one worker, so that brokers or a store that hang hold up no other work.
        now: Monotonic seconds.
        metrics: Counts failures.
        errors: Delays the next turn after an unexpected error.
    """

    def __init__(
        self,
        writer: SnapshotWriter | None,
        interval: float,
        pool: WorkerPool[TurnResult | TurnFailed],
        now: Callable[[], float],
        metrics: Metrics,
        errors: UnexpectedErrors,
    ) -> None:
        self._writer = writer
        self._task = PeriodicTask(
            "taking snapshots of the cluster's state",
            pool,
            now,
            metrics,
            errors,
            expected=(SidetierError,),
            first=min(FIRST_SECONDS, interval),
            interval=interval,
        )
        self._logged_problems: Mapping[SnapshotKind, str] = {}
        self._failure: str | None = None

    def take_if_due(self) -> None:
        """Begin the next turn if it is due and none is under way."""
        if self._writer is not None and self._task.is_due:
            self._task.begin(self._writer.take_turn, TurnFailed)

    def handle(self, result: TurnResult | TurnFailed) -> None:
        """Take the result of a turn."""
        if isinstance(result, TurnFailed):
            self._failed(result.error)
            return
        self._task.succeeded()
        self._failure = None
        if result.is_writer:
            for kind, problem in result.problems.items():
                if self._logged_problems.get(kind) != problem:
                    log.warning("cluster_snapshot.incomplete", kind=kind.value, error=problem)
            self._logged_problems = result.problems

    def _failed(self, error: Exception) -> None:
        if not self._task.failed(error):
            return
        if str(error) != self._failure:
            log.warning("cluster_snapshot.failed", error=str(error))
        self._failure = str(error)
