"""Decode the primitive types of Kafka's flexible encoding (KIP-482) and of record batches."""

import struct

from sidetier.segments.errors import UnsupportedFormatError

_INT32 = struct.Struct(">i")
_UUID_BYTES = 16
_VARINT_BITS = 35
_VARLONG_BITS = 70


class WireReader:
    """Sequential reader of a buffer; each method decodes one value and advances.

    Raises:
        UnsupportedFormatError: The bytes end early, or contain an impossible length.
    """

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes, position: int = 0) -> None:
        self._data = data
        self._position = position

    @property
    def position(self) -> int:
        """Number of bytes read so far, from the beginning of the buffer."""
        return self._position

    def take(self, length: int) -> bytes:
        """Return the next `length` bytes."""
        end = self._position + length
        if length < 0 or end > len(self._data):
            raise UnsupportedFormatError(
                f"{length} bytes wanted at {self._position} of {len(self._data)}"
            )
        piece = self._data[self._position : end]
        self._position = end
        return piece

    def int8(self) -> int:
        """Decode a signed byte."""
        return int.from_bytes(self.take(1), "big", signed=True)

    def int32(self) -> int:
        """Decode four bytes, signed, big-endian."""
        value: int = _INT32.unpack(self.take(4))[0]
        return value

    def uuid(self) -> bytes:
        """Return sixteen bytes."""
        return self.take(_UUID_BYTES)

    def unsigned_varint(self, max_bits: int = _VARINT_BITS) -> int:
        """Decode an unsigned varint: seven bits per byte, lowest first."""
        value = 0
        for shift in range(0, max_bits, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:  # noqa: PLR2004 - the continuation bit
                return value
        raise UnsupportedFormatError(
            f"the varint that ends at {self._position} is longer than {max_bits // 7} bytes"
        )

    def varint(self) -> int:
        """Decode a zigzag varint of up to 32 bits, as inside records."""
        raw = self.unsigned_varint()
        return (raw >> 1) ^ -(raw & 1)

    def varlong(self) -> int:
        """Decode a zigzag varint of up to 64 bits."""
        raw = self.unsigned_varint(_VARLONG_BITS)
        return (raw >> 1) ^ -(raw & 1)

    def compact_string(self) -> str:
        """Decode a string: length plus one as unsigned varint, then UTF-8; null is an error."""
        raw = self.take(self.unsigned_varint() - 1)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise UnsupportedFormatError(f"{raw[:40]!r} is no UTF-8") from error

    def skip_compact_array(self, item_bytes: int) -> None:
        """Skip an array of items of fixed size: length plus one as varint, 0 for null."""
        count = self.unsigned_varint() - 1
        self.take(max(count, 0) * item_bytes)

    def tagged_fields(self) -> dict[int, bytes]:
        """Return the tagged fields at the end of a structure: tag to undecoded bytes."""
        fields = {}
        for _ in range(self.unsigned_varint()):
            tag = self.unsigned_varint()
            fields[tag] = self.take(self.unsigned_varint())
        return fields
