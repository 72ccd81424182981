"""The store that encrypts: markers, sizes, conditions, keys, kills, and what it costs."""

import base64
import io
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

import pytest

from sidetier.segments.crc import crc64nvme
from sidetier.segments.errors import (
    AccessDeniedError,
    ArchiveConflictError,
    ChecksumMismatchError,
    DamagedCiphertextError,
    EncryptionError,
    EncryptionKeyError,
    PreconditionFailedError,
    StorageError,
    StoreThrottledError,
    StoreUnavailableError,
)
from sidetier.segments.offsets import LeaderEpoch
from sidetier.storage.bodies import BytesBody
from sidetier.storage.checksums import checksum_of_bytes
from sidetier.storage.encrypted_format import decode_header, marker_key, stored_size
from sidetier.storage.encrypting import ENCRYPTION_KEY, EncryptingStorage
from sidetier.storage.encryption_keys import (
    DATA_KEY_OBJECTS,
    DATA_KEY_SECONDS,
    OLD_DATA_KEY_SECONDS,
    Keyring,
)
from sidetier.storage.factory import check_encryption, open_storage
from sidetier.storage.fake import FakeStorage
from sidetier.storage.local import LocalStorage
from sidetier.storage.port import (
    NO_OPTIONS,
    Body,
    Checksum,
    ChecksumAlgorithm,
    IfAbsent,
    IfMatch,
    PutOptions,
    RemoteStorage,
)
from sidetier.storage.ranges import read_range
from sidetier.storage.retrying import RetryingStorage, file_backed
from sidetier.storage.settings import (
    EncryptionSettings,
    LocalKeySettings,
    RetryPolicy,
    StorageEndpoint,
)
from sidetier.uploader.errors import StoredByAnotherError
from sidetier.uploader.sending.conditional_put import FileToStore, store_file
from tests.harness.bodies import ChangingBody
from tests.harness.encryption import FIRST, SECOND, encrypting, settings, without_keys

PREFIX = "cluster/orders-0/"
LOG = f"{PREFIX}00000000000000000000.log"
LATER = f"{PREFIX}00000000000000000100.log"
INDEX = f"{PREFIX}00000000000000000000.index"
DATA = b"records of a segment " * 10_000
MARKER = marker_key(LOG, stored_size(len(DATA)))
CRC64 = ChecksumAlgorithm.CRC64NVME


def sizes(store: RemoteStorage, prefix: str = "") -> dict[str, int]:
    return {row.key: row.size for row in store.list_objects(prefix)}


def store_again(inner: FakeStorage) -> None:
    """Store the log as another process that has found none."""
    encrypting(inner).put_object(LOG, BytesBody(DATA), PutOptions(condition=IfAbsent()))


def test_only_the_log_is_encrypted_and_no_record_is_stored_in_the_clear() -> None:
    inner = FakeStorage()
    store = encrypting(inner)
    store.put_object(LOG, BytesBody(DATA), PutOptions(metadata={"a": "1"}))
    store.put_object(INDEX, BytesBody(b"index"))
    contents = inner.contents()
    assert contents[INDEX] == b"index"
    assert b"records" not in contents[LOG]
    assert contents[marker_key(LOG, len(contents[LOG]))] == b""
    assert store.get_object(LOG).data == DATA


def test_every_call_tells_the_size_and_checksum_of_the_plaintext() -> None:
    store = encrypting(FakeStorage())
    etag = store.put_object(LOG, BytesBody(DATA), PutOptions(metadata={"a": "1"}))
    head = store.head_object(LOG)
    assert (head.size, head.etag, head.metadata) == (len(DATA), etag, {"a": "1"})
    assert head.checksum == checksum_of_bytes(DATA, CRC64)
    assert store.get_object(LOG).head == head
    assert sizes(store) == {LOG: len(DATA)}


def test_a_checksum_is_not_reported_if_the_store_has_none_of_the_stored_bytes() -> None:
    inner = FakeStorage()
    encrypting(inner).put_object(LOG, BytesBody(DATA))
    stored = inner.get_object(LOG)
    inner._objects[LOG] = replace(stored, head=replace(stored.head, checksum=None))
    assert encrypting(inner).head_object(LOG).checksum is None


def test_own_checksum_is_that_of_the_plaintext_unless_the_ciphertext_was_replaced() -> None:
    inner = FakeStorage()
    store = encrypting(inner)
    store.put_object(LOG, BytesBody(DATA))
    plain = checksum_of_bytes(DATA, CRC64)
    assert store.head_object(LOG).own_checksum is None
    assert store.head_object(LOG, with_checksum=True).own_checksum == plain
    inner.overwrite(LOG, inner.contents()[LOG][:-1] + b"x")
    head = store.head_object(LOG, with_checksum=True)
    assert head.own_checksum not in {None, plain}
    assert head.checksum == plain


