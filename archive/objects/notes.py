"""The strict parser of the numbers in an object's metadata (`segments.notes` has the keys).

Objects of Pinterest's uploader have none of them. A value that Sidetier would not have written
counts as absent: others can write to the bucket, and `int` also accepts signs, underscores, spaces
and digits of other scripts, and refuses thousands of digits.
"""

import re
from typing import Final

from sidetier.segments.notes import CHECKSUM_KEY, NEXT_OFFSET_KEY, RECORDS_KEY
from sidetier.segments.offsets import MAX_OFFSET, UNKNOWN_EPOCH, LeaderEpoch, Offset
from sidetier.storage.port import ObjectHead

_DECIMAL: Final = re.compile("[0-9]{1,19}")
_CRC: Final = re.compile("[0-9a-f]{16}")


def noted_number(head: ObjectHead, name: str) -> int | None:
    """Return a number in the metadata of an object; None if there is none, or it has more than 63
    bits.
    """
    noted = head.metadata.get(name, "")
    number = int(noted) if _DECIMAL.fullmatch(noted) else -1
    return number if 0 <= number <= MAX_OFFSET else None


def noted_next_offset(head: ObjectHead) -> Offset | None:
    """Return the next offset in the metadata of a `.log`; None if Pinterest's uploader stored
    it.
    """
    noted = noted_number(head, NEXT_OFFSET_KEY)
    return None if noted is None else Offset(noted)


def noted_records(head: ObjectHead) -> int | None:
    """Return the number of records in the metadata of a `.log`.

    Returns:
        None if some records belong to a transaction, or if Pinterest's uploader stored the `.log`.
    """
    return noted_number(head, RECORDS_KEY)


def noted_epoch(head: ObjectHead, name: str) -> LeaderEpoch:
    """Return a leader epoch in the metadata of an object; UNKNOWN_EPOCH if there is none."""
    noted = noted_number(head, name)
    return UNKNOWN_EPOCH if noted is None else LeaderEpoch(noted)


def noted_checksum(head: ObjectHead) -> int | None:
    """Return the CRC64NVME in the metadata of an object; None if there is none."""
    noted = head.metadata.get(CHECKSUM_KEY, "")
    return int(noted, 16) if _CRC.fullmatch(noted) else None
