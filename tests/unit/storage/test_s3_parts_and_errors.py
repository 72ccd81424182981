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
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
    StoreFullError,
    StoreThrottledError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from sidetier.storage.boto_errors import translated
from sidetier.storage.checksums import RunningChecksum, checksum_of_bytes
from sidetier.storage.object_errors import (
    BY_CODE,
    advice,
    by_status,
    fields_of,
    refusal_text,
)
from sidetier.storage.port import ChecksumAlgorithm
from sidetier.storage.s3_boto3 import part_sizes
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
    text = r"s3://bucket-1/k: 404 NoSuchBucket: .*create the bucket, or correct storage\.url"
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


@pytest.mark.parametrize(
    ("status", "fields", "advised"),
    [
        (400, {"Code": "AuthorizationHeaderMalformed", "Region": "eu-west-1"}, "to eu-west-1"),
        (
            400,
            {
                "Code": "AuthorizationHeaderMalformed",
                "Message": "the region 'us-east-1' is wrong; expecting 'eu-central-1'",
            },
            "set storage.s3.region to eu-central-1",
        ),
        (
            301,
            {"Code": "PermanentRedirect", "Endpoint": "bucket.s3.eu-west-1.amazonaws.com"},
            "the bucket is at bucket.s3.eu-west-1.amazonaws.com: set storage.s3.region",
        ),
        (403, {"Code": "InvalidAccessKeyId", "AWSAccessKeyId": "AKIA1"}, "access key AKIA1: "),
        (403, {"Code": "InvalidAccessKeyId"}, "access key: correct storage.s3.access_key_id"),
        (403, {"Code": "SignatureDoesNotMatch"}, "storage.s3.secret_access_key"),
        (403, {"Code": "RequestTimeTooSkewed"}, "clock"),
        (400, {"Code": "ExpiredToken"}, "storage.s3.session_token"),
        (400, {"Code": "KMS.NotFoundException"}, "storage.s3.sse_kms_key_id"),
        (400, {"Code": "InvalidStorageClass"}, "storage.s3.storage_class"),
        (404, {"Code": "ContainerNotFound"}, "storage.url"),
        (400, {}, "storage.s3.region"),
        (403, {}, "credentials"),
    ],
)
def test_advice_names_the_setting_and_the_value_of_the_answer(
    status: int, fields: dict[str, str], advised: str
) -> None:
    assert advised in (advice(status, fields) or "")


def test_answer_is_told_without_its_xml() -> None:
    answer = (
        "<Error><Code>AccessDenied</Code><Message>not\n &#34;you&#34;</Message>"
        "<StringToSign>secret</StringToSign><RequestId>R1</RequestId></Error>"
    )
    text = refusal_text("GetObject s3://b/k", 403, fields_of(answer))
    assert text.startswith('GetObject s3://b/k: 403 AccessDenied: not "you" (request id R1): ')
    assert "secret" not in text


@pytest.mark.parametrize(
    ("code", "is_absent"),
    [
        ("NoSuchKey", True),
        ("", True),
        ("404", True),
        ("BlobNotFound", True),
        ("ResourceNotFound", True),
        ("XAdminUserNotFound", False),
        ("NoSuchTenant", False),
        ("AccountNotFound", False),
    ],
)
def test_404_means_a_missing_object_only_if_the_code_says_so(code: str, *, is_absent: bool) -> None:
    """Otherwise an archive would look empty to a sidecar with wrong credentials."""
    kind = BY_CODE.get(code) or by_status(404, code)
    assert (kind is ObjectNotFoundError) == is_absent
