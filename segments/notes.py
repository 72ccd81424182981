"""The object metadata of a stored `.log`. Readers use it instead of the segment's bytes.

Objects of Pinterest's uploader have none of it.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from sidetier.segments.epoch_history import Entry, encode_runs
from sidetier.segments.keys import place_of_log
from sidetier.segments.names import FileKind

CLASS_TAG: Final = "sidetier-class"
"""Name of the object tag with the class of an object: see `storage.object_classes`."""

NEXT_OFFSET_KEY: Final = "sidetier-next-offset"
MAX_TIMESTAMP_KEY: Final = "sidetier-max-timestamp"
LEADER_EPOCH_KEY: Final = "sidetier-leader-epoch"
BROKER_ID_KEY: Final = "sidetier-broker-id"
TOPIC_ID_KEY: Final = "sidetier-topic-id"
"""Omitted if the topic id was not known."""
EPOCHS_KEY: Final = "sidetier-epochs"
"""Each leader epoch in the segment with the offset of its first batch, `3@100,5@150`."""
_MAX_EPOCHS_LENGTH: Final = 512
"""Characters. Longer values are omitted: a store accepts 2 KiB of metadata in total."""
RECORDS_KEY: Final = "sidetier-record-count"
"""Number of records; omitted if a batch belongs to a transaction."""
SIZE_KEY: Final = "sidetier-size"
"""Size of the `.log` in bytes, before encryption."""
PLACE_KEY: Final = "sidetier-place"
"""Partition and base offset (`place_of_log`) of the key that the `.log` was stored under."""

CHECKSUM_KEY: Final = "sidetier-crc64nvme"
"""CRC64NVME of the object's bytes in 16 hexadecimal digits. All files of a segment have it."""

NOTE_KEYS: Final[Mapping[FileKind, str]] = {
    FileKind.TXNINDEX: "sidetier-txnindex",
    FileKind.SNAPSHOT: "sidetier-snapshot",
}
"""Metadata keys of the files that only some segments have. The value is the file's CRC64NVME in 16
hexadecimal digits, `NONE` or `MISSING`.
"""
NONE: Final = "none"
"""The broker had no such file: no transaction was aborted; or no producer has a state, or the log
began there when the broker loaded it.
"""
MISSING: Final = "missing"
"""It is not known whether the broker had such a file."""


def epochs_note(runs: Iterable[Entry]) -> dict[str, str]:
    """Return the metadata entry for a segment's leader epochs; no entry if it is too long."""
    epochs = encode_runs(runs)
    return {EPOCHS_KEY: epochs} if len(epochs) <= _MAX_EPOCHS_LENGTH else {}


def records_note(plain_records: int | None) -> dict[str, str]:
    """Return the metadata entry for a segment's number of records; no entry for None."""
    return {} if plain_records is None else {RECORDS_KEY: str(plain_records)}


def object_note(key: str, size: int) -> dict[str, str]:
    """Return the metadata entries that bind a `.log` of `size` bytes to its key."""
    place = place_of_log(key)
    return {SIZE_KEY: str(size)} | ({} if place is None else {PLACE_KEY: place})
