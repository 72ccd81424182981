"""What is noted with a stored `.log`, as its object metadata, so that nobody need read it to know.

Objects of the peer have none of it.
"""

from collections.abc import Mapping
from typing import Final

from sidetier.segments.names import FileKind

NEXT_OFFSET_KEY: Final = "sidetier-next-offset"
MAX_TIMESTAMP_KEY: Final = "sidetier-max-timestamp"
LEADER_EPOCH_KEY: Final = "sidetier-leader-epoch"
BROKER_ID_KEY: Final = "sidetier-broker-id"
TOPIC_ID_KEY: Final = "sidetier-topic-id"
"""Left out where the topic id was not known."""
EPOCHS_KEY: Final = "sidetier-epochs"
"""Each leader epoch in the segment with the offset of its first batch, `3@100,5@150`."""

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
