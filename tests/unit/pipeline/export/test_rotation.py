"""The file each record goes to, compared with a model that processes records one by one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidetier.pipeline.export.sinks.files.rotation import (
    Append,
    Close,
    FileGroups,
    FileId,
    Router,
    Rules,
    Step,
)


@dataclass(frozen=True)
class Record:
    offset: int
    time: int
    encoded: str


def routed(rules: Rules, batches: Iterable[Sequence[Record]]) -> dict[FileId, list[int]]:
    """Offsets of each file; assert that a file that ended is not written again."""
    router = Router(rules)
    files: dict[FileId, list[int]] = {}
    closed: set[FileId] = set()

    def take(steps: Iterable[Step], batch: Sequence[Record]) -> None:
        for step in steps:
            assert step.file not in closed
            if isinstance(step, Close):
                closed.add(step.file)
            else:
                assert isinstance(step, Append)
                files.setdefault(step.file, []).extend(batch[row].offset for row in step.rows)
            assert len(files) - len(closed) <= rules.max_open

    for batch in batches:
        names = tuple(dict.fromkeys(record.encoded for record in batch))
        take(
            router.route(
                np.array([one.offset for one in batch], dtype=np.int64),
                np.array([one.time for one in batch], dtype=np.int64),
                np.array([names.index(one.encoded) for one in batch], dtype=np.intp),
                names,
            ),
            batch,
        )
    take(router.finish(), ())
    assert closed == files.keys()
    return files


def by_hand(rules: Rules, records: Iterable[Record]) -> dict[FileId, list[int]]:
    """The rotation rules, implemented literally."""
    files: dict[FileId, list[int]] = {}
    open_: dict[str, tuple[FileId, int]] = {}
    for one in records:
        if one.encoded in open_ and rules.rotate_interval is not None:
            _, base = open_[one.encoded]
            if one.time - base >= rules.rotate_interval:
                del open_[one.encoded]
        if one.encoded not in open_:
            if len(open_) >= rules.max_open:
                del open_[min(open_, key=lambda name: open_[name][0].start)]
            file = FileId(one.encoded, one.offset)  # type: ignore[arg-type]
            open_[one.encoded] = (file, one.time)
        file, _ = open_[one.encoded]
        files.setdefault(file, []).append(one.offset)
        if len(files[file]) == rules.flush_size:
            del open_[one.encoded]
    return files


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    rows = draw(
        st.lists(
            st.tuples(st.integers(1, 3), st.integers(0, 40), st.sampled_from("abcde")), max_size=60
        )
    )
    offset, found = 0, []
    for step, time, encoded in rows:
        offset += step
        found.append(Record(offset, time, encoded))
    return found


RULES = st.builds(
    Rules,
    flush_size=st.integers(1, 8),
    rotate_interval=st.none() | st.integers(1, 20),
    max_open=st.integers(1, 6),
)


@given(logs(), RULES, st.data())
def test_files_depend_only_on_the_records(
    log: list[Record], rules: Rules, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(log)), max_size=6)))
    edges = [0, *cuts, len(log)]
    batches = [log[first:end] for first, end in pairwise(edges)]
    files = routed(rules, batches)
    assert files == by_hand(rules, log)
    assert sorted(offset for some in files.values() for offset in some) == [
        one.offset for one in log
    ]


@given(logs(), RULES, st.integers(0, 60))
def test_longer_range_begins_with_the_same_files(log: list[Record], rules: Rules, cut: int) -> None:
    """Except those that were open at the end of the shorter range: they have the same names."""
    shorter, longer = routed(rules, [log[:cut]]), routed(rules, [log])
    for file, offsets in shorter.items():
        assert longer[file][: len(offsets)] == offsets


@pytest.mark.parametrize(
    ("rules", "times", "starts"),
    [
        (Rules(3), [0] * 8, [0, 3, 6]),
        (Rules(100, 10), [0, 5, 9, 10, 19, 20], [0, 3, 5]),
        (Rules(100, 10), [50, 3, 59, 60, 4], [0, 3]),
        (Rules(2, 10), [0, 1, 2, 12, 13], [0, 2, 3]),
    ],
    ids=["count", "span", "late records do not end a file", "whichever comes first"],
)
def test_files_begin_at_the_expected_offsets(
    rules: Rules, times: list[int], starts: list[int]
) -> None:
    log = [Record(offset, time, "p") for offset, time in enumerate(times)]
    assert [file.start for file in routed(rules, [log])] == starts


def test_long_range_without_a_rotation_is_one_file() -> None:
    """Longer than the window in which a late record is searched."""
    log = [Record(offset, offset, "p") for offset in range(5000)]
    assert [file.start for file in routed(Rules(10_000, 3000), [log])] == [0, 3000]


def group_ends(rules: Rules, batches: Iterable[Sequence[Record]]) -> list[int]:
    groups = FileGroups(rules)
    found: list[int] = []
    for batch in batches:
        names = tuple(dict.fromkeys(record.encoded for record in batch))
        ends = groups.ends(
            np.array([one.offset for one in batch], dtype=np.int64),
            np.array([one.time for one in batch], dtype=np.int64),
            np.array([names.index(one.encoded) for one in batch], dtype=np.intp),
            names,
        )
        found += [end.until for end in ends]
    return found


def expected_group_ends(rules: Rules, records: Sequence[Record]) -> list[int]:
    """The same group ends, computed one record at a time."""
    found: list[int] = []
    group: list[Record] = []
    for record in records:
        late = rules.rotate_interval is not None and group
        is_late = late and record.time >= group[0].time + (rules.rotate_interval or 0)
        is_many = len({one.encoded for one in (*group, record)}) > rules.max_open
        if group and (is_late or is_many):
            found.append(record.offset)
            group = []
        group.append(record)
        if len(group) == rules.flush_size:
            found.append(record.offset + 1)
            group = []
    return found


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 50), st.sampled_from("abc")), max_size=40),
    st.integers(1, 7),
    st.none() | st.integers(1, 20),
    st.integers(1, 3),
    st.integers(1, 9),
)
def test_group_ends_equal_those_of_the_model(
    rows: list[tuple[int, int, str]], flush: int, rotate: int | None, most: int, each: int
) -> None:
    records, offset = [], 0
    for step, time, name in rows:
        offset += step
        records.append(Record(offset, time, name))
    rules = Rules(flush, rotate, most)
    batches = [records[at : at + each] for at in range(0, len(records), each)]
    assert group_ends(rules, batches) == expected_group_ends(rules, records)
