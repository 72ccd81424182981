"""Multipart uploads are aborted after any failure, and leave no parts."""

import io
import logging
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest
from botocore import exceptions as boto
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders
from mypy_boto3_s3 import S3Client

from sidetier.segments.errors import (
    AccessDeniedError,
    StoreThrottledError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from sidetier.storage.bodies import BytesBody, FileBody
from sidetier.storage.checksums import checksum_of_body
from sidetier.storage.encrypted_format import SALT_BYTES, EncryptedHeader
from sidetier.storage.encrypted_streams import EncryptedBody, ObjectCipher
from sidetier.storage.port import Body, ChecksumAlgorithm, IfAbsent
from sidetier.storage.s3 import S3Storage
from sidetier.storage.s3_client import make_client
from sidetier.storage.settings import GIB, MIB, AttemptDeadline, S3Settings
from tests.harness.stores import moto_server

BODY = BytesBody(b"x" * 11 * MIB)
LARGE = BytesBody(random.Random(1).randbytes(19 * MIB))
Sabotage = Callable[..., Any]


@pytest.fixture(scope="module")
def moto() -> Iterator[S3Settings]:
    with moto_server() as settings:
        make_client(settings, AttemptDeadline()).create_bucket(Bucket="parts")
        yield settings


@dataclass
class Site:
    client: S3Client
    store: S3Storage

    def sabotage(self, operation: str, nth: int, act: Sabotage) -> None:
        """Make the nth request of this kind fail before it is sent."""
        count = 0

        def handler(**event: object) -> Any:  # noqa: ANN401 - an answer instead of a request
            nonlocal count
            count += 1
            return act(**event) if count == nth else None

        self.client.meta.events.register(f"before-send.s3.{operation}", handler)

    def nothing_is_left(self) -> bool:
        uploads = self.client.list_multipart_uploads(Bucket="parts").get("Uploads", [])
        return not uploads and not list(self.store.list_objects(""))


@pytest.fixture
def site(moto: S3Settings) -> Site:
    client = make_client(moto, AttemptDeadline())
    return Site(client, S3Storage("parts", "p", moto, client=client))


def _raises(error: BaseException) -> Sabotage:
    def act(**_: object) -> None:
        raise error

    return act


def _answers(status: int, code: str) -> Sabotage:
    def act(request: Any, **_: object) -> AWSResponse:  # noqa: ANN401 - botocore's own
        text = f"<Error><Code>{code}</Code></Error>".encode()

        class Raw(io.BytesIO):
            def stream(self, *_: object) -> Iterator[bytes]:
                yield self.read()

        headers = HTTPHeaders.from_pairs([("Content-Length", str(len(text)))])
        return AWSResponse(request.url, status, headers, Raw(text))

    return act


FAILURES: list[tuple[Sabotage, type[BaseException]]] = [
    (_answers(503, "SlowDown"), StoreThrottledError),
    (_answers(403, "AccessDenied"), AccessDeniedError),
    (_raises(boto.ReadTimeoutError(endpoint_url="u")), StoreTimeoutError),
    (_raises(boto.EndpointConnectionError(endpoint_url="u")), StoreUnavailableError),
    (_raises(ConnectionResetError("reset")), StoreUnavailableError),
    (_raises(KeyboardInterrupt()), KeyboardInterrupt),
    (_raises(SystemExit()), SystemExit),
]


def encrypted(body: Body) -> EncryptedBody:
    """Return a body that is computed while it is sent."""
    checksum = checksum_of_body(body, ChecksumAlgorithm.CRC64NVME)
    header = EncryptedHeader("k1", b"w" * 40, b"s" * SALT_BYTES, body.size, "t-0/0")
    return EncryptedBody("big", body, ObjectCipher(header, bytes(32)), checksum)


@pytest.mark.parametrize("body", [BODY, encrypted(LARGE)], ids=["plain", "encrypted"])
@pytest.mark.parametrize(("act", "expected"), FAILURES)
@pytest.mark.parametrize(
    ("operation", "nth"),
    [("UploadPart", 1), ("UploadPart", 3), ("CompleteMultipartUpload", 1)],
)
def test_every_failure_aborts_the_upload(
    site: Site, operation: str, nth: int, act: Sabotage, expected: type[BaseException], body: Body
) -> None:
    site.sabotage(operation, nth, act)
    with pytest.raises(expected):
        site.store.put_object("big", body)
    assert site.nothing_is_left()


@dataclass
class CountingBody:
    """Counts how often it is opened, and how many bytes are read."""

    inner: Body
    opened: int = 0
    read: int = 0

    @property
    def size(self) -> int:
        return self.inner.size

    def open(self) -> BinaryIO:
        self.opened += 1
        owner, stream = self, self.inner.open()

        class Counting(io.RawIOBase):
            def read(self, size: int = -1, /) -> bytes:
                data = stream.read(size)
                owner.read += len(data)
                return data

            def seek(self, offset: int, whence: int = 0, /) -> int:
                return stream.seek(offset, whence)

        return cast("BinaryIO", Counting())


@pytest.mark.parametrize("size", [7 * MIB, 19 * MIB])
def test_computed_body_is_computed_once_for_checksum_and_sending(
    moto: S3Settings, size: int
) -> None:
    client = make_client(moto, AttemptDeadline())
    store = S3Storage(
        "parts", "p", replace(moto, checksum_verified=True, multipart_threshold=GIB), client=client
    )
    lengths: list[int] = []
    for name in ("PutObject", "UploadPart"):
        client.meta.events.register(
            f"before-call.s3.{name}",
            lambda params, **_: lengths.append(int(params["headers"]["Content-Length"])),
        )
    counting = CountingBody(BytesBody(LARGE.data[:size]))
    body = encrypted(counting)
    expected = body.open().read()
    counting.opened = counting.read = 0
    store.put_object("big", body, condition=IfAbsent())
    assert (counting.opened, counting.read) == (1, size)
    assert sum(lengths) == body.size
    assert len(lengths) == -(-body.size // (8 * MIB))
    assert store.get_object("big").data == expected
    store.delete_object("big")


def test_file_that_is_truncated_while_it_is_encrypted_is_not_stored(
    site: Site, tmp_path: Path
) -> None:
    file = tmp_path / "segment"
    file.write_bytes(LARGE.data)
    body = encrypted(FileBody.of(file))
    os.truncate(file, LARGE.size - 1)
    with pytest.raises(OSError, match="the body ended after"):
        site.store.put_object("big", body)
    assert site.nothing_is_left()


def test_failed_multipart_copy_is_aborted(site: Site) -> None:
    site.store.put_object("source", BODY)
    site.sabotage("UploadPartCopy", 1, _raises(boto.ReadTimeoutError(endpoint_url="u")))
    with pytest.raises(StoreTimeoutError):
        site.store.copy_object("source", "target", condition=IfAbsent())
    site.store.delete_object("source")
    assert site.nothing_is_left()


def test_failed_abort_does_not_hide_the_original_error(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.sabotage("UploadPart", 2, _answers(403, "AccessDenied"))
    site.sabotage(
        "AbortMultipartUpload", 1, _raises(boto.EndpointConnectionError(endpoint_url="u"))
    )
    with caplog.at_level(logging.WARNING), pytest.raises(AccessDeniedError, match="UploadPart"):
        site.store.put_object("big", BODY)
    assert [r.message for r in caplog.records if r.name.startswith("sidetier")] == [
        "multipart_abort_failed"
    ]
    assert list(site.store.list_objects("")) == []
    (upload,) = site.client.list_multipart_uploads(Bucket="parts")["Uploads"]
    site.client.abort_multipart_upload(Bucket="parts", Key="p/big", UploadId=upload["UploadId"])
