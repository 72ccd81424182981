import ssl

import pytest
from botocore import exceptions as boto
from botocore.parsers import ResponseParserError
from hypothesis import given
from hypothesis import strategies as st
from urllib3 import exceptions as urllib3_errors

from sidetier.segments.errors import (
    AccessDeniedError,
    ChecksumMismatchError,
    InvalidRequestError,
    MalformedAnswerError,
    PreconditionFailedError,
    StorageError,
    StoreFullError,
    StoreThrottledError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from sidetier.storage.checksums import RunningChecksum, checksum_of_bytes
from sidetier.storage.port import ChecksumAlgorithm
from sidetier.storage.s3_boto3 import part_sizes, translated
from sidetier.storage.settings import GIB, MIB

URL = "https://store.example"
CERTIFICATE = ssl.SSLCertVerificationError("unable to get local issuer certificate")


def _client_error(code: str, status: int) -> boto.ClientError:
    meta = {"HTTPStatusCode": status, "RequestId": "R1", "HTTPHeaders": {}, "RetryAttempts": 0}
    return boto.ClientError(
        {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": meta},  # type: ignore[typeddict-item]
        "PutObject",
    )


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (_client_error("BadDigest", 400), ChecksumMismatchError),
        (_client_error("XAmzContentChecksumMismatch", 400), ChecksumMismatchError),
        (_client_error("QuotaExceeded", 403), StoreFullError),
        (_client_error("InsufficientStorage", 507), StoreFullError),
        (_client_error("Whatever", 507), StoreFullError),
        (_client_error("RequestTimeout", 400), StoreTimeoutError),
        (_client_error("ExpiredToken", 400), AccessDeniedError),
        (_client_error("SignatureDoesNotMatch", 403), AccessDeniedError),
        (_client_error("ConditionalRequestConflict", 409), StoreUnavailableError),
        (_client_error("NoSuchUpload", 404), StoreUnavailableError),
        (_client_error("412", 412), PreconditionFailedError),
        (_client_error("NotImplemented", 501), InvalidRequestError),
        (_client_error("SlowDown", 503), StoreThrottledError),
        (_client_error("PermanentRedirect", 301), InvalidRequestError),
        (_client_error("EntityTooLarge", 400), InvalidRequestError),
        (boto.ReadTimeoutError(endpoint_url=URL), StoreTimeoutError),
        (boto.ConnectTimeoutError(endpoint_url=URL), StoreTimeoutError),
        (boto.EndpointConnectionError(endpoint_url=URL), StoreUnavailableError),
        (boto.ConnectionClosedError(endpoint_url=URL), StoreUnavailableError),
        (boto.ProxyConnectionError(proxy_url=URL), StoreUnavailableError),
        (boto.SSLError(endpoint_url=URL, error=CERTIFICATE), InvalidRequestError),
        (boto.SSLError(endpoint_url=URL, error=ssl.SSLEOFError("eof")), StoreUnavailableError),
        (boto.HTTPClientError(error=TimeoutError("send")), StoreTimeoutError),
        (boto.ResponseStreamingError(error="cut"), StoreUnavailableError),
        (boto.IncompleteReadError(actual_bytes=1, expected_bytes=2), StoreUnavailableError),
        (boto.NoCredentialsError(), AccessDeniedError),
        (boto.CredentialRetrievalError(provider="p", error_msg="m"), StoreUnavailableError),
        (boto.FlexibleChecksumError(error_msg="no match"), ChecksumMismatchError),
        (boto.ParamValidationError(report="bad"), InvalidRequestError),
        (ResponseParserError("no xml"), StoreUnavailableError),
        (urllib3_errors.ProtocolError("cut"), StoreUnavailableError),
        (urllib3_errors.ReadTimeoutError(None, URL, "late"), StoreTimeoutError),  # type: ignore[arg-type]
        (ConnectionResetError("reset"), StoreUnavailableError),
        (TimeoutError("late"), StoreTimeoutError),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else type(value).__name__,
)
def test_boto_errors_are_translated(error: Exception, expected: type[StorageError]) -> None:
    with pytest.raises(expected) as caught, translated("PutObject", "bucket-1", "dir/key"):
        raise error
    assert type(caught.value) is expected
    assert "PutObject s3://bucket-1/dir/key" in str(caught.value)
    assert caught.value.__cause__ is error


def test_error_for_a_missing_bucket_gives_the_remedy() -> None:
    text = "bucket 'bucket-1' does not exist: create it"
    with (
        pytest.raises(InvalidRequestError, match=text),
        translated("PutObject", "bucket-1", "k"),
    ):
        raise _client_error("NoSuchBucket", 404)


def test_error_for_missing_credentials_gives_the_remedy() -> None:
    text = r"set storage\.s3\.access_key_id .*: AWS_ACCESS_KEY_ID"
    with pytest.raises(AccessDeniedError, match=text), translated("GetObject", "bucket-1", "k"):
        raise boto.NoCredentialsError


def test_programming_error_is_not_translated() -> None:
    with pytest.raises(RuntimeError), translated("PutObject", "b", "k"):
        raise RuntimeError("ours")


@pytest.mark.parametrize("error", [KeyError("ETag"), ValueError("a time"), TypeError("None")])
def test_unreadable_answer_is_a_store_error(error: Exception) -> None:
    text = f"PutObject s3://b/k: .*{type(error).__name__}"
    with pytest.raises(MalformedAnswerError, match=text), translated("PutObject", "b", "k"):
        raise error


@given(st.integers(1, 60 * GIB), st.integers(5 * MIB, 5 * GIB))
def test_parts_cover_the_body_within_the_limit_of_parts(size: int, wanted: int) -> None:
    parts = part_sizes(size, wanted)
    assert sum(parts) == size
    assert len(parts) <= 10_000
    assert all(part == parts[0] for part in parts[:-1])
    assert 0 < parts[-1] <= parts[0]


@given(st.lists(st.binary(max_size=300), max_size=6), st.sampled_from(list(ChecksumAlgorithm)))
def test_checksums_of_parts_combine_to_that_of_the_whole(
    parts: list[bytes], algorithm: ChecksumAlgorithm
) -> None:
    combined, running = RunningChecksum(algorithm), RunningChecksum(algorithm)
    for part in parts:
        combined.append(checksum_of_bytes(part, algorithm), len(part))
        running.update(part)
    assert combined.result() == running.result() == checksum_of_bytes(b"".join(parts), algorithm)


def test_checksums_match_known_values() -> None:
    assert checksum_of_bytes(b"123456789", ChecksumAlgorithm.CRC32C).value.hex() == "e3069283"
    crc64 = checksum_of_bytes(b"123456789", ChecksumAlgorithm.CRC64NVME)
    assert crc64.value.hex() == "ae8b14860a799888"
