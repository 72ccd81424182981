import pytest

from sidetier.pipeline.export.tables.archived import ArchivedRecords, within_stored
from sidetier.pipeline.export.tables.progress import Tail
from sidetier.pipeline.planning.planner import Planner
from sidetier.pipeline.planning.request import ReadRequest, Topics
from sidetier.segments.offsets import Offset, OffsetRange
from sidetier.storage.fake import FakeStorage
from tests.harness.made_archive import TP, MadeArchive, access_to


@pytest.mark.parametrize(
    ("first", "until", "end", "held", "wanted"),
    [
        (0, 10, 10, None, (0, 10)),  # a new partition, as far as it is stored
        (0, 20, 10, None, (0, 10)),  # no further, whatever was asked for
        (15, 20, 10, None, (15, 15)),  # it is to begin where nothing is stored yet
        (0, 10, 10, 4, (0, 10)),
        (0, 6, 10, 4, (0, 6)),  # up to a given offset
        (0, 6, 10, 8, (0, 8)),  # which the table has passed
        (0, 10, 10, 12, (0, 10)),  # the archive has become shorter: who goes on from 12 is told
        (0, 6, 10, 12, (0, 6)),
    ],
)
def test_where_a_range_ends(
    first: int, until: int, end: int, held: int | None, wanted: tuple[int, int]
) -> None:
    asked = OffsetRange(Offset(first), Offset(until))
    found = within_stored(asked, Offset(end), None if held is None else Offset(held))
    assert (found.start, found.end) == wanted


def test_each_commit_says_of_which_topic_its_records_are() -> None:
    store = FakeStorage()
    archive = MadeArchive(store)
    archive.segments(0, 10, 20)

    def tail() -> Tail:
        with Planner(access_to(store)) as planner:
            request = ReadRequest(Topics((TP.topic,)))
            records = ArchivedRecords("c", planner, request, lambda _plan: pytest.fail("read"))
            return records.tail(records.stored({}))

    assert tail() == Tail()  # an archive that does not say
    archive.mark(10, 20, topic_id="id-1")
    assert tail() == Tail({}, {TP.topic: "id-1"})
