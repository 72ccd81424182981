"""Varints, one at a time: seven bits per byte, lowest first; the high bit of a byte continues it.

Source: Kafka's `ByteUtils`. The messages of the protocol and the metadata log have unsigned varints
of 32 bits. Records have zigzag varints: 0, -1, 1, -2 are 0, 1, 2, 3. `segments.arrow.varints`
decodes the varints of many records at once.
"""

from typing import Final

_CONTINUED: Final = 0x80
_BITS: Final = 0x7F
_UNSIGNED_BYTES: Final = 5
_ZIGZAG_BYTES: Final = 10
_64_BITS: Final = (1 << 64) - 1


def encode_unsigned(value: int) -> bytes:
    """Encode a number of 0 or more."""
    encoded = bytearray()
    while value >= _CONTINUED:
        encoded.append(value & _BITS | _CONTINUED)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_zigzag(value: int) -> bytes:
    """Encode a signed number of up to 64 bits."""
    return encode_unsigned((value << 1) ^ (value >> 63))


def read_unsigned(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return the unsigned number at a position, and the position after it.

    Raises:
        ValueError: It does not end within the data or within 5 bytes.
    """
    if at < len(data) and (raw := data[at]) < _CONTINUED:  # most numbers have one byte
        return raw, at + 1
    return _read(data, at, _UNSIGNED_BYTES)


def read_zigzag(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return the signed number at a position, and the position after it.

    Bits of the tenth byte beyond 64 bits are dropped.

    Raises:
        ValueError: It does not end within the data or within 10 bytes.
    """
    if at < len(data) and (raw := data[at]) < _CONTINUED:  # as above
        return (raw >> 1) ^ -(raw & 1), at + 1
    raw, at = _read(data, at, _ZIGZAG_BYTES)
    raw &= _64_BITS
    return (raw >> 1) ^ -(raw & 1), at


def _read(data: bytes | memoryview, at: int, max_bytes: int) -> tuple[int, int]:
    value = shift = 0
    for byte in data[at : at + max_bytes]:
        value |= (byte & _BITS) << shift
        shift += 7
        if byte < _CONTINUED:
            return value, at + shift // 7
    raise ValueError(f"no varint ends within {max_bytes} bytes at byte {at} of {len(data)}")
