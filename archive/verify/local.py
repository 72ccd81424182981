"""Compare stored segments with the broker's own files, where its log dirs still have them."""

import os
from collections.abc import Iterator
from typing import Final

from sidetier.archive.objects.log_check import wrong_size
from sidetier.archive.objects.segment import SegmentFiles
from sidetier.archive.verify.deep import SegmentChecker
from sidetier.archive.verify.findings import Finding, FindingKind
from sidetier.segments.crc import crc64nvme
from sidetier.segments.listing import read_listing
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.offsets import BaseOffset, Offset, OffsetRange, TopicPartition
from sidetier.storage.port import ChecksumAlgorithm, ObjectHead

_CHUNK_BYTES: Final = 1 << 20


def closed_local_segments(directory: str) -> dict[BaseOffset, Offset]:
    """Return the base and the next base of each closed segment in a partition's directory.

    Segments that the broker has marked for deletion are left out. An unreadable directory has
    none: the partition may have moved to another log dir meanwhile.
    """
    try:
        names = os.listdir(directory)  # noqa: PTH208 - names only, of directories with many files
    except OSError:
        return {}
    return {
        segment.base_offset: Offset(segment.next_base)
        for segment in read_listing(names).closed
        if segment.next_base is not None and not segment.marked_for_deletion
    }


def compare_with_local(
    checker: SegmentChecker,
    tp: TopicPartition,
    segment: SegmentFiles,
    directory: str,
    next_base: Offset,
) -> Finding | None:
    """Compare a stored `.log` with the broker's file of the same base offset.

    If both have the same size, and the store has a checksum of its own, it is compared with the
    checksum of the local bytes, without reading the object. Otherwise the bytes that both have are
    read and compared: segments of different sizes end at different offsets.

    Returns:
        None if they are equal, or if the broker has deleted the file meanwhile.

    Raises:
        SegmentMovedError: The object was replaced since it was listed.
    """
    log = segment.log
    name = segment_file_name(segment.base_offset, FileKind.LOG)
    path = f"{directory}/{name}"
    offsets = OffsetRange(Offset(segment.base_offset), next_base)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        size = os.fstat(descriptor).st_size
        head = checker.head(log)
        expected = _crc64nvme(head)
        if size == log.size and expected is not None:
            actual = _local_checksum(descriptor, size)
            if actual == expected:
                return None
            detail = f"the CRC64NVME of {path} is {actual}, that of the stored .log is {expected}"
        else:
            position = _first_difference(checker, segment, descriptor)
            detail = f"{path} ({size} bytes) and the stored .log ({log.size}) differ at {position}"
            if position is None or position == size:
                # Another replica may have rolled earlier or later: then one is the beginning of the
                # other. So is a stored segment that has lost its last batches.
                cut = wrong_size(head)
                if cut is None:
                    return None
                detail = f"{cut}; {path} has {size} bytes"
            elif size < log.size:
                return Finding(FindingKind.LOCAL_COMPACTED, tp, log.key, offsets, detail)
        return Finding(FindingKind.LOCAL_DIFFERENCE, tp, log.key, offsets, detail)
    finally:
        os.close(descriptor)


def _crc64nvme(head: ObjectHead) -> str | None:
    own = head.own_checksum
    is_comparable = own is not None and own.algorithm is ChecksumAlgorithm.CRC64NVME
    return own.value.hex() if own is not None and is_comparable else None


def _local_checksum(descriptor: int, size: int) -> str:
    checksum = 0
    for piece in _local_pieces(descriptor, size):
        checksum = crc64nvme(piece, checksum)
    return f"{checksum:016x}"


def _local_pieces(descriptor: int, size: int) -> Iterator[bytes]:
    position = 0
    while position < size:
        piece = os.pread(descriptor, min(_CHUNK_BYTES, size - position), position)
        if not piece:
            return
        yield piece
        position += len(piece)


def _first_difference(
    checker: SegmentChecker, segment: SegmentFiles, descriptor: int
) -> int | None:
    """Return the first byte of the stored `.log` that the local file does not have."""
    position = 0
    for stored in checker.chunks(segment.log, _CHUNK_BYTES):
        local = os.pread(descriptor, len(stored), position)
        if local != stored:
            pairs = zip(local, stored, strict=False)
            same = next((at for at, (a, b) in enumerate(pairs) if a != b), len(local))
            return position + same
        position += len(stored)
    return None
