"""Ranges of S3 objects are received straight into memory; other answers; proxies."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Self
from urllib.parse import urlsplit

import pytest

from sidetier.segments.errors import (
    AccessDeniedError,
    InvalidRequestError,
    MalformedAnswerError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
    StoreThrottledError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import IfMatch
from sidetier.storage.ranges import read_into
from sidetier.storage.s3 import S3Storage
from sidetier.storage.s3_chain import ChainCredentials
from sidetier.storage.settings import Credentials, S3Settings
from tests.harness import faulty_s3
from tests.harness.faulty_s3 import Fault, FaultyS3
from tests.harness.s3 import TlsIdentity

DATA: Final = bytes(range(256)) * 2048
SIZE: Final = 300_000
KEYS: Final = Credentials("key", "secret", "token")


@pytest.fixture
def server() -> Iterator[FaultyS3]:
    with FaultyS3() as server:
        yield server


@pytest.fixture
def store(server: FaultyS3) -> Iterator[S3Storage]:
    store = S3Storage("bucket", "root", _settings(server.url))
    yield store
    store.close()


def _settings(url: str) -> S3Settings:
    return S3Settings(
        endpoint_url=url, region="us-east-1", path_style=True, credentials=KEYS, read_timeout=0.3
    )


def partial(sent: int | None = None, first: int | None = None, most: int | None = None) -> Fault:
    """Answer with the range of `DATA` that was asked for.

    Args:
        sent: Number of bytes after which the connection is closed; None for all.
        first: First byte that the answer names; None for the one that was asked for.
        most: Most bytes of the range that the answer has; None for all.
    """

    def fault(handler: Any) -> bool:  # noqa: ANN401 - the server's own
        handler.record(handler.read_body())
        start, end = map(int, handler.headers["Range"].removeprefix("bytes=").split("-"))
        body = DATA[start : end + 1][:most]
        named = start if first is None else first
        handler.send_response(206)
        handler.send_header("Content-Length", str(len(body)))
        handler.send_header("Content-Range", f"bytes {named}-{named + len(body) - 1}/{len(DATA)}")
        handler.end_headers()
        handler.wfile.write(body[:sent])
        if sent is not None:
            # Not `cut`: after a reset the client may not get the bytes that were sent before.
            handler.wfile.flush()
            handler.connection.shutdown(socket.SHUT_WR)
            handler.close_connection = True
        return False

    return fault


def read(store: S3Storage, start: int = 1000, size: int = SIZE, etag: str = "e") -> bytes:
    buffer = bytearray(size)
    count = read_into(store, "a b/+", start, memoryview(buffer), condition=IfMatch(etag))
    return bytes(buffer[:count])


def test_range_is_asked_for_with_its_version_and_a_signature(
    server: FaultyS3, store: S3Storage
) -> None:
    server.faults.append(partial())

    assert read(store) == DATA[1000 : 1000 + SIZE]

    (seen,) = server.seen
    assert (seen.method, seen.path) == ("GET", "/bucket/root/a%20b/%2B")
    assert seen.headers["range"] == f"bytes=1000-{999 + SIZE}"
    assert seen.headers["if-match"] == '"e"'
    assert seen.headers["x-amz-security-token"] == "token"
    assert "Credential=key/" in seen.headers["authorization"]
    signed = seen.headers["authorization"].partition("SignedHeaders=")[2].partition(",")[0]
    assert {"host", "range", "if-match", "x-amz-date"} <= set(signed.split(";"))


def test_end_of_the_object_ends_the_range(server: FaultyS3, store: S3Storage) -> None:
    server.faults.append(partial())

    assert read(store, len(DATA) - 10) == DATA[-10:]


def test_broken_answer_is_continued_from_where_it_broke(server: FaultyS3, store: S3Storage) -> None:
    server.faults += [partial(sent=1234), partial()]

    assert read(store) == DATA[1000 : 1000 + SIZE]
    assert server.seen[1].headers["range"] == f"bytes=2234-{999 + SIZE}"


def test_rest_of_a_range_that_is_answered_in_part_is_asked_for(
    server: FaultyS3, store: S3Storage
) -> None:
    """RFC 9110 allows it. The object would be taken for shorter than it was listed, and damaged."""
    server.faults += [partial(most=1234), partial()]

    assert read(store) == DATA[1000 : 1000 + SIZE]
    assert server.seen[1].headers["range"] == f"bytes=2234-{999 + SIZE}"


def test_range_that_ends_before_it_begins_is_refused(server: FaultyS3, store: S3Storage) -> None:
    def fault(handler: Any) -> bool:  # noqa: ANN401 - the server's own
        handler.record(handler.read_body())
        handler.send_response(206)
        handler.send_header("Content-Length", "5")
        handler.send_header("Content-Range", "bytes 1000-998/5000")
        handler.end_headers()
        handler.wfile.write(b"12345")
        return False

    server.faults.append(fault)
    with pytest.raises(MalformedAnswerError, match="from byte 1000 on has the Content-Range"):
        read(store)
    assert len(server.seen) == 1


def test_chunked_answer_leaves_no_bytes_to_the_next_one(server: FaultyS3, store: S3Storage) -> None:
    def chunked(handler: Any) -> bool:  # noqa: ANN401 - the server's own
        handler.record(handler.read_body())
        handler.send_response(206)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.send_header("Content-Range", f"bytes 1000-{999 + SIZE}/{len(DATA)}")
        handler.end_headers()
        for at in range(1000, 1000 + SIZE, 70_001):
            piece = DATA[at : min(at + 70_001, 1000 + SIZE)]
            handler.wfile.write(b"%x\r\n" % len(piece) + piece + b"\r\n")
        handler.wfile.write(b"0\r\n\r\n")
        return False

    server.faults += [chunked, partial(), chunked, partial()]
    for _ in range(4):
        assert read(store) == DATA[1000 : 1000 + SIZE]


def test_connections_above_the_maximum_are_no_warnings(
    server: FaultyS3, caplog: pytest.LogCaptureFixture
) -> None:
    """Else each range of a busy endpoint would be a line of its log."""
    together = threading.Barrier(3)

    def slow(handler: Any) -> bool:  # noqa: ANN401 - the server's own
        together.wait(10)
        return partial()(handler)

    store = S3Storage(
        "bucket", "root", replace(_settings(server.url), max_connections=1, read_timeout=10)
    )
    server.faults += [slow] * 3
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda _: len(read(store)), range(3))) == [SIZE] * 3
    assert [record.message for record in caplog.records] == []
    store.close()


def test_each_range_is_signed_with_the_credentials_of_its_time(
    server: FaultyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a role expire while the endpoint runs."""
    tokens = iter(("first", "second"))
    monkeypatch.setattr(
        ChainCredentials,
        "__call__",
        lambda _: {"access_key_id": "key", "secret_access_key": "s", "token": next(tokens)},
    )
    store = S3Storage("bucket", "root", replace(_settings(server.url), credentials=None))
    server.faults += [partial(), partial()]
    read(store)
    read(store)
    assert [seen.headers["x-amz-security-token"] for seen in server.seen] == ["first", "second"]
    store.close()


