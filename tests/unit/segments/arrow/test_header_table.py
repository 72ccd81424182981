import struct

import pytest

from sidetier.segments.arrow import scan_headers
from sidetier.segments.errors import DamagedSegmentError, UnsupportedFormatError
from tests.harness.batches import make_batch

LOG = make_batch(10, 3) + make_batch(13) + make_batch(20, 2, epoch=4)


def test_headers_are_scanned_from_any_batch_start() -> None:
    headers = scan_headers(LOG)
    assert headers.column("base_offset").tolist() == [10, 13, 20]
    assert headers.column("last_offset").tolist() == [12, 13, 21]
    assert (len(headers), headers.next_offset, headers.next_position) == (3, 22, len(LOG))
    border = int(headers.rows["position"][1])
    later = scan_headers(LOG, at=border)
    assert (later.rows == headers.rows[1:]).all()
    assert headers.where(headers.column("leader_epoch") == 4).column("base_offset").tolist() == [20]


def test_empty_log_has_no_headers() -> None:
    headers = scan_headers(b"")
    assert (len(headers), headers.next_offset, headers.next_position) == (0, None, 0)
    assert not headers.is_control.any()


@pytest.mark.parametrize("cut", [1, 17, 40, 61, 65])
def test_incomplete_batch_is_left_out(cut: int) -> None:
    headers = scan_headers(LOG + make_batch(22)[:cut])
    assert (len(headers), headers.next_position) == (3, len(LOG))


def changed(at: int, form: str, value: int) -> bytes:
    """The log with another value in the header of its second batch."""
    log = bytearray(LOG)
    struct.pack_into(form, log, len(make_batch(10, 3)) + at, value)
    return bytes(log)


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (changed(16, "b", 3), "base offset 13: magic byte 3, expected 2"),
        (changed(8, ">i", 48), "base offset 13: its length field 48 is less than a header's"),
        (changed(8, ">i", -5), "base offset 13: its length field -5"),
        (changed(0, ">q", 12), "base offset 12: its base offset is below the next offset, 13"),
        (changed(0, ">q", -1), "base offset -1: its base offset is below the next offset, 13"),
        (changed(23, ">i", -1), "base offset 13: its last offset is 12"),
        (changed(0, ">q", 2**63 - 1), f"base offset {2**63 - 1}: its last offset is"),
        (changed(23, ">i", 7), "base offset 20: its base offset is below the next offset, 21"),
        (bytes(200), "base offset 0: magic byte 0, expected 2"),
        (LOG + bytes(20), "where offset 22 would follow: magic byte 0"),
        (LOG + make_batch(21)[:8], "base offset 21: its base offset is below the next offset, 22"),
        (LOG + make_batch(22, magic=7)[:17], "where offset 22 would follow: magic byte 7"),
    ],
)
def test_impossible_header_is_refused_with_its_position(log: bytes, reason: str) -> None:
    with pytest.raises(DamagedSegmentError, match=rf"^s3/x: byte 1\d\d\d: .*{reason}"):
        scan_headers(log, name="s3/x", position=1000)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("size", [17, 60, 61, 68])
def test_old_messages_are_refused_whole_or_truncated(magic: int, size: int) -> None:
    with pytest.raises(UnsupportedFormatError, match=f"byte 0: .*message format v{magic}"):
        scan_headers(make_batch(0, magic=magic)[:size])


def test_batch_below_the_floor_is_refused() -> None:
    assert len(scan_headers(LOG, floor=10)) == 3
    with pytest.raises(DamagedSegmentError, match="below the next offset, 11"):
        scan_headers(LOG, floor=11)
