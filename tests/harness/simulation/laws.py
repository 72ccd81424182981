"""What must hold at every moment, seen from outside: the store, and what the cluster committed."""

import json
from dataclasses import dataclass, field
from functools import lru_cache

from sidetier.archive.objects.pinterest_metadata import decode_metadata
from sidetier.archive.objects.segment import stored_logs as listed
from sidetier.archive.objects.watermark import Watermark
from sidetier.archive.orphan_segments import without_orphans
from sidetier.archive.view import view_of_ours
from sidetier.segments.batches import BatchWalker
from sidetier.segments.indexes import parse_offset_index, parse_time_index
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.storage.fake import FakeStorage
from tests.harness.archive_sound import recorded_gaps
from tests.harness.daemons import LAYOUT, key_of, stored_logs, watermark_of
from tests.harness.simulation.replicas import Replicated
from tests.harness.simulation.world import World


@lru_cache(maxsize=4096)
def next_offset_of(log: bytes, base: int) -> int:
    """Of a stored `.log`, every batch of which is checked."""
    walker = BatchWalker(segment_file_name(BaseOffset(base), FileKind.LOG))
    walker.feed(memoryview(log))
    following = walker.finish().next_offset
    assert following is not None, f"{base}.log is empty"
    return following


@dataclass
class Laws:
    """Checked after every step; remembers what it saw before."""

    cluster: Replicated
    store: FakeStorage
    world: World = field(default_factory=World)
    moved_to: int = 0
    moving: bool = False
    """Something is being set aside, and the watermark stands before it."""
    start: int | None = None
    gaps: list[tuple[int, int]] = field(default_factory=list)
    pins_were_lost: bool = False
    """A process died that held files open, or what it held could not be kept (by a bound, say), or
    not be proven to be committed.
    """
    isolated_at: int | None = None
    """The leader epoch up to which a broker that was cut off from the others has answered."""
    changes: int = -1
    seen: set[bytes] = field(default_factory=set)
    """Every batch that was ever in the archive."""
    moves: set[str] = field(default_factory=set)
    """The plans by which the watermark has gone back."""

    @property
    def tp(self) -> TopicPartition:
        return self.cluster.tp

    def check(self) -> None:
        """Only when something was written since the last time."""
        if self.store.changes == self.changes:
            return
        self.changes = self.store.changes
        logs = stored_logs(self.store, self.tp)
        self._committed_only(logs)
        self._nothing_disappears(logs)
        self._whole(logs)
        self._gaps_are_none_of_the_leaders(recorded_gaps(self.store, self.tp))
        named = self._named(logs)
        watermark = watermark_of(self.store, self.tp)
        self._begins_where_recorded(logs, watermark)
        self._moved(watermark)
        if watermark is None or watermark.pending is not None:
            return  # nothing is there, or it is being cut
        assert watermark.next_offset is not None
        below = {base: log for base, log in sorted(logs.items()) if base <= watermark.base_offset}
        assert watermark.base_offset in below, "the watermark names what is not stored"
        shown = {base: log for base, log in below.items() if base in named}
        self._of_one_topic(shown, watermark)
        self._contiguous(shown, watermark.next_offset)
        for base, log in shown.items():
            self._indexes(base, log)

    def left_over(self) -> dict[int, int]:
        """How many batches in each shown segment the cluster has thrown away: none, once everybody
        has heard of the leader and has had time. Below what the leader knows of, nothing tells
        any more which history was which.
        """
        logs, known = stored_logs(self.store, self.tp), self.cluster.known_from()
        told = {
            base: {data for first, _, data in batches_of(logs[base]) if first >= known}
            for base in self._named(logs)
        }
        lost = {base: len(self.cluster.thrown_away & batches) for base, batches in told.items()}
        return {base: count for base, count in lost.items() if count}

    def read_wrongly(self) -> dict[int, int]:
        """How many of them our own readers hand out, of each segment: they do not need it named."""
        watermark = watermark_of(self.store, self.tp)
        if watermark is None or watermark.pending is not None:
            return {}
        logs, known = stored_logs(self.store, self.tp), self.cluster.known_from()
        rows = listed(self.store.list_objects(prefix := LAYOUT.partition_prefix(self.tp)), prefix)
        named = {BaseOffset(base) for base in self._named(logs)}
        below = [one for one in rows if one.base_offset <= watermark.base_offset]
        kept = without_orphans(below, named, lambda one: _end_of(logs, one.base_offset))
        view = view_of_ours("the archive", watermark, "", kept)
        lost: dict[int, int] = {}
        for base, until in ((one.base_offset, view.until(one.base_offset)) for one in view.logs):
            read = {data for first, _, data in batches_of(logs[base]) if known <= first < until}
            lost[base] = len(self.cluster.thrown_away & read)
        return {base: count for base, count in lost.items() if count}

    def _committed_only(self, logs: dict[int, bytes]) -> None:
        """Batches that were, one after the other."""
        for base, log in logs.items():
            expected = base
            for first, end, data in batches_of(log):
                assert data in self.cluster.topics, f"{base}.log holds what was never committed"
                assert first == expected, f"{base}.log has a gap below {first}"
                expected = end

    def _nothing_disappears(self, logs: dict[int, bytes]) -> None:
        """What was stored is in the archive, or lies where things are set aside."""
        there = {data for log in logs.values() for _, _, data in batches_of(log)}
        if not self.seen <= there:
            aside = (log for key, log in self.store.contents().items() if self._is_log_aside(key))
            there_too = {data for log in aside for _, _, data in batches_of(log)}
            assert self.seen <= there | there_too, "what was stored is nowhere any more"
        self.seen |= there

    def _moved(self, watermark: Watermark | None) -> None:
        """Forwards only, but for once by each plan to set something aside; one that sets aside all
        of an archive removes the watermark after that.
        """
        now = 0 if watermark is None else int(watermark.next_offset or 0)
        if now < self.moved_to:
            plans = {key for key in self.store.contents() if self._is_plan(key)}
            removed = watermark is None and self.moving
            assert removed or plans - self.moves, "the watermark went back"
            self.moves = plans
        if watermark is None:
            self.start = None
        self.moved_to = now
        self.moving = watermark is not None and watermark.pending is not None

    def _of_one_topic(self, shown: dict[int, bytes], watermark: Watermark) -> None:
        """That of the watermark's topic id."""
        topics = self.cluster.topics
        found = {topics[data] for log in shown.values() for _, _, data in batches_of(log)}
        assert found <= {watermark.topic_id}, f"{found} in an archive of {watermark.topic_id}"

    def _whole(self, logs: dict[int, bytes]) -> None:
        """Who lists a `.log` finds its indexes, too."""
        keys = self.store.contents().keys()
        for base in logs:
            for kind in (FileKind.INDEX, FileKind.TIMEINDEX):
                assert key_of(self.tp, base, kind) in keys, (
                    f"{base}.log is there without its {kind}"
                )

    def _contiguous(self, below: dict[int, bytes], end: int) -> None:
        spans = [(base, next_offset_of(log, base)) for base, log in below.items()]
        gaps = [gap for gap in recorded_gaps(self.store, self.tp) if gap[0] < end]
        if self.start is None:
            self.start = min(first for first, _ in spans + gaps)
        expected = self.start
        for first, following in sorted(spans + gaps):
            assert first <= expected, f"nothing holds {expected} to {first - 1}, below {end}"
            expected = max(expected, following)
        assert expected >= end, f"the watermark says {end}, what is stored ends at {expected}"

    def _indexes(self, base: int, log: bytes) -> None:
        contents = self.store.contents()
        starts = batch_positions(log)
        index = parse_offset_index(
            contents[key_of(self.tp, base, FileKind.INDEX)], BaseOffset(base)
        )
        for offset, position in index.entries:
            first, end = starts.get(position, (0, 0))
            assert first <= offset < end, f"the index of {base} is of another log"
        times = parse_time_index(
            contents[key_of(self.tp, base, FileKind.TIMEINDEX)], BaseOffset(base)
        )
        ends = next_offset_of(log, base)
        assert all(base <= offset < ends for _, offset in times.entries)

    def _named(self, logs: dict[int, bytes]) -> set[int]:
        """What Pinterest's consumer can see: the segments in `_metadata`, all of them stored."""
        data = self.store.contents().get(LAYOUT.metadata_key(self.tp))
        entries = decode_metadata(data, "_metadata").entries if data is not None else ()
        named = {int(entry.base_offset) for entry in entries}
        assert named <= logs.keys(), f"_metadata names {named - logs.keys()}, never stored"
        times = [entry.timestamp for entry in entries]
        assert times == sorted(times), "timestamps in _metadata fall as bases rise"
        return named

    def _is_plan(self, key: str) -> bool:
        return self._is_aside(key) and key.endswith("plan.json")

    def _is_log_aside(self, key: str) -> bool:
        return self._is_aside(key) and key.endswith(FileKind.LOG.value)

    def _is_aside(self, key: str) -> bool:
        tp = self.tp
        return key.startswith((LAYOUT.quarantine_prefix(tp), LAYOUT.retired_prefix(tp)))

    def recorded_start(self) -> int | None:
        """Where the archive of this topic is to begin, once that is recorded."""
        data = self.store.contents().get(LAYOUT.start_key(self.tp))
        record = {} if data is None else json.loads(data)
        if record.get("topic_id", self.cluster.topic_id) != self.cluster.topic_id:
            return None
        return record.get("start_offset")

    def unrecorded_beginning(self) -> tuple[int, int] | None:
        """The first of the offsets that were gone before the first watermark and are in no recorded
        gap, and the archive's start; None where there is none. Once everybody has caught up.

        Two sidecars may begin an archive at the same time: a follower's, whose copy begins later,
        and the leader's, which remembers what was deleted. Then the records that are gone lie in a
        gap below the archive's start. Where the one writes the first watermark right after it has
        read the record, and the other one lowers that in between, nothing tells it (ADR 13).
        """
        start, watermark = self.recorded_start(), watermark_of(self.store, self.tp)
        if self.world.offset_reset == "latest" or start is None or watermark is None or self.moves:
            return None
        if self.cluster.start_outrun:
            return None
        begun = int(watermark.start_offset or 0)
        for first, end in sorted(recorded_gaps(self.store, self.tp)):
            if first <= start < end:
                start = end
        return None if begun <= start else (start, begun)

    def _begins_where_recorded(self, logs: dict[int, bytes], watermark: Watermark | None) -> None:
        """What `offset_reset: latest` leaves out stays left out, after any restart."""
        start = self.recorded_start()
        if self.world.offset_reset != "latest":
            return
        if start is None:
            assert watermark is None, "the archive has begun, and where is not recorded"
            assert not logs, "something is stored, and where the archive begins is not recorded"
            return
        below = {base for base, log in logs.items() if next_offset_of(log, base) <= start}
        assert not below, f"{below} lie below {start}, where the archive is to begin"

    def _gaps_are_none_of_the_leaders(self, gaps: list[tuple[int, int]]) -> None:
        """Nothing is given up that the broker of the writer still has, or that somebody could hold.
        Where the partition is to halt at a gap, nothing passes one.
        """
        for gap in gaps:
            shorter = any(gap[0] == start and gap[1] <= end for start, end in self.gaps)
            if shorter:  # it is known, or was cut at a fork
                continue
            self.gaps.append(gap)
            assert self.world.on_gap != "halt", f"{gap} was passed, and was to halt the partition"
            assert self.pins_were_lost, f"{gap} is recorded, and some sidecar has held all of it"
            leader = self.cluster.replicas[self.cluster.leader]
            if not self._of_an_isolated_leader(gap):
                assert not leader.holds(gap[0]), f"{gap} is recorded, and on the leader's disk"

    def _of_an_isolated_leader(self, gap: tuple[int, int]) -> bool:
        """Its writer believes a leader that was cut off before the last election, and says he
        leads: nobody could tell it otherwise.
        """
        if self.isolated_at is None:
            return False
        key = LAYOUT.gap_key(self.tp, Offset(gap[0]), Offset(gap[1]))
        return int(json.loads(self.store.contents()[key])["leader_epoch"]) <= self.isolated_at


def _end_of(logs: dict[int, bytes], base: int) -> Offset:
    return Offset(next_offset_of(logs[base], base))


@lru_cache(maxsize=4096)
def batches_of(log: bytes) -> tuple[tuple[int, int, bytes], ...]:
    """First and next offset of each batch, and its bytes."""
    starts = batch_positions(log)
    ends = [*list(starts)[1:], len(log)]
    return tuple(
        (*offsets, log[position:end])
        for (position, offsets), end in zip(starts.items(), ends, strict=True)
    )


@lru_cache(maxsize=4096)
def batch_positions(log: bytes) -> dict[int, tuple[int, int]]:
    """First and next offset of each batch, by its position."""
    found, position = {}, 0
    while position < len(log):
        base = int.from_bytes(log[position : position + 8])
        length = int.from_bytes(log[position + 8 : position + 12])
        delta = int.from_bytes(log[position + 23 : position + 27])
        found[position] = (base, base + delta + 1)
        position += 12 + length
    return found
