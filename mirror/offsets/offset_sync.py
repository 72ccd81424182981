"""Keep the offset map and the groups up to date while a mirror runs.

A worker does this for the partitions that it copies. It shortens their map in the target's topic,
stores the map beside the source's archive, and sets the committed offsets of groups on the target
to match the source, as MirrorMaker 2 does with `sync.group.offsets.enabled`. An offset on the
target never becomes lower, and groups that have members on the target are not changed.
"""

import math
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from sidetier.mirror.copy.offset_map import MapRecord
from sidetier.mirror.offsets.groups import Groups
from sidetier.mirror.offsets.stored_map import MAX_RUNS, MapStore, StoredMap
from sidetier.mirror.offsets.translate import (
    GroupTranslator,
    MirroredPartition,
    OffsetMapReader,
    Outcome,
    TranslatedGroup,
    mirrored_partitions,
    selected_groups,
)
from sidetier.segments.errors import SidetierError
from sidetier.segments.offsets import TopicPartition

STORE_SECONDS: Final = 60.0
"""Seconds between two writes of a changed map."""
LAST_PAUSES: Final = (1.0, 2.0, 4.0)
"""Seconds to wait before each further attempt of the last turn."""

log = structlog.get_logger("sidetier.mirror")


@dataclass(slots=True)
class OffsetSyncCounts:
    """Work done since the start. One thread writes the counts, any thread may read them."""

    maps_stored: int = 0
    group_offsets_set: int = 0
    failures: int = 0
    groups_with_members: int = 0
    """Groups with members on the target, in the last turn."""
    groups_translated: int = 0
    """Groups in the last turn that were set, or were already up to date."""
    synced_at: float = 0.0
    """Wall clock of the last successful turn, in seconds since 1970; 0 before the first."""


