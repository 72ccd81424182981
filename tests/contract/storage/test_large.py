"""Contract of large bodies (multipart uploads if the store has them) and of close, for every
store.
"""

import pytest

from sidetier.segments.errors import (
    ChecksumMismatchError,
    DamagedSegmentError,
)
from sidetier.storage.bodies import BytesBody
from sidetier.storage.checksums import checksum_of_bytes
from sidetier.storage.port import Checksum, ChecksumAlgorithm, IfAbsent, PutOptions, RemoteStorage
from tests.harness.bodies import BreakingBody
from tests.harness.stores import Subject

LARGE = bytes(i * 31 % 251 for i in range(65_536)) * 180
"""11.25 MiB: three parts of the suite's 5 MiB."""


@pytest.mark.parametrize("algorithm", list(ChecksumAlgorithm))
def test_large_body_is_complete_and_has_one_checksum(
    subject: Subject, algorithm: ChecksumAlgorithm
) -> None:
    store = subject.storage
    checksum = checksum_of_bytes(LARGE, algorithm)
    etag = store.put_object(
        "big", BytesBody(LARGE), PutOptions(metadata={"a": "1"}, checksum=checksum)
    )
    stored = store.get_object("big")
    assert stored.data == LARGE
    assert (stored.head.etag, stored.head.metadata) == (etag, {"a": "1"})
    if store.capabilities.checksum:
        assert stored.head.checksum == checksum
    with store.get_object_input_stream("big", 6_000_000, 7_000_000) as stream:
        assert stream.read() == LARGE[6_000_000:7_000_000]
    assert subject.left_over() == []


@pytest.mark.parametrize("after", [100_000, 6_000_000, 11_000_000])
@pytest.mark.parametrize(
    "error", [OSError("disk"), DamagedSegmentError("segment"), KeyboardInterrupt()]
)
def test_failing_large_body_leaves_nothing(
    subject: Subject, after: int, error: BaseException
) -> None:
    store = subject.storage
    with pytest.raises(type(error)) as caught:
        store.put_object(
            "big",
            BreakingBody(LARGE, after, error),
            PutOptions(checksum=checksum_of_bytes(LARGE, ChecksumAlgorithm.CRC64NVME)),
        )
    assert caught.value is error
    assert list(store.list_objects("")) == []
    assert subject.left_over() == []


def test_large_body_with_a_wrong_checksum_leaves_nothing(subject: Subject) -> None:
    wrong = Checksum(ChecksumAlgorithm.CRC64NVME, bytes(8))
    with pytest.raises(ChecksumMismatchError, match="big"):
        subject.storage.put_object("big", BytesBody(LARGE), PutOptions(checksum=wrong))
    assert list(subject.storage.list_objects("")) == []
    assert subject.left_over() == []


def test_large_object_is_copied(subject: Subject) -> None:
    store = subject.storage
    store.put_object("big", BytesBody(LARGE), PutOptions(metadata={"a": "1"}))
    store.copy_object("big", "plain")
    store.copy_object("big", "guarded", condition=IfAbsent())
    for key in ("plain", "guarded"):
        assert store.get_object(key).data == LARGE
        assert store.head_object(key).metadata == {"a": "1"}
    assert subject.left_over() == []


def test_close_may_be_called_twice(store: RemoteStorage) -> None:
    store.put_object("k", BytesBody(b"x"))
    store.close()
    store.close()
