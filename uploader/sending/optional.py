"""The files that only some segments have: `.txnindex` and `.snapshot`.

They never keep a segment from being stored: a file that cannot be read, or is damaged, is left out
and reported. The metadata of the `.log` says which file belongs to it: the checksum of the file,
`none` where the broker has none (no aborted transaction, no producer state), or `missing` where it
is not known. A reader must not use a file beside the `.log` with another checksum, such as one from
an earlier attempt.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from sidetier.segments.errors import SegmentError
from sidetier.segments.names import FileKind
from sidetier.segments.notes import MISSING, NONE, NOTE_KEYS
from sidetier.segments.offsets import BaseOffset, Offset
from sidetier.segments.producer_snapshot import check_snapshot
from sidetier.segments.txn_index import (
    ABORTED_TXN_BYTES,
    WHOLE_ABORTED_TXNS_BYTES,
    read_txn_index,
)
from sidetier.uploader.pinning.pins import OPTIONAL_KINDS, PinnedSegment
from sidetier.uploader.sending.verify import SummedPieces, VerifiedFile

_PIECE_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Extent:
    """The offsets to be stored: from `base` to `end`, exclusive."""

    base: BaseOffset
    end: Offset


@dataclass(frozen=True, slots=True)
class OptionalFiles:
    """The optional files of a segment.

    Attributes:
        files: The files to be stored.
        notes: User metadata of the `.log` about each kind.
        left_out: The kinds that could not be read, and why.
    """

    files: Mapping[FileKind, VerifiedFile]
    notes: Mapping[str, str]
    left_out: tuple[tuple[FileKind, str], ...] = ()


def optional_files(
    pinned: PinnedSegment, stored: Extent, before_read: Callable[[int], None]
) -> OptionalFiles:
    """Return the optional files of a segment, or of a slice of one. Their errors are not raised."""
    files: dict[FileKind, VerifiedFile] = {}
    notes: dict[str, str] = {}
    left_out = dict(pinned.lacking)
    for kind in OPTIONAL_KINDS:
        try:
            file = _look(kind, pinned, stored, before_read)
        except (SegmentError, OSError) as error:
            left_out[kind], file = str(error), None
        if file is not None:
            files[kind] = file
        notes[NOTE_KEYS[kind]] = (
            f"{file.crc64nvme:016x}"
            if file is not None
            else MISSING
            if kind in left_out or _is_cut_off(kind, pinned, stored)
            else NONE
        )
    return OptionalFiles(files, notes, tuple(left_out.items()))


def _is_cut_off(kind: FileKind, pinned: PinnedSegment, stored: Extent) -> bool:
    """Return whether it is the snapshot of a slice: no file has the producer state at its start."""
    return kind is FileKind.SNAPSHOT and stored.base != pinned.segment.base_offset


def _look(
    kind: FileKind, pinned: PinnedSegment, stored: Extent, before_read: Callable[[int], None]
) -> VerifiedFile | None:
    descriptor = pinned.descriptors.get(kind)
    if descriptor is None or _is_cut_off(kind, pinned, stored):
        return None
    if kind is FileKind.TXNINDEX:
        return _txn_index(descriptor, pinned.segment.base_offset, stored, before_read)
    pieces = SummedPieces(descriptor, _PIECE_BYTES)
    return pieces.file(before_read) if check_snapshot(pieces) else None


def _txn_index(
    descriptor: int, segment: BaseOffset, stored: Extent, before_read: Callable[[int], None]
) -> VerifiedFile | None:
    """Return the transaction index; for a slice, its entries with an abort marker in the slice.

    Transactions that end below the slice have no records in it.
    """
    pieces = SummedPieces(descriptor, WHOLE_ABORTED_TXNS_BYTES)
    below = above = 0
    for entry in read_txn_index(pieces, segment, stored.end):
        if entry.last_offset < stored.base:
            below += 1
        else:
            above += 1
    if not above:
        return None
    if below:
        pieces = SummedPieces(descriptor, WHOLE_ABORTED_TXNS_BYTES, below * ABORTED_TXN_BYTES)
        for _ in read_txn_index(pieces, stored.base, stored.end):
            pass
    return pieces.file(before_read)
