"""Chapters: one object for what is noted with each of 1,000 segments.

Who plans a read of a long archive asks each segment where it ends, how late its records are, and
how many it has: a request each. A chapter answers for 1,000 segments at once. It only repeats what
is noted with the segments, so that readers work without it; and it names the version of each, so
that a segment that was replaced since is asked itself.
"""

import json
from collections.abc import Sequence
from typing import Final, NamedTuple

from sidetier.archive.objects.segment import noted_next_offset, noted_number, noted_records
from sidetier.segments.errors import MalformedObjectError, ObjectNotFoundError
from sidetier.segments.keys import ArchiveLayout, parse_chapter_key
from sidetier.segments.notes import MAX_TIMESTAMP_KEY
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.storage.port import ObjectHead, ObjectSummary, RemoteStorage

SEGMENTS: Final = 1000
_VERSION: Final = 1


class ChapterEntry(NamedTuple):
    """What is noted with one segment.

    Attributes:
        base_offset: Of the segment.
        next_offset: The offset after its last.
        size: Of its `.log`, in bytes.
        etag: Of its `.log`.
        largest_timestamp: In ms since 1970; None where it is not noted.
        records: None where it is not noted, as with records of transactions.
    """

    base_offset: BaseOffset
    next_offset: Offset
    size: int
    etag: str
    largest_timestamp: int | None
    records: int | None


class StoredChapter(NamedTuple):
    """The key of a chapter, and the offsets of its segments from `start` up to, not including,
    `end`; between two segments there may be gaps.
    """

    key: str
    start: Offset
    end: Offset


def chapter_entry(base: BaseOffset, row: ObjectSummary, head: ObjectHead) -> ChapterEntry | None:
    """What the head of a `.log` says; None of Pinterest's uploader, which notes nothing, and of
    another version than was listed.
    """
    end = noted_next_offset(head)
    if end is None or (head.etag, head.size) != (row.etag, row.size):
        return None
    largest = noted_number(head, MAX_TIMESTAMP_KEY)
    return ChapterEntry(base, end, row.size, row.etag, largest, noted_records(head))


def stored_chapters(
    store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition, topic_id: str | None
) -> list[StoredChapter]:
    """The chapters of a partition, by rising start; one request for 1,000 of them.

    Raises:
        StorageError: as the port says.
    """
    prefix = layout.chapters_prefix(tp, topic_id)
    found = []
    for row in store.list_objects(prefix):
        span = parse_chapter_key(row.key, prefix)
        if span is not None:
            found.append(StoredChapter(row.key, *span))
    return found


def read_chapter(store: RemoteStorage, chapter: StoredChapter) -> list[ChapterEntry]:
    """The entries of a chapter, by rising base offset; none where it is gone.

    Raises:
        MalformedObjectError: it is no chapter.
        StorageError: as the port says.
    """
    try:
        data = store.get_object(chapter.key).data
    except ObjectNotFoundError:
        return []
    return decode_chapter(data, chapter.key)


def encode_chapter(entries: Sequence[ChapterEntry]) -> bytes:
    """The object of these entries, which are in order of their base offsets."""
    return json.dumps({"version": _VERSION, "segments": entries}, separators=(",", ":")).encode()


def decode_chapter(data: bytes, key: str) -> list[ChapterEntry]:
    """The entries of an object; fields that a later version adds to an entry are left out.

    Raises:
        MalformedObjectError: it is no chapter; the text names `key`.
    """
    try:
        rows = json.loads(data)["segments"]
        width = len(ChapterEntry._fields)
        return [_checked(*row[:width]) for row in rows]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise MalformedObjectError(f"{key} is no chapter: {error!r}") from error


def _checked(
    base: object, end: object, size: object, etag: object, largest: object, records: object
) -> ChapterEntry:
    numbers = (base, end, size, largest or 0, records or 0)
    if not isinstance(etag, str) or not all(type(one) is int for one in numbers):
        raise ValueError(f"segment {base!r} has a field of a wrong type")
    return ChapterEntry(base, end, size, etag, largest, records)  # type: ignore[arg-type]
