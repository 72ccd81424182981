"""What a segment on the store holds, when nothing is noted with it: from its index and its tail.

Two ranged requests as a rule: the index's last entry, and the log from there on.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sidetier.segments.errors import DamagedSegmentError, UnsupportedFormatError
from sidetier.segments.headers import BatchHeader, walk_headers
from sidetier.segments.index_builder import RebuiltIndexes
from sidetier.segments.indexes import parse_offset_index
from sidetier.segments.offsets import BaseOffset
from sidetier.segments.walker import BatchWalker
from sidetier.storage.port import ObjectSummary, RemoteStorage

_ENTRY = struct.Struct(">II")
_WINDOW_BYTES: Final = 256 * 1024
_CHUNK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Tail:
    """The last batch of a segment, and the byte at which it begins in the `.log`."""

    position: int
    batch: BatchHeader


def read_tail(
    store: RemoteStorage, base: BaseOffset, log: ObjectSummary, index: ObjectSummary | None
) -> Tail:
    """The last batch of a stored `.log`.

    Without an index, or with one that does not belong to the log, all headers are read.

    Raises:
        DamagedSegmentError: the log is empty, cut, or not a segment of this base.
        UnsupportedFormatError: message format v0 or v1.
    """
    read = _windowed(store, log)
    entry = _last_entry(store, base, index) if index is not None else None
    if entry is not None and entry[1] < log.size:
        try:
            tail = _walk(read, log, base, entry[1])
        except (DamagedSegmentError, UnsupportedFormatError):
            return _walk(read, log, base, 0)
        if tail.batch.last_offset >= entry[0]:
            return tail
    return _walk(read, log, base, 0)


def rebuilt_indexes(store: RemoteStorage, log: ObjectSummary) -> RebuiltIndexes:
    """Both indexes of a stored `.log`, which is read once, from its first byte to its last.

    Raises:
        DamagedSegmentError: a batch that no broker would serve.
        UnsupportedFormatError: message format v0 or v1.
    """
    walker = BatchWalker(log.key, rebuild_indexes=True)
    with store.get_object_input_stream(log.key) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            walker.feed(memoryview(chunk))
    facts = walker.finish()
    if facts.indexes is None or facts.size != log.size:
        raise DamagedSegmentError(f"{log.key}: {facts.size} of {log.size} bytes could be read")
    return facts.indexes


def _last_entry(
    store: RemoteStorage, base: BaseOffset, index: ObjectSummary
) -> tuple[int, int] | None:
    """Offset and position of the last entry; None for an index without one, or a damaged one."""
    if index.size < _ENTRY.size or index.size % _ENTRY.size:
        return None
    with store.get_object_input_stream(index.key, index.size - _ENTRY.size) as stream:
        relative, position = _ENTRY.unpack(stream.read())
    if position:
        return base + relative, position
    try:  # zeros: it was sent before the broker had trimmed it
        entries = parse_offset_index(store.get_object(index.key).data, base, index.key).entries
    except DamagedSegmentError:
        return None
    return entries[-1] if entries else None


def _walk(
    read: Callable[[int, int], bytes], log: ObjectSummary, base: BaseOffset, start: int
) -> Tail:
    tail: Tail | None = None
    lowest: int | None = None
    try:
        for position, header in walk_headers(read, log.size, start=start):
            tail = Tail(position, header)
            lowest = header.base_offset if lowest is None else lowest
    except (DamagedSegmentError, UnsupportedFormatError) as error:
        raise type(error)(f"{log.key}: {error}") from None
    if tail is None or lowest is None or lowest < base:
        raise DamagedSegmentError(f"{log.key}: holds no record batch of offset {base} or higher")
    return tail


def _windowed(store: RemoteStorage, log: ObjectSummary) -> Callable[[int, int], bytes]:
    """Reads pieces of a `.log`, and asks the store for more than is wanted at once."""
    window, start = b"", 0

    def read(position: int, length: int) -> bytes:
        nonlocal window, start
        if not start <= position <= position + length <= start + len(window):
            end = position + max(length, _WINDOW_BYTES)
            with store.get_object_input_stream(log.key, position, end) as stream:
                window, start = stream.read(), position
        return window[position - start : position - start + length]

    return read
