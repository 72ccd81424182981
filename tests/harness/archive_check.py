"""Checks of an archive from outside: invariants that always hold, and a comparison of all records.

`ArchiveWatch` checks repeatedly while a test runs; `compare` reads everything at the end.
"""

import json
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

from tests.harness.archive_objects import Objects
from tests.harness.stored_log import Record, read_batches, read_records
from tests.harness.waiting import wait_for

LOOK_SECONDS = 0.1
_KINDS = frozenset({"log", "index", "timeindex"})
_WATERMARK = re.compile(r"((?:[01]+/)?([^/]+)/([^/]+)-(\d+)/)offset\.wm")
_FILE = re.compile(r"(\d{20})\.(log|index|timeindex)")
_GAP = re.compile(r"(\d{20})-(\d{20})\.json")

Partition = tuple[str, int]
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Mark:
    """Content of `offset.wm`: the last segment's base offset, and the archive end offset."""

    base: int
    next: int


@dataclass(frozen=True, slots=True)
class PartitionView:
    """Stored objects of one partition.

    `listed` has the base offsets and timestamps in `_metadata`, in file order. `gaps` are the
    recorded gaps, as (start, end) with an exclusive end.
    """

    prefix: str
    mark: Mark
    listed: tuple[tuple[int, int], ...]
    files: Mapping[int, frozenset[str]]
    gaps: tuple[Range, ...]

    def logs(self) -> list[int]:
        """Return the base offsets of the `.log` files up to the segment in `offset.wm`."""
        return sorted(
            b for b, kinds in self.files.items() if "log" in kinds and b <= self.mark.base
        )

    def log_key(self, base: int) -> str:
        return f"{self.prefix}{base:020d}.log"


@dataclass(slots=True)
class ArchiveReader:
    """Reads archives, and caches the extent of each committed `.log`."""

    objects: Objects
    _extents: dict[str, Range] = field(default_factory=dict)

    def views(self) -> dict[Partition, PartitionView]:
        """Return every partition that has an `offset.wm`.

        `offset.wm` is read before `_metadata`, and `_metadata` before the objects are listed. So
        everything that they name must be found.
        """
        marks = {}
        for key in sorted(self.objects.listing()):
            match = _WATERMARK.fullmatch(key)
            if match is None:
                continue
            prefix, cluster, topic, number = match.groups()
            data = self.objects.read(key)
            if data is None:
                # The sidecar has retired the archive of a recreated topic since the listing.
                continue
            mark = parse_mark(data)
            listed = parse_metadata(self.objects.read(f"{prefix}_metadata"))
            marks[topic, int(number)] = (prefix, cluster, mark, listed)
        keys = self.objects.listing()
        return {
            tp: PartitionView(prefix, mark, listed, _files(keys, prefix), _gaps(keys, cluster, tp))
            for tp, (prefix, cluster, mark, listed) in marks.items()
        }

    def mark(self, topic: str, partition: int = 0) -> Mark | None:
        """Return the content of one partition's `offset.wm`."""
        for key in self.objects.listing():
            match = _WATERMARK.fullmatch(key)
            if match is not None and (match[3], int(match[4])) == (topic, partition):
                data = self.objects.read(key)
                return None if data is None else parse_mark(data)
        return None

    def extent(self, key: str) -> Range:
        """Return the first offset and the next offset of a stored `.log`."""
        if key not in self._extents:
            batches = list(read_batches(self.objects.read(key) or b"", key))
            assert batches, f"{key} holds no record batch"
            self._extents[key] = (batches[0].base_offset, batches[-1].next_offset)
        return self._extents[key]

    def problems(self, view: PartitionView) -> Iterator[str]:
        """Yield the invariants that the view violates."""
        logs = view.logs()
        if view.mark.base not in logs:
            yield f"the watermark names {view.mark.base}, which is not stored"
        for base in logs:
            if view.files[base] != _KINDS:
                yield f"{base} has only {sorted(view.files[base])}"
        listed = [base for base, _ in view.listed]
        if missing := set(logs) - set(listed):
            yield f"_metadata leaves out {sorted(missing)}"
        if invented := {b for b in listed if "log" not in view.files.get(b, ())}:
            yield f"_metadata names {sorted(invented)}, which are not stored"
        if view.listed != tuple(sorted(set(view.listed))):
            yield f"_metadata is not in order: {view.listed}"
        times = [time for _, time in view.listed]
        if times != sorted(times):
            yield f"the timestamps of _metadata fall: {times}"
        yield from self._gaps(view, logs)

    def _gaps(self, view: PartitionView, logs: list[int]) -> Iterator[str]:
        ranges = sorted([*(self.extent(view.log_key(base)) for base in logs), *view.gaps])
        ranges = [extent for extent in ranges if extent[0] < view.mark.next]
        expected = ranges[0][0] if ranges else view.mark.next
        for start, end in ranges:
            if start != expected:
                problem = "a gap" if start > expected else "an overlap"
                yield f"{problem}: {expected} was expected, {start} follows"
            expected = end
        if expected != view.mark.next:
            yield f"stored up to {expected}, but the watermark says {view.mark.next}"

    def records(self, view: PartitionView) -> dict[int, Record]:
        """Return all records below the archive end offset, by offset."""
        return {
            offset: record
            for base in view.logs()
            for offset, record in read_records(
                self.objects.read(view.log_key(base)) or b"", view.log_key(base)
            )
        }


