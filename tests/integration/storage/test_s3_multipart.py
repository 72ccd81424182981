"""Multipart uploads are aborted after any failure, and leave no parts."""

import io
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

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
from sidetier.storage import s3_client
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import IfAbsent
from sidetier.storage.s3 import S3Storage
from sidetier.storage.s3_client import make_client
from sidetier.storage.s3_requests import S3Requests
from sidetier.storage.settings import AttemptDeadline, S3Settings
from tests.harness.stores import moto_server

BODY = BytesBody(b"x" * 11 * 1024**2)
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
    patch: pytest.MonkeyPatch

    def sabotage_part(self, nth: int, error: BaseException) -> None:
        """Make sending the nth part fail."""
        count = 0
        send = S3Requests.put

        def put(requests: S3Requests, *arguments: Any) -> str:  # noqa: ANN401 - those of `put`
            nonlocal count
            count += 1
            if count == nth:
                raise error
            return send(requests, *arguments)

        self.patch.setattr(S3Requests, "put", put)

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
def site(moto: S3Settings, monkeypatch: pytest.MonkeyPatch) -> Site:
    client = make_client(moto, AttemptDeadline())
    monkeypatch.setattr(s3_client, "make_client", lambda *_: client)
    return Site(client, S3Storage("parts", "p", moto), monkeypatch)


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


@pytest.mark.parametrize(("act", "expected"), FAILURES)
def test_failure_to_complete_aborts_the_upload(
    site: Site, act: Sabotage, expected: type[BaseException]
) -> None:
    site.sabotage("CompleteMultipartUpload", 1, act)
    with pytest.raises(expected):
        site.store.put_object("big", BODY)
    assert site.nothing_is_left()


@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize(
    "error", [StoreThrottledError("busy"), OSError("bad disk"), KeyboardInterrupt(), SystemExit()]
)
def test_failed_part_aborts_the_upload(site: Site, nth: int, error: BaseException) -> None:
    site.sabotage_part(nth, error)
    with pytest.raises(type(error)):
        site.store.put_object("big", BODY)
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
    site.sabotage_part(2, AccessDeniedError("UploadPart"))
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
