"""What is made of answers, without a server: pages of a listing, and the times in them."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
from botocore import parsers
from botocore.awsrequest import AWSRequest, AWSResponse
from botocore.compat import HTTPHeaders
from botocore.utils import parse_timestamp

from sidetier.segments.errors import MalformedAnswerError, StorageError
from sidetier.storage import s3_client
from sidetier.storage.bodies import BytesBody
from sidetier.storage.retrying import RetryingStorage
from sidetier.storage.s3 import S3Storage
from sidetier.storage.s3_client import make_client, timestamp
from sidetier.storage.settings import AttemptDeadline, Credentials, S3Settings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

SETTINGS = S3Settings(
    endpoint_url="http://localhost:1", region="none", credentials=Credentials("key", "secret")
)
KEYS = [f"a/t-0/{number:020d}.log" for number in range(2300)]
MODIFIED = "2026-11-21T23:46:39.125Z"


@pytest.mark.parametrize(
    "text",
    [
        MODIFIED,
        "2026-11-21T23:46:39Z",
        "2026-11-21T23:46:39.123456789Z",
        "2026-11-21T23:46:39+01:00",
        "Sat, 21 Nov 2026 23:46:39 GMT",
        "1795304799",
    ],
)
def test_times_are_those_that_botocore_finds(text: str) -> None:
    assert timestamp(text) == parse_timestamp(text)


@pytest.mark.parametrize("text", ["", "yesterday", "nonsenseZ", "nonsense GMT"])
def test_what_is_no_time_is_refused_as_botocore_does(text: str) -> None:
    with pytest.raises(ValueError, match="timestamp"):
        timestamp(text)


@pytest.mark.parametrize("text", [MODIFIED, "Sat, 21 Nov 2026 23:46:39 GMT"])
def test_times_as_s3_writes_them_are_not_guessed_at(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_client, "parse_timestamp", lambda _: pytest.fail("guessed at"))
    assert timestamp(text).year == 2026


class Pages:
    """Answers a listing of KEYS, a page of 1,000 to a request."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []

    def __call__(self, request: AWSRequest, **_: object) -> AWSResponse:
        url = str(request.url)
        query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        self.asked.append(query)
        start = int(query.get("continuation-token", "0"))
        rows = "".join(
            f"<Contents><Key>{key}</Key><Size>7</Size><ETag>&quot;e&quot;</ETag>"
            f"<LastModified>{MODIFIED}</LastModified></Contents>"
            for key in KEYS[start : start + 1000]
        )
        rest = start + 1000 < len(KEYS)
        token = f"<NextContinuationToken>{start + 1000}</NextContinuationToken>" if rest else ""
        body = (
            f"<ListBucketResult>{rows}<IsTruncated>{str(rest).lower()}</IsTruncated>{token}"
            "</ListBucketResult>"
        )
        return AWSResponse(url, 200, HTTPHeaders(), _Raw(body.encode()))


class _Raw:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def stream(self, *_: object, **__: object) -> Any:  # noqa: ANN401  as urllib3's
        return iter([self._data])


def client_of(pages: Pages) -> "S3Client":
    client = make_client(SETTINGS, AttemptDeadline())
    events: Any = client.meta.events
    events.register("before-send.s3", pages)
    return client


def test_a_page_is_a_request_and_no_time_in_it_is_guessed_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pages = Pages()
    for guessing in ((s3_client, "parse_timestamp"), (parsers, "DEFAULT_TIMESTAMP_PARSER")):
        monkeypatch.setattr(*guessing, lambda _: pytest.fail("guessed at"))
    store = RetryingStorage(S3Storage(client_of(pages), "bucket"))

    rows = list(store.list_objects("a/"))

    assert [row.key for row in rows] == KEYS
    moment = datetime(2026, 11, 21, 23, 46, 39, 125_000, tzinfo=UTC)
    assert {row.modified_ms for row in rows} == {round(moment.timestamp() * 1000)}
    assert [one.get("continuation-token") for one in pages.asked] == [None, "1000", "2000"]
    assert all("start-after" not in one for one in pages.asked)


def answered(status: int, headers: dict[str, str], body: str = "") -> "S3Client":
    """A client whose every request gets this answer."""
    client = make_client(SETTINGS, AttemptDeadline())
    events: Any = client.meta.events

    def answer(request: AWSRequest, **_: object) -> AWSResponse:
        fields = HTTPHeaders()
        for name, value in headers.items():
            fields[name] = value
        return AWSResponse(str(request.url), status, fields, _Raw(body.encode()))

    events.register("before-send.s3", answer)
    return client


WHOLE = {"ETag": '"e"', "Last-Modified": "Sat, 21 Nov 2026 23:46:39 GMT", "Content-Length": "0"}


@pytest.mark.parametrize("missing", ["ETag", "Last-Modified", "Content-Length"])
@pytest.mark.parametrize("operation", ["head_object", "get_object"])
def test_an_answer_that_lacks_a_field_is_refused_by_name(missing: str, operation: str) -> None:
    headers = {name: value for name, value in WHOLE.items() if name != missing}
    store = S3Storage(answered(200, headers), "bucket")
    with pytest.raises(MalformedAnswerError) as refused:
        getattr(store, operation)("a/key")
    assert missing.replace("-", "") in str(refused.value)
    assert "s3://bucket/a/key" in str(refused.value)


def test_a_put_whose_answer_lacks_the_etag_is_refused() -> None:
    store = S3Storage(answered(200, {}), "bucket")
    with pytest.raises(MalformedAnswerError, match="ETag"):
        store.put_object("key", BytesBody(b"x"))


@pytest.mark.parametrize(
    "row",
    [
        "<Key>k</Key><Size>7</Size><LastModified>2026-11-21T23:46:39Z</LastModified>",
        "<Key>k</Key><Size>7</Size><ETag>e</ETag>",
        "<Key>k</Key><Size>7</Size><ETag>e</ETag><LastModified>yesterday</LastModified>",
        "<Key>k</Key><Size>many</Size><ETag>e</ETag><LastModified>2026-11-21T23:46:39Z</LastModified>",
    ],
)
def test_a_row_of_a_listing_that_cannot_be_read_is_refused(row: str) -> None:
    body = f"<ListBucketResult><Contents>{row}</Contents></ListBucketResult>"
    store = S3Storage(answered(200, {}, body), "bucket")
    with pytest.raises(StorageError, match="ListObjectsV2 s3://bucket/a/"):
        list(store.list_objects("a/"))


def test_a_page_without_a_token_for_the_next_is_refused() -> None:
    body = "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"
    store = S3Storage(answered(200, {}, body), "bucket")
    with pytest.raises(MalformedAnswerError, match="NextContinuationToken"):
        list(store.list_objects("a/"))
