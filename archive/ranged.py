"""Read ranges of stored objects in the version that was listed."""

from functools import partial

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.locate import ReadRange
from sidetier.storage.port import IfMatch, ObjectSummary, RemoteStorage
from sidetier.storage.ranges import read_range
from sidetier.storage.settings import AttemptDeadline


def range_reader(archive: ArchiveAccess, topic: str) -> ReadRange:
    """Return a function that reads ranges of a topic's objects."""
    deadline = archive.provider.endpoint(topic).deadline
    return partial(_read, archive.store(topic), deadline)


def _read(
    store: RemoteStorage, deadline: AttemptDeadline, row: ObjectSummary, start: int, end: int
) -> bytes:
    return read_range(store, row.key, start, end, condition=IfMatch(row.etag), deadline=deadline)
