"""Any range of an encrypted object is the slice of its plaintext, and every change is detected."""

from functools import cache
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidetier.segments.errors import DamagedCiphertextError, EncryptionError, StorageError
from sidetier.storage.bodies import BytesBody
from sidetier.storage.checksums import checksum_of_bytes
from sidetier.storage.encrypted_format import (
    CHUNK_BYTES,
    HEADER_BYTES,
    SEALED_BYTES,
    EncryptedHeader,
    plain_size,
    stored_size,
)
from sidetier.storage.encrypted_streams import EncryptedBody, ObjectCipher
from sidetier.storage.encrypting import EncryptingStorage
from sidetier.storage.encryption_keys import Keyring
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import ChecksumAlgorithm, IfMatch, PutOptions
from sidetier.storage.settings import EncryptionSettings, LocalKeySettings

if TYPE_CHECKING:
    import io

KEY = "cluster/topic-0/00000000000000000000.log"
SIZES = [0, 1, 15, 16, 17, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES, 200_000]
SETTINGS = EncryptionSettings(keys=(("k1", LocalKeySettings(bytes(range(32)))),), key="k1")
sizes = st.sampled_from(SIZES) | st.integers(0, 3 * CHUNK_BYTES)


@cache
def plaintext(size: int) -> bytes:
    return bytes(i * 31 % 251 for i in range(size))


@cache
def stored(size: int) -> tuple[FakeStorage, bytes]:
    """A store with one encrypted object of this size, and the object's bytes."""
    inner = FakeStorage()
    encrypting(inner).put_object(KEY, BytesBody(plaintext(size)))
    return inner, inner.contents()[KEY]


def encrypting(inner: FakeStorage) -> EncryptingStorage:
    return EncryptingStorage(inner, Keyring(SETTINGS), lambda _: True)


def replaced(size: int, data: bytes) -> tuple[EncryptingStorage, IfMatch]:
    """A store in which the object has these bytes instead."""
    inner = FakeStorage()
    head = stored(size)[0].head_object(KEY)
    etag = inner.put_object(KEY, BytesBody(data), PutOptions(metadata=head.metadata))
    store = encrypting(inner)
    if plain_size(len(data)) is not None:
        store.head_object(KEY)
    return store, IfMatch(etag)


@settings(deadline=None)
@given(size=sizes)
def test_sizes_of_plaintext_and_object_follow_from_each_other(size: int) -> None:
    assert len(stored(size)[1]) == stored_size(size)
    assert plain_size(stored_size(size)) == size


@settings(deadline=None)
@given(bytes_=st.integers(0, HEADER_BYTES + 3 * SEALED_BYTES))
def test_only_sizes_of_encrypted_objects_have_a_plaintext(bytes_: int) -> None:
    size = plain_size(bytes_)
    assert size is None or stored_size(size) == bytes_
    if bytes_ < stored_size(0):
        assert size is None


@settings(deadline=None)
@given(size=sizes, data=st.data())
def test_a_range_is_the_slice_of_the_plaintext(size: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, size + 10), "start")
    end = data.draw(st.none() | st.integers(start, size + 100_000), "end")
    reads = data.draw(st.lists(st.integers(1, 2 * CHUNK_BYTES), max_size=4), "reads")
    store = encrypting(stored(size)[0])
    expected = plaintext(size)[start:end]
    with store.get_object_input_stream(KEY, start, end) as stream:
        first = b"".join(stream.read(count) for count in reads)
        assert first + stream.read() == expected
    with store.get_object_input_stream(KEY, start, end) as stream:
        reader = cast("io.BufferedReader", stream)
        buffer = memoryview(bytearray(len(expected) + 1))
        at = 0
        while count := reader.readinto(buffer[at : at + 100_000]):
            at += count
        assert bytes(buffer[:at]) == expected


