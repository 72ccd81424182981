"""The S3 store with a faulty server over real sockets."""

import io
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import pytest

from sidetier.segments.errors import (
    AccessDeniedError,
    InvalidRequestError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
    StoreThrottledError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from sidetier.storage.bodies import BytesBody, FileBody
from sidetier.storage.checksums import checksum_of_bytes
from sidetier.storage.port import ChecksumAlgorithm, IfAbsent, PutOptions
from sidetier.storage.retrying import RetryingStorage
from sidetier.storage.s3 import S3Storage
from sidetier.storage.settings import AttemptDeadline, Credentials, RetryPolicy, S3Settings
from tests.harness import faulty_s3
from tests.harness.faulty_s3 import FaultyS3

SMALL = BytesBody(b"small")
LARGE = BytesBody(b"x" * 4_000_000)
QUICK = RetryPolicy(attempts=4, first_delay=0.01, max_delay=0.02, max_elapsed=30)


@dataclass(slots=True)
class CountingBody:
    """A body that counts the bytes read from it."""

    data: bytes
    bytes_read: int = 0

    @property
    def size(self) -> int:
        return len(self.data)

    def open(self) -> BinaryIO:
        owner = self

        class Stream(io.BytesIO):
            def read(self, size: int | None = -1, /) -> bytes:
                data = super().read(size)
                owner.bytes_read += len(data)
                return data

        return Stream(self.data)


@pytest.fixture
def server() -> Iterator[FaultyS3]:
    with FaultyS3() as server:
        yield server


def _settings(server: FaultyS3) -> S3Settings:
    return S3Settings(
        endpoint_url=server.url,
        region="us-east-1",
        path_style=True,
        credentials=Credentials("key", "secret"),
        read_timeout=1.0,
    )


def _store(server: FaultyS3, deadline: AttemptDeadline | None = None) -> S3Storage:
    deadline = deadline or AttemptDeadline(connect=2.0)
    settings = _settings(server)
    return S3Storage("bucket", "", settings, deadline)


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (500, "InternalError", StoreUnavailableError),
        (502, "BadGateway", StoreUnavailableError),
        (503, "ServiceUnavailable", StoreUnavailableError),
        (504, "GatewayTimeout", StoreUnavailableError),
        (503, "SlowDown", StoreThrottledError),
        (429, "TooManyRequests", StoreThrottledError),
        (409, "ConditionalRequestConflict", StoreUnavailableError),
        (412, "PreconditionFailed", PreconditionFailedError),
        (403, "AccessDenied", AccessDeniedError),
        (401, "Unauthorized", AccessDeniedError),
        (404, "NoSuchBucket", InvalidRequestError),
        (400, "InvalidStorageClass", InvalidRequestError),
    ],
)
@pytest.mark.parametrize("body", [SMALL, LARGE], ids=["small", "large"])
def test_refusal_is_translated_and_sent_once(
    server: FaultyS3, body: BytesBody, status: int, code: str, expected: type[StorageError]
) -> None:
    store = _store(server)
    server.faults.append(faulty_s3.answer(status, code))
    with pytest.raises(expected) as caught:
        store.put_object("dir/k", body)
    text = str(caught.value)
    assert "PutObject" in text
    assert "bucket" in text
    if code != "NoSuchBucket":
        assert "dir/k" in text
        assert code in text
    assert "REQUEST-1" in text
    assert len(server.seen) == 1, "botocore's own retries must stay off"
    assert server.objects == {}
    store.put_object("dir/k", body)
    assert server.objects == {"dir/k": body.data}


@pytest.mark.parametrize(
    ("status", "expected"),
    [(404, ObjectNotFoundError), (403, AccessDeniedError), (503, StoreUnavailableError)],
)
def test_head_answer_without_a_body_is_recognised_by_its_status(
    server: FaultyS3, status: int, expected: type[StorageError]
) -> None:
    server.faults.append(faulty_s3.answer(status, "unseen"))
    with pytest.raises(expected):
        _store(server).head_object("k")


