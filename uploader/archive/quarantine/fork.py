"""Find the exact offset at which the archive and the leader's log diverge.

A leader epoch that starts too early, or a log that ends too early, proves a divergence and gives
the highest offset at which it can be. The stored batches have their own leader epochs: a batch with
the same epoch at the same offset was written by the same leader, and everything before it is the
same, too (KIP-101).
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from sidetier.archive.objects.pinterest_metadata import named_segments
from sidetier.archive.objects.quarantine import Cut
from sidetier.segments.headers import HEADER_BYTES, BatchHeader, parse_batch_header, walk_headers
from sidetier.segments.keys import ArchiveLayout, parse_object_key
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.storage.port import RemoteStorage
from sidetier.uploader.archive.quarantine.stored_log import PieceReader
from sidetier.uploader.gates.divergence import LocalHistory


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where the histories diverge.

    Attributes:
        next_offset: First offset that archive and log do not have in common.
        kept: Base offset of the last stored segment that is common as a whole; None for none.
        cut: The segment of which only the first part is common; None for none.
        proof: First stored batch at or above the divergence; None where none is stored.
    """

    next_offset: Offset
    kept: BaseOffset | None
    cut: Cut | None
    proof: BatchHeader | None


def find_divergence(
    store: RemoteStorage,
    layout: ArchiveLayout,
    tp: TopicPartition,
    last: BaseOffset,
    latest: Offset,
    local: LocalHistory,
) -> Divergence:
    """Find the divergence of an archive.

    Args:
        store: The store.
        layout: The keys on it.
        tp: The partition.
        last: Base offset of the last committed segment.
        latest: Highest offset at which the divergence can be.
        local: The history of the leader's log.

    Raises:
        DamagedSegmentError: a stored segment is not whole record batches.
        MalformedObjectError: `_metadata` does not parse.
        StorageError: as the port says.
    """
    finder = _Finder(store, layout, tp, local)
    return finder.find(finder.committed(last), latest)


@dataclass(frozen=True, slots=True)
class _Border:
    """Byte position and header of a segment's first batch that is not common. Where all batches are
    common, the position is the segment's end, and the header is None.
    """

    position: int
    size: int
    header: BatchHeader | None


@dataclass(frozen=True, slots=True)
class _Finder:
    store: RemoteStorage
    layout: ArchiveLayout
    tp: TopicPartition
    local: LocalHistory

    def committed(self, last: BaseOffset) -> list[BaseOffset]:
        """Return the base offsets of the archive's segments, rising.

        These are the segments in `_metadata`. A segment that was stored too late, over offsets that
        other segments have, is not in it and proves nothing about the history.
        """
        prefix = self.layout.partition_prefix(self.tp)
        names = (parse_object_key(row.key, prefix) for row in self.store.list_objects(prefix))
        stored = sorted(p[0] for p in names if p and p[1] is FileKind.LOG and p[0] <= last)
        named = named_segments(self.store, self.layout.metadata_key(self.tp))
        return [base for base in stored if base in named] or stored

    def find(self, bases: Sequence[BaseOffset], latest: Offset) -> Divergence:
        """Search downwards from `latest` until a segment begins with a common batch."""
        at = bisect_left(bases, latest) - 1
        proof = self._first_header(bases[at + 1]) if at + 1 < len(bases) else None
        while at >= 0:
            border = self._border(bases[at], latest)
            proof = border.header or proof
            if border.position > 0:
                return self._divergence(bases, at, border, latest, proof)
            latest = min(latest, Offset(bases[at]))
            at -= 1
        return Divergence(latest, None, None, proof)

    def _divergence(
        self,
        bases: Sequence[BaseOffset],
        at: int,
        border: _Border,
        latest: Offset,
        proof: BatchHeader | None,
    ) -> Divergence:
        if border.header is None:
            return Divergence(latest, bases[at], None, proof)
        end = min(latest, border.header.base_offset)
        kept = bases[at - 1] if at > 0 else None
        return Divergence(end, kept, Cut(bases[at], border.position), proof)

    def _border(self, base: BaseOffset, latest: Offset) -> _Border:
        key = self.layout.object_key(self.tp, base, FileKind.LOG)
        size = self.store.head_object(key).size
        reader = PieceReader(self.store, key, size)
        for position, header in walk_headers(reader, size):
            if header.next_offset > latest or self.local.has_another_at(header):
                return _Border(position, size, header)
        return _Border(size, size, None)

    def _first_header(self, base: BaseOffset) -> BatchHeader:
        key = self.layout.object_key(self.tp, base, FileKind.LOG)
        with self.store.get_object_input_stream(key, 0, HEADER_BYTES) as stream:
            return parse_batch_header(stream.read())
