"""After the verdict, segments are damaged on the real store, one at a time: readers notice."""

import os
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from unittest.mock import patch

from sidetier.archive.access import ArchiveAccess, open_archive
from sidetier.config.storage import StorageConfig
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import TopicPartition
from tests.end_to_end.chaos.ledger import Partition
from tests.harness.archive_objects import ArchiveStore
from tests.harness.cut_logs import is_cut_noticed, offsets_read
from tests.harness.damaged_logs import (
    Damage,
    Segment,
    Witnesses,
    can_be_trimmed,
    damaged,
    deep_findings,
    read_range,
    segments_of,
    unreported,
)

_TRIES = 3
"""Segments of a partition that are tried for one damage: some have one batch and cannot be cut."""


def unreported_damage(
    store: ArchiveStore, layout: ArchiveLayout, partitions: Iterable[Partition], seed: int
) -> tuple[Counter[str], list[str]]:
    """Cut one segment of each partition, and damage one in another way; then restore them.

    Returns:
        How often each kind of damage was reported by all readers that must, and the violations.
    """
    storage = StorageConfig.model_validate({**store.settings, "prefix_entropy_bits": layout.bits})
    with (
        patch.dict(os.environ, store.environment),
        open_archive(layout.cluster, storage) as archive,
    ):
        damages = _Damages(archive, [TopicPartition(*tp) for tp in partitions], seed)
        problems = list(damages.make())
        return damages.reported, problems


class _Damages:
    """The damages of a run, by its seed."""

    def __init__(
        self, archive: ArchiveAccess, partitions: Sequence[TopicPartition], seed: int
    ) -> None:
        self.reported: Counter[str] = Counter()
        self._archive = archive
        self._store = archive.default_store
        self._dice = random.Random(f"{seed}/damages")
        self._segments = {
            tp: segments_of(self._store, archive.layout, tp) for tp in sorted(partitions)
        }

    def make(self) -> Iterator[str]:
        """Make all damages, and yield the violations."""
        kinds = [damage for damage in Damage if damage is not Damage.CUT]
        self._dice.shuffle(kinds)
        for number, (tp, segments) in enumerate(self._segments.items()):
            for damage in (Damage.CUT, kinds[number % len(kinds)]):
                for victim in self._dice.sample(segments, min(_TRIES, len(segments))):
                    problems = self._damage(damage, victim, self._other(damage, victim))
                    if problems is not None:
                        yield from (f"{tp}: {problem}" for problem in problems)
                        break

    def _other(self, damage: Damage, victim: Segment) -> Segment | None:
        """Return another segment to exchange it with: of another partition the one at the same
        offset, if there is one.
        """
        if not damage.other_partition:
            rest = [one for one in self._segments[victim.tp] if one != victim]
        else:
            others = (rows for tp, rows in self._segments.items() if tp != victim.tp)
            rest = [one for rows in others for one in rows]
            rest = [one for one in rest if one.base == victim.base] or rest
        return self._dice.choice(rest) if rest else None

    def _damage(self, damage: Damage, victim: Segment, other: Segment | None) -> list[str] | None:
        """Return the violations; None if the segment cannot be damaged so."""
        store, layout, tp = self._store, self._archive.layout, victim.tp
        whole = list(offsets_read(store, layout, tp)) if damage is Damage.CUT else []
        before = read_range(self._archive, tp, *victim.around)
        log = store.get_object(victim.key).data
        could = can_be_trimmed(store, layout, victim, log)
        with damaged(store, damage, victim, other, self._dice) as keys:
            if not keys:
                return None
            named = {one.key: one.tp for one in (victim, other) if one and one.key in keys}
            seen = Witnesses(
                before,
                read_range(self._archive, tp, *victim.around),
                deep_findings(self._archive, named),
                could,
                can_be_trimmed(store, layout, victim, log),
            )
            problems = list(unreported(damage, keys, seen))
            if damage is Damage.CUT:
                try:
                    is_cut_noticed(store, layout, tp, victim.key, whole)
                except AssertionError as error:
                    problems.append(str(error))
        self.reported[damage.name] += seen.is_reported(damage)
        return problems
