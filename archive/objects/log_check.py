"""Check that a stored `.log` is the object that was archived under its key.

Its metadata has what was known when it was archived: size, next offset, and place (partition and
base offset). So a `.log` that has lost its last batches is not mistaken for a compacted segment,
whose last batches were missing before it was archived.

Objects of earlier versions record no size and no place. Their checksum decides, and without a
recorded checksum their record count. Objects of Pinterest's uploader record nothing.
"""

from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from sidetier.archive.errors import DamagedArchiveError
from sidetier.archive.objects.notes import noted_next_offset, noted_number
from sidetier.segments.crc import crc64nvme
from sidetier.segments.errors import (
    DamagedSegmentError,
    PreconditionFailedError,
    UnsupportedFormatError,
)
from sidetier.segments.headers import HEADER_BYTES, parse_batch_header
from sidetier.segments.keys import place_of_log
from sidetier.segments.names import parse_segment_file_name
from sidetier.segments.notes import CHECKSUM_KEY, PLACE_KEY, RECORDS_KEY, SIZE_KEY, TOPIC_ID_KEY
from sidetier.segments.offsets import Offset, OffsetRange
from sidetier.storage.port import IfMatch, ObjectHead, RemoteStorage

_CHUNK_BYTES: Final = 1 << 20


class Mismatch(NamedTuple):
    """How a `.log` differs from its metadata.

    Attributes:
        kind: Whether it has another size than was archived, or is another segment.
        text: The difference in words, with the key.
    """

    kind: Literal["size", "place"]
    text: str


def wrong_size(head: ObjectHead) -> str | None:
    """Describe how the size of a `.log` differs from the recorded one; None if it does not, or if
    no size is recorded.
    """
    noted = noted_number(head, SIZE_KEY)
    if noted is None or noted == head.size:
        return None
    return f"{head.key} has {head.size} bytes, but {noted} bytes were archived"


def mismatches(head: ObjectHead, topic_id: str | None = None) -> Iterator[Mismatch]:
    """Yield how a `.log` differs from its metadata, as far as its head shows it.

    Args:
        head: The head.
        topic_id: Kafka's id of the archive's topic; None to not compare it.
    """
    size = wrong_size(head)
    if size is not None:
        yield Mismatch("size", size)
    place = head.metadata.get(PLACE_KEY)
    if place is not None and place != place_of_log(head.key):
        yield Mismatch("place", f"{head.key} was archived as the segment {place}")
    stored_id = head.metadata.get(TOPIC_ID_KEY)
    if None not in (stored_id, topic_id) and stored_id != topic_id:
        text = f"{head.key} has topic id {stored_id}, and the archive has {topic_id}"
        yield Mismatch("place", text)


def mismatch(head: ObjectHead) -> str | None:
    """Describe how a `.log` differs from its metadata in size or place; None if it does not."""
    return next((found.text for found in mismatches(head)), None)


def is_full(head: ObjectHead) -> bool:
    """Whether a `.log` has its recorded size and place; False if no size is recorded."""
    return noted_number(head, SIZE_KEY) is not None and mismatch(head) is None


def cut_at(key: str, stored: int, listed: int) -> DamagedSegmentError:
    """Return the error for an object that ends before the size of its row: at byte `stored`."""
    return DamagedSegmentError(f"{key}: only {stored} of {listed} bytes are stored")


def proven_end(store: RemoteStorage, key: str, etag: str, reached: Offset) -> Offset | None:
    """Return the recorded end of a `.log` whose last batch ends at `reached`, below that end.

    Below the returned offset, no archived record is missing: compaction has removed the last
    records of the segment before it was archived. Two requests: for the metadata, and for the
    first batch header, because the bytes of another segment can have the same size. A `.log`
    without a recorded size is read once.

    Args:
        store: The store.
        key: Key of the `.log`.
        etag: The version that was read.
        reached: The offset after its last batch.

    Returns:
        None if no end above `reached` is recorded.

    Raises:
        DamagedArchiveError: The `.log` has lost its last batches, or is another segment.
        ObjectNotFoundError, PreconditionFailedError: This version is no longer stored.
    """
    head = store.head_object(key)
    if head.etag != etag:
        raise PreconditionFailedError(f"{key} was replaced since it was listed")
    end = noted_next_offset(head)
    if end is None or end <= reached:
        return None
    problem = mismatch(head) or _without_size(store, head) or _of_another_place(store, head, end)
    if problem is None:
        return end
    message = f"{problem}; its last batch ends at offset {reached}, its noted end is {end}"
    raise DamagedArchiveError(message, key, head.size, OffsetRange(reached, end))


def _of_another_place(store: RemoteStorage, head: ObjectHead, end: Offset) -> str | None:
    """Describe the difference for a `.log` whose first batch is not of the offsets of its key."""
    condition = IfMatch(head.etag)
    with store.get_object_input_stream(head.key, 0, HEADER_BYTES, condition=condition) as stream:
        first = b""
        while len(first) < HEADER_BYTES and (more := stream.read(HEADER_BYTES - len(first))):
            first += more
    try:
        offset = parse_batch_header(first).base_offset
    except (DamagedSegmentError, UnsupportedFormatError):
        return None  # whoever reads the batches reports it
    name = parse_segment_file_name(head.key.rpartition("/")[2])
    if name is None or name.base_offset <= offset < end:
        return None
    return f"{head.key} begins with offset {offset}: it has the bytes of another segment"


def _without_size(store: RemoteStorage, head: ObjectHead) -> str | None:
    """Describe the difference for a `.log` of an earlier version that ends below that end."""
    if noted_number(head, SIZE_KEY) is not None:
        return None
    noted = head.metadata.get(CHECKSUM_KEY)
    if noted is None:
        records = noted_number(head, RECORDS_KEY)
        # The number is recorded only if the last batch ends at the recorded end.
        return None if records is None else f"{head.key} has lost some of its {records} records"
    actual = 0
    with store.get_object_input_stream(head.key, condition=IfMatch(head.etag)) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            actual = crc64nvme(memoryview(chunk), actual)
    if f"{actual:016x}" == noted:
        return None
    return (
        f"{head.key} has {head.size} bytes with the CRC64NVME {actual:016x}, but bytes with "
        f"{noted} were archived"
    )