class OffsetSync:
    """Updates offset map and groups for one worker. Not thread-safe.

    Args:
        copies: Returns the worker's partitions now: the target partition of each source partition.
        progress_group: `MirrorNames.group`.
        reader: Reads the map's topic.
        source: The groups on the source, to read.
        target: The groups on the target, to set, and the mirror's progress.
        shorten: Writes records to the map's topic, in order, that replace chunks by fewer chunks.
        store: Stores the map; None for a mirror without an archive.
        patterns: Select the groups to set; if empty, no group is set.
        interval: Seconds between two turns.
    """

    def __init__(  # noqa: PLR0913 -- each parameter is another part of the two clusters
        self,
        copies: Callable[[], Mapping[TopicPartition, TopicPartition]],
        progress_group: str,
        reader: OffsetMapReader,
        source: Groups,
        target: Groups,
        *,
        shorten: Callable[[Sequence[MapRecord]], None],
        store: MapStore | None,
        patterns: Sequence[re.Pattern[str]],
        interval: float,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = lambda: time.time_ns() / 1e9,
    ) -> None:
        self.counts = OffsetSyncCounts()
        self._copies = copies
        self._progress_group = progress_group
        self._reader = reader
        self._source = source
        self._target = target
        self._shorten = shorten
        self._store = store
        self._patterns = patterns
        self._interval = interval
        self._clock = clock
        self._wall_clock = wall_clock
        self._translator = GroupTranslator(source, target)
        self._known: frozenset[TopicPartition] = frozenset()
        self._stored: dict[TopicPartition, StoredMap] = {}
        self._stored_at = self._translated_at = -math.inf
        self._failure: str | None = None
        self._has_set_groups = False

    @property
    def groups_problem(self) -> str | None:
        """Why the last turn did not set the groups; None if it did, or had no group to set."""
        return None if self._has_set_groups or not self._patterns else self._failure

    def run(self, ended: threading.Event, abandon: threading.Event | None = None) -> None:
        """Take a turn every interval, and a last one when `ended` is set.

        A failed turn is logged and counted, and the next turn tries again. The last turn is tried
        several times, because no other turn follows.

        Args:
            ended: Set when no more records are copied.
            abandon: Once set, a failed last turn is not tried again, because the process must end
                soon.
        """
        pause = self._interval if self._store is None else min(self._interval, STORE_SECONDS)
        while not ended.wait(pause):
            self._try_turn(is_last=False)
        waiting = abandon or threading.Event()
        for seconds in LAST_PAUSES:
            if self._try_turn(is_last=True) or waiting.wait(seconds):
                return
        self._try_turn(is_last=True)

    def _try_turn(self, *, is_last: bool) -> bool:
        """Take a turn and return whether it succeeded."""
        self._has_set_groups = False
        try:
            self.take_turn(is_last=is_last)
        except SidetierError as error:
            self.counts.failures += 1
            if str(error) != self._failure:
                log.warning("mirror.offset_sync_failed", error=str(error))
            self._failure = str(error)
            return False
        self._failure = None
        return True

    def take_turn(self, *, is_last: bool = False) -> None:
        """Read the map, shorten and store it if that is due, and set the groups.

        Args:
            is_last: Set the groups and store a changed map even if that is not due.

        Raises:
            SidetierError: A broker or the store refuses a request, or the map cannot be read.
        """
        sources = {target: source for source, target in self._copies().items()}
        if not sources:
            return
        partitions = self._partitions(sources)
        surplus = self._reader.shortened()
        if surplus:
            # Outside of the copy's transactions. After a kill, the topic has more chunks than it
            # needs, and each of them is correct.
            self._shorten(surplus)
        now = self._clock()
        if self._patterns and (is_last or now - self._translated_at >= self._interval):
            self._translate(partitions)
            self._translated_at = now
            self._has_set_groups = True
        if self._store is not None and (is_last or now - self._stored_at >= STORE_SECONDS):
            self._store_maps(self._store, partitions)
            self._stored_at = now
        self.counts.synced_at = self._wall_clock()

    def _partitions(
        self, sources: Mapping[TopicPartition, TopicPartition]
    ) -> list[MirroredPartition]:
        # Progress before map: the map that is read later is complete at least up to this progress.
        progress = self._target.committed(self._progress_group, list(sources))
        if not sources.keys() <= self._known:
            # The earlier reads left out the chunks of the new partitions.
            self._reader.restart()
            self._read_stored([target for target in sources if target not in self._known])
        self._known = frozenset(sources)
        ids = self._target.topic_ids({tp.topic for tp in sources})
        maps = self._reader.read(ids, sources.__contains__) or {}
        return mirrored_partitions(self._target, sources, progress, maps, self._stored, ids)

    def _read_stored(self, targets: Collection[TopicPartition]) -> None:
        if self._store is None:
            return
        for target in targets:
            self._note_stored(target, self._store.read(target))

    def _note_stored(self, target: TopicPartition, stored: StoredMap | None) -> None:
        if stored is None:
            self._stored.pop(target, None)
        else:
            self._stored[target] = stored

    def _translate(self, partitions: Sequence[MirroredPartition]) -> None:
        groups = selected_groups(self._source.names(), self._patterns)
        translated = self._translator.translate(groups, partitions)
        for group in translated:
            self._note_group(group)
        self.counts.groups_with_members = sum(group.has_members for group in translated)
        self.counts.groups_translated = len(translated) - self.counts.groups_with_members

    def _note_group(self, group: TranslatedGroup) -> None:
        if group.has_members:
            return
        changed = [partition for partition in group.partitions if partition.outcome is Outcome.SET]
        self.counts.group_offsets_set += len(changed)
        for partition in changed:
            log.info(
                "mirror.group_offset_set",
                group=group.group,
                partition=str(partition.target),
                offset=partition.target_offset,
                source_offset=partition.source_offset,
                offsets_read_again=partition.repeated,
            )

    def _store_maps(self, store: MapStore, partitions: Sequence[MirroredPartition]) -> None:
        for partition in partitions:
            before = self._stored.get(partition.target)
            if not partition.map.runs or (
                before
                and before.mirrored_to == partition.mirrored_to
                and before.target_topic_id == partition.topic_id
            ):
                continue
            stored = StoredMap(
                partition.source,
                partition.target,
                partition.topic_id,
                partition.mirrored_to,
                partition.map.thinned(MAX_RUNS),
            )
            if store.write(stored):
                self._stored[partition.target] = stored
                self.counts.maps_stored += 1
            else:
                # Another worker has replaced the object, or the response to our own earlier write
                # was lost. The next turn continues from the stored map.
                self._note_stored(partition.target, store.read(partition.target))
