"""A reader that follows the log sees the same state as a reader that starts fresh."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sidetier.leadership.kraft.metadata_log import MetadataLog
from sidetier.segments.offsets import BrokerId, TopicPartition
from tests.harness import metadata_log as written
from tests.harness.metadata_log import CONTROL, MetadataLogWriter

ID = b"A" * 16
US = BrokerId(1)
partitions = st.integers(0, 5)
leaders = st.integers(0, 2)


Changes = Sequence[tuple[int, int]]


class Mark(NamedTuple):
    """The end of the log after a batch, the state there, and the elections before it."""

    segment: int
    size: int
    next_offset: int
    state: dict[int, tuple[int, int]]
    changes: Changes


class FollowedLog(RuleBasedStateMachine):
    """A broker appends, rolls, takes snapshots, cleans and truncates; two readers follow.

    The model is `_state`: leader and epoch of each partition. The marks are the positions at which
    truncation can cut the log.
    """

    @initialize()
    def create(self) -> None:
        self._directory = Path(tempfile.mkdtemp())
        self._writer = MetadataLogWriter(self._directory).create()
        self._writer.append(written.topic("orders", ID))
        self._state: dict[int, tuple[int, int]] = {}
        self._marks = [self._mark()]
        self._seldom = MetadataLog(self._writer.directory, chunk_bytes=200)
        self._often = MetadataLog(self._writer.directory)

    def _mark(self, changes: Changes = ()) -> Mark:
        writer = self._writer
        size = writer.active.stat().st_size
        return Mark(writer.segment, size, writer.next_offset, dict(self._state), changes)

    @rule(changes=st.lists(st.tuples(partitions, leaders), min_size=1, max_size=4))
    def elect(self, changes: Changes) -> None:
        values = []
        for number, leader in changes:
            if number in self._state:
                self._state[number] = (leader, self._state[number][1] + 1)
                values.append(written.partition_change(ID, number, leader))
            else:
                self._state[number] = (leader, 0)
                values.append(written.partition(ID, number, leader))
        if values:
            self._writer.append(*values)
            self._marks.append(self._mark(changes))

    @rule(kind=st.sampled_from(["no-op", "control", "aborted"]))
    def write_what_does_not_count(self, kind: str) -> None:
        if kind == "no-op":
            self._writer.append(written.no_op())
        elif kind == "control":
            self._writer.append(b"leader change", attributes=CONTROL)
        else:
            self._writer.append(
                written.begin_transaction(), written.remove_topic(ID), written.abort_transaction()
            )
        self._marks.append(self._mark())

    @rule(clean=st.booleans())
    def snapshot_and_roll(self, *, clean: bool) -> None:
        self._writer.snapshot(
            written.topic("orders", ID),
            *(
                written.partition(ID, number, leader, epoch=epoch)
                for number, (leader, epoch) in self._state.items()
            ),
        )
        self.roll()
        if clean:
            self._writer.clean()
        # committed now: a broker never truncates below its snapshot
        self._marks = [self._mark()]

    @rule()
    def roll(self) -> None:
        if self._writer.next_offset > self._writer.segment:
            self._writer.roll()
            self._marks.append(self._mark())

    @rule(data=st.data(), twist=st.integers(0, 2))
    def truncate(self, data: st.DataObject, twist: int) -> None:
        """Another controller won: uncommitted records are removed, and a new epoch writes.

        With `twist` it writes the removed records again with the same byte length, but with other
        leaders: the case that is hardest to distinguish from the previous content.
        """
        kept = data.draw(st.integers(0, len(self._marks) - 1))
        mark, cut = self._marks[kept], self._marks[kept + 1 :]
        while self._writer.segment > mark.segment:
            self._writer.active.unlink()
            names = sorted(path.stem for path in self._writer.directory.glob("*.log"))
            self._writer.segment = int(names[-1])
        self._writer.truncate(mark.size, mark.next_offset)
        self._writer.epoch += 1
        self._state = dict(mark.state)
        self._marks = self._marks[: kept + 1]
        if not twist:
            self._writer.append(b"leader change", attributes=CONTROL)
            self._marks.append(self._mark())
        for lost in cut if twist else ():
            self.elect([(number, (leader + twist) % 3) for number, leader in lost.changes])

    @rule()
    def read(self) -> None:
        self._check(self._seldom)

    @invariant()
    def the_attentive_reader_is_right(self) -> None:
        if hasattr(self, "_often"):
            self._check(self._often)

    def _check(self, log: MetadataLog) -> None:
        log.poll()
        assert log.image.leads(US) == {
            TopicPartition("orders", number): epoch
            for number, (leader, epoch) in self._state.items()
            if leader == US
        }

    def teardown(self) -> None:
        if hasattr(self, "_directory"):
            shutil.rmtree(self._directory)


FollowedLog.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
test_a_followed_log = FollowedLog.TestCase
