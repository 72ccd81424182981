"""Watches the store from outside, around all faults: what must hold at every moment.

Each look reads a partition's watermark first, then `_metadata`, then lists what is new: so all that
the watermark promises must be there, with its bytes.
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
    """What one look at a partition found.

    `listed` are the entries of `_metadata`, base offset and timestamp; `files` the kinds of file of
    each base above the watermark of the look before; `extents` first and next offset of the new
    `.log` files up to the watermark; `gaps` all recorded gaps.
    """

    mark: Mark
    listed: tuple[tuple[int, int], ...]
    files: Mapping[int, frozenset[str]]
    extents: Mapping[int, Range]
    gaps: tuple[Range, ...] = ()


@dataclass(frozen=True, slots=True)
class Owner:
    """In whose name a watermark was written, and whether it names an unfinished quarantine or
    retirement as `pending`.
    """

    epoch: int
    topic_id: str | None
    pending: bool

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read the second line of `offset.wm`."""
        fields = json.loads(data.decode().partition("\n")[2])
        return cls(
            fields.get("leader_epoch", -1),
            fields.get("topic_id"),
            fields.get("pending") is not None,
        )


@dataclass(frozen=True, slots=True)
class Turn:
    """A point where an archive must begin anew: everything at `offset` and above is of another
    history, in leader epochs from `epoch` on or under another topic id.
    """

    offset: int
    epoch: int = -1
    topic_id: str | None = None

    def is_reached(self, owner: Owner) -> bool:
        """Whether a watermark of this owner belongs to the new history."""
        if owner.pending or owner.epoch < self.epoch:
            return False
        return self.topic_id is None or owner.topic_id == self.topic_id


@dataclass(slots=True)
class History:
    """What was seen of one partition so far: its last watermark, and all that it covered.

    `paused`: nothing is judged, because the cluster is about to throw records away; `turn`: nothing
    is judged until the archive has followed; `turned_at` is when that was, in monotonic seconds.
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
        """What does not hold; the look is history from then on."""
        if look.mark.next < self.mark.next or look.mark.base < self.mark.base:
            return [f"the watermark went back from {self.mark} to {look.mark}"]
        new = sorted(base for base in look.extents if self.mark.base < base <= look.mark.base)
        self.bases.update(new)
        self.extents.update({base: look.extents[base] for base in new})
        found = [*self._files(look, new), *self._chain(look, new), *self._metadata(look)]
        self.mark = look.mark
        return found

    def _files(self, look: Look, new: list[int]) -> list[str]:
        """An index without a `.log` is what a fallen leader has left: no reader looks for it."""
        found = [
            f"the watermark covers {base}, of which only {sorted(look.files[base])} is stored"
            for base in sorted(look.files)
            if base <= look.mark.base and "log" in look.files[base] and look.files[base] != KINDS
        ]
        if look.mark.base not in self.bases:
            found.append(f"the watermark names {look.mark.base}, which is not stored ({new} is)")
        return found

    def _chain(self, look: Look, new: list[int]) -> list[str]:
        """From the last watermark to this one without a gap, but for recorded gaps."""
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
        """Which of the covered objects are others now, or gone."""
        return [key for key, etag in sorted(self.etags.items()) if etags.get(key) != etag]


class Observer:
    """Looks from entering the context until it is left; problems are kept, and told to `tell`."""

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
        """End; may be called twice."""
        self._stop.set()
        self._thread.join()

    def next_offset(self, tp: Partition) -> int:
        """The watermark's next offset as it was seen last; 0 before the first."""
        return self.histories[tp].mark.next

    def pause(self, tp: Partition) -> int:
        """Judge nothing until `turn` is called. Returns how far the present history is archived, 0
        where the archive has not followed to it.
        """
        with self._lock:
            history = self.histories[tp]
            history.paused = True
            return history.mark.next if history.turn is None else 0

    def turn(self, tp: Partition, turn: Turn) -> None:
        """Judge again once the archive has followed the cluster to its new history."""
        with self._lock:
            history = self.histories[tp]
            if history.turn is not None:
                turn = replace(turn, offset=min(turn.offset, history.turn.offset))
            history.turn, history.paused, history.turned_at = turn, False, monotonic()

    def is_waiting(self, tp: Partition) -> bool:
        """Whether nothing is judged: the archive has not followed the cluster."""
        return self.histories[tp].paused or self.histories[tp].turn is not None

    def waiting_since(self, tp: Partition) -> float | None:
        """When the cluster began a new history that the archive has not followed to, in monotonic
        seconds; None where it has followed, or where the cluster is still at it.
        """
        history = self.histories[tp]
        return None if history.turn is None or history.paused else history.turned_at

    def waiting(self) -> Iterator[str]:
        """Name each partition whose archive has not followed the cluster."""
        for tp, history in self.histories.items():
            if self.is_waiting(tp):
                yield f"{tp[0]}-{tp[1]}: the archive has not followed to {history.turn}"

    def look(self) -> None:
        """Look at every partition once; not for two threads at once."""
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
        """Whether all that was ever covered by a watermark is there unchanged.

        An index may have become empty: of two sidecars that store the same segment at once, the
        one that comes second empties what it cannot vouch for. Readers then read the `.log` alone.
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
    """The kinds of file that are there of each base offset."""
    files: dict[int, set[str]] = {}
    for key in keys:
        stem, _, kind = key.removeprefix(prefix).partition(".")
        if kind in KINDS and stem.isdigit():
            files.setdefault(int(stem), set()).add(kind)
    return {base: frozenset(kinds) for base, kinds in files.items()}


def gaps_of(keys: Mapping[str, str]) -> tuple[Range, ...]:
    """Start and end of each recorded gap, from the names of their records."""
    names = (key.rpartition("/")[2].removesuffix(".json").split("-") for key in keys)
    return tuple(sorted((int(start), int(end)) for start, end in names))