def test_listings_of_a_half_encrypted_archive_leave_markers_out() -> None:
    inner = FakeStorage()
    store = encrypting(inner)
    inner.put_object(LOG, BytesBody(DATA))
    store.put_object(LATER, BytesBody(DATA))
    store.put_object(INDEX, BytesBody(b"index"))
    expected = {INDEX: 5, LOG: len(DATA), LATER: len(DATA)}
    for reader in (store, encrypting(inner), without_keys(inner)):
        assert list(sizes(reader).items()) == list(expected.items())
        assert sizes(reader, LATER) == {LATER: len(DATA)}
        rows = reader.list_objects(PREFIX, start_after=LATER)
        assert list(rows) == []


def test_a_listing_over_pages_shows_every_size() -> None:
    inner = FakeStorage()
    store = encrypting(inner)
    logs = [f"{PREFIX}{base:020d}.log" for base in range(700)]
    for key in logs:
        store.put_object(key, BytesBody(b"x"))
    assert sizes(store) == dict.fromkeys(logs, 1)
    assert sizes(RetryingStorage(store)) == dict.fromkeys(logs, 1)


def test_a_kill_between_marker_and_log_changes_nothing() -> None:
    inner = FakeStorage()
    store = encrypting(inner)
    inner.fail("put", OSError("killed"), key=LOG)
    with pytest.raises(OSError, match="killed"):
        store.put_object(LOG, BytesBody(DATA), PutOptions(condition=IfAbsent()))
    assert list(inner.contents()) == [marker_key(LOG, stored_size(len(DATA)))]
    for reader in (encrypting(inner), without_keys(inner)):
        assert sizes(reader) == {}
    # Another sidecar, which does not encrypt, stores other bytes.
    inner.put_object(LOG, BytesBody(b"other"), PutOptions(condition=IfAbsent()))
    for reader in (encrypting(inner), without_keys(inner)):
        assert sizes(reader) == {LOG: 5}
        assert reader.get_object(LOG).data == b"other"
        with reader.get_object_input_stream(LOG, 1, 3) as stream:
            assert stream.read() == b"th"
    encrypting(inner).delete_object(LOG)
    assert inner.contents() == {}


def test_a_kill_between_the_deletes_of_log_and_marker_leaves_an_empty_object() -> None:
    inner = FakeStorage()
    store = encrypting(inner)
    store.put_object(LOG, BytesBody(DATA))
    marker = marker_key(LOG, stored_size(len(DATA)))
    inner.fail("delete", OSError("killed"), key=marker)
    with pytest.raises(OSError, match="killed"):
        store.delete_object(LOG)
    assert inner.contents() == {marker: b""}
    assert sizes(store) == {}


def test_deletes_leave_no_marker() -> None:
    inner = FakeStorage()
    store = encrypting(inner)
    logs = [f"{PREFIX}{base:020d}.log" for base in range(5)]
    other = "cluster/orders-1/00000000000000000000.log"
    for key in (*logs, other):
        store.put_object(key, BytesBody(DATA))
    store.delete_object(logs[0])
    store.delete_objects([*logs[1:3], other])
    assert sizes(store) == dict.fromkeys(logs[3:], len(DATA))
    without = without_keys(inner)
    assert sizes(without) == dict.fromkeys(logs[3:], len(DATA))
    without.delete_objects(logs[3:])
    assert inner.contents() == {}


def test_a_refused_delete_keeps_the_marker() -> None:
    inner = FakeStorage()
    store = encrypting(inner)
    store.put_object(LOG, BytesBody(DATA))
    with pytest.raises(PreconditionFailedError):
        store.delete_object(LOG, condition=IfMatch("another"))
    assert sizes(store) == {LOG: len(DATA)}


def test_a_log_that_is_stored_during_a_delete_keeps_its_marker() -> None:
    inner = FakeStorage()
    encrypting(inner).put_object(LOG, BytesBody(DATA))
    inner.race("delete", lambda: store_again(inner), key=MARKER)
    encrypting(inner).delete_object(LOG)
    assert sizes(without_keys(inner)) == {LOG: len(DATA)}


