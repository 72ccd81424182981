from sidetier.pipeline.export.source import ArchiveSource
from sidetier.pipeline.export.state import Tail
from sidetier.pipeline.planning.planner import Planner
from sidetier.pipeline.planning.request import ReadRequest
from sidetier.pipeline.planning.selection import Topics
from sidetier.storage.fake import FakeStorage
from tests.harness.made_archive import TP, MadeArchive, access_to


def test_each_commit_says_of_which_topic_its_records_are() -> None:
    store = FakeStorage()
    archive = MadeArchive(store)
    archive.segments(0, 10, 20)

    def tail() -> Tail:
        with Planner(access_to(store)) as planner:
            request = ReadRequest(Topics((TP.topic,)))
            source = ArchiveSource("c", planner, request)
            return source.tail(source.available({}))

    assert tail() == Tail()  # an archive that does not say
    archive.mark(10, 20, topic_id="id-1")
    assert tail() == Tail({}, {TP.topic: "id-1"})
