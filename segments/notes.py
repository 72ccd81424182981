"""What is noted with a stored `.log`, as its object metadata, so that nobody need read it to know.

Objects of the peer have none of it.
"""

from typing import Final

NEXT_OFFSET_KEY: Final = "sidetier-next-offset"
MAX_TIMESTAMP_KEY: Final = "sidetier-max-timestamp"
LEADER_EPOCH_KEY: Final = "sidetier-leader-epoch"
BROKER_ID_KEY: Final = "sidetier-broker-id"
EPOCHS_KEY: Final = "sidetier-epochs"
"""Each leader epoch in the segment with the offset of its first batch, `3@100,5@150`."""