def test_copies_have_a_marker_wherever_they_are() -> None:
    inner = FakeStorage()
    store = encrypting(inner)
    store.put_object(LOG, BytesBody(DATA), PutOptions(metadata={"a": "1"}))
    target = f"_sidetier/cluster/quarantine/orders-0/x/{LOG.rpartition('/')[2]}"
    store.copy_object(LOG, target, condition=IfAbsent())
    store.delete_object(LOG)
    reader = encrypting(inner)
    assert sizes(reader) == {target: len(DATA)}
    assert reader.get_object(target).data == DATA
    assert reader.head_object(target).metadata == {"a": "1"}
    reader.delete_object(target)
    assert inner.contents() == {}


def test_wrong_plaintext_is_refused_before_anything_but_the_marker_is_stored() -> None:
    inner = FakeStorage()
    wrong = Checksum(CRC64, bytes(8))
    with pytest.raises(ChecksumMismatchError, match=LOG):
        encrypting(inner).put_object(LOG, BytesBody(DATA), PutOptions(checksum=wrong))
    assert LOG not in inner.contents()


def test_a_body_that_changes_between_two_readings_is_refused() -> None:
    """Two plaintexts under one nonce would reveal both: the second one is never sent."""

    class TwoReadings(FakeStorage):
        def put_object(self, key: str, body: Body, options: PutOptions = NO_OPTIONS) -> str:
            with body.open() as first, body.open() as second:
                assert first.read() == second.read()
            return super().put_object(key, body, options)

    inner = TwoReadings()
    changed = DATA[:150_000] + b"!" + DATA[150_001:]
    checksum = checksum_of_bytes(DATA, CRC64)
    with pytest.raises(ChecksumMismatchError, match="changed between two readings"):
        encrypting(inner).put_object(
            LOG, ChangingBody([DATA, changed]), PutOptions(checksum=checksum)
        )
    assert LOG not in inner.contents()
    encrypting(inner).put_object(LOG, ChangingBody([DATA, DATA]), PutOptions(checksum=checksum))
    assert encrypting(inner).get_object(LOG).data == DATA


def test_each_object_has_a_key_of_its_own() -> None:
    inner = FakeStorage()
    store = encrypting(inner)
    store.put_object(LOG, BytesBody(DATA))
    store.put_object(LATER, BytesBody(DATA))
    contents = inner.contents()
    assert contents[LOG][1024:] != contents[LATER][1024:]


def test_an_archive_whose_key_was_rotated_reads_both_parts() -> None:
    inner = FakeStorage()
    encrypting(inner, settings("k1", k1=FIRST)).put_object(LOG, BytesBody(DATA))
    rotated = encrypting(inner, settings("k2", k1=FIRST, k2=SECOND))
    rotated.put_object(LATER, BytesBody(DATA))
    assert rotated.get_object(LOG).data == rotated.get_object(LATER).data == DATA
    only_new = encrypting(inner, settings("k2", k2=SECOND))
    assert only_new.get_object(LATER).data == DATA
    with pytest.raises(EncryptionKeyError, match=f"{LOG} is encrypted with the key 'k1'"):
        only_new.get_object(LOG)


def test_a_wrong_key_is_named_and_never_shown() -> None:
    inner = FakeStorage()
    encrypting(inner).put_object(LOG, BytesBody(DATA))
    store = encrypting(inner, settings("k1", k1=SECOND))
    with pytest.raises(EncryptionKeyError, match=f"{LOG}: the key 'k1'") as caught:
        store.get_object_input_stream(LOG, 10, 20)
    text = f"{caught.value!r} {settings()!r} {Keyring(settings()).data_key()!r}"
    for secret in (FIRST.secret, SECOND.secret):
        assert base64.b64encode(secret).decode() not in text
        assert repr(secret)[2:-1] not in text


@pytest.mark.parametrize("read", ["list", "head", "get"])
def test_without_keys_an_encrypted_object_is_a_clear_error(read: str) -> None:
    inner = FakeStorage()
    etag = encrypting(inner).put_object(LOG, BytesBody(DATA))
    store = without_keys(inner)
    first: dict[str, Callable[[], object]] = {
        "list": lambda: list(store.list_objects("")),
        "head": lambda: store.head_object(LOG),
        "get": lambda: None,
    }
    first[read]()
    version = IfMatch(etag)
    second: Callable[[], object] = (
        partial(store.get_object, LOG)
        if read == "get"
        else partial(store.get_object_input_stream, LOG, 70_000, 80_000, condition=version)
    )
    with pytest.raises(EncryptionKeyError, match=r"key 'k1', which is not.*encryption\.keys"):
        second()


