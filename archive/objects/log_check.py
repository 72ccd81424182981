"""Check that a stored `.log` is the object that was archived under its key.

Its metadata has what was known when it was archived: size, next offset, and place (partition and
base offset). So a `.log` that has lost its last batches is not mistaken for a compacted segment,
whose last batches were missing before it was archived.

Objects of earlier versions note no size and no place. Their checksum decides, and their record
count where no checksum is noted. Objects of Pinterest's uploader note nothing.
"""

from collections.abc import Iterator
from typing import Final

from sidetier.archive.errors import DamagedArchiveError
from sidetier.archive.objects.notes import noted_next_offset, noted_number
from sidetier.segments.crc import crc64nvme
from sidetier.segments.errors import DamagedSegmentError, PreconditionFailedError
from sidetier.segments.keys import place_of_log
from sidetier.segments.notes import CHECKSUM_KEY, PLACE_KEY, RECORDS_KEY, SIZE_KEY
from sidetier.segments.offsets import Offset, OffsetRange
from sidetier.storage.port import IfMatch, ObjectHead, RemoteStorage

_CHUNK_BYTES: Final = 1 << 20


def wrong_size(head: ObjectHead) -> str | None:
    """Describe how the size of a `.log` differs from the noted one; None if it does not, or if no
    size is noted.
    """
    noted = noted_number(head, SIZE_KEY)
    if noted is None or noted == head.size:
        return None
    return f"{head.key} has {head.size} bytes, but {noted} bytes were archived"


def wrong_place(head: ObjectHead) -> str | None:
    """Describe which other segment a `.log` is; None if it is not another one, or if no place is
    noted.
    """
    noted = head.metadata.get(PLACE_KEY)
    if noted is None or noted == place_of_log(head.key):
        return None
    return f"{head.key} was archived as the segment {noted}"


def is_full(head: ObjectHead) -> bool:
    """Whether a `.log` has its noted size and place; False if no size is noted."""
    return noted_number(head, SIZE_KEY) is not None and not any(contradictions(head))


def contradictions(head: ObjectHead) -> Iterator[str]:
    """Yield how a `.log` differs from its metadata, as far as its head shows it."""
    for problem in (wrong_size(head), wrong_place(head)):
        if problem is not None:
            yield problem


def cut_at(key: str, stored: int, listed: int) -> DamagedSegmentError:
    """Return the error for an object that ends before the size of its row: at byte `stored`."""
    return DamagedSegmentError(f"{key}: only {stored} of {listed} bytes are stored")


def proven_end(store: RemoteStorage, key: str, etag: str, reached: Offset) -> Offset | None:
    """Return the noted end of a `.log` whose last batch ends at `reached`, below that end.

    Below the returned offset, no archived record is missing: compaction has removed the last
    records of the segment before it was archived. One request. A `.log` without a noted size is
    read once.

    Args:
        store: The store.
        key: Key of the `.log`.
        etag: The version that was read.
        reached: The offset after its last batch.

    Returns:
        None if no end above `reached` is noted.

    Raises:
        DamagedArchiveError: The `.log` has lost its last batches, or is another segment.
        ObjectNotFoundError, PreconditionFailedError: This version is no longer stored.
        StorageError: As `RemoteStorage` says.
    """
    head = store.head_object(key)
    if head.etag != etag:
        raise PreconditionFailedError(f"{key} was replaced since it was listed")
    end = noted_next_offset(head)
    if end is None or end <= reached:
        return None
    problem = next(contradictions(head), None) or _without_size(store, head)
    if problem is None:
        return end
    message = f"{problem}; its last batch ends at offset {reached}, its noted end is {end}"
    raise DamagedArchiveError(message, key, head.size, OffsetRange(reached, end))


def _without_size(store: RemoteStorage, head: ObjectHead) -> str | None:
    """Describe the difference for a `.log` of an earlier version that ends below its noted end."""
    if noted_number(head, SIZE_KEY) is not None:
        return None
    noted = head.metadata.get(CHECKSUM_KEY)
    if noted is None:
        records = noted_number(head, RECORDS_KEY)
        # The number is noted only if the last batch ends at the noted end.
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
