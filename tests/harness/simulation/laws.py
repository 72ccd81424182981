"""Invariants of the store, checked at every moment against the cluster's batches."""

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

from sidetier.archive.inventory.members import without_orphans
from sidetier.archive.objects.pinterest_metadata import decode_metadata
from sidetier.archive.objects.quarantine import read_plan
from sidetier.archive.objects.segment import stored_logs as listed
from sidetier.archive.objects.watermark import Watermark
from sidetier.archive.view import view_of_ours
from sidetier.segments.indexes import parse_offset_index, parse_time_index
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.notes import BROKER_ID_KEY, TOPIC_ID_KEY
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.segments.walker import BatchWalker
from sidetier.storage.fake import FakeStorage
from sidetier.uploader.sending.conditional_put import WRITER_EPOCH_KEY
from tests.harness.archive_sound import recorded_gaps
from tests.harness.daemons import LAYOUT, key_of, stored_logs, watermark_of
from tests.harness.simulation.replicas import Batch, Replicated, open_transaction
from tests.harness.simulation.world import World


@lru_cache(maxsize=4096)
def next_offset_of(log: bytes, base: int) -> int:
    """Return the next offset of a stored `.log`, after a check of every batch."""
    walker = BatchWalker(segment_file_name(BaseOffset(base), FileKind.LOG))
    walker.feed(memoryview(log))
    following = walker.finish().next_offset
    assert following is not None, f"{base}.log is empty"
    return following


