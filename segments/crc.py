"""The two checksums: CRC32C inside record batches, CRC64NVME over whole objects.

Both come from awscrt, which uses the processor's own instructions. `data` is bytes, a bytearray or
a contiguous memoryview; `previous` continues a checksum over the bytes that came before.
"""

from typing import Protocol, cast

from awscrt import checksums  # type: ignore[import-untyped]  # it ships no types


class _Checksum(Protocol):
    def __call__(self, data: bytes | bytearray | memoryview, previous: int = 0, /) -> int: ...


# Aliases, not wrappers: the first is called once per record batch.
crc32c = cast("_Checksum", checksums.crc32c)
crc64nvme = cast("_Checksum", checksums.crc64nvme)
