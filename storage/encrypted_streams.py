"""Encrypt a body while it is sent, and decrypt ranges while they are read; memory is bounded."""

import io
import os
import threading
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sidetier.segments.errors import (
    ChecksumMismatchError,
    DamagedCiphertextError,
    StoreUnavailableError,
)
from sidetier.storage.bodies import FileStream, open_for_checksum
from sidetier.storage.checksums import RunningChecksum, expect_checksum
from sidetier.storage.encrypted_format import (
    CHUNK_BYTES,
    HEADER_BYTES,
    SEALED_BYTES,
    TAG_BYTES,
    EncryptedHeader,
    chunks_of,
)
from sidetier.storage.port import Body, Checksum
from sidetier.storage.ranges import read_once

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_READ_CHUNKS: Final = 8
"""Chunks of plaintext that are read from a body at once, or of ciphertext from a store."""
_READ_BYTES: Final = _READ_CHUNKS * CHUNK_BYTES
_SEALERS: Final = threading.BoundedSemaphore(len(os.sched_getaffinity(0)))
"""Limits the threads that encrypt to the number of cores. Each chunk releases Python's lock
for some 25 µs: more threads than cores would spend as much CPU time on taking it again.
"""


class ObjectCipher:
    """Encrypts and decrypts the chunks of one object. Thread-safe.

    Args:
        header: The object's header.
        data_key: The unwrapped data key, 32 bytes.
    """

    def __init__(self, header: EncryptedHeader, data_key: bytes) -> None:
        self.header = header
        self._last = header.chunks - 1
        info = header.encode()
        derived = HKDF(SHA256(), len(data_key), salt=header.salt, info=info).derive(data_key)
        self._aead = AESGCM(derived)

    def plain_bytes(self, index: int) -> int:
        """Return the number of bytes of plaintext in a chunk."""
        return min(CHUNK_BYTES, self.header.size - index * CHUNK_BYTES)

    def seal(self, index: int, plain: memoryview, into: memoryview) -> bytes:
        """Encrypt consecutive chunks, each into its size and `TAG_BYTES` more; return their tags.

        Args:
            index: Number of the first chunk.
            plain: Whole chunks; the last one is shorter only at the object's end. An empty object
                has one empty chunk.
            into: Where the sealed chunks go, one after the other.
        """
        encrypt, tags, at = self._aead.encrypt_into, bytearray(), 0
        for start in range(0, max(len(plain), 1), CHUNK_BYTES):
            chunk = plain[start : start + CHUNK_BYTES]
            end = at + len(chunk) + TAG_BYTES
            encrypt(self._nonce(index), chunk, None, into[at:end])
            tags += into[end - TAG_BYTES : end]
            index, at = index + 1, end
        return bytes(tags)

    def open(self, index: int, sealed: memoryview, into: memoryview) -> None:
        """Decrypt a chunk into a buffer of its plaintext's size.

        Raises:
            InvalidTag: It is not this chunk of this object, or the key is another one.
        """
        self._aead.decrypt_into(self._nonce(index), sealed, None, into)

    def _nonce(self, index: int) -> bytes:
        # Unique under the key of the object, which the salt makes unique.
        return index.to_bytes(11, "big") + (b"\1" if index == self._last else b"\0")


class EncryptedBody:
    """The ciphertext of a body, as a Body of the storage port.

    A driver may read it several times. A file can change between two readings, and a second
    plaintext under the same key and nonce would reveal both. So the tag of each chunk of the first
    reading is kept (16 bytes for 64 KiB), and a chunk with another tag never leaves this class.

    Args:
        key: The object's key, for errors.
        body: The plaintext.
        cipher: Encrypts this object, and nothing else.
        expected: Checksum of the plaintext. It is compared before the last chunk is returned.
    """

    def __init__(self, key: str, body: Body, cipher: ObjectCipher, expected: Checksum) -> None:
        self.size = HEADER_BYTES + body.size + TAG_BYTES * cipher.header.chunks
        self.plain = body
        self.cipher = cipher
        self._key = key
        self._expected = expected
        self._guard = threading.Lock()
        self._tags = bytearray()
        self._sum = RunningChecksum(expected.algorithm)

    def open(self) -> BinaryIO:
        """Return a new stream.

        It raises the errors of the plaintext's stream, and ChecksumMismatchError for a plaintext
        that does not have the checksum or has changed since it was first read.
        """
        return cast("BinaryIO", _EncryptingStream(self, self.plain.open()))

    def open_for_checksum(self) -> BinaryIO:
        """Encrypt the stream that the plain body opens for its checksum. Raises as `open`."""
        return cast("BinaryIO", _EncryptingStream(self, open_for_checksum(self.plain)))

    def seal(self, index: int, plain: memoryview, into: memoryview) -> None:
        """Encrypt consecutive chunks; see `ObjectCipher.seal`.

        The first time, chunks come in ascending order.
        """
        with self._guard:
            # The bytes of chunks that were summed up already are fixed by their tags.
            known = len(self._tags) // TAG_BYTES - index
            if known < 0:
                raise ValueError(f"{self._key}: the first reading has skipped chunks")
            if known < chunks_of(len(plain)):
                self._sum.update(plain[known * CHUNK_BYTES :])
                if index * CHUNK_BYTES + len(plain) == self.plain.size:
                    expect_checksum(self._key, self._expected, self._sum.result())
            with _SEALERS:
                tags = self.cipher.seal(index, plain, into)
            before = self._tags[index * TAG_BYTES : index * TAG_BYTES + len(tags)]
            if not tags.startswith(before):
                into[:] = bytes(len(into))
                raise ChecksumMismatchError(
                    f"{self._key}: the body has changed between two readings of it"
                )
            self._tags += tags[len(before) :]


