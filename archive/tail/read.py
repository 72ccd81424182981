"""Read the batches of merged tails from their packs.

Ranges are read whole and checked by their checksum and by their batches. Ranges of one pack that
follow each other closely are read with one request. Where two rows that were read have the same
offsets, their batches must be equal.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sidetier.archive.tail.merge import MergedTail, TailSlice
from sidetier.archive.tail.pack import TailBatch
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.port import RemoteStorage


@dataclass(frozen=True, slots=True)
class SliceBatches:
    """The batches of one slice.

    Attributes:
        tp: The partition.
        number: Number of the slice in `MergedTail.slices`.
        slice: The slice.
        batches: Its batches, in order of offsets.
    """

    tp: TopicPartition
    number: int
    slice: TailSlice
    batches: tuple[TailBatch, ...]


def read_tail(
    store: RemoteStorage, tail: MergedTail, *, concurrency: int = 4
) -> Iterator[TailBatch]:
    """Yield the batches of one partition's tail, in order of offsets.

    Raises:
        ObjectNotFoundError, PreconditionFailedError: A pack was deleted: read the inventory and
            merge again, and go on at the offset that was reached.
        ChecksumMismatchError, MalformedObjectError: A pack is damaged.
        ArchiveConflictError: Two packs have different bytes for the same offset and epoch.
    """
    raise NotImplementedError


def read_tails(
    store: RemoteStorage,
    tails: Mapping[TopicPartition, MergedTail],
    *,
    concurrency: int = 8,
    request_bytes: int = 8 << 20,
) -> Iterator[SliceBatches]:
    """Yield the batches of many partitions, pack by pack: each pack's bytes are requested once, in
    ranges of up to `request_bytes`. Slices of one partition can come in another order than their
    offsets. Raises as `read_tail`.
    """
    raise NotImplementedError