@pytest.mark.parametrize("body", [SMALL, LARGE], ids=["small", "large"])
def test_304_for_a_conditional_put_is_a_refused_condition(
    server: FaultyS3, body: BytesBody
) -> None:
    server.faults.append(faulty_s3.answer(304, "unseen"))
    with pytest.raises(PreconditionFailedError):
        _store(server).put_object("k", body, PutOptions(condition=IfAbsent()))
    assert server.objects == {}


def test_body_of_a_refused_put_is_not_sent(server: FaultyS3) -> None:
    server.faults.append(faulty_s3.answer(412, "PreconditionFailed"))
    with pytest.raises(PreconditionFailedError):
        _store(server).put_object("k", LARGE, PutOptions(condition=IfAbsent()))
    (seen,) = server.seen
    assert seen.headers["expect"] == "100-continue"
    assert seen.headers["if-none-match"] == "*"


def test_body_of_a_refused_put_is_not_even_read(server: FaultyS3) -> None:
    server.faults.append(faulty_s3.answer(412, "PreconditionFailed"))
    body = CountingBody(LARGE.data)
    checksum = checksum_of_bytes(LARGE.data, ChecksumAlgorithm.CRC64NVME)
    with pytest.raises(PreconditionFailedError):
        _store(server).put_object("k", body, PutOptions(checksum=checksum, condition=IfAbsent()))
    assert body.bytes_read == 0


def test_file_is_sent_by_the_kernel_and_can_be_sent_again(server: FaultyS3, tmp_path: Path) -> None:
    path = tmp_path / "body"
    path.write_bytes(LARGE.data)
    server.faults += [faulty_s3.cut_in_request, faulty_s3.lose_the_answer]
    RetryingStorage(_store(server), QUICK).put_object("k", FileBody.of(path))
    assert server.objects == {"k": LARGE.data}
    assert len(server.seen) == 3


def test_small_body_is_sent_with_its_headers(server: FaultyS3) -> None:
    _store(server).put_object("k", SMALL)
    assert "expect" not in server.seen[0].headers


@pytest.mark.parametrize("body", [SMALL, LARGE], ids=["small", "large"])
def test_plain_http_put_has_an_unsigned_payload_and_a_signed_checksum(
    server: FaultyS3, body: BytesBody
) -> None:
    _store(server).put_object("k", body)
    (seen,) = server.seen
    assert seen.body == body.data
    assert seen.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    assert "x-amz-checksum-crc64nvme" in seen.headers
    assert "x-amz-checksum-crc64nvme" in seen.headers["authorization"]
    assert not {"x-amz-trailer", "transfer-encoding", "content-encoding"} & seen.headers.keys()


def test_payload_signing_can_be_enabled(server: FaultyS3) -> None:
    settings = replace(_settings(server), sign_payload=True)
    S3Storage("bucket", "", settings).put_object("k", LARGE)
    assert len(server.seen[0].headers["x-amz-content-sha256"]) == 64
    assert server.objects["k"] == LARGE.data


def test_hung_server_is_a_timeout(server: FaultyS3) -> None:
    server.faults += [faulty_s3.hang, faulty_s3.hang]
    store = _store(server)
    with pytest.raises(StoreTimeoutError, match="PutObject"):
        store.put_object("k", SMALL)
    with pytest.raises(StoreTimeoutError, match="HeadObject"):
        store.head_object("k")


def test_signal_ends_a_hung_request(server: FaultyS3) -> None:
    """For Ctrl-C on the command line; obstore delays signals until its call returns."""

    class AlarmError(Exception):
        pass

    def rings(*_: object) -> None:
        raise AlarmError

    settings = replace(_settings(server), read_timeout=20.0)
    store = S3Storage("bucket", "", settings, AttemptDeadline(connect=2.0))
    server.faults.append(faulty_s3.hang)
    former = signal.signal(signal.SIGALRM, rings)
    began = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(AlarmError):
            store.head_object("k")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    assert time.monotonic() - began < 5


def test_forty_concurrent_callers_are_served(server: FaultyS3) -> None:
    store = _store(server)
    keys = [f"k-{number}" for number in range(40)]

    def write_and_read(key: str) -> bytes:
        store.put_object(key, BytesBody(key.encode()))
        with store.get_object_input_stream(key) as stream:
            return stream.read()

    with ThreadPoolExecutor(40) as pool:
        assert list(pool.map(write_and_read, keys)) == [key.encode() for key in keys]