def test_connection_is_used_again_after_a_whole_answer_only(
    server: FaultyS3, store: S3Storage
) -> None:
    ports: list[int] = []

    def noted(handler: Any) -> bool:  # noqa: ANN401 - the server's own
        ports.append(handler.client_address[1])
        return partial()(handler)

    server.faults += [noted] * 4
    read(store)
    read(store)
    with store.get_object_input_stream("k", 0, SIZE) as stream:
        assert stream.read(10) == DATA[:10]
    read(store)

    assert ports[0] == ports[1] == ports[2] != ports[3]


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (301, "PermanentRedirect", InvalidRequestError),
        (400, "ExpiredToken", AccessDeniedError),
        (403, "AccessDenied", AccessDeniedError),
        (404, "NoSuchKey", ObjectNotFoundError),
        (404, "NoSuchBucket", InvalidRequestError),
        (412, "PreconditionFailed", PreconditionFailedError),
        (500, "InternalError", StoreUnavailableError),
        (503, "SlowDown", StoreThrottledError),
    ],
)
def test_refusal_is_our_error(
    server: FaultyS3, store: S3Storage, status: int, code: str, kind: type[StorageError]
) -> None:
    # A precondition that fails is followed by a HEAD of the object, which is missing here.
    server.objects["root/a b/+"] = b""
    server.faults.append(faulty_s3.answer(status, code))

    with pytest.raises(kind, match="GetObject s3://bucket/root/a b/") as refused:
        read(store)

    assert type(refused.value) is kind


def test_answer_for_another_range_is_refused(server: FaultyS3, store: S3Storage) -> None:
    server.faults.append(partial(first=0))

    with pytest.raises(MalformedAnswerError, match="from byte 1000 on has the Content-Range"):
        read(store)


