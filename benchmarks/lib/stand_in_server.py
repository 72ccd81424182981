"""A stand-in for an S3 server: it delays answers, counts requests, and discards data.

A separate script: `stand_in_server.py PORT DELAY_SECONDS`. It stores bodies up to 64 KiB, and only
the size of larger files of segments. It decides requests when it answers them, one after the other,
so conditional writes are as strict as on a real store. It checks neither signatures nor checksums.

`GET /-/counts` returns the requests since the last `POST /-/reset`; `POST /-/delay?SECONDS` changes
the delay; `POST /-/clear` removes all objects; `POST /-/objects` creates one for each line of its
body, a key and a size, without its bytes. These requests are neither counted nor delayed.
"""

import asyncio
import json
import sys
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from itertools import count
from urllib.parse import parse_qs, unquote
from xml.sax.saxutils import escape

_BUFFER_BYTES = 256 << 10
_KEPT_BYTES = 64 << 10
_SEGMENT_KINDS = ("log", "index", "timeindex")
_REASONS = {200: "OK", 204: "No Content", 206: "Partial Content", 404: "Not Found"}
_REASONS |= {412: "Precondition Failed", 416: "Range Not Satisfiable", 501: "Not Implemented"}


@dataclass(frozen=True, slots=True)
class _Stored:
    etag: str
    size: int
    data: bytes | None
    headers: dict[str, str]


@dataclass(slots=True)
class _Request:
    method: str
    path: str
    query: str
    headers: dict[str, str]
    size: int = 0
    kept: bytearray = field(default_factory=bytearray)

    @property
    def key(self) -> str:
        """Key without the bucket; empty for the bucket itself."""
        return unquote(self.path).lstrip("/").partition("/")[2]

    @property
    def is_control(self) -> bool:
        """Whether it is for the stand-in itself."""
        return self.path.startswith("/-/")

    @property
    def is_kept(self) -> bool:
        """Whether the body is kept."""
        return self.size <= _KEPT_BYTES or not self.path.endswith(_SEGMENT_KINDS)

    @property
    def kind(self) -> str:
        """Category for the counts: the method and the kind of object."""
        if self.method == "GET" and not self.key:
            return "list"
        name = self.key.rpartition("/")[2]
        suffix = name.rpartition(".")[2]
        return f"{self.method.lower()} {suffix if suffix in _SEGMENT_KINDS else name}"


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    size: int | None = None
    """Size that the answer to HEAD reports, without a body."""


class Objects:
    """The objects of all buckets together."""

    def __init__(self) -> None:
        self._objects: dict[str, _Stored] = {}
        self._sorted: list[str] = []
        self._etags = count(1)

    def clear(self) -> None:
        """Remove all objects."""
        self._objects.clear()
        self._sorted.clear()

    def create(self, lines: str) -> None:
        """Create an object of undefined bytes for each line: its key, a space and its size."""
        for line in lines.splitlines():
            key, _, size = line.rpartition(" ")
            self._objects[key] = _Stored(f'"{next(self._etags):032x}"', int(size), None, {})
        self._sorted = sorted(self._objects)

    def answer(self, request: _Request) -> _Answer:
        """Execute a request."""
        if not request.key:
            return self._list(request) if request.method == "GET" else _Answer(200)
        handlers: dict[str, Callable[[_Request], _Answer]] = {
            "PUT": self._put,
            "GET": self._get,
            "HEAD": self._head,
            "DELETE": self._delete,
        }
        handler = handlers.get(request.method)
        return handler(request) if handler else _Answer(501)

    def _put(self, request: _Request) -> _Answer:
        stored = self._objects.get(request.key)
        if not _condition_holds(request.headers, stored):
            missing = stored is None
            return _error(404, "NoSuchKey") if missing else _error(412, "PreconditionFailed")
        if "x-amz-copy-source" in request.headers or request.query:
            return _error(501, "NotImplemented")
        if stored is None:
            insort(self._sorted, request.key)
        etag = f'"{next(self._etags):032x}"'
        data = bytes(request.kept) if request.is_kept else None
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.startswith(("x-amz-meta-", "x-amz-checksum-"))
        }
        self._objects[request.key] = _Stored(etag, request.size, data, headers)
        return _Answer(200, headers={"ETag": etag})

    def _get(self, request: _Request) -> _Answer:
        stored = self._objects.get(request.key)
        if stored is None:
            return _error(404, "NoSuchKey")
        if stored.data is None:
            return _error(501, "NotKept")
        headers = _headers_of(stored)
        wanted = request.headers.get("range")
        if wanted is None:
            return _Answer(200, stored.data, headers)
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start, end = int(first), int(last) + 1 if last else stored.size
        if start >= stored.size:
            return _error(416, "InvalidRange")
        end = min(end, stored.size)
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{stored.size}"
        return _Answer(206, stored.data[start:end], headers)

    def _head(self, request: _Request) -> _Answer:
        stored = self._objects.get(request.key)
        if stored is None:
            return _Answer(404)
        return _Answer(200, headers=_headers_of(stored), size=stored.size)

    def _delete(self, request: _Request) -> _Answer:
        if self._objects.pop(request.key, None) is not None:
            self._sorted.remove(request.key)
        return _Answer(204)

    def _list(self, request: _Request) -> _Answer:
        query = {name: values[0] for name, values in parse_qs(request.query).items()}
        prefix, most = query.get("prefix", ""), int(query.get("max-keys", "1000"))
        delimiter = query.get("delimiter")
        after = query.get("continuation-token") or query.get("start-after", "")
        at = bisect_right(self._sorted, after) if after >= prefix else 0
        if after < prefix:
            at = bisect_right(self._sorted, prefix) - (prefix in self._objects)
        keys: list[str] = []
        folders: list[str] = []
        while at < len(self._sorted) and self._sorted[at].startswith(prefix):
            key = self._sorted[at]
            if len(keys) + len(folders) == most:
                return self._page(keys, folders, self._sorted[at - 1])
            end = key.find(delimiter, len(prefix)) if delimiter else -1
            if end < 0:
                keys.append(key)
                at += 1
            else:
                folders.append(key[: end + 1])
                at = bisect_right(self._sorted, f"{folders[-1]}\U0010ffff")
        return self._page(keys, folders, None)

    def _page(self, keys: list[str], folders: list[str], last: str | None) -> _Answer:
        return _page([(key, self._objects[key]) for key in keys], folders, last)