def test_without_encryption_no_request_is_added() -> None:
    inner = FakeStorage()
    store = without_keys(inner)
    etag = store.put_object(LOG, BytesBody(DATA))
    with store.get_object_input_stream(LOG, 10, 20, condition=IfMatch(etag)) as stream:
        assert stream.read() == DATA[10:20]
    with store.get_object_input_stream(LOG) as stream:
        assert stream.read() == DATA
    store.head_object(LOG)
    list(store.list_objects(""))
    store.copy_object(LOG, LATER)
    store.delete_objects([LATER])
    store.delete_object(LOG)
    operations = [request.operation for request in inner.requests]
    assert operations == ["put", "stream", "stream", "head", "list", "copy", "delete", "delete"]


def test_a_version_costs_one_request_for_its_header() -> None:
    inner = FakeStorage()
    plain = inner.put_object(LATER, BytesBody(DATA))
    etag = encrypting(inner).put_object(LOG, BytesBody(DATA))
    store = encrypting(inner)
    for key, version in ((LOG, etag), (LATER, plain)):
        before = inner.count("stream", key)
        for start in (0, 70_000, 140_000):
            data = read_range(store, key, start, start + 1000, condition=IfMatch(version))
            assert data == DATA[start : start + 1000]
        assert inner.count("stream", key) - before == 4


def test_a_read_without_condition_does_not_mix_two_versions() -> None:
    inner = FakeStorage()
    store = encrypting(inner)
    store.put_object(LOG, BytesBody(DATA))
    with store.get_object_input_stream(LOG, 5, 10) as stream:
        assert stream.read() == DATA[5:10]
    store.put_object(LOG, BytesBody(b"0123456789"))
    with store.get_object_input_stream(LOG, 5, 10) as stream:
        assert stream.read() == b"56789"
    inner.put_object(LOG, BytesBody(b"plain"))
    with store.get_object_input_stream(LOG, 1, 3) as stream:
        assert stream.read() == b"la"


def test_an_object_that_is_marked_and_not_encrypted_is_a_clear_error() -> None:
    inner = FakeStorage()
    encrypting(inner).put_object(LOG, BytesBody(DATA))
    size = len(inner.contents()[LOG])
    etag = inner.put_object(LOG, BytesBody(b"x" * size))
    for reader in (encrypting(inner), without_keys(inner)):
        assert sizes(reader) == {LOG: len(DATA)}
        with pytest.raises(DamagedCiphertextError, match=LOG):
            reader.get_object_input_stream(LOG, condition=IfMatch(etag))


def log_file(data: bytes, epoch: int = 1) -> FileToStore:
    return FileToStore(LOG, BytesBody(data), crc64nvme(data), {}, LeaderEpoch(epoch))


def second_key(inner: RemoteStorage) -> EncryptingStorage:
    return encrypting(inner, settings("k2", k1=FIRST, k2=SECOND))


Opened = Callable[[RemoteStorage], RemoteStorage]
PAIRS: list[tuple[Opened, Opened]] = [
    (encrypting, without_keys),
    (without_keys, encrypting),
    (encrypting, second_key),
    (second_key, encrypting),
]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_two_sidecars_with_other_keys_store_one_log(first: Opened, second: Opened) -> None:
    inner = FakeStorage()
    assert store_file(first(inner), log_file(DATA), may_exist=False) == len(DATA)
    before = inner.contents()[LOG]
    # The same bytes count as stored, and other bytes are refused; the first `.log` stays.
    assert store_file(second(inner), log_file(DATA, 2), may_exist=False) == 0
    with pytest.raises((StoredByAnotherError, ArchiveConflictError)):
        store_file(second(inner), log_file(DATA + b"!", 2), may_exist=True)
    assert inner.contents()[LOG] == before
    assert sizes(second_key(inner)) == sizes(without_keys(inner)) == {LOG: len(DATA)}
    assert second_key(inner).get_object(LOG).data == DATA


def test_a_lost_answer_is_recognized_as_the_own_write() -> None:
    inner = FakeStorage()
    store = encrypting(inner)
    inner.fail("put", ConnectionError("lost"), key=LOG, after=True)
    with pytest.raises(ConnectionError):
        store_file(store, log_file(DATA), may_exist=False)
    assert store_file(store, log_file(DATA), may_exist=True) == 0


