"""The files that only some segments have: `.txnindex` and `.snapshot`.

They never hold a segment: one that cannot be read, or is damaged, is left out, and said. What is
stored with a segment is noted with its `.log`: the checksum of the file, `none` where the broker
has none (nothing was aborted; no producer has a state), `missing` where it is not known. A reader
that finds another file beside the `.log` than the one noted, one of an earlier try for example,
must not use it.
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
from sidetier.uploader.sending.verified import SummedPieces, VerifiedFile

_PIECE_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Extent:
    """The offsets of what is stored: from `base` up to, not including, `end`."""

    base: BaseOffset
    end: Offset


@dataclass(frozen=True, slots=True)
class OptionalFiles:
    """Those to be stored, what is noted of each kind, and why others are left out."""

    files: Mapping[FileKind, VerifiedFile]
    notes: Mapping[str, str]
    left_out: tuple[tuple[FileKind, str], ...] = ()


def optional_files(
    pinned: PinnedSegment, stored: Extent, before_read: Callable[[int], None]
) -> OptionalFiles:
    """What there is of them for a segment, or the slice of one; never raises for their sake."""
    files: dict[FileKind, VerifiedFile] = {}
    notes: dict[str, str] = {}
    left_out = dict(pinned.lacking)
    for kind in OPTIONAL_KINDS:
        try:
            found = _look(kind, pinned, stored, before_read)
        except (SegmentError, OSError) as error:
            left_out[kind], found = str(error), None
        if found is not None:
            files[kind] = found
        notes[NOTE_KEYS[kind]] = (
            f"{found.crc64nvme:016x}"
            if found is not None
            else MISSING
            if kind in left_out or _is_cut_off(kind, pinned, stored)
            else NONE
        )
    return OptionalFiles(files, notes, tuple(left_out.items()))


def _is_cut_off(kind: FileKind, pinned: PinnedSegment, stored: Extent) -> bool:
    """The state of the producers at the start of a slice stands nowhere."""
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
    """The whole of it, or for a slice the entries whose marker lies in the slice: those that end
    below it concern no record of it.
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
