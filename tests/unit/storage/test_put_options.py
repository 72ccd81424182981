"""Every wrapper of a store passes the options of a put on: a lost condition loses an update."""

from collections.abc import Callable

import pytest

from sidetier.segments.errors import ChecksumMismatchError, PreconditionFailedError, StorageError
from sidetier.storage.bodies import BytesBody
from sidetier.storage.checksums import checksum_of_bytes, to_base64
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import (
    Checksum,
    ChecksumAlgorithm,
    IfAbsent,
    IfMatch,
    PutOptions,
    RemoteStorage,
)
from sidetier.storage.retrying import RetryingStorage
from sidetier.storage.s3_requests import put_headers
from sidetier.storage.settings import S3Settings
from sidetier.uploader.wiring import _UnplacedStore
from tests.harness.encryption import AllLogs, encrypting, without_keys
from tests.harness.intercepted_store import InterceptedStore, SlowStore

LOG, INDEX = "c/t-0/00000000000000000000.log", "c/t-0/00000000000000000000.index"
CHECKSUM = checksum_of_bytes(b"first", ChecksumAlgorithm.CRC32C)
"""Of the algorithm that no store chooses itself."""
WRONG = Checksum(ChecksumAlgorithm.CRC64NVME, bytes(8))


@pytest.mark.parametrize(
    ("wrap", "key"),
    [
        pytest.param(RetryingStorage, LOG, id="retrying"),
        pytest.param(encrypting, LOG, id="encrypting a log"),
        pytest.param(encrypting, INDEX, id="encrypting an index"),
        pytest.param(without_keys, LOG, id="encrypting without keys"),
        pytest.param(lambda inner: RetryingStorage(encrypting(inner)), LOG, id="both"),
        pytest.param(lambda inner: _UnplacedStore(lambda: inner), LOG, id="unplaced"),
        pytest.param(InterceptedStore, LOG, id="intercepted"),
        pytest.param(SlowStore, INDEX, id="slow"),
        pytest.param(lambda inner: AllLogs(encrypting(inner)), "k", id="all logs"),
    ],
)
def test_wrapper_passes_every_option_of_a_put_on(
    wrap: Callable[[FakeStorage], RemoteStorage], key: str
) -> None:
    store = wrap(FakeStorage())
    etag = store.put_object(key, BytesBody(b"first"), PutOptions({"a": "1"}, CHECKSUM, IfAbsent()))
    head = store.head_object(key)
    assert (head.metadata, head.checksum) == ({"a": "1"}, CHECKSUM)

    refusals: list[tuple[PutOptions, type[StorageError]]] = [
        (PutOptions(condition=IfAbsent()), PreconditionFailedError),
        (PutOptions(condition=IfMatch("another")), PreconditionFailedError),
        (PutOptions(checksum=WRONG), ChecksumMismatchError),
    ]
    for options, error in refusals:
        with pytest.raises(error):
            store.put_object(key, BytesBody(b"second"), options)
        assert store.get_object(key).data == b"first"

    store.put_object(key, BytesBody(b"second"), PutOptions(condition=IfMatch(etag)))
    assert store.get_object(key).data == b"second"


def test_headers_of_an_s3_put_have_every_option() -> None:
    headers = put_headers(S3Settings(), "k", PutOptions({"a": "1"}, CHECKSUM, IfMatch("etag")))
    wanted = {
        "x-amz-meta-a": "1",
        "x-amz-checksum-crc32c": to_base64(CHECKSUM),
        "if-match": '"etag"',
    }
    assert wanted.items() <= {name.lower(): value for name, value in headers.items()}.items()
