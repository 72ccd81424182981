"""Observes the store directly, without the injected faults: what must hold at every moment.

Each observation reads a partition's watermark first, then `_metadata`, and then lists new objects.
Thus everything that the watermark promises must exist, with its bytes.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Self

from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import TopicPartition
from tests.end_to_end.chaos.ledger import Partition
from tests.end_to_end.chaos.store import Eye
from tests.harness.archive_check import Mark, Range, parse_mark, parse_metadata
from tests.harness.stored_log import read_batches

LOOK_SECONDS = 0.5
KINDS = frozenset({"log", "index", "timeindex"})


@dataclass(frozen=True, slots=True)
class Look:
    """Result of one look at a partition.

    `listed` are the `_metadata` entries, base offset and timestamp; `files` the file kinds of each
    base offset above the watermark of the previous look; `extents` the first and next offset of the
    new `.log` files up to the watermark; `gaps` all recorded gaps.
    """

    mark: Mark
    listed: tuple[tuple[int, int], ...]
    files: Mapping[int, frozenset[str]]
    extents: Mapping[int, Range]
    gaps: tuple[Range, ...] = ()


@dataclass(frozen=True, slots=True)
class Owner:
    """The writer of a watermark, and in `pending` its unfinished quarantine or retirement."""

    epoch: int
    topic_id: str | None
    pending: bool

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Parse the second line of `offset.wm`."""
        fields = json.loads(data.decode().partition("\n")[2])
        return cls(
            fields.get("leader_epoch", -1),
            fields.get("topic_id"),
            fields.get("pending") is not None,
        )


@dataclass(frozen=True, slots=True)
class Turn:
    """A point where the archive must change to another history: everything at `offset` and above is
    in leader epochs from `epoch` on, or under another topic ID.
    """

    offset: int
    epoch: int = -1
    topic_id: str | None = None

    def is_reached(self, owner: Owner) -> bool:
        """Return whether a watermark of this owner belongs to the new history."""
        if owner.pending or owner.epoch < self.epoch:
            return False
        return self.topic_id is None or owner.topic_id == self.topic_id


@dataclass(slots=True)
class History:
    """State of one partition: its last watermark, and the objects below it.

    `paused`: nothing is checked, because the cluster is about to lose records. `turn`: nothing is
    checked until the archive has followed; `turned_at` is the time of the turn in monotonic
    seconds.
    """

    mark: Mark = field(default_factory=lambda: Mark(-1, 0))
    bases: set[int] = field(default_factory=set)
    etags: dict[str, str] = field(default_factory=dict)
    extents: dict[int, Range] = field(default_factory=dict)
    paused: bool = False
    turn: Turn | None = None
    turned_at: float = 0.0

    def begin_anew(self, offset: int) -> None:
        """Forget the segments that reach above an offset."""
        self.bases = {base for base in self.bases if self.extents[base][1] <= offset}
        self.extents = {base: self.extents[base] for base in self.bases}
        self.etags = {
            key: etag
            for key, etag in self.etags.items()
            if int(key.rpartition("/")[2].partition(".")[0]) in self.bases
        }
        last = max(self.bases, default=-1)
        self.mark = Mark(last, self.extents[last][1] if self.bases else 0)
        self.turn = None

    def judge(self, look: Look) -> list[str]:
        """Return the violations; the look becomes the new state."""
        if look.mark.next < self.mark.next or look.mark.base < self.mark.base:
            return [f"the watermark went back from {self.mark} to {look.mark}"]
        new = sorted(base for base in look.extents if self.mark.base < base <= look.mark.base)
        self.bases.update(new)
        self.extents.update({base: look.extents[base] for base in new})
        found = [*self._files(look, new), *self._chain(look, new), *self._metadata(look)]
        self.mark = look.mark
        return found

    def _files(self, look: Look, new: list[int]) -> list[str]:
        """Check files. An index without a `.log` is the leftover of a former leader, which no
        reader uses.
        """
        found = [
            f"the watermark covers {base}, of which only {sorted(look.files[base])} is stored"
            for base in sorted(look.files)
            if base <= look.mark.base and "log" in look.files[base] and look.files[base] != KINDS
        ]
        if look.mark.base not in self.bases:
            found.append(f"the watermark names {look.mark.base}, which is not stored ({new} is)")
        return found

    def _chain(self, look: Look, new: list[int]) -> list[str]:
        """Check that the offsets from the last watermark to this one have no unrecorded gap."""
        expected, found = self.mark.next, []
        gaps = [gap for gap in look.gaps if expected <= gap[0] < look.mark.next]
        for start, end in sorted([*(look.extents[base] for base in new), *gaps]):
            if start != expected:
                kind = "a gap" if start > expected else "an overlap"
                found.append(f"{kind}: {expected} was expected, {start} follows")
            expected = end
        if expected != look.mark.next:
            found.append(f"stored up to {expected}, but the watermark says {look.mark.next}")
        return found

    def _metadata(self, look: Look) -> list[str]:
        listed = [base for base, _ in look.listed]
        found = []
        if missing := self.bases - set(listed):
            found.append(f"_metadata leaves out {sorted(missing)}")
        stored = self.bases | {base for base, kinds in look.files.items() if "log" in kinds}
        if invented := set(listed) - stored:
            found.append(f"_metadata names {sorted(invented)}, which are not stored")
        if listed != sorted(set(listed)):
            found.append("_metadata is not in order")
        times = [time for _, time in look.listed]
        if times != sorted(times):
            found.append("the timestamps of _metadata fall")
        return found

    def changed(self, etags: Mapping[str, str]) -> list[str]:
        """Return covered objects that were changed or removed."""
        return [key for key, etag in sorted(self.etags.items()) if etags.get(key) != etag]


