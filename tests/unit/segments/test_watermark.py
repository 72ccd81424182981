from dataclasses import replace

import pytest

from sidetier.archive.objects.watermark import Watermark, decode_watermark, encode_watermark
from sidetier.segments.errors import MalformedObjectError
from sidetier.segments.offsets import BaseOffset, BrokerId, LeaderEpoch, Offset

KEY = "c/t-0/offset.wm"
LINE_1 = b"00000000000000000520\n"
OURS = Watermark(
    BaseOffset(520),
    Offset(1040),
    LeaderEpoch(7),
    BrokerId(2),
    topic_id="cym-TlqmRE2h0UHouOCTtg",
    nonce="5f0c",
)


def test_first_line_is_pinterests_format() -> None:
    lines = encode_watermark(OURS).split(b"\n")
    assert lines[0] == b"00000000000000000520"
    assert len(lines) == 3
    assert lines[2] == b""


def test_watermark_round_trips_through_the_encoding() -> None:
    assert decode_watermark(encode_watermark(OURS), KEY) == OURS


@pytest.mark.parametrize("ending", [b"", b"\n", b"\r\n"])
def test_pinterest_watermark_is_read(ending: bytes) -> None:
    assert decode_watermark(LINE_1.strip() + ending, KEY) == Watermark(BaseOffset(520), None)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "20 digits"),
        (b"520\n", "20 digits"),
        (b"99999999999999999999\n", "20 digits"),
        (b"-0000000000000000520\n", "20 digits"),
        (b" 00000000000000000520\n", "20 digits"),
        (LINE_1 + b"\n", "20 digits"),
        (LINE_1 + b"7\n", "20 digits"),
        (LINE_1 + b"{}\n{}\n", "20 digits"),
        (LINE_1 + b"[]\n", "20 digits"),
        (LINE_1 + b"{,}\n", "line 2"),
        (LINE_1 + b"{\xff}\n", "line 2"),
        (LINE_1 + b"{}\n", "line 2: version: Field required"),
        (
            LINE_1 + b'{"version": 1, "next_offset": "9"}\n',
            "line 2: next_offset: Input should be a valid integer",
        ),
        (
            LINE_1 + b'{"version": 1, "next_offset": true}\n',
            "line 2: next_offset: Input should be a valid integer",
        ),
        (
            LINE_1 + b'{"version":1,"next_offset":520,"leader_epoch":0,"broker_id":1}\n',
            "is not above the base",
        ),
        (
            LINE_1
            + b'{"version":1,"next_offset":9223372036854775808,"leader_epoch":0,"broker_id":1}\n',
            "next_offset has more than 64 bits",
        ),
        (LINE_1 + b'{"version": 1, "next_offset": 521}\n', "line 2: leader_epoch: Field required"),
        (
            LINE_1 + b'{"version":1,"next_offset":521,"leader_epoch":0,"broker_id":1,"nonce":5}\n',
            "line 2: nonce: Input should be a valid string",
        ),
    ],
)
def test_error_for_a_malformed_watermark_has_key_and_content(data: bytes, reason: str) -> None:
    with pytest.raises(MalformedObjectError, match=reason) as caught:
        decode_watermark(data, KEY)
    assert str(caught.value).startswith(f"{KEY}: not a watermark: ")
    shown = data if "20 digits" in reason or "above" in reason else data.removeprefix(LINE_1)
    assert repr(shown.rstrip(b"\n")[:60])[:-1] in str(caught.value)


def test_pending_move_is_written_and_other_watermarks_are_unchanged() -> None:
    assert b"pending" not in encode_watermark(OURS)
    pending = replace(OURS, pending="_sidetier/c/quarantine/t-0/x/")
    assert decode_watermark(encode_watermark(pending), KEY) == pending


def test_empty_archive_is_valid_only_during_a_move() -> None:
    empty = replace(OURS, next_offset=Offset(OURS.base_offset))
    with pytest.raises(MalformedObjectError, match="is not above"):
        decode_watermark(encode_watermark(empty), KEY)
    moving = replace(empty, pending="_sidetier/c/retired/t-0/x/")
    assert decode_watermark(encode_watermark(moving), KEY) == moving