class _EncryptingStream(io.RawIOBase):
    """Reads the plaintext, and returns header and ciphertext."""

    def __init__(self, body: EncryptedBody, source: BinaryIO) -> None:
        super().__init__()
        self._body = body
        self._source = source
        self._file = source if isinstance(source, FileStream) else None
        self._header = body.cipher.header.encode()
        self._position = 0
        self._index = 0
        """Number of the chunk that is read next from `_source`."""
        self._plain = memoryview(b"")
        """Plaintext from the chunk `_index` on."""
        self._sealed = memoryview(b"")
        """The rest of the last sealed chunk."""
        self._scratch = memoryview(bytearray(SEALED_BYTES))
        self._buffer = memoryview(bytearray(min(_READ_BYTES, body.plain.size)))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._body.size}
        self._position = max(0, origin[whence] + offset)
        self._index = max(0, self._position - HEADER_BYTES) // SEALED_BYTES
        self._source.seek(min(self._index * CHUNK_BYTES, self._body.plain.size))
        self._plain = self._sealed = memoryview(b"")
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(0, self._body.size - self._position)
        out = bytearray(left if size is None or size < 0 else min(size, left))
        self.fill(memoryview(out))
        return bytes(out)

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        return self.fill(memoryview(buffer))

    def fill(self, buffer: memoryview) -> int:
        size = min(len(buffer), max(0, self._body.size - self._position))
        view, at = buffer[:size], 0
        if self._position < HEADER_BYTES:
            part = self._header[self._position : self._position + size]
            view[: len(part)] = part
            at = len(part)
        while at < size:
            at += self._some(view[at:], self._position + at - HEADER_BYTES)
        self._position += size
        return size

    def close(self) -> None:
        if not self.closed:
            self._source.close()
        super().close()

    def _some(self, view: memoryview, position: int) -> int:
        """Write some ciphertext, from this position behind the header on; at least one byte."""
        if not self._sealed:
            skipped = position - self._index * SEALED_BYTES  # after a seek into a chunk
            plain = self._next_chunks(0 if skipped else len(view) // SEALED_BYTES)
            chunks = chunks_of(len(plain))
            whole = len(plain) + chunks * TAG_BYTES
            is_direct = whole <= len(view) and not skipped
            into = (view if is_direct else self._scratch)[:whole]
            self._body.seal(self._index, plain, into)
            self._index += chunks
            if is_direct:
                return whole
            self._sealed = into[skipped:]
        count = min(len(view), len(self._sealed))
        view[:count] = self._sealed[:count]
        self._sealed = self._sealed[count:]
        return count

    def _next_chunks(self, most: int) -> memoryview:
        """Return some of the next chunks: at most this number, at least one."""
        if not self._plain:
            end = min(self._body.plain.size, (self._index + _READ_CHUNKS) * CHUNK_BYTES)
            self._plain = self._read_plain(end - self._index * CHUNK_BYTES)
        size = max(most, 1) * CHUNK_BYTES
        chunks, self._plain = self._plain[:size], self._plain[size:]
        return chunks

    def _read_plain(self, size: int) -> memoryview:
        """Read exactly this number of bytes. They are valid until the next call."""
        buffer, at = self._buffer[:size], 0
        while at < size:
            count = self._read_some(buffer[at:])
            if not count:
                read = self._index * CHUNK_BYTES + at
                raise OSError(f"the body ended after {read} of {self._body.plain.size} bytes")
            at += count
        return buffer

    def _read_some(self, buffer: memoryview) -> int:
        if self._file is not None:
            extent = self._file.take(len(buffer))
            return os.preadv(extent.descriptor, [buffer[: extent.size]], extent.position)
        data = self._source.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class DecryptingStream(io.RawIOBase):
    """The plaintext of a range of an object.

    Args:
        key: The object's key, for errors.
        source: The stored bytes from the beginning of the first wanted chunk on. It is closed with
            this stream.
        cipher: Decrypts the object.
        start: First byte of the plaintext, inclusive.
        end: End in the plaintext, exclusive; at most its size.
    """

    def __init__(
        self, key: str, source: BinaryIO, cipher: ObjectCipher, start: int, end: int
    ) -> None:
        super().__init__()
        self._key = key
        self._source = source
        self._cipher = cipher
        self._index, self._skip = divmod(start, CHUNK_BYTES)
        self._left = max(0, end - start)
        self._staged = memoryview(bytearray(min(_READ_CHUNKS, cipher.header.chunks) * SEALED_BYTES))
        self._begin = self._end = 0
        """Bounds of the bytes in `_staged` that are not decrypted yet."""
        self._rest = memoryview(b"")
        """Decrypted bytes that the last read had no room for."""
        self._scratch = memoryview(bytearray(CHUNK_BYTES))

    def readable(self) -> bool:
        """Always True."""
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        """Decrypt the chunks that have arrived; waits for one at least.

        Raises:
            DamagedCiphertextError: A chunk is not as it was stored.
            StoreUnavailableError: The response ends too early.
            StorageError: As the source raises.
        """
        view = memoryview(buffer).cast("B")
        if not view or not self._left:
            return 0
        if not self._rest:
            self._wait_for_chunk()
        at = self._take_rest(view)
        while at < len(view) and self._left and self._holds_chunk():
            at += self._decrypt(view[at:])
        return at

    def readall(self) -> bytes:
        """Return the rest."""
        # In pieces: until a chunk is decrypted, its size is only what the header claims.
        data, piece = bytearray(), memoryview(bytearray(min(self._left, _READ_BYTES)))
        while count := self.readinto(piece):
            data += piece[:count]
        return bytes(data)

    def check(self) -> None:
        """Decrypt the next chunk without returning it: header and chunk are as they were stored.

        For an empty range: nothing else would notice a changed header. Raises as `readinto`.
        """
        self._wait_for_chunk()
        self._decrypt(memoryview(bytearray()))

    def close(self) -> None:
        """Close the source, too."""
        if not self.closed:
            self._source.close()
        super().close()

    def _wait_for_chunk(self) -> None:
        while not self._holds_chunk():
            self._fill()

    def _holds_chunk(self) -> bool:
        wanted = self._cipher.plain_bytes(self._index) + TAG_BYTES
        return self._end - self._begin >= wanted

    def _fill(self) -> None:
        if self._begin:
            count = self._end - self._begin
            self._staged[:count] = self._staged[self._begin : self._end]
            self._begin, self._end = 0, count
        count = read_once(self._source, self._staged[self._end :])
        if not count:
            at = self._index * CHUNK_BYTES
            raise StoreUnavailableError(f"{self._key}: the response ends at byte {at}")
        self._end += count

    def _decrypt(self, view: memoryview) -> int:
        """Decrypt the next chunk. What the view has no room for becomes the rest."""
        size = self._cipher.plain_bytes(self._index)
        sealed = self._staged[self._begin : self._begin + size + TAG_BYTES]
        is_direct = not self._skip and size <= min(len(view), self._left)
        into = view[:size] if is_direct else self._scratch[:size]
        try:
            self._cipher.open(self._index, sealed, into)
        except InvalidTag:
            start = self._index * CHUNK_BYTES
            raise DamagedCiphertextError(
                f"{self._key}: bytes {start} to {start + size} of the segment cannot be decrypted: "
                f"the stored object was changed, or is not the one that the key "
                f"{self._cipher.header.key_name!r} encrypted"
            ) from None
        self._begin += len(sealed)
        self._index += 1
        if is_direct:
            self._left -= size
            return size
        self._rest, self._skip = into[self._skip :], 0
        return self._take_rest(view)

    def _take_rest(self, view: memoryview) -> int:
        count = min(len(self._rest), len(view), self._left)
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        self._left -= count
        return count