def _condition_holds(headers: dict[str, str], there: _Stored | None) -> bool:
    if "if-none-match" in headers:
        return there is None
    wanted = headers.get("if-match")
    return wanted is None or (there is not None and there.etag.strip('"') == wanted.strip('"'))


def _headers_of(stored: _Stored) -> dict[str, str]:
    moment = formatdate(1_800_000_000, usegmt=True)
    return {**stored.headers, "ETag": stored.etag, "Last-Modified": moment}


def _error(status: int, code: str) -> _Answer:
    return _Answer(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())


def _page(rows: list[tuple[str, _Stored]], folders: list[str], last: str | None) -> _Answer:
    contents = "".join(
        f"<Contents><Key>{escape(key)}</Key><Size>{row.size}</Size><ETag>{escape(row.etag)}</ETag>"
        "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
        for key, row in rows
    )
    contents += "".join(
        f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in folders
    )
    truncated = "<IsTruncated>false</IsTruncated>"
    if last is not None:
        token = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>"
        truncated = f"<IsTruncated>true</IsTruncated>{token}"
    text = f"<ListBucketResult><KeyCount>{len(rows)}</KeyCount>{truncated}{contents}"
    return _Answer(200, f"{text}</ListBucketResult>".encode(), {"Content-Type": "application/xml"})


class Server:
    """The store, its delay, and its counts."""

    def __init__(self, delay: float) -> None:
        self.objects = Objects()
        self.delay = delay
        self.counts: Counter[str] = Counter()
        self.body_bytes = 0

    def handle(self, request: _Request, send: Callable[[bytes], None]) -> None:
        """Answer a request after the delay."""
        if request.is_control:
            send(_encode(request, self._control(request)))
            return
        self.counts[request.kind] += 1
        later = asyncio.get_running_loop().call_later
        later(self.delay, lambda: send(_encode(request, self.objects.answer(request))))

    def _control(self, request: _Request) -> _Answer:
        match request.path:
            case "/-/counts":
                counts = {"requests": dict(self.counts), "body_bytes": self.body_bytes}
                return _Answer(200, json.dumps(counts).encode())
            case "/-/reset":
                self.counts.clear()
                self.body_bytes = 0
            case "/-/clear":
                self.objects.clear()
            case "/-/objects":
                self.objects.create(request.kept.decode())
            case "/-/delay":
                self.delay = float(request.query)
            case _:
                return _Answer(404)
        return _Answer(200)


def _encode(request: _Request, answer: _Answer) -> bytes:
    size = len(answer.body) if answer.size is None else answer.size
    lines = [f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}", f"Content-Length: {size}"]
    lines += [f"{name}: {value}" for name, value in answer.headers.items()]
    head = "\r\n".join([*lines, "", ""]).encode()
    return head if request.method == "HEAD" else head + answer.body


class _Connection(asyncio.BufferedProtocol):
    """HTTP/1.1 with Content-Length; one request at a time."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._view = memoryview(bytearray(_BUFFER_BYTES))
        self._head = bytearray()
        self._request: _Request | None = None
        self._left = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - for the type checker
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        data = self._view[:nbytes]
        while data:
            data = self._take_head(data) if self._request is None else self._take_body(data)

    def _take_head(self, data: memoryview) -> memoryview:
        before = len(self._head)
        self._head += data
        end = self._head.find(b"\r\n\r\n", max(0, before - 3))
        if end < 0:
            return data[:0]
        self._request = _parse(bytes(self._head[:end]))
        self._head.clear()
        self._left = self._request.size
        if self._left and self._request.headers.get("expect", "").lower() == "100-continue":
            self._send(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not self._left:
            self._done()
        return data[end + 4 - before :]

    def _take_body(self, data: memoryview) -> memoryview:
        part = data[: self._left]
        self._server.body_bytes += len(part)
        request = self._request
        if request is not None and request.is_kept:
            request.kept += part
        self._left -= len(part)
        if not self._left:
            self._done()
        return data[len(part) :]

    def _done(self) -> None:
        request, self._request = self._request, None
        if request is not None:
            self._server.handle(request, self._send)

    def _send(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


def _parse(head: bytes) -> _Request:
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ", 2)
    path, _, query = target.partition("?")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return _Request(method, path, query, headers, int(headers.get("content-length", "0")))


async def _serve(port: int, delay: float) -> None:
    server = Server(delay)
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(
        lambda: _Connection(server), "127.0.0.1", port, backlog=1024
    )
    async with listening:
        await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), float(sys.argv[2])))
