"""The two checksums: CRC32C for record batches, CRC64NVME for whole objects.

Both come from awscrt, which uses the processor's CRC instructions. `data` is bytes, a bytearray or
a contiguous memoryview. `previous` is the checksum of the bytes before it.
"""

from typing import Protocol, cast

from awscrt import checksums  # type: ignore[import-untyped]  # awscrt ships no types


class _Checksum(Protocol):
    def __call__(self, data: bytes | bytearray | memoryview, previous: int = 0, /) -> int: ...


class _Combine(Protocol):
    def __call__(self, first: int, second: int, second_size: int, /) -> int: ...


# Aliases, not wrappers: `crc32c` is called once per record batch.
crc32c = cast("_Checksum", checksums.crc32c)
crc64nvme = cast("_Checksum", checksums.crc64nvme)
combine_crc64nvme = cast("_Combine", checksums.combine_crc64nvme)
