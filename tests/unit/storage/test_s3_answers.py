"""S3 answers: pages of a listing, and answers that lack required fields."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import pytest

from sidetier.segments.errors import MalformedAnswerError, StorageError
from sidetier.storage.bodies import BytesBody
from sidetier.storage.retrying import RetryingStorage
from sidetier.storage.s3 import S3Storage
from sidetier.storage.settings import Credentials, S3Settings
from tests.harness.faulty_s3 import Fault, FaultyS3

SETTINGS: Final = S3Settings(
    region="us-east-1", path_style=True, credentials=Credentials("key", "secret")
)
KEYS: Final = [f"a/t-0/{number:020d}.log" for number in range(2300)]
MODIFIED: Final = "2026-11-21T23:46:39.125Z"
WHOLE: Final = {
    "ETag": '"e"',
    "Last-Modified": "Sat, 21 Nov 2026 23:46:39 GMT",
    "Content-Length": "0",
}


@pytest.fixture
def server() -> Iterator[FaultyS3]:
    with FaultyS3() as server:
        yield server


@pytest.fixture
def store(server: FaultyS3) -> S3Storage:
    return S3Storage("bucket", "", replace(SETTINGS, endpoint_url=server.url))


def says(body: str, headers: dict[str, str] | None = None) -> Fault:
    """Answer the request with 200 and this body."""

    def fault(handler: Any) -> bool:  # noqa: ANN401 -- the server's own
        handler.record(handler.read_body())
        handler.send_response(200)
        data = body.encode()
        found = {"Content-Length": str(len(data))} if headers is None else headers
        handler.send_header("Connection", "close")
        for name, value in found.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(data)
        handler.close_connection = True
        return False

    return fault


def page(keys: list[str], token: str = "") -> str:
    rows = "".join(
        f"<Contents><Key>{key}</Key><Size>7</Size><ETag>&quot;e&quot;</ETag>"
        f"<LastModified>{MODIFIED}</LastModified></Contents>"
        for key in keys
    )
    more = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    truncated = str(bool(token)).lower()
    return (
        f"<ListBucketResult>{rows}<IsTruncated>{truncated}</IsTruncated>{more}</ListBucketResult>"
    )


def asked(server: FaultyS3) -> list[dict[str, str]]:
    """The parameters of each request."""
    return [
        {name: values[0] for name, values in parse_qs(urlsplit(seen.path).query).items()}
        for seen in server.seen
    ]


def test_each_page_is_one_request(server: FaultyS3, store: S3Storage) -> None:
    server.faults += [
        says(page(KEYS[:1000], "1")),
        says(page(KEYS[1000:2000], "2")),
        says(page(KEYS[2000:])),
    ]
    rows = list(RetryingStorage(store).list_objects("a/"))
    assert [row.key for row in rows] == KEYS
    moment = datetime(2026, 11, 21, 23, 46, 39, 125_000, tzinfo=UTC)
    assert {row.modified_ms for row in rows} == {round(moment.timestamp() * 1000)}
    assert [one.get("continuation-token") for one in asked(server)] == [None, "1", "2"]
    assert all("start-after" not in one for one in asked(server))


def test_keys_that_obstore_refuses_are_listed(server: FaultyS3, store: S3Storage) -> None:
    keys = ["a/a", "a/b//c", "a/d"]
    server.faults += [says(page(keys[:1], "1")), says(page(keys[1:])), says(page(keys))]
    assert [row.key for row in store.list_objects("a/")] == keys
    assert len(server.seen) == 3


@pytest.mark.parametrize("missing", ["ETag", "Last-Modified"])
@pytest.mark.parametrize("operation", ["head_object", "get_object"])
def test_answer_that_lacks_a_field_is_refused_by_name(
    server: FaultyS3, store: S3Storage, missing: str, operation: str
) -> None:
    headers = {name: value for name, value in WHOLE.items() if name != missing}
    server.faults.append(says("", headers))
    with pytest.raises(MalformedAnswerError) as refused:
        getattr(store, operation)("a/key")
    assert missing in str(refused.value)
    assert "s3://bucket/a/key" in str(refused.value)


@pytest.mark.parametrize("operation", ["head_object", "get_object"])
def test_answer_without_a_size_is_refused(
    server: FaultyS3, store: S3Storage, operation: str
) -> None:
    headers = {name: value for name, value in WHOLE.items() if name != "Content-Length"}
    server.faults.append(says("", headers))
    with pytest.raises(MalformedAnswerError, match="s3://bucket/a/key"):
        getattr(store, operation)("a/key")


@pytest.mark.parametrize("size", [1, 100_000])
def test_put_answer_without_an_etag_is_refused(
    server: FaultyS3, store: S3Storage, size: int
) -> None:
    server.faults.append(says(""))
    with pytest.raises(MalformedAnswerError, match="ETag"):
        store.put_object("key", BytesBody(b"x" * size))


@pytest.mark.parametrize(
    "row",
    [
        "<Key>k</Key><Size>7</Size><LastModified>2026-11-21T23:46:39Z</LastModified>",
        "<Key>k</Key><Size>7</Size><ETag>e</ETag>",
        "<Key>k</Key><Size>7</Size><ETag>e</ETag><LastModified>yesterday</LastModified>",
        "<Key>k</Key><Size>many</Size><ETag>e</ETag><LastModified>2026-11-21T23:46:39Z</LastModified>",
    ],
)
def test_unreadable_row_of_a_listing_is_refused(
    server: FaultyS3, store: S3Storage, row: str
) -> None:
    server.faults.append(says(f"<ListBucketResult><Contents>{row}</Contents></ListBucketResult>"))
    with pytest.raises(StorageError, match="ListObjectsV2 s3://bucket/"):
        list(store.list_objects(""))
