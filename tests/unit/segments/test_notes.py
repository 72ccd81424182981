"""The object metadata of a `.log` fits into what every store accepts."""

from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind
from sidetier.segments.notes import (
    BROKER_ID_KEY,
    CHECKSUM_KEY,
    LEADER_EPOCH_KEY,
    MAX_TIMESTAMP_KEY,
    NEXT_OFFSET_KEY,
    NOTE_KEYS,
    PLACE_KEY,
    TOPIC_ID_KEY,
    epochs_note,
    object_note,
    records_note,
)
from sidetier.segments.offsets import BaseOffset, LeaderEpoch, Offset, TopicPartition
from sidetier.storage.checks import MAX_METADATA, check_options
from sidetier.storage.encrypting import ENCRYPTION_KEY
from sidetier.storage.port import PutOptions
from sidetier.uploader.sending.conditional_put import WRITER_EPOCH_KEY

LARGEST = 2**63 - 1
EPOCH = 2**31 - 1


def test_the_longest_metadata_of_a_log_is_accepted() -> None:
    tp = TopicPartition("t" * 249, EPOCH)
    key = ArchiveLayout("c" * 200, 32).object_key(tp, BaseOffset(LARGEST), FileKind.LOG)
    notes: dict[str, str] = {}
    for count in range(1, 100):
        longer = epochs_note([(LeaderEpoch(EPOCH), Offset(LARGEST))] * count)
        notes = longer or notes
    notes |= {
        NEXT_OFFSET_KEY: str(LARGEST),
        MAX_TIMESTAMP_KEY: str(LARGEST),
        LEADER_EPOCH_KEY: str(EPOCH),
        BROKER_ID_KEY: str(EPOCH),
        TOPIC_ID_KEY: "A" * 22,
        CHECKSUM_KEY: "f" * 16,
        WRITER_EPOCH_KEY: str(EPOCH),
        ENCRYPTION_KEY: "1 CRC64NVME " + "f" * 16,
        **dict.fromkeys(NOTE_KEYS.values(), "f" * 16),
        **records_note(LARGEST),
        **object_note(key, LARGEST),
    }
    assert notes[PLACE_KEY] == f"{tp}/{LARGEST:020d}"
    assert check_options(key, PutOptions(notes)).metadata == notes
    assert sum(len(name) + len(value) for name, value in notes.items()) < MAX_METADATA * 3 // 4