@pytest.mark.parametrize("status", [301, 307])
def test_bucket_of_another_region_is_reported(server: FaultyS3, status: int) -> None:
    server.faults.append(faulty_s3.answer(status, "PermanentRedirect"))
    with pytest.raises(InvalidRequestError, match="own region"):
        _store(server).put_object("k", SMALL)


def test_expired_keys_are_refused(server: FaultyS3) -> None:
    server.faults.append(faulty_s3.answer(400, "ExpiredToken"))
    with pytest.raises(AccessDeniedError, match="ExpiredToken"):
        _store(server).put_object("k", SMALL)


@pytest.mark.parametrize(
    "fault", [faulty_s3.cut_at_once, faulty_s3.cut_in_request], ids=["at once", "in request"]
)
def test_cut_connection_is_store_unavailable(server: FaultyS3, fault: faulty_s3.Fault) -> None:
    server.faults.append(fault)
    store = _store(server)
    with pytest.raises(StoreUnavailableError, match="PutObject"):
        store.put_object("k", LARGE)
    assert server.objects == {}


def test_truncated_answer_is_detected(server: FaultyS3) -> None:
    store = _store(server)
    store.put_object("k", LARGE)
    server.faults += [faulty_s3.cut_in_response, faulty_s3.cut_in_response]
    with pytest.raises(StoreUnavailableError, match="GetObject"):
        store.get_object("k")
    with (
        store.get_object_input_stream("k") as stream,
        pytest.raises(StoreUnavailableError, match="GetObject"),
    ):
        stream.read()
    assert store.get_object("k").data == LARGE.data


def test_answer_that_is_not_s3_is_store_unavailable(server: FaultyS3) -> None:
    server.faults.append(faulty_s3.garbage)
    with pytest.raises(StoreUnavailableError, match="ListObjectsV2"):
        list(_store(server).list_objects(""))


def test_slow_body_ends_at_the_deadline(server: FaultyS3) -> None:
    server.faults.append(faulty_s3.trickle)
    store = _store(server, AttemptDeadline(base=0.5, min_bytes_per_second=10**9, connect=2.0))
    body = BytesBody(b"x" * 40_000_000)
    with pytest.raises(StoreTimeoutError, match="PutObject"):
        store.put_object("k", body)
    assert server.objects == {}


def test_missing_server_is_store_unavailable(server: FaultyS3) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        settings = replace(_settings(server), endpoint_url=url)
        store = S3Storage("bucket", "", settings)
        with pytest.raises(StoreUnavailableError, match="PutObject"):
            store.put_object("k", SMALL)


def test_missing_proxy_is_store_unavailable(
    server: FaultyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{unused.getsockname()[1]}")
        monkeypatch.setenv("NO_PROXY", "")
        with pytest.raises(StoreUnavailableError, match="Connection refused"):
            _store(server).put_object("k", SMALL)


def test_lost_answer_is_distinguished_from_a_refusal(server: FaultyS3) -> None:
    store = RetryingStorage(_store(server), QUICK)
    server.faults += [
        faulty_s3.lose_the_answer,
        faulty_s3.answer(412, "PreconditionFailed"),
    ]
    with pytest.raises(PreconditionFailedError) as caught:
        store.put_object("k", SMALL, PutOptions(condition=IfAbsent()))
    assert caught.value.ambiguous
    assert server.objects == {"k": SMALL.data}
    server.faults.append(faulty_s3.answer(412, "PreconditionFailed"))
    with pytest.raises(PreconditionFailedError) as caught:
        store.put_object("k", SMALL, PutOptions(condition=IfAbsent()))
    assert not caught.value.ambiguous


def test_long_outage_is_survived_by_retries(server: FaultyS3) -> None:
    server.faults += [
        faulty_s3.answer(503, "SlowDown"),
        faulty_s3.cut_in_request,
        faulty_s3.lose_the_answer,
    ]
    RetryingStorage(_store(server), QUICK).put_object("k", LARGE)
    assert server.objects == {"k": LARGE.data}
    assert len(server.seen) == 4
