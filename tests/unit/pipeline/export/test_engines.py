import pickle

import pytest

from sidetier.archive.errors import ArchiveReplacedError, DamagedArchiveError
from sidetier.pipeline.errors import MissingRecordsError
from sidetier.pipeline.export.errors import MisfitError, RecordCountError
from sidetier.pipeline.export.sinks.files.engines import LocalEngine, _packed, _Work
from sidetier.pipeline.export.sinks.files.manifest import Span
from sidetier.pipeline.export.sinks.files.options import FilesOptions
from sidetier.pipeline.export.sinks.files.tasks import Done, Task
from sidetier.pipeline.planning.planner import Planner
from sidetier.pipeline.planning.request import ReadRequest, Topics
from sidetier.pipeline.planning.split import Missing
from sidetier.segments.errors import SidetierError
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition
from sidetier.storage.fake import FakeStorage
from tests.harness.exported_files import data_files
from tests.harness.made_archive import LAYOUT, TP, MadeArchive, access_to, batches
from tests.harness.record_batches import MadeBatch, MadeRecord

TEXT = FilesOptions.model_validate({"value": {"format": "string"}}, strict=False)


def tasks(archive: MadeArchive) -> list[Task]:
    with Planner(access_to(archive.store)) as planner:
        plan = planner.plan(ReadRequest(Topics(("orders",))))
    return [
        Task(
            tp,
            Span(first=span.start, until=span.end),
            tuple(one for one in plan.splits if one.tp == tp),
            TEXT,
            "1-a",
        )
        for tp, span in plan.ranges.items()
    ]


def test_error_of_the_failing_partition_is_raised() -> None:
    """Not the errors of partitions stopped because of it; and no task runs afterwards."""
    archive, target = MadeArchive(), FakeStorage()
    archive.segment(0, [MadeBatch((MadeRecord(0, 0, value=b"\xff"),))])
    archive.mark(0, 1)
    for partition in (1, 2, 3):
        other = MadeArchive(archive.store, LAYOUT, TopicPartition("orders", partition))
        other.segment(0, batches(0, 500))
        other.mark(0, 500)
    engine = LocalEngine(access_to(archive.store), target, workers=2)
    with pytest.raises(MisfitError, match="orders-0 offset 0"):
        engine.run(tasks(archive))
    written = target.changes
    good = [task for task in tasks(archive) if task.tp.partition]
    assert {one.tp.partition for one in engine.run(good)} == {1, 2, 3}
    assert target.changes > written
    assert len(data_files(target.contents())) == 3


class Watching:
    """A `Watcher` that records its calls."""

    def __init__(self) -> None:
        self.total = self.done = self.records = 0

    def begin(self, offsets: int) -> None:
        self.total += offsets

    def advance(self, offsets: int, records: int) -> None:
        assert offsets >= 0
        self.done += offsets
        self.records += records


def test_watcher_sees_every_offset_including_those_without_a_record() -> None:
    archive, watching = MadeArchive(), Watching()
    archive.segment(
        0, [MadeBatch((MadeRecord(0, value=b"a"), MadeRecord(7, value=b"b")), last_offset=9)]
    )
    archive.segment(
        10, [*batches(10, 50), MadeBatch((MadeRecord(50, value=b"c"),), last_offset=60)]
    )
    archive.mark(10, 61)
    with LocalEngine(access_to(archive.store), FakeStorage(), watcher=watching) as engine:
        engine.run(tasks(archive))
    assert (watching.total, watching.done, watching.records) == (61, 61, 43)


@pytest.mark.parametrize(
    "error",
    [
        MisfitError(TP, Offset(7), "value is not UTF-8 text"),
        MissingRecordsError([Missing(TP, OffsetRange(Offset(1), Offset(3)), "gone")]),
        ArchiveReplacedError("set aside", Offset(24)),
        DamagedArchiveError("cut short", "key", 5, OffsetRange(Offset(1), Offset(3))),
        RecordCountError("orders-0", "3 records were read, and 2 were written"),
    ],
)
def test_errors_return_from_executors_unchanged(error: SidetierError) -> None:
    found = pickle.loads(_packed(error))  # noqa: S301  made here
    assert (type(found), str(found)) == (type(error), str(error))


class UnpicklableError(SidetierError):
    """Its constructor takes other arguments than its message."""

    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(f"{message} {code}")


def test_error_that_cannot_be_pickled_returns_with_its_message() -> None:
    found = pickle.loads(_packed(UnpicklableError("cut", code=7)))  # noqa: S301
    assert (type(found), str(found)) == (SidetierError, "cut 7")


def test_work_and_results_of_executors_can_be_pickled() -> None:
    done = Done(TP, written=None)  # type: ignore[arg-type]
    assert pickle.loads(pickle.dumps(done)) == done  # noqa: S301
    [task, *_] = tasks(_one())
    work = _Work(None, 1, 1 << 20)  # type: ignore[arg-type]
    assert pickle.loads(pickle.dumps((task, work))) == (task, work)  # noqa: S301


def _one() -> MadeArchive:
    archive = MadeArchive()
    archive.segments(0, 10)
    return archive
