"""What is noted with a stored `.log`, as its object metadata, so that nobody need read it to know.

Objects of Pinterest's uploader have none of it.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from sidetier.segments.epoch_history import Entry, encode_runs
from sidetier.segments.names import FileKind

NEXT_OFFSET_KEY: Final = "sidetier-next-offset"
MAX_TIMESTAMP_KEY: Final = "sidetier-max-timestamp"
LEADER_EPOCH_KEY: Final = "sidetier-leader-epoch"
BROKER_ID_KEY: Final = "sidetier-broker-id"
TOPIC_ID_KEY: Final = "sidetier-topic-id"
"""Left out where the topic id was not known."""
EPOCHS_KEY: Final = "sidetier-epochs"
"""Each leader epoch in the segment with the offset of its first batch, `3@100,5@150`."""
_MOST_EPOCHS_LENGTH: Final = 512
"""Longer notes are left out: a store takes 2 KiB of metadata in all."""
RECORDS_KEY: Final = "sidetier-record-count"
"""How many records there are; left out where a batch belongs to a transaction."""

NOTE_KEYS: Final[Mapping[FileKind, str]] = {
    FileKind.TXNINDEX: "sidetier-txnindex",
    FileKind.SNAPSHOT: "sidetier-snapshot",
}
"""What is noted of a file that only some segments have: its CRC64NVME in 16 hexadecimal digits,
`NONE` or `MISSING`."""
NONE: Final = "none"
"""The broker had none: nothing was aborted; no producer has a state."""
MISSING: Final = "missing"
"""It is not known."""


def epochs_note(runs: Iterable[Entry]) -> dict[str, str]:
    """The note of a segment's runs of batches of one epoch; none where there are too many."""
    epochs = encode_runs(runs)
    return {EPOCHS_KEY: epochs} if len(epochs) <= _MOST_EPOCHS_LENGTH else {}


def records_note(plain_records: int | None) -> dict[str, str]:
    """The note of how many records a segment has; none for None."""
    return {} if plain_records is None else {RECORDS_KEY: str(plain_records)}
