"""A reader that looks now and then sees what a reader would that looks for the first time."""

import shutil
import tempfile
from pathlib import Path

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


class FollowedLog(RuleBasedStateMachine):
    """A broker appends, rolls, takes snapshots, cleans and truncates; two readers follow.

    `_history` is the model: what the log holds, record by record, as leader and epoch of each
    partition after it, together with where the batch ended.
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

    def _mark(self) -> tuple[int, int, int, dict[int, tuple[int, int]]]:
        writer = self._writer
        return writer.segment, writer.active.stat().st_size, writer.next_offset, dict(self._state)

    @rule(changes=st.lists(st.tuples(partitions, leaders), min_size=1, max_size=4))
    def elect(self, changes: list[tuple[int, int]]) -> None:
        values = []
        for number, leader in changes:
            if number in self._state:
                self._state[number] = (leader, self._state[number][1] + 1)
                values.append(written.partition_change(ID, number, leader))
            else:
                self._state[number] = (leader, 0)
                values.append(written.partition(ID, number, leader))
        self._writer.append(*values)
        self._marks.append(self._mark())

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

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        """Another controller won: what was not committed goes, and another epoch writes on."""
        kept = data.draw(st.integers(0, len(self._marks) - 1))
        segment, size, offset, state = self._marks[kept]
        while self._writer.segment > segment:
            self._writer.active.unlink()
            names = sorted(path.stem for path in self._writer.directory.glob("*.log"))
            self._writer.segment = int(names[-1])
        self._writer.truncate(size, offset)
        self._writer.epoch += 1
        self._state = dict(state)
        self._marks = self._marks[: kept + 1]
        self._writer.append(b"leader change", attributes=CONTROL)
        self._marks.append(self._mark())

    @rule()
    def look(self) -> None:
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