class Observer:
    """Looks repeatedly while its context is entered; violations are kept and passed to `tell`."""

    def __init__(
        self,
        eye: Eye,
        layout: ArchiveLayout,
        partitions: list[Partition],
        tell: Callable[[str], None],
    ) -> None:
        self.histories = {tp: History() for tp in partitions}
        self.problems: list[str] = []
        self.looks = 0
        self.emptied = 0
        self._eye = eye
        self._layout = layout
        self._tell = tell
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="observer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop; may be called twice."""
        self._stop.set()
        self._thread.join()

    def next_offset(self, tp: Partition) -> int:
        """The archive end offset at the last look; 0 before the first one."""
        return self.histories[tp].mark.next

    def pause(self, tp: Partition) -> int:
        """Check nothing until `turn` is called. Return the archive end offset of the present
        history, or 0 if the archive has not followed it.
        """
        with self._lock:
            history = self.histories[tp]
            history.paused = True
            return history.mark.next if history.turn is None else 0

    def turn(self, tp: Partition, turn: Turn) -> None:
        """Check again once the archive has followed the cluster to its new history."""
        with self._lock:
            history = self.histories[tp]
            if history.turn is not None:
                turn = replace(turn, offset=min(turn.offset, history.turn.offset))
            history.turn, history.paused, history.turned_at = turn, False, monotonic()

    def is_waiting(self, tp: Partition) -> bool:
        """Return whether checks are suspended: the archive has not followed the cluster yet."""
        return self.histories[tp].paused or self.histories[tp].turn is not None

    def waiting_since(self, tp: Partition) -> float | None:
        """Time, in monotonic seconds, at which the cluster began a history that the archive has not
        followed yet; None if it has followed, or if the change is still under way.
        """
        history = self.histories[tp]
        return None if history.turn is None or history.paused else history.turned_at

    def waiting(self) -> Iterator[str]:
        """Name each partition whose archive has not followed the cluster."""
        for tp, history in self.histories.items():
            if self.is_waiting(tp):
                yield f"{tp[0]}-{tp[1]}: the archive has not followed to {history.turn}"

    def look(self) -> None:
        """Look at every partition once; must not be called from two threads at once."""
        for tp, history in self.histories.items():
            try:
                with self._lock:
                    found = self._look_at(tp, history)
            except Exception as error:  # noqa: BLE001 - told where the test looks
                found = [f"cannot be looked at: {type(error).__name__}: {error}"]
            for problem in found:
                self._note(f"{tp[0]}-{tp[1]}: {problem}")
        self.looks += 1

    def check_covered(self) -> None:
        """Check that all objects ever below a watermark are unchanged.

        An index may have become empty: of two sidecars that store the same segment at once, the
        second one empties an index that it cannot confirm. Readers then use only the `.log`.
        """
        for tp, history in self.histories.items():
            if self.is_waiting(tp):
                continue
            etags = self._eye.listing(self._layout.partition_prefix(TopicPartition(*tp)))
            for key in history.changed(etags):
                if not key.endswith(".log") and self._eye.read(key) == b"":
                    self.emptied += 1
                else:
                    self._note(f"{tp[0]}-{tp[1]}: {key} was replaced below the watermark")

    def _run(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            self.look()

    def _note(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)
            self._tell(problem)

    def _look_at(self, tp: Partition, history: History) -> list[str]:
        if history.paused:
            return []
        place = TopicPartition(*tp)
        data = self._eye.read(self._layout.watermark_key(place))
        if history.turn is not None:
            if data is None or not history.turn.is_reached(Owner.parse(data)):
                return []
            history.begin_anew(history.turn.offset)
        if data is None:
            return ["the watermark is gone"] if history.bases else []
        if Owner.parse(data).pending:
            return ["a quarantine or a retirement was begun that nothing calls for"]
        mark = parse_mark(data)
        if mark == history.mark:
            return []
        prefix = self._layout.partition_prefix(place)
        listed = parse_metadata(self._eye.read(self._layout.metadata_key(place)))
        after = f"{prefix}{history.mark.base:020d}.timeindex" if history.bases else prefix
        etags = self._eye.listing(prefix, after)
        files = files_of(etags, prefix)
        covered = [base for base in files if base <= mark.base and "log" in files[base]]
        extents = {base: self._extent(f"{prefix}{base:020d}.log") for base in covered}
        gaps = gaps_of(self._eye.listing(self._layout.gap_prefix(place)))
        found = history.judge(Look(mark, listed, files, extents, gaps))
        names = [f"{prefix}{base:020d}.{kind}" for base in covered for kind in KINDS]
        history.etags.update({name: etags[name] for name in names if name in etags})
        return found

    def _extent(self, key: str) -> Range:
        batches = list(read_batches(self._eye.read(key) or b"", key))
        return (batches[0].base_offset, batches[-1].next_offset) if batches else (-1, -1)


def files_of(keys: Mapping[str, str], prefix: str) -> dict[int, frozenset[str]]:
    """The existing file kinds of each base offset."""
    files: dict[int, set[str]] = {}
    for key in keys:
        stem, _, kind = key.removeprefix(prefix).partition(".")
        if kind in KINDS and stem.isdigit():
            files.setdefault(int(stem), set()).add(kind)
    return {base: frozenset(kinds) for base, kinds in files.items()}


def gaps_of(keys: Mapping[str, str]) -> tuple[Range, ...]:
    """Start and end of each recorded gap, from the names of the gap records."""
    names = (key.rpartition("/")[2].removesuffix(".json").split("-") for key in keys)
    return tuple(sorted((int(start), int(end)) for start, end in names))
