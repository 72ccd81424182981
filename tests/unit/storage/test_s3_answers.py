"""What is made of answers, without a server: pages of a listing, and the times in them."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
from botocore import parsers
from botocore.awsrequest import AWSRequest, AWSResponse
from botocore.compat import HTTPHeaders
from botocore.utils import parse_timestamp

from sidetier.storage import s3_client
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
