"""Stored record batches that this version cannot decode: they do not count as missing."""

import pytest

from sidetier.archive.reader import DamagedArchiveError, Failed
from sidetier.segments.errors import UnsupportedFormatError
from sidetier.segments.isolation import IsolationLevel
from tests.harness.batches import with_crc
from tests.harness.made_archive import MadeArchive, batches, encoded, offsets, read_from
from tests.harness.record_batches import MadeBatch, MadeRecord

MAGIC, CODEC = 16, 22
"""Positions in a batch of the byte with the message format and the byte with the compression codec.
"""
BEFORE, BEHIND = encoded(batches(0, 20)), encoded(batches(21, 40))


def archive_of(batch: bytes) -> MadeArchive:
    """Offsets 0 to 39; offset 20 is in the given batch, which replaces the stored one."""
    made = MadeArchive()
    made.segment(0, BEFORE + MadeBatch((MadeRecord(20),)).encoded() + BEHIND)
    made.mark(0, 40)
    head = made.store.head_object(made.key(0))
    made.put(made.key(0), BEFORE + batch + BEHIND, dict(head.metadata))
    return made


def changed(made: MadeBatch, byte: int, bits: int) -> bytearray:
    """A batch with some bits of one byte flipped and its original CRC32C."""
    batch = bytearray(made.encoded())
    batch[byte] ^= bits
    return batch


@pytest.mark.parametrize("isolation", list(IsolationLevel))
def test_unknown_codec_is_a_separate_error(isolation: IsolationLevel) -> None:
    archive = archive_of(with_crc(changed(MadeBatch((MadeRecord(20),)), CODEC, 6)))
    taken = read_from(archive, 3, isolation=isolation)
    assert offsets(taken) == list(range(3, 20))
    failed = taken[-1]
    assert isinstance(failed, Failed)
    assert type(failed.error) is UnsupportedFormatError
    assert failed.next_offset == 20
    told = str(failed.error)
    assert told.startswith(f"{archive.key(0)}: byte {len(BEFORE)}")
    assert "unknown compression 6" in told
    assert "the records are stored" in told


def test_unknown_codec_of_a_marker_is_a_separate_error() -> None:
    marker = MadeBatch((MadeRecord(20, key=bytes(4)),), is_control=True)
    archive = archive_of(with_crc(changed(marker, CODEC, 6)))
    taken = read_from(archive, 0, isolation=IsolationLevel.READ_COMMITTED)
    assert offsets(taken) == list(range(20))
    failed = taken[-1]
    assert isinstance(failed, Failed)
    assert type(failed.error) is UnsupportedFormatError


def test_flipped_bit_that_gives_an_unknown_codec_is_damage() -> None:
    taken = read_from(archive_of(bytes(changed(MadeBatch((MadeRecord(20),)), CODEC, 6))), 0)
    failed = taken[-1]
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, DamagedArchiveError)
    assert failed.error.offsets == (20, 21)


def test_old_message_format_is_a_separate_error() -> None:
    taken = read_from(archive_of(bytes(changed(MadeBatch((MadeRecord(20),)), MAGIC, 3))), 0)
    assert offsets(taken) == list(range(20))
    failed = taken[-1]
    assert isinstance(failed, Failed)
    assert type(failed.error) is UnsupportedFormatError
    assert "message format v1" in str(failed.error)
