"""Stored segments that lose their last batches, as by a broken copy of a bucket."""

from sidetier.segments.headers import walk_headers
from sidetier.segments.notes import CHECKSUM_KEY, PLACE_KEY, SIZE_KEY
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import RemoteStorage

EARLIER_NOTES = (SIZE_KEY, PLACE_KEY)
"""Metadata that earlier versions did not write."""


def cut_log(store: RemoteStorage, key: str, batches: int = 1) -> int:
    """Remove the last batches of a `.log`; its metadata stays as it was.

    Returns:
        The offset after the last batch that is left.
    """
    stored = store.get_object(key)
    data = stored.data
    headers = list(walk_headers(lambda at, size: data[at : at + size], len(data)))
    position = headers[-batches][0]
    store.put_object(key, BytesBody(data[:position]), metadata=dict(stored.head.metadata))
    return int(headers[-batches - 1][1].next_offset)


def note_as_earlier(store: RemoteStorage, key: str, checksum: str | None = None) -> None:
    """Take the metadata from a `.log` that earlier versions did not write; add a checksum."""
    stored = store.get_object(key)
    notes = {k: v for k, v in stored.head.metadata.items() if k not in EARLIER_NOTES}
    if checksum is not None:
        notes[CHECKSUM_KEY] = checksum
    store.put_object(key, BytesBody(stored.data), metadata=notes)