@dataclass
class Laws:
    """The invariants. They are checked after every step, and compared with the states before."""

    cluster: Replicated
    store: FakeStorage
    world: World = field(default_factory=World)
    moved_to: int = 0
    moving: bool = False
    """A move to quarantine is pending, and `offset.wm` is at the offset before it."""
    moving_all: bool = False
    """The pending move takes the whole archive, so that `offset.wm` is removed at its end. A new
    archive may have begun before the next check.
    """
    start: int | None = None
    gaps: list[tuple[int, int]] = field(default_factory=list)
    pins_were_lost: bool = False
    """Whether a gap is allowed: a process died with open files, or a pin could not be kept (by a
    bound, for example), or pinned records could not be proven to be committed.
    """
    killed: bool = False
    """Whether a sidecar was killed."""
    isolated_at: int | None = None
    """Highest leader epoch in which a broker that is cut off from the others has answered."""
    changes: int = -1
    seen: set[bytes] = field(default_factory=set)
    """Every batch that was ever in the archive."""
    trims: int = 0
    """Requests of sidecars that have deleted records."""
    bad_trims: list[str] = field(default_factory=list)
    """Those that have deleted records that are not archived."""
    moves: set[str] = field(default_factory=set)
    """Quarantine plans by which the archive end has moved back."""
    needed: int | None = None
    """Offset below which `sidetier gc` may delete: that of the consumer that has read the least of
    the archived topic. None if no gc runs.
    """
    archived_id: str | None = None
    """Topic id in the last `offset.wm` that was there."""
    collected: set[bytes] = field(default_factory=set)
    """Batches that gc has deleted, all below the start of the archive at that moment."""
    read: set[bytes] = field(default_factory=set)
    """Batches that readers have seen, if a gc runs."""
    collected_to: int = 0
    """Highest start to which gc has moved the archive of this topic."""
    start_moves: set[str] = field(default_factory=set)
    """Quarantine plans by which the start has moved back."""
    last_start: int | None = None
    """Start in `offset.wm` at the last check."""
    lost_indexes: set[str] = field(default_factory=set)
    """Keys of indexes that gc has deleted and nobody has stored again. A late delete can be of a
    new segment with the same base offset: `sidetier repair` builds its index again.
    """

    @property
    def tp(self) -> TopicPartition:
        return self.cluster.tp

    def check(self) -> None:
        """Check the invariants if the store has changed since the last check."""
        self.check_trims()
        if self.store.changes == self.changes:
            return
        self.changes = self.store.changes
        logs = stored_logs(self.store, self.tp)
        self._committed_only(logs)
        self._stored_once(logs)
        watermark = watermark_of(self.store, self.tp)
        self._nothing_disappears(logs, watermark)
        named = self._named(logs)
        self.lost_indexes -= self.store.contents().keys()
        self._whole(self._without_late_ones(logs, named, watermark))
        self._gaps_are_none_of_the_leaders(recorded_gaps(self.store, self.tp), watermark)
        self._begins_where_recorded(logs, watermark)
        self._start_moved(watermark)
        self._moved(watermark)
        if watermark is None or watermark.pending is not None:
            return  # no archive, or a move to quarantine is pending
        assert watermark.next_offset is not None
        below = {base: log for base, log in sorted(logs.items()) if base <= watermark.base_offset}
        if self.needed is not None and (watermark.start_offset or 0) >= watermark.next_offset:
            return  # a divergence below a start that gc has moved: nothing is archived
        assert watermark.base_offset in below, "the watermark names what is not stored"
        readable = {base: log for base, log in below.items() if base in named}
        if self.needed is not None:
            self.read |= {data for log in readable.values() for _, _, data in batches_of(log)}
        self._of_one_topic(readable, watermark)
        self._contiguous(readable, watermark.next_offset, watermark.start_offset)
        for base, log in readable.items():
            self._indexes(base, log)

    def check_trims(self) -> None:
        """Check that no trim has deleted records that are not archived."""
        assert not self.bad_trims, f"a trim {self.bad_trims[0]}"

    def note_trim(self, deleted: Collection[Batch], end: int) -> None:
        """Note what a sidecar's request deletes although the archive does not have it.

        The broker's log start offset never passes the archive's end by a sidecar's own request.
        An error that is raised here would be taken for the broker's answer.
        """
        self.trims += 1
        watermark = watermark_of(self.store, self.tp)
        archived_to = 0 if watermark is None else watermark.next_offset or 0
        if end > archived_to:
            self.bad_trims.append(f"up to {end}, and the archive ends at {archived_to}")
        base_offset = -1 if watermark is None else watermark.base_offset
        logs, named = stored_logs(self.store, self.tp), self._entries().keys()
        archived = {
            base: {data for _, _, data in batches_of(logs[base])}
            for base in logs.keys() & named
            if base <= base_offset
        }

        def is_archived(batch: Batch) -> bool:
            """Where a reader looks for it: in the last segment that begins at or below it."""
            holder = max((base for base in archived if base <= batch.base), default=None)
            return holder is not None and batch.data in archived[holder]

        missing = [batch.base for batch in deleted if not is_archived(batch)]
        if missing:
            self.bad_trims.append(f"of batches {missing}, which the archive does not have")
        self._note_split(end, archived_to)

    def _note_split(self, end: int, archived_to: int) -> None:
        """Note a transaction that a trim splits: the archive alone has its beginning, and the
        broker alone its end.
        """
        batches = self.cluster.replicas[self.cluster.leader].batches
        first = open_transaction(batches, end)
        if first is None:
            return
        decided = (batch.end for batch in batches if batch.base >= end and batch.begins is False)
        decided_at = next(decided, None)
        if decided_at is None or decided_at > archived_to:
            self.bad_trims.append(
                f"up to {end}, and the transaction that began at {first} ends at {decided_at}: the "
                f"archive ends at {archived_to}"
            )

    def left_over(self) -> dict[int, int]:
        """Count the discarded batches in each segment that `_metadata` names.

        The result must be empty once every sidecar knows the leader and has had time. Below the
        leader's known epochs nothing shows which history a batch belongs to, so these batches are
        not counted.
        """
        logs, known_from = stored_logs(self.store, self.tp), self.cluster.known_from()
        decidable = {
            base: {data for first, _, data in batches_of(logs[base]) if first >= known_from}
            for base in self._named(logs)
        }
        lost = {
            base: len(self.cluster.thrown_away & batches) for base, batches in decidable.items()
        }
        return {base: count for base, count in lost.items() if count}

    def read_wrongly(self) -> dict[int, int]:
        """Count the discarded batches that our own reader returns, by segment.

        Our reader also reads segments that `_metadata` does not name.
        """
        watermark = watermark_of(self.store, self.tp)
        if watermark is None or watermark.pending is not None:
            return {}
        logs, known_from = stored_logs(self.store, self.tp), self.cluster.known_from()
        rows = listed(self.store.list_objects(prefix := LAYOUT.partition_prefix(self.tp)), prefix)
        named = {BaseOffset(base) for base in self._named(logs)}
        below = [segment for segment in rows if segment.base_offset <= watermark.base_offset]
        ends = {base: _end_of(logs, base) for base in named}
        visible = without_orphans(below, named, ends)
        view = view_of_ours("the archive", watermark, "", visible)
        lost: dict[int, int] = {}
        for base, until in (
            (segment.base_offset, view.until(segment.base_offset)) for segment in view.logs
        ):
            read = {
                data for first, _, data in batches_of(logs[base]) if known_from <= first < until
            }
            lost[base] = len(self.cluster.thrown_away & read)
        return {base: count for base, count in lost.items() if count}

    def _committed_only(self, logs: dict[int, bytes]) -> None:
        """Check that stored batches were committed once, and are contiguous per segment."""
        for base, log in logs.items():
            expected = base
            for first, end, data in batches_of(log):
                assert data in self.cluster.topics, f"{base}.log holds what was never committed"
                assert first == expected, f"{base}.log has a gap below {first}"
                expected = end

    def _stored_once(self, logs: dict[int, bytes]) -> None:
        """Check that no segments overlap while one sidecar leads in one epoch and is not killed."""
        ends = sorted((base, next_offset_of(log, base)) for base, log in logs.items())
        overlapping = [base for (base, end), (after, _) in pairwise(ends) if end > after]
        if overlapping and not self.killed:
            writers = {self._writer_of(base) for base in logs}
            assert len(writers) > 1, f"{overlapping} reach into the segments behind them"

    def _writer_of(self, base: int) -> tuple[str | None, ...]:
        metadata = self.store.head_object(key_of(self.tp, base)).metadata
        return tuple(map(metadata.get, (BROKER_ID_KEY, WRITER_EPOCH_KEY, TOPIC_ID_KEY)))

    def _nothing_disappears(self, logs: dict[int, bytes], watermark: Watermark | None) -> None:
        """Check that every batch that was stored is in the archive, in quarantine or retired, or
        that gc has deleted it below the start of the archive.
        """
        archived = {data for log in logs.values() for _, _, data in batches_of(log)}
        if not self.seen <= archived | self.collected:
            quarantined = (
                log for key, log in self.store.contents().items() if self._is_log_aside(key)
            )
            there_too = {data for log in quarantined for _, _, data in batches_of(log)}
            if self.needed is not None:
                start = 0 if watermark is None else watermark.start_offset or 0
                gone = self.seen - archived - there_too
                self.collected |= {data for data in gone if self._may_be_collected(data, start)}
            assert self.seen <= archived | there_too | self.collected, (
                "stored batches are neither archived, quarantined nor retired"
            )
        self.seen |= archived

    def _moved(self, watermark: Watermark | None) -> None:
        """Check that the archive end only moves forwards, except once for each quarantine plan.

        A plan that quarantines a whole archive removes `offset.wm` afterwards.
        """
        archive_end = 0 if watermark is None else int(watermark.next_offset or 0)
        if archive_end < self.moved_to:
            plans = {key for key in self.store.contents() if self._is_plan(key)}
            removed = self.moving_all or (watermark is None and self.moving)
            assert removed or plans - self.moves, "the watermark went back"
            self.moves = plans
        if watermark is None:
            self.start = None
        self.moved_to = archive_end
        pending = None if watermark is None else watermark.pending
        self.moving = pending is not None
        plan = None if pending is None else read_plan(self.store, pending)
        self.moving_all = plan is not None and plan.whole

    def _may_be_collected(self, data: bytes, start: int) -> bool:
        """Return whether gc may delete a batch: below the start, or in a segment that begins below
        it and that no reader has seen, as a late sidecar stores it.
        """
        [(first, end, _)] = batches_of(data)
        return end <= start or (first < start and data not in self.read)

    def _start_moved(self, watermark: Watermark | None) -> None:
        """Check that the start only moves forwards, and only as far as consumers allow.

        A quarantine may move it back to the divergence, once for each plan.
        """
        if watermark is not None and watermark.topic_id != self.archived_id:
            self.archived_id = watermark.topic_id
            self.needed = None if self.needed is None else 0  # nobody has read the new topic
        before = self.last_start
        start = None if watermark is None else watermark.start_offset
        self.last_start = None if start is None else int(start)
        if self.needed is None or before is None or start is None or start == before:
            return
        if self.moving_all:
            return  # a new archive has begun since the last check
        if start < before:
            plans = {key for key in self.store.contents() if self._is_plan(key)}
            assert plans - self.start_moves, f"the start went back from {before} to {start}"
            self.start_moves = plans
            return
        assert start <= self.needed, f"the start is {start}, and {self.needed} is still needed"
        self.collected_to = max(self.collected_to, int(start))

    def _of_one_topic(self, shown: dict[int, bytes], watermark: Watermark) -> None:
        """Check that all readable batches belong to the topic id in `offset.wm`."""
        topics = self.cluster.topics
        topic_ids = {topics[data] for log in shown.values() for _, _, data in batches_of(log)}
        assert topic_ids <= {watermark.topic_id}, (
            f"{topic_ids} in an archive of {watermark.topic_id}"
        )

    def _without_late_ones(
        self, logs: dict[int, bytes], named: set[int], watermark: Watermark | None
    ) -> dict[int, bytes]:
        """Leave out segments that a late sidecar has stored below the start while a gc ran.

        The gc may have deleted their indexes before their `.log` was stored. Readers ignore them,
        and the next gc deletes them.
        """
        if self.needed is None or watermark is None:
            return logs
        start = watermark.start_offset or 0
        return {base: log for base, log in logs.items() if base >= start or base in named}

    def _whole(self, logs: dict[int, bytes]) -> None:
        """Check that each listed `.log` has its indexes."""
        keys = self.store.contents().keys()
        for base in logs:
            for kind in (FileKind.INDEX, FileKind.TIMEINDEX):
                key = key_of(self.tp, base, kind)
                assert key in keys or key in self.lost_indexes, (
                    f"{base}.log is there without its {kind}"
                )

    def _contiguous(self, below: dict[int, bytes], end: int, start: int | None) -> None:
        spans = [(base, next_offset_of(log, base)) for base, log in below.items()]
        gaps = [gap for gap in recorded_gaps(self.store, self.tp) if gap[0] < end]
        if self.start is None:
            self.start = min(first for first, _ in spans + gaps)
        expected = self.start if self.needed is None or start is None else start
        for first, following in sorted(spans + gaps):
            assert first <= expected, f"nothing holds {expected} to {first - 1}, below {end}"
            expected = max(expected, following)
        assert expected >= end, f"the watermark says {end}, what is stored ends at {expected}"

    def _indexes(self, base: int, log: bytes) -> None:
        contents = self.store.contents()
        starts = batch_positions(log)
        key = key_of(self.tp, base, FileKind.INDEX)
        if key not in self.lost_indexes:
            for offset, position in parse_offset_index(contents[key], BaseOffset(base)).entries:
                first, end = starts.get(position, (0, 0))
                assert first <= offset < end, f"the index of {base} is of another log"
        key = key_of(self.tp, base, FileKind.TIMEINDEX)
        if key not in self.lost_indexes:
            times = parse_time_index(contents[key], BaseOffset(base))
            ends = next_offset_of(log, base)
            assert all(base <= offset < ends for _, offset in times.entries)

    def check_after_gc(self) -> None:
        """Check that a gc that nobody has disturbed leaves no entry of a segment that is not
        stored.
        """
        missing = self._entries().keys() - stored_logs(self.store, self.tp).keys()
        assert not missing, f"_metadata names {missing}, and gc has ended"

    def _entries(self) -> dict[int, int]:
        """Return the timestamps in `_metadata`, by base offset, in its order."""
        data = self.store.contents().get(LAYOUT.metadata_key(self.tp))
        entries = decode_metadata(data, "_metadata").entries if data is not None else ()
        return {int(entry.base_offset): entry.timestamp for entry in entries}

    def _named(self, logs: dict[int, bytes]) -> set[int]:
        """Return the segments in `_metadata`, which Pinterest's consumer reads; all are stored."""
        entries = self._entries()
        named = set(entries)
        missing = named - logs.keys()
        if self.needed is not None:
            # A late sidecar may add an entry again that gc has removed: the next gc removes it.
            watermark = watermark_of(self.store, self.tp)
            start = 0 if watermark is None else watermark.start_offset or 0
            missing = {base for base in missing if base >= start}
        assert not missing, f"_metadata names {missing}, never stored"
        times = list(entries.values())
        assert times == sorted(times), "timestamps in _metadata fall as bases rise"
        return named & logs.keys()

    def _is_plan(self, key: str) -> bool:
        return self._is_aside(key) and key.endswith("plan.json")

    def _is_log_aside(self, key: str) -> bool:
        return self._is_aside(key) and key.endswith(FileKind.LOG.value)

    def _is_aside(self, key: str) -> bool:
        tp = self.tp
        return key.startswith((LAYOUT.quarantine_prefix(tp), LAYOUT.retired_prefix(tp)))

    def recorded_start(self) -> int | None:
        """Return the recorded start offset of this topic's archive; None before it is recorded."""
        data = self.store.contents().get(LAYOUT.start_key(self.tp))
        record = {} if data is None else json.loads(data)
        if record.get("topic_id", self.cluster.topic_id) != self.cluster.topic_id:
            return None
        return record.get("start_offset")

    def unrecorded_beginning(self) -> tuple[int, int] | None:
        """Return the offsets below the archive that are missing without a recorded gap, or None.

        The range begins at the first offset that was deleted before the first `offset.wm` was
        written, and ends at the archive's start. It must be None once every sidecar has caught up.

        Two sidecars may begin an archive at the same time: a follower's, whose copy begins later,
        and the leader's, which remembers what was deleted. Then the deleted records are in a gap
        below the archive's start.
        """
        start, watermark = self.recorded_start(), watermark_of(self.store, self.tp)
        if self.world.offset_reset == "latest" or start is None or watermark is None or self.moves:
            return None
        if self.collected_to:
            return None
        archive_start = int(watermark.start_offset or 0)
        for first, end in sorted(recorded_gaps(self.store, self.tp)):
            if first <= start < end:
                start = end
        return None if archive_start <= start else (start, archive_start)

    def _begins_where_recorded(self, logs: dict[int, bytes], watermark: Watermark | None) -> None:
        """Check that records excluded by `offset_reset: latest` stay excluded after any restart."""
        start = self.recorded_start()
        if self.world.offset_reset != "latest":
            return
        if start is None:
            assert watermark is None, "the archive has begun, and where is not recorded"
            assert not logs, "something is stored, and where the archive begins is not recorded"
            return
        below = {base for base, log in logs.items() if next_offset_of(log, base) <= start}
        assert not below, f"{below} are below {start}, where the archive is to begin"

    def _gaps_are_none_of_the_leaders(
        self, gaps: list[tuple[int, int]], watermark: Watermark | None
    ) -> None:
        """Check each new gap record.

        A gap must not contain records that the broker of the writer still has, or that a sidecar
        could have pinned. With `on_gap: halt`, no gap may be recorded. Gaps below the start of an
        archive that has begun only tell what it does not have.
        """
        begins = 0 if watermark is None else int(watermark.start_offset or 0)
        for gap in gaps:
            shorter = any(gap[0] == start and gap[1] <= end for start, end in self.gaps)
            if shorter:  # known already, or cut at a divergence
                continue
            self.gaps.append(gap)
            if gap[1] <= begins:
                continue
            assert self.world.on_gap != "halt", f"{gap} was passed, and was to halt the partition"
            assert self.pins_were_lost, f"{gap} is recorded, and some sidecar has held all of it"
            leader = self.cluster.replicas[self.cluster.leader]
            if not self._of_an_isolated_leader(gap):
                assert not leader.holds(gap[0]), f"{gap} is recorded, and on the leader's disk"

    def _of_an_isolated_leader(self, gap: tuple[int, int]) -> bool:
        """Return whether the gap was recorded in an epoch in which an isolated broker has answered.

        Its writer believes a leader that was cut off before the last election and claims to lead;
        no source could tell the writer otherwise.
        """
        if self.isolated_at is None:
            return False
        key = LAYOUT.gap_key(self.tp, Offset(gap[0]), Offset(gap[1]))
        return int(json.loads(self.store.contents()[key])["leader_epoch"]) <= self.isolated_at


def _end_of(logs: dict[int, bytes], base: int) -> Offset:
    return Offset(next_offset_of(logs[base], base))


@lru_cache(maxsize=4096)
def batches_of(log: bytes) -> tuple[tuple[int, int, bytes], ...]:
    """Return first offset, next offset and bytes of each batch."""
    starts = batch_positions(log)
    ends = [*list(starts)[1:], len(log)]
    return tuple(
        (*offsets, log[position:end])
        for (position, offsets), end in zip(starts.items(), ends, strict=True)
    )


@lru_cache(maxsize=4096)
def batch_positions(log: bytes) -> dict[int, tuple[int, int]]:
    """Return first and next offset of each batch, by its position."""
    offsets_by_position, position = {}, 0
    while position < len(log):
        base = int.from_bytes(log[position : position + 8])
        length = int.from_bytes(log[position + 8 : position + 12])
        delta = int.from_bytes(log[position + 23 : position + 27])
        offsets_by_position[position] = (base, base + delta + 1)
        position += 12 + length
    return offsets_by_position