def test_files_of_encrypted_segments_are_not_sent_as_they_are(tmp_path: Path) -> None:
    inner = LocalStorage(tmp_path)
    encrypting(inner).put_object(LOG, BytesBody(DATA))
    inner.put_object(LATER, BytesBody(DATA))
    files = file_backed(without_keys(inner))
    assert files is not None
    assert files.open_file(LOG) is None
    handle = files.open_file(LATER)
    assert handle is not None
    assert os.pread(handle, len(DATA), 0) == DATA
    os.close(handle)
    assert file_backed(encrypting(FakeStorage())) is None


def test_topics_are_selected_by_their_names(tmp_path: Path) -> None:
    chosen = EncryptionSettings(keys=(("k1", FIRST),), key="k1", topics=("orders", "pay.*"))
    store = open_storage(StorageEndpoint(f"file://{tmp_path}", encryption=chosen))
    name = "00000000000000000000.log"
    encrypted = ["c/orders-0/", "0101/c/payments-12/", "_sidetier/c/retired/orders-3/abc/"]
    plain = ["c/orders2-0/", "c/my-orders-0/", "_sidetier/c/quarantine/x-0/orders-1/"]
    for folder in (*encrypted, *plain):
        store.put_object(folder + name, BytesBody(b"data"))
    inner = LocalStorage(tmp_path)
    for folder in encrypted:
        assert ENCRYPTION_KEY in inner.head_object(folder + name).metadata
    for folder in plain:
        assert inner.get_object(folder + name).data == b"data"


class Counting:
    """A wrapping key that counts."""

    def __init__(self) -> None:
        self.generated = self.unwrapped = 0
        self.error: Exception | None = None

    def generate(self) -> tuple[bytes, bytes]:
        self.generated += 1
        return bytes([self.generated]) * 32, bytes([self.generated])

    def unwrap(self, wrapped: bytes) -> bytes:
        if self.error is not None:
            raise self.error
        self.unwrapped += 1
        return wrapped * 32


def counting_ring(clock: Callable[[], float]) -> tuple[Keyring, Counting]:
    ring, key = Keyring(settings(), clock), Counting()
    ring._keys = {"k1": key}
    return ring, key


def test_a_data_key_is_used_for_an_hour_and_a_thousand_objects() -> None:
    now = [0.0]
    ring, key = counting_ring(lambda: now[0])
    for _ in range(DATA_KEY_OBJECTS):
        ring.data_key()
    assert key.generated == 1
    ring.data_key()
    assert key.generated == 2
    now[0] = DATA_KEY_SECONDS
    ring.data_key()
    assert key.generated == 3


def test_a_data_key_is_unwrapped_once() -> None:
    ring, key = counting_ring(lambda: 0.0)
    assert ring.unwrap("k1", b"a", "x") == ring.unwrap("k1", b"a", "y") == b"a" * 32
    ring.unwrap("k1", b"b", "x")
    assert key.unwrapped == 2


def test_a_key_service_that_is_throttled_is_asked_again() -> None:
    ring, key = counting_ring(lambda: 0.0)
    key.error = StoreThrottledError("slow down")
    with pytest.raises(StoreThrottledError, match="the object: slow down") as caught:
        ring.unwrap("k1", b"a", "the object")
    assert caught.value.retry
    key.error = None
    assert ring.unwrap("k1", b"a", "the object") == b"a" * 32


def test_the_active_key_is_checked() -> None:
    check_encryption(settings())
    check_encryption(EncryptionSettings(keys=(("k1", FIRST),)))
    short = EncryptionSettings(keys=(("k1", LocalKeySettings(b"short")),), key="k1")
    with pytest.raises(ValueError, match="valid AES key length"):
        check_encryption(short)