def test_whole_object_instead_of_a_range_is_refused(server: FaultyS3, store: S3Storage) -> None:
    server.objects["a b/+"] = server.objects["root/a b/+"] = DATA

    with pytest.raises(MalformedAnswerError, match="whole objects"):
        read(store)


def test_silent_store_is_a_timeout(server: FaultyS3, store: S3Storage) -> None:
    server.faults.append(faulty_s3.hang)

    with pytest.raises(StoreTimeoutError, match="GetObject"):
        read(store)


def test_missing_server_is_store_unavailable() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        store = S3Storage("b", "", _settings(f"http://127.0.0.1:{unused.getsockname()[1]}"))
        with pytest.raises(StoreUnavailableError, match="Connection refused"):
            read(store)


def test_missing_credentials_are_access_denied(
    server: FaultyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, "/nonexistent")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    store = S3Storage("bucket", "", replace(_settings(server.url), credentials=None))

    with pytest.raises(AccessDeniedError, match=r"set storage\.s3\.access_key_id"):
        read(store)
    assert server.seen == []


@pytest.mark.parametrize("is_bypassed", [True, False])
def test_proxy_of_the_environment_is_used(
    server: FaultyS3, store: S3Storage, monkeypatch: pytest.MonkeyPatch, *, is_bypassed: bool
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{unused.getsockname()[1]}")
        monkeypatch.setenv("no_proxy", "127.0.0.1" if is_bypassed else "")
        store = S3Storage("bucket", "root", _settings(server.url))
        server.faults.append(partial())
        if is_bypassed:
            assert read(store) == DATA[1000 : 1000 + SIZE]
        else:
            with pytest.raises(StoreUnavailableError, match="Connection refused"):
                read(store)
            assert server.seen == []


class ForwardProxy:
    """A proxy for plain requests and tunnels; runs while its context is entered."""

    def __init__(self) -> None:
        self.heads: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # ends `accept`
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += client.recv(1)
        self.heads.append(head.decode())
        method, target, _ = head.decode().split(" ", 2)
        url = urlsplit(target if "//" in target else f"//{target}")
        with client, socket.create_connection((str(url.hostname), url.port or 0)) as server:
            if method == "CONNECT":
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                server.sendall(head.replace(target.encode(), url.path.encode(), 1))
            back = threading.Thread(target=self._pipe, args=(server, client), daemon=True)
            back.start()
            self._pipe(client, server)
            back.join()

    def _pipe(self, here: socket.socket, there: socket.socket) -> None:
        with suppress(OSError):
            while data := here.recv(1 << 16):
                there.sendall(data)
            there.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_large_bodies_go_through_a_proxy_with_its_password(
    scheme: str, tls_identity: TlsIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = tls_identity.certificate if scheme == "https" else None
    with FaultyS3(certificate) as server, ForwardProxy() as proxy:
        monkeypatch.setenv(f"{scheme}_proxy", f"http://user:pass@127.0.0.1:{proxy.port}")
        monkeypatch.setenv("no_proxy", "")
        settings = replace(_settings(server.url), ca_bundle=tls_identity.authority, read_timeout=20)
        store = S3Storage("bucket", "root", settings)
        store.put_object("a b/+", BytesBody(DATA))
        server.faults.append(partial())
        assert read(store) == DATA[1000 : 1000 + SIZE]
        store.close()
    assert server.objects == {"root/a b/+": DATA}
    assert [head.split()[0] for head in proxy.heads] == (
        ["PUT"] if scheme == "http" else ["CONNECT"]
    )
    assert "proxy-authorization: basic dxnlcjpwyxnz" in proxy.heads[0].lower()


def test_boto3_is_not_loaded_for_a_segment(server: FaultyS3) -> None:
    """It takes 30 MB of a sidecar's memory."""
    code = f"""if True:
        import sys
        from sidetier.storage.bodies import BytesBody
        from sidetier.storage.s3 import S3Storage
        from sidetier.storage.settings import Credentials, S3Settings

        settings = S3Settings(
            endpoint_url={server.url!r},
            region="us-east-1",
            path_style=True,
            credentials=Credentials("key", "secret"),
        )
        store = S3Storage("bucket", "", settings)
        store.put_object("k", BytesBody(bytes(1 << 20)))
        store.head_object("k", with_checksum=True)
        assert not [name for name in sys.modules if name.startswith("boto")], sys.modules.keys()
    """
    subprocess.run([sys.executable, "-c", code], check=True)
    assert len(server.objects["k"]) == 1 << 20
