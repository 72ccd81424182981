"""Difference between a store's clock and this host's clock."""

import threading
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from sidetier.cli.inspect.store import skew, skew_of
from sidetier.storage.settings import S3Settings, StorageEndpoint


@pytest.mark.parametrize(
    ("date", "expected"),
    [
        ("Tue, 14 Nov 2023 22:13:20 GMT", 0.0),
        ("Tue, 14 Nov 2023 22:23:20 GMT", 600.0),
        ("Tue, 14 Nov 2023 22:12:20 GMT", -60.0),
        ("today", None),
        (None, None),
    ],
)
def test_date_header_gives_the_clock_skew(date: str | None, expected: float | None) -> None:
    moment = 1_700_000_000.5
    assert skew(date, moment - 0.2, moment + 0.2) == expected


class _Late(BaseHTTPRequestHandler):
    """A store that refuses requests and whose clock is in 2001."""

    def do_HEAD(self) -> None:
        self.send_response_only(403)
        self.send_header("Date", formatdate(1_000_000_000, usegmt=True))
        self.end_headers()


@pytest.fixture
def late_store() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Late)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_refused_request_gives_the_clock_skew_too(late_store: str) -> None:
    endpoint = StorageEndpoint("s3://bucket", s3=S3Settings(endpoint_url=late_store))
    found = skew_of(endpoint)
    assert found is not None
    assert found < -86_400 * 365


def test_skew_is_unknown_without_an_answer_or_on_other_stores() -> None:
    assert skew_of(StorageEndpoint("file:///archive")) is None
    dead = StorageEndpoint("s3://bucket", s3=S3Settings(endpoint_url="http://127.0.0.1:1"))
    assert skew_of(dead) is None