class ArchiveWatch:
    """Checks every partition of an archive repeatedly while the context is entered.

    Leaving the context raises AssertionError with all violations, or if no partition was seen.
    """

    def __init__(self, objects: Objects) -> None:
        self._reader = ArchiveReader(objects)
        self._marks: dict[Partition, Mark] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="archive-watch", daemon=True)
        self.checks = 0
        self.problems: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if kind is None:
            self._check()
            self.check()

    def check(self) -> None:
        """Raise AssertionError with all violations."""
        assert not self.problems, "\n".join(dict.fromkeys(self.problems))
        assert self._marks, "no watermark was ever seen"

    def _run(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            self._check()

    def _check(self) -> None:
        try:
            views = self._reader.views()
            for tp, view in views.items():
                problems = [*self._regress(tp, view.mark), *self._reader.problems(view)]
                self.problems += [f"{tp[0]}-{tp[1]}: {problem}" for problem in problems]
        except Exception as error:  # noqa: BLE001 - reported by `check`
            self.problems.append(f"the archive cannot be read: {type(error).__name__}: {error}")
        self.checks += 1

    def _regress(self, tp: Partition, mark: Mark) -> Iterator[str]:
        before = self._marks.get(tp, mark)
        if mark.next < before.next or mark.base < before.base:
            yield f"the watermark went back from {before} to {mark}"
        self._marks[tp] = mark


def parse_mark(data: bytes) -> Mark:
    """Parse the content of `offset.wm`."""
    first, _, second = data.decode().partition("\n")
    return Mark(int(first), json.loads(second)["next_offset"])


def parse_metadata(data: bytes | None) -> tuple[tuple[int, int], ...]:
    """Return the base offsets in `_metadata`, with their timestamps."""
    if data is None:
        return ()
    rows = json.loads(data)["metadata"]["timeindex"]["entries"]
    return tuple((row["baseOffset"], row["timestamp"]) for row in rows)


def _files(keys: frozenset[str], prefix: str) -> dict[int, frozenset[str]]:
    files: dict[int, set[str]] = {}
    for key in keys:
        match = _FILE.fullmatch(key.removeprefix(prefix)) if key.startswith(prefix) else None
        if match is not None:
            files.setdefault(int(match[1]), set()).add(match[2])
    return {base: frozenset(kinds) for base, kinds in files.items()}


def _gaps(keys: frozenset[str], cluster: str, tp: Partition) -> tuple[Range, ...]:
    prefix = f"_sidetier/{cluster}/gaps/{tp[0]}-{tp[1]}/"
    matches = (_GAP.fullmatch(key.removeprefix(prefix)) for key in keys if key.startswith(prefix))
    return tuple(sorted((int(gap[1]), int(gap[2])) for gap in matches if gap is not None))


def wait_until_stored(
    objects: Objects, topic: str, partition: int, offset: int, timeout: float = 60.0
) -> Mark:
    """Wait until the partition is archived up to an offset, and return its `offset.wm`."""
    reader = ArchiveReader(objects)

    def reached() -> Mark | None:
        mark = reader.mark(topic, partition)
        return mark if mark is not None and mark.next >= offset else None

    try:
        return wait_for(reached, timeout, f"{topic}-{partition} to be stored up to {offset}")
    except AssertionError as error:
        raise AssertionError(f"{error}; it is {reader.mark(topic, partition)}") from None


def compare(objects: Objects, acknowledged: Mapping[Partition, Mapping[int, Record]]) -> int:
    """Check that every acknowledged record below the archive end is stored at its offset.

    Every record must be stored with its bytes, even if a gap is recorded, and no other record may
    be stored. Returns the number of compared records.
    """
    reader = ArchiveReader(objects)
    views = reader.views()
    count = 0
    for tp, sent in acknowledged.items():
        assert tp in views, f"{tp} has no watermark"
        view = views[tp]
        assert not list(reader.problems(view)), f"{tp}: {list(reader.problems(view))}"
        expected = {offset: record for offset, record in sent.items() if offset < view.mark.next}
        stored = reader.records(view)
        _same(f"{tp[0]}-{tp[1]}", expected, stored)
        count += len(expected)
    return count


def _same(name: str, expected: Mapping[int, Record], stored: Mapping[int, Record]) -> None:
    missing = sorted(expected.keys() - stored.keys())
    assert not missing, f"{name}: {len(missing)} records are not stored, {missing[:5]} ..."
    wrong = [offset for offset in expected if expected[offset] != stored[offset]]
    assert not wrong, f"{name}: {len(wrong)} records have other bytes, {sorted(wrong)[:5]} ..."
    foreign = sorted(stored.keys() - expected.keys())
    assert not foreign, f"{name}: {len(foreign)} stored records were never sent, {foreign[:5]} ..."
