"""The S3 store over HTTPS: trusted authorities and sent headers."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sidetier.segments.errors import InvalidRequestError, PreconditionFailedError
from sidetier.storage.bodies import BytesBody, FileBody
from sidetier.storage.checksums import checksum_of_bytes, to_base64
from sidetier.storage.port import ChecksumAlgorithm, IfAbsent, PutOptions
from sidetier.storage.s3 import S3Storage
from sidetier.storage.settings import MIB, Credentials, S3Settings
from tests.harness.faulty_s3 import FaultyS3
from tests.harness.s3 import S3Bucket, TlsIdentity
from tests.harness.stores import s3_settings

BODY = BytesBody(bytes(range(256)) * 8192)


@pytest.fixture
def recorder(tls_identity: TlsIdentity) -> Iterator[FaultyS3]:
    with FaultyS3(tls_identity.certificate) as server:
        yield server


def _settings(recorder: FaultyS3, identity: TlsIdentity) -> S3Settings:
    return S3Settings(
        endpoint_url=recorder.url,
        region="us-east-1",
        path_style=True,
        credentials=Credentials("key", "secret"),
        ca_bundle=identity.authority,
    )


@pytest.mark.parametrize("algorithm", list(ChecksumAlgorithm))
@pytest.mark.parametrize("size", [0, 10, len(BODY.data)])
def test_payload_is_neither_signed_nor_chunked_and_its_checksum_is_signed(
    recorder: FaultyS3, tls_identity: TlsIdentity, algorithm: ChecksumAlgorithm, size: int
) -> None:
    settings = replace(_settings(recorder, tls_identity), checksum=algorithm)
    data = BODY.data[:size]
    store = S3Storage("bucket", "", settings)
    store.put_object("k", BytesBody(data), PutOptions(metadata={"next-offset": "7"}))
    (seen,) = recorder.seen
    name = f"x-amz-checksum-{algorithm.lower()}"
    assert seen.headers[name] == to_base64(checksum_of_bytes(data, algorithm))
    assert seen.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    assert seen.headers["content-length"] == str(size)
    absent = {"x-amz-trailer", "transfer-encoding", "content-encoding", "content-md5"}
    assert not absent & seen.headers.keys()
    signed = seen.headers["authorization"].partition("SignedHeaders=")[2].partition(",")[0]
    assert {name, "x-amz-content-sha256", "x-amz-meta-next-offset"} <= set(signed.split(";"))
    assert seen.body == data


def test_file_is_sent_over_tls(
    recorder: FaultyS3, tls_identity: TlsIdentity, tmp_path: Path
) -> None:
    """Through a buffer, because sendfile(2) would bypass the encryption."""
    path = tmp_path / "body"
    path.write_bytes(BODY.data)
    settings = _settings(recorder, tls_identity)
    store = S3Storage("bucket", "", settings)
    store.put_object("k", FileBody.of(path))
    assert recorder.objects == {"k": BODY.data}


def test_encryption_storage_class_and_tags_are_sent(
    recorder: FaultyS3, tls_identity: TlsIdentity
) -> None:
    settings = replace(
        _settings(recorder, tls_identity),
        sse="aws:kms",
        sse_kms_key_id="key-1",
        storage_class="STANDARD_IA",
        tags=(("team", "a&b"), ("kind", "log")),
    )
    store = S3Storage("bucket", "", settings)
    store.put_object("t-0/0.log", BytesBody(b"x"))
    store.put_object("t-0/offset.wm", BytesBody(b"x"))
    log, watermark = (seen.headers for seen in recorder.seen)
    for headers in (log, watermark):
        assert headers["x-amz-server-side-encryption"] == "aws:kms"
        assert headers["x-amz-server-side-encryption-aws-kms-key-id"] == "key-1"
        assert set(headers["x-amz-tagging"].split("&")) == {"team=a%26b", "kind=log"}
    assert log["x-amz-storage-class"] == "STANDARD_IA"
    assert "x-amz-storage-class" not in watermark


def test_unknown_authority_is_a_permanent_error(
    recorder: FaultyS3, tls_identity: TlsIdentity
) -> None:
    settings = replace(_settings(recorder, tls_identity), ca_bundle=None)
    store = S3Storage("bucket", "", settings)
    with pytest.raises(InvalidRequestError, match="ca_bundle"):
        store.put_object("k", BODY)
    assert recorder.seen == []


def test_unknown_authority_is_a_permanent_error_of_large_ranges(
    recorder: FaultyS3, tls_identity: TlsIdentity
) -> None:
    store = S3Storage("bucket", "", replace(_settings(recorder, tls_identity), ca_bundle=None))
    with pytest.raises(InvalidRequestError, match="ca_bundle"):
        store.get_object_input_stream("k", 0, MIB)
    assert recorder.seen == []


@pytest.mark.integration
def test_real_server_accepts_and_verifies_the_upload(
    s3_bucket_tls: S3Bucket, tls_identity: TlsIdentity
) -> None:
    settings = s3_settings(s3_bucket_tls, tls_identity.authority)
    store = S3Storage(s3_bucket_tls.name, "p", settings)
    large = BytesBody(BODY.data * 4)
    assert large.size > 7 * MIB
    for key, body in (("one", BODY), ("parts", large), ("small", BytesBody(b"x"))):
        store.put_object(key, body, PutOptions(metadata={"a": "1"}))
        stored = store.get_object(key)
        assert stored.data == body.data
        with store.get_object_input_stream(key, 0, 100_000) as stream:  # by `s3_requests`
            assert stream.read() == body.data[:100_000]
        checksum = checksum_of_bytes(body.data, ChecksumAlgorithm.CRC64NVME)
        assert store.head_object(key, with_checksum=True).own_checksum == checksum
    store.close()


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["file", "bytes"])
def test_existing_large_object_is_a_failed_precondition(
    s3_bucket_tls: S3Bucket, tls_identity: TlsIdentity, tmp_path: Path, kind: str
) -> None:
    """The server refuses the upload and closes the connection while the body is being sent."""
    settings = replace(
        s3_settings(s3_bucket_tls, tls_identity.authority), multipart_threshold=128 * MIB
    )
    store = S3Storage(s3_bucket_tls.name, "p", settings)
    data = bytes(64 * MIB)
    path = tmp_path / "body"
    path.write_bytes(data)
    body = FileBody.of(path) if kind == "file" else BytesBody(data)
    store.put_object("k", body, PutOptions(condition=IfAbsent()))
    for _ in range(5):
        with pytest.raises(PreconditionFailedError):
            store.put_object("k", body, PutOptions(condition=IfAbsent()))
    assert store.head_object("k").size == len(data)
    store.close()