class SlowKeyService(Counting):
    """A key service whose answer to `generate` waits until the test lets it go."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.may_answer = threading.Event(), threading.Event()
        self.refusal: StorageError | None = None

    def generate(self) -> tuple[bytes, bytes]:
        answer = super().generate()
        self.asked.set()
        assert self.may_answer.wait(30)
        if self.refusal is not None:
            raise self.refusal
        return answer


def slow_ring(clock: Callable[[], float]) -> tuple[Keyring, SlowKeyService]:
    ring, key = Keyring(settings(), clock), SlowKeyService()
    ring._keys = {"k1": key}
    return ring, key


def test_uploads_that_wait_for_the_same_data_key_fail_with_one_request() -> None:
    ring, key = slow_ring(lambda: 0.0)
    key.refusal = StoreUnavailableError("no answer")
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(ring.data_key) for _ in range(4)]
        assert key.asked.wait(30)
        # A data key that is known needs no request, and does not wait for the other one.
        assert ring.unwrap("k1", b"a", "x") == b"a" * 32
        key.may_answer.set()
        for call in asked:
            with pytest.raises(StoreUnavailableError, match="no answer"):
                call.result(30)
    assert key.generated == 1


def test_a_failed_request_for_a_data_key_is_repeated_after_a_second() -> None:
    now = [0.0]
    ring, key = slow_ring(lambda: now[0])
    key.may_answer.set()
    key.refusal = StoreThrottledError("slow down")
    for now[0] in (0.0, 0.9, 1.0):
        with pytest.raises(StoreThrottledError, match="slow down"):
            ring.data_key()
    assert key.generated == 2
    key.refusal, now[0] = None, 2.0
    assert ring.data_key().secret == bytes([3]) * 32


def test_an_old_data_key_is_used_while_another_is_asked_for() -> None:
    now = [0.0]
    ring, key = slow_ring(lambda: now[0])
    key.may_answer.set()
    old = ring.data_key()
    key.may_answer.clear()
    key.asked.clear()
    now[0] = DATA_KEY_SECONDS
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(ring.data_key)
        assert key.asked.wait(30)
        assert ring.data_key() == old
        key.may_answer.set()
        assert asked.result(30) != old


def test_an_old_data_key_is_used_for_a_day_while_kms_does_not_answer() -> None:
    now = [0.0]
    ring, key = slow_ring(lambda: now[0])
    key.may_answer.set()
    old = ring.data_key()
    key.refusal = StoreUnavailableError("no answer")
    for now[0] in (DATA_KEY_SECONDS, OLD_DATA_KEY_SECONDS - 1):
        assert ring.data_key() == old
    assert key.generated == 3
    now[0] = OLD_DATA_KEY_SECONDS
    with pytest.raises(StoreUnavailableError, match="no answer"):
        ring.data_key()


def test_an_old_data_key_is_not_used_when_kms_refuses() -> None:
    now = [0.0]
    ring, key = slow_ring(lambda: now[0])
    key.may_answer.set()
    ring.data_key()
    key.refusal, now[0] = AccessDeniedError("disabled"), DATA_KEY_SECONDS
    with pytest.raises(AccessDeniedError, match="disabled"):
        ring.data_key()


def test_a_put_during_a_delete_of_its_key_keeps_its_marker() -> None:
    inner = FakeStorage()
    encrypting(inner).put_object(LOG, BytesBody(DATA))
    inner.race("put", lambda: encrypting(inner).delete_object(LOG), key=LOG)
    encrypting(inner).put_object(LOG, BytesBody(DATA), PutOptions(condition=IfAbsent()))
    assert sizes(without_keys(inner)) == {LOG: len(DATA)}
    assert MARKER in inner.contents()


def test_a_copy_during_a_delete_of_its_target_keeps_its_marker() -> None:
    inner, target = FakeStorage(), f"_sidetier/cluster/retired/orders-0/id/{LOG[-24:]}"
    for key in (LOG, target):
        encrypting(inner).put_object(key, BytesBody(DATA))
    inner.race("copy", lambda: encrypting(inner).delete_object(target), key=target)
    encrypting(inner).copy_object(LOG, target, condition=IfAbsent())
    assert sizes(without_keys(inner)) == {LOG: len(DATA), target: len(DATA)}


@pytest.mark.parametrize("deleted", [[LOG], [LOG, LATER, INDEX]])
def test_a_log_that_is_stored_during_a_delete_of_many_keeps_its_marker(deleted: list[str]) -> None:
    inner = FakeStorage()
    for key in (LOG, LATER):
        encrypting(inner).put_object(key, BytesBody(DATA))
    inner.race("delete", lambda: store_again(inner), key=MARKER)
    encrypting(inner).delete_objects(deleted)
    left = {LOG, LATER} - (set(deleted) - {LOG})
    assert sizes(without_keys(inner)) == dict.fromkeys(sorted(left), len(DATA))


def test_a_killed_put_can_lose_its_marker_to_a_delete() -> None:
    inner = FakeStorage()
    encrypting(inner).put_object(LOG, BytesBody(DATA))
    inner.race("put", lambda: encrypting(inner).delete_object(LOG), key=LOG)
    inner.fail("head", OSError("killed"), key=MARKER)
    with pytest.raises(OSError, match="killed"):
        encrypting(inner).put_object(LOG, BytesBody(DATA), PutOptions(condition=IfAbsent()))
    assert sizes(without_keys(inner)) == {LOG: stored_size(len(DATA))}


def test_a_retried_put_stores_its_marker_again() -> None:
    inner = FakeStorage()
    encrypting(inner).put_object(LOG, BytesBody(DATA))
    inner.race("put", lambda: encrypting(inner).delete_object(LOG), key=LOG)
    inner.fail("head", StoreUnavailableError("away"), key=MARKER)
    before = inner.count("head", MARKER)
    store = RetryingStorage(encrypting(inner), RetryPolicy(first_delay=0.001))
    with pytest.raises(PreconditionFailedError):  # by the `.log` of the first attempt
        store.put_object(LOG, BytesBody(DATA), PutOptions(condition=IfAbsent()))
    assert inner.count("head", MARKER) - before == 1
    assert sizes(without_keys(inner)) == {LOG: len(DATA)}


def test_a_killed_delete_can_lose_the_marker_of_a_new_log() -> None:
    inner = FakeStorage()
    encrypting(inner).put_object(LOG, BytesBody(DATA))
    inner.race("delete", lambda: store_again(inner), key=MARKER)
    inner.fail("head", OSError("killed"), key=LOG)
    with pytest.raises(OSError, match="killed"):
        encrypting(inner).delete_object(LOG)
    assert sizes(without_keys(inner)) == {LOG: stored_size(len(DATA))}


def test_unused_markers_are_those_that_mark_no_stored_log() -> None:
    inner = FakeStorage()
    store = encrypting(inner)
    store.put_object(LOG, BytesBody(DATA))
    store.put_object(INDEX, BytesBody(b"index"))
    unused = [marker_key(LOG, 5000), marker_key(LATER, stored_size(len(DATA)))]
    for key in unused:
        inner.put_object(key, BytesBody(b""))
    assert [row.key for row in store.unused_markers(PREFIX)] == unused
    # A `.log` that was stored since the listing keeps its marker.
    store.put_object(LATER, BytesBody(DATA))
    for key in unused:
        store.delete_object(key)
    assert sizes(store) == {INDEX: 5, LOG: len(DATA), LATER: len(DATA)}
    assert set(inner.contents()) == {INDEX, LOG, LATER, MARKER, unused[1]}


def exchanged(inner: FakeStorage, source: str, target: str, data: bytes | None = None) -> IfMatch:
    """Put an object over another one, as everybody can who may write to the bucket."""
    stored = inner.get_object(source)
    inner.put_object(marker_key(target, len(stored.data)), BytesBody(b""))
    body = BytesBody(stored.data if data is None else data)
    return IfMatch(inner.put_object(target, body, PutOptions(metadata=stored.head.metadata)))


@pytest.mark.parametrize(
    "target",
    [
        LATER,
        "cluster/orders-1/00000000000000000000.log",
        "cluster/orders2-0/00000000000000000000.log",
        "_sidetier/cluster/quarantine/orders-1/orders-0/00000000000000000000.log",
        "cluster/orders-0/other.log",
    ],
)
def test_an_object_in_the_place_of_another_segment_is_refused(target: str) -> None:
    inner = FakeStorage()
    encrypting(inner).put_object(LOG, BytesBody(DATA))
    version = exchanged(inner, LOG, target)
    text = f"{target} is not the object .* encrypted as the segment orders-0/00000000000000000000"
    # Also without the key: the place in the header is not secret.
    for store in (encrypting(inner), without_keys(inner)):
        assert sizes(store, target) == {target: len(DATA)}
        with pytest.raises(DamagedCiphertextError, match=text):
            store.get_object(target)
        with pytest.raises(DamagedCiphertextError, match=text):
            store.get_object_input_stream(target, 70_000, 70_010, condition=version)


def test_a_changed_place_in_the_header_does_not_decrypt() -> None:
    inner = FakeStorage()
    encrypting(inner).put_object(LOG, BytesBody(DATA))
    header = decode_header(inner.contents()[LOG], LOG)
    assert header is not None
    forged = replace(header, place="orders-0/00000000000000000100").encode()
    data = forged + inner.contents()[LOG][len(forged) :]
    version = exchanged(inner, LOG, LATER, data)
    store = encrypting(inner)
    with (
        store.get_object_input_stream(LATER, 0, 10, condition=version) as stream,
        pytest.raises(DamagedCiphertextError, match=f"{LATER}: bytes 0 to 65536"),
    ):
        stream.read()


@pytest.mark.parametrize(
    "folder",
    [
        "orders-0/",
        "other-cluster/orders-0/",
        "01011/cluster/orders-0/",
        "moved/to/a/prefix/cluster/orders-0/",
        "_sidetier/cluster/quarantine/orders-0/00000000000000000000-epoch-3/",
        "_sidetier/cluster/quarantine/orders-0/00000000000000000000-epoch-3/also-a1b2/",
        "_sidetier/cluster/quarantine/orders-0/peer/00000000000000ff/",
        "_sidetier/cluster/retired/orders-0/Zm9vYmFyYmF6cXV4MTIzNA/",
    ],
)
def test_an_object_stays_readable_wherever_its_archive_moves(folder: str) -> None:
    inner = FakeStorage()
    encrypting(inner).put_object(LOG, BytesBody(DATA))
    target = folder + LOG.rpartition("/")[2]
    encrypting(inner).copy_object(LOG, target, condition=IfAbsent())
    assert encrypting(inner).get_object(target).data == DATA


def test_a_copy_to_another_segment_is_refused() -> None:
    inner = FakeStorage()
    store = encrypting(inner)
    store.put_object(LOG, BytesBody(DATA))
    before = inner.contents()
    with pytest.raises(EncryptionError, match=f"{LATER}: {LOG} is encrypted as another object"):
        store.copy_object(LOG, LATER, condition=IfAbsent())
    assert inner.contents() == before


def test_plain_segments_are_refused_where_the_settings_say_so(tmp_path: Path) -> None:
    chosen = EncryptionSettings(
        keys=(("k1", FIRST),), key="k1", topics=("orders",), refuse_plain=("orders", "pay.*")
    )
    other, paid = "c/others-0/00000000000000000000.log", "c/payments-0/00000000000000000000.log"
    inner = LocalStorage(tmp_path)
    store = open_storage(StorageEndpoint(f"file://{tmp_path}", encryption=chosen))
    store.put_object(LOG, BytesBody(DATA))
    store.put_object(INDEX, BytesBody(b"index"))
    store.put_object(other, BytesBody(DATA))
    for key in (LOG, other):
        assert store.get_object(key).data == DATA
    assert store.get_object(INDEX).data == b"index"

    version = IfMatch(inner.put_object(LOG, BytesBody(DATA)))
    files = file_backed(store)
    assert files is not None
    refused: list[Callable[[], object]] = [
        partial(store.get_object, LOG),
        partial(store.get_object_input_stream, LOG),
        partial(store.get_object_input_stream, LOG, 0, 10, condition=version),
        partial(files.open_file, LOG),
    ]
    for call in refused:
        with pytest.raises(EncryptionError, match=f"{LOG} is not encrypted.*refuse_plain"):
            call()
    with pytest.raises(EncryptionError, match=f"{paid} is not encrypted.*refuse_plain"):
        store.put_object(paid, BytesBody(DATA))
    assert sizes(inner, "c/") == {other: len(DATA)}


@dataclass(frozen=True)
class Part:
    """The beginning of a stored object."""

    source: str
    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    def open(self) -> BinaryIO:
        return io.BytesIO(self.data)


def test_a_part_of_an_encrypted_object_is_encrypted_with_its_key() -> None:
    inner = FakeStorage()
    moved = f"_sidetier/cluster/quarantine/orders-0/x/{LOG[-24:]}"
    encrypting(inner).put_object(moved, BytesBody(DATA))
    etag = encrypting(inner).put_object(LOG, BytesBody(DATA))
    part = Part(moved, DATA[:70_000])
    # Turned off, without a key that encrypts.
    off = EncryptingStorage(inner, Keyring(settings(None)))
    with pytest.raises(EncryptionKeyError, match=r"key 'k1', which is not.*encryption\.keys"):
        without_keys(inner).put_object(LOG, part, PutOptions(condition=IfMatch(etag)))
    off.put_object(LOG, part, PutOptions(condition=IfMatch(etag)))
    assert decode_header(inner.contents()[LOG], LOG) is not None
    assert off.get_object(LOG).data == part.data
    assert sizes(without_keys(inner)) == {LOG: len(part.data), moved: len(DATA)}

    # A part of a plain object stays plain.
    inner.put_object(moved, BytesBody(DATA))
    off.put_object(LOG, part)
    assert inner.contents()[LOG] == part.data


def test_a_put_of_a_stored_log_stores_its_lost_marker_again() -> None:
    inner = FakeStorage()
    encrypting(inner).put_object(LOG, BytesBody(DATA))
    inner.delete_object(MARKER)
    with pytest.raises(PreconditionFailedError):
        encrypting(inner).put_object(LOG, BytesBody(DATA), PutOptions(condition=IfAbsent()))
    assert sizes(without_keys(inner)) == {LOG: len(DATA)}