@settings(deadline=None)
@given(size=st.sampled_from(SIZES), data=st.data())
def test_a_flipped_bit_is_detected(size: int, data: st.DataObject) -> None:
    sealed = bytearray(stored(size)[1])
    header_bits = st.integers(0, 200 * 8 - 1)
    bit = data.draw(header_bits | st.integers(0, len(sealed) * 8 - 1), "bit")
    sealed[bit // 8] ^= 1 << bit % 8
    expect_detected(size, bytes(sealed))


@pytest.mark.parametrize("size", [0, 1, 64, 65536])
def test_each_flipped_bit_of_the_sizes_and_lengths_in_the_header_is_detected(size: int) -> None:
    for bit in range(20 * 8):
        sealed = bytearray(stored(size)[1])
        sealed[bit // 8] ^= 1 << bit % 8
        expect_detected(size, bytes(sealed))


@settings(deadline=None)
@given(size=st.sampled_from(SIZES), data=st.data())
def test_a_cut_object_is_detected(size: int, data: st.DataObject) -> None:
    sealed = stored(size)[1]
    whole_chunks = st.integers(0, (len(sealed) - HEADER_BYTES) // SEALED_BYTES).map(
        lambda chunks: HEADER_BYTES + chunks * SEALED_BYTES
    )
    length = data.draw(whole_chunks | st.integers(8, len(sealed) - 1), "length")
    if length < len(sealed):
        expect_detected(size, sealed[:length])


@pytest.mark.parametrize("size", [2 * CHUNK_BYTES, 200_000])
def test_swapped_repeated_and_appended_chunks_are_detected(size: int) -> None:
    sealed = stored(size)[1]
    header, body = sealed[:HEADER_BYTES], sealed[HEADER_BYTES:]
    chunks = [body[at : at + SEALED_BYTES] for at in range(0, len(body), SEALED_BYTES)]
    expect_detected(size, header + b"".join([chunks[1], chunks[0], *chunks[2:]]))
    expect_detected(size, header + b"".join([chunks[0], chunks[0], *chunks[2:]]))
    expect_detected(size, header + b"".join(chunks[:-1]))
    other = stored(size + 1)[1]
    expect_detected(size, other[:HEADER_BYTES] + body)
    store, _ = replaced(size, sealed + chunks[-1])
    with pytest.raises(EncryptionError):
        store.get_object(KEY)


def expect_detected(size: int, data: bytes) -> None:
    store, version = replaced(size, data)
    try:
        with store.get_object_input_stream(KEY, condition=version) as stream:
            read = stream.read()
    except (EncryptionError, StorageError) as error:
        assert KEY in str(error)  # noqa: PT017 - cut objects that are not encrypted do not raise
    else:
        pytest.fail(f"{len(read)} bytes were read from a changed object")


def test_a_changed_chunk_is_reported_with_its_range() -> None:
    sealed = bytearray(stored(200_000)[1])
    sealed[HEADER_BYTES + SEALED_BYTES + 5] ^= 1
    store, version = replaced(200_000, bytes(sealed))
    with store.get_object_input_stream(KEY, 0, 1000, condition=version) as stream:
        assert stream.read() == plaintext(200_000)[:1000]
    with (
        store.get_object_input_stream(KEY, 70_000, 80_000, condition=version) as stream,
        pytest.raises(DamagedCiphertextError, match=f"{KEY}: bytes 65536 to 131072"),
    ):
        stream.read()


@settings(deadline=None)
@given(size=sizes, data=st.data())
def test_a_body_can_be_read_from_any_position_again(size: int, data: st.DataObject) -> None:
    plain = plaintext(size)
    header = EncryptedHeader("k", b"w" * 40, bytes(32), size, "topic-0/00000000000000000000")
    checksum = checksum_of_bytes(plain, ChecksumAlgorithm.CRC64NVME)
    body = EncryptedBody(KEY, BytesBody(plain), ObjectCipher(header, bytes(32)), checksum)
    pieces = data.draw(st.lists(st.integers(1, 100_000), max_size=5), "pieces")
    with body.open() as stream:
        whole = b"".join(stream.read(count) for count in pieces) + stream.read()
    assert len(whole) == body.size
    with body.open() as stream:
        for position in data.draw(st.lists(st.integers(0, body.size), max_size=4), "positions"):
            stream.seek(position)
            length = data.draw(st.integers(0, 150_000), "length")
            assert stream.read(length) == whole[position : position + length]
            assert stream.tell() == min(body.size, position + length)
