"""Chapters: one object with the recorded metadata of up to 1,000 segments.

A reader that plans a read of a long archive needs each segment's end, largest timestamp and number
of records: one request for each segment. A chapter answers for 1,000 segments at once. It only
repeats the metadata of the segments' objects, so readers work without it. It names the version of
each segment; a segment that was replaced since is read itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from sidetier.archive.objects.codec import JsonCodec
from sidetier.archive.objects.log_check import mismatch
from sidetier.archive.objects.notes import noted_next_offset, noted_number, noted_records
from sidetier.segments.errors import ObjectNotFoundError
from sidetier.segments.keys import ArchiveLayout, parse_chapter_key
from sidetier.segments.notes import MAX_TIMESTAMP_KEY
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.storage.port import ObjectHead, ObjectSummary, RemoteStorage

SEGMENTS: Final = 1000


class ChapterEntry(NamedTuple):
    """The recorded metadata of one segment.

    Attributes:
        base_offset: Base offset of the segment.
        next_offset: The offset after its last.
        size: Size of its `.log`, in bytes.
        etag: Etag of its `.log`.
        largest_timestamp: In ms since 1970; None if it is not recorded.
        records: Number of records; None if it is not recorded, as for segments with transactions.
    """

    base_offset: BaseOffset
    next_offset: Offset
    size: int
    etag: str
    largest_timestamp: int | None
    records: int | None


class StoredChapter(NamedTuple):
    """The key of a chapter, and the offsets of its segments from `start` to `end`, exclusive.

    There may be gaps between its segments.
    """

    key: str
    start: Offset
    end: Offset


def chapter_entry(base: BaseOffset, row: ObjectSummary, head: ObjectHead) -> ChapterEntry | None:
    """Return the entry for a segment from the head of its `.log`.

    Returns:
        None for a segment of Pinterest's uploader, which notes nothing, for another version than
        the listed one, and for a `.log` that is not the one that was archived.
    """
    end = noted_next_offset(head)
    if end is None or (head.etag, head.size) != (row.etag, row.size) or mismatch(head):
        return None
    largest = noted_number(head, MAX_TIMESTAMP_KEY)
    return ChapterEntry(base, end, row.size, row.etag, largest, noted_records(head))


def stored_chapters(
    store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition, topic_id: str | None
) -> list[StoredChapter]:
    """List the chapters of a partition, by ascending start. One request for 1,000 chapters."""
    prefix = layout.chapters_prefix(tp, topic_id)
    chapters = []
    for row in store.list_objects(prefix):
        span = parse_chapter_key(row.key, prefix)
        if span is not None:
            chapters.append(StoredChapter(row.key, *span))
    return chapters


def read_chapter(store: RemoteStorage, chapter: StoredChapter) -> list[ChapterEntry]:
    """Read the entries of a chapter, by ascending base offset; none if it is no longer stored.

    Raises:
        MalformedObjectError: It is not a chapter.
    """
    try:
        data = store.get_object(chapter.key).data
    except ObjectNotFoundError:
        return []
    return decode_chapter(data, chapter.key)


def encode_chapter(entries: Sequence[ChapterEntry]) -> bytes:
    """Encode a chapter of these entries, which must be in order of their base offsets."""
    return _CODEC.encode({"segments": entries}, separators=(",", ":"))


def decode_chapter(data: bytes, key: str) -> list[ChapterEntry]:
    """Decode a chapter. Fields that a later version adds to an entry are ignored.

    Raises:
        MalformedObjectError: It is not a chapter, or of an unknown version; the message names
            `key`.
    """
    return [ChapterEntry(*row[:_WIDTH]) for row in _CODEC.decode(data, key).segments]  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class _Chapter:
    segments: tuple[tuple[int | str | None, ...], ...]

    def __post_init__(self) -> None:
        """Refuse an entry that lacks a field, or has one of another type."""
        for row in self.segments:
            base, end, size, etag, largest, records = row[:_WIDTH]
            numbers = (base, end, size, largest or 0, records or 0)
            if not isinstance(etag, str) or not all(isinstance(number, int) for number in numbers):
                raise ValueError(f"segment {base!r} has a field of a wrong type")


_WIDTH: Final = len(ChapterEntry._fields)
_CODEC: Final = JsonCodec(_Chapter, "a chapter")
