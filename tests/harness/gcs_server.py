"""An imitation of Google Cloud Storage's XML API, limited to what obstore's GCSStore uses.

No published emulator serves these requests: fake-gcs-server supports generation preconditions only
in the JSON API, and the storage testbench has no listings and deletes in the XML API.

The options of `obstore.store.GCSStore` (0.12.1) that work against it, as `GcsBucket` gives them:

    GCSStore(bucket, config={"base_url": "http://127.0.0.1:PORT", "bearer_token": TOKEN},
             client_options={"allow_http": True}, retry_config={"max_retries": 0})

Instead of `bearer_token`, a `credential_provider` that returns `{"token": ..., "expires_at": ...}`
works as well. So does `service_account_key` with the JSON `{"gcs_base_url": URL, "disable_oauth":
true, "client_email": "", "private_key": "", "private_key_id": ""}` (all five keys), which sends an
empty token: add "" to `GcsServer.tokens`. `skip_signature=True` alone does not work: obstore omits
the token from reads and listings only, and requests one from the metadata server of Google's
machines before each write. HTTPS needs `client_options={"root_certificate": pem_text}`.

Requests that obstore sends (recorded):

    put                    PUT /bucket/key  [x-goog-if-generation-match: 0, or a generation]
                           content-type, x-goog-meta-NAME, x-goog-storage-class
    get, head              GET or HEAD /bucket/key[?generation=N]  [range, if-match, if-none-match]
    list                   GET /bucket?list-type=2[&prefix][&start-after][&continuation-token]
    list_with_delimiter    the same with &delimiter=/
    delete                 DELETE /bucket/key, one per key
    copy                   PUT /bucket/key, x-goog-copy-source: bucket/source
                           [x-goog-if-generation-match: 0]
    put from a file        POST ?uploads=, PUT ?partNumber=N&uploadId=ID, POST ?uploadId=ID
    failed put from a file DELETE ?uploadId=ID

Bucket and key are percent-encoded in full (`/` is `%2F`). The server refuses any other header
`x-goog-*` or `if-*`, any other parameter and any other method with 501 NotImplemented, so that no
test passes because the server overlooked a condition. It also refuses If-Match with a write, where
Google Cloud Storage has no condition on ETags either.

Differences of Google Cloud Storage:

- It limits writes to one per second and object name, and answers further ones with 429 SlowDown.
- It has versions, retention, holds, lifecycle rules, soft delete, ACLs, encryption keys, JSON API,
  signed URLs, resumable uploads, and decompression of `Content-Encoding: gzip`. This server keeps
  the live generation only.
- It has permissions. Here a token in `GcsServer.tokens` may do everything. Another token is refused
  with 401 AuthenticationRequired, and a request without a token with 403 AccessDenied.
- Its generations are times in microseconds; here they are counters.
- Its uploads in parts ignore preconditions; here such a request is refused with 400.
- Its listings have more elements. Both have at most 1000 entries per page.
- Messages differ. Codes and statuses are those of the documentation
  (https://cloud.google.com/storage/docs/xml-api/reference-status).

For faults, put a proxy before it: `S3Proxy(server.port)` of `tests/harness/s3_proxy.py`.
"""

import base64
import hashlib
import itertools
import re
import ssl
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import formatdate
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from devtools.sandbox.s3server import TlsCertificate
from sidetier.segments.crc import crc32c
from sidetier.uploader.clock import SYSTEM_CLOCK
from tests.harness.misbehaving import MisbehavingHandler, MisbehavingServer

if TYPE_CHECKING:
    from obstore.store import ClientConfig, GCSConfig

PAGE = 1000
SMALLEST_PART = 5 * 1024 * 1024
_FIRST_GENERATION = 1_700_000_000_000_000
_GENERATION_MATCH = "x-goog-if-generation-match"
_KEPT = frozenset(
    {
        "cache-control",
        "content-disposition",
        "content-encoding",
        "content-language",
        "content-type",
        "x-goog-storage-class",
    }
)


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it arrived: header names in lower case, `key` empty for a bucket."""

    method: str
    bucket: str
    key: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Seen:
    """A request and the status of its answer."""

    request: Request
    status: int


@dataclass(frozen=True, slots=True)
class Answer:
    """A response. The answer to HEAD has the length, but not the body."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One live generation; `headers` are those of its write, names in lower case."""

    data: bytes
    headers: Mapping[str, str]
    etag: str
    hashes: str
    generation: int
    modified: float


@dataclass(slots=True)
class _Upload:
    bucket: str
    key: str
    headers: Mapping[str, str]
    parts: dict[int, tuple[str, bytes]] = field(default_factory=dict)


class _RefusedError(Exception):
    def __init__(self, status: int, code: str, details: str = "") -> None:
        super().__init__(code)
        self.status = status
        self.code = code
        self.details = details

    def answer(self) -> Answer:
        names = (("Code", self.code), ("Message", self.code), ("Details", self.details))
        return _xml("Error", _elements(names), self.status)


def _xml(root: str, inner: str, status: int = 200) -> Answer:
    text = f"<?xml version='1.0' encoding='UTF-8'?><{root}>{inner}</{root}>".encode()
    return Answer(status, {"content-type": "application/xml; charset=UTF-8"}, text)


class GcsServer(MisbehavingServer):
    """Runs while its context is entered, over HTTP or, with `certificate`, over HTTPS.

    Requests are served in parallel. A lock makes each comparison and the following write atomic.
    `tokens` may be changed at any time, so that credentials expire. `clock` returns the time of
    Last-Modified, in seconds since 1970.
    """

    def __init__(
        self,
        certificate: TlsCertificate | None = None,
        clock: Callable[[], float] = SYSTEM_CLOCK.wall,
    ) -> None:
        context = None
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate.certificate, certificate.key)
        super().__init__(_Handler, context)
        self.clock = clock
        self.token = f"token-{uuid.uuid4().hex[:10]}"
        self.tokens = {self.token}
        self.seen: list[Seen] = []
        self._buckets: dict[str, dict[str, StoredObject]] = {}
        self._uploads: dict[str, _Upload] = {}
        self._generations = itertools.count(_FIRST_GENERATION)
        self._lock = threading.Lock()

    def make_bucket(self, name: str) -> None:
        """Create a bucket, or leave an existing one unchanged."""
        with self._lock:
            self._buckets.setdefault(name, {})

    def objects(self, bucket: str) -> dict[str, StoredObject]:
        """Return a copy of the stored objects, by key."""
        with self._lock:
            return dict(self._buckets[bucket])

    def damage(self, bucket: str, key: str, data: bytes) -> None:
        """Replace the bytes under the same headers, ETag and generation, as a bad disk does."""
        with self._lock:
            stored = self._buckets[bucket]
            stored[key] = replace(stored[key], data=data)

    def uploads(self, bucket: str) -> list[str]:
        """Return the keys of uploads in parts that are neither complete nor aborted."""
        with self._lock:
            return sorted(its.key for its in self._uploads.values() if its.bucket == bucket)

    def answer(self, request: Request) -> Answer:
        """Serve a request; called from any thread."""
        try:
            self._admit(request)
            answer = self._serve(request)
        except _RefusedError as refused:
            answer = refused.answer()
        self.seen.append(Seen(request, answer.status))
        return answer

    def _admit(self, request: Request) -> None:
        authorization = request.headers.get("authorization")
        if authorization is None:
            raise _RefusedError(403, "AccessDenied", "Anonymous caller has no access.")
        scheme, _, token = authorization.partition(" ")
        if scheme != "Bearer" or token.strip() not in self.tokens:
            raise _RefusedError(401, "AuthenticationRequired")

    def _serve(self, request: Request) -> Answer:
        kind = "object" if request.key else "bucket"
        markers = ("uploads", "partNumber", "uploadId")
        marker = next((name for name in markers if name in request.query), "")
        if not marker and "x-goog-copy-source" in request.headers:
            marker = "copy"
        operation = _OPERATIONS.get((kind, request.method, marker))
        if operation is None:
            raise _RefusedError(501, "NotImplemented", f"{request.method} {request.query}")
        serve, parameters, headers = operation
        _refuse_unknown(request, parameters, headers)
        return serve(self, request)

    # One method for each operation. Hashes are computed outside the lock.

    def _create_bucket(self, request: Request) -> Answer:
        with self._lock:
            if request.bucket in self._buckets:
                raise _RefusedError(409, "BucketAlreadyOwnedByYou")
            self._buckets[request.bucket] = {}
        return Answer(200)

    def _head_bucket(self, request: Request) -> Answer:
        with self._lock:
            self._bucket(request)
        return Answer(200)

    def _delete_bucket(self, request: Request) -> Answer:
        with self._lock:
            if self._bucket(request):
                raise _RefusedError(409, "BucketNotEmpty")
            del self._buckets[request.bucket]
        return Answer(204)

    def _list(self, request: Request) -> Answer:
        if request.query.get("list-type") != "2":
            raise _RefusedError(501, "NotImplemented", "list-type")
        with self._lock:
            stored = dict(self._bucket(request))
        return _listing(request, stored)

    def _get(self, request: Request) -> Answer:
        with self._lock:
            stored = self._bucket(request).get(request.key)
        if stored is None or request.query.get("generation", str(stored.generation)) != str(
            stored.generation
        ):
            raise _RefusedError(404, "NoSuchKey")
        _check_generation(request, stored)
        headers = _headers_of(stored)
        if not _matches(request.headers.get("if-match", "*"), stored.etag):
            raise _RefusedError(412, "PreconditionFailed", "If-Match")
        if "if-none-match" in request.headers and _matches(
            request.headers["if-none-match"], stored.etag
        ):
            return Answer(304, {"etag": stored.etag})
        span = _range(request.headers.get("range", ""), len(stored.data))
        if span is None:
            return Answer(200, headers, stored.data)
        first, end = span
        headers["content-range"] = f"bytes {first}-{end - 1}/{len(stored.data)}"
        return Answer(206, headers, stored.data[first:end])

    def _put(self, request: Request) -> Answer:
        stored = self._made(request.body, request.headers)
        _check_digests(request, stored.hashes)
        return self._store(request, stored)

    def _copy(self, request: Request) -> Answer:
        if request.body:
            raise _RefusedError(400, "InvalidRequest", "The body of a copy must be empty.")
        source_path = unquote(request.headers["x-goog-copy-source"]).removeprefix("/")
        bucket, _, key = source_path.partition("/")
        with self._lock:
            source = self._buckets.get(bucket, {}).get(key)
            if bucket not in self._buckets:
                raise _RefusedError(404, "NoSuchBucket", bucket)
        if source is None:
            raise _RefusedError(404, "NoSuchKey", source_path)
        if (bucket, key) == (request.bucket, request.key):
            # The documentation requires x-goog-metadata-directive: REPLACE, which obstore does not
            # send.
            raise _RefusedError(400, "InvalidRequest", "A copy of an object to itself.")
        answer = self._store(request, self._made(source.data, source.headers))
        inner = f"<ETag>{escape(answer.headers['etag'])}</ETag>"
        return Answer(200, answer.headers, _xml("CopyObjectResult", inner).body)

    def _delete(self, request: Request) -> Answer:
        with self._lock:
            bucket = self._bucket(request)
            if request.key not in bucket:
                raise _RefusedError(404, "NoSuchKey")
            _check_generation(request, bucket[request.key])
            del bucket[request.key]
        return Answer(204)

    def _begin_upload(self, request: Request) -> Answer:
        # An id with "/" and "+" shows whether a client encodes it.
        upload_id = f"{uuid.uuid4().hex}/+"
        with self._lock:
            self._bucket(request)
            upload = _Upload(request.bucket, request.key, _kept(request.headers))
            self._uploads[upload_id] = upload
        names = (("Bucket", request.bucket), ("Key", request.key), ("UploadId", upload_id))
        return _xml("InitiateMultipartUploadResult", _elements(names))

    def _put_part(self, request: Request) -> Answer:
        etag = f'"{hashlib.md5(request.body).hexdigest()}"'  # noqa: S324 - an ETag
        number = int(request.query["partNumber"])
        with self._lock:
            self._upload(request).parts[number] = (etag, request.body)
        return Answer(200, {"etag": etag, "x-goog-hash": _crc(request.body)})

    def _complete_upload(self, request: Request) -> Answer:
        named = _named_parts(request.body)
        with self._lock:
            upload = self._upload(request)
            data = _assembled(named, upload.parts)
            del self._uploads[request.query["uploadId"]]
        stored = self._made(data, upload.headers)
        # The result of an upload in parts has no MD5, and its ETag is no MD5 either.
        etag = f'"{stored.etag[1:-1]}-{len(named)}"'
        answer = self._store(request, replace(stored, etag=etag, hashes=_crc(data)))
        names = (("Bucket", request.bucket), ("Key", request.key), ("ETag", etag))
        result = _xml("CompleteMultipartUploadResult", _elements(names))
        return Answer(200, answer.headers, result.body)

    def _abort_upload(self, request: Request) -> Answer:
        with self._lock:
            self._upload(request)
            del self._uploads[request.query["uploadId"]]
        return Answer(204)

    def _bucket(self, request: Request) -> dict[str, StoredObject]:
        bucket = self._buckets.get(request.bucket)
        if bucket is None:
            raise _RefusedError(404, "NoSuchBucket", request.bucket)
        return bucket

    def _upload(self, request: Request) -> _Upload:
        self._bucket(request)
        upload = self._uploads.get(request.query["uploadId"])
        if upload is None or (upload.bucket, upload.key) != (request.bucket, request.key):
            raise _RefusedError(404, "NoSuchUpload")
        return upload

    def _made(self, data: bytes, headers: Mapping[str, str]) -> StoredObject:
        """Return an object without a generation, which `_store` sets."""
        digest = hashlib.md5(data)  # noqa: S324 - Google's choice
        hashes = f"{_crc(data)},md5={base64.b64encode(digest.digest()).decode()}"
        etag = f'"{digest.hexdigest()}"'
        return StoredObject(data, _kept(headers), etag, hashes, 0, self.clock())

    def _store(self, request: Request, made: StoredObject) -> Answer:
        """Compare and write in one step: the atomicity that conditional puts rely on."""
        with self._lock:
            bucket = self._bucket(request)
            _check_generation(request, bucket.get(request.key))
            generation = next(self._generations)
            bucket[request.key] = replace(made, generation=generation)
        headers = {"etag": made.etag, "x-goog-generation": str(generation)}
        return Answer(200, {**headers, "x-goog-metageneration": "1", "x-goog-hash": made.hashes})


class _Handler(MisbehavingHandler):
    # Send headers and body in one packet, without a wait for an acknowledgement in between.
    wbufsize = 1 << 16
    disable_nagle_algorithm = True

    @property
    def owner(self) -> GcsServer:
        owner: GcsServer = self.server.owner  # type: ignore[attr-defined]
        return owner

    def serve(self) -> None:
        body = self.read_body()
        url = urlsplit(self.path)
        # Split the path before decoding it: a bucket's name ends at the first unencoded slash.
        bucket, _, key = url.path.removeprefix("/").partition("/")
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, unquote(bucket), unquote(key), query, headers, body)
        answer = self.owner.answer(request)
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.status not in {204, 304}:
            self.send_header("content-length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)


_Operation = tuple[Callable[[GcsServer, Request], Answer], frozenset[str], frozenset[str]]
"""Handlers of requests, with the parameters and conditions that each supports."""

_LIST_PARAMETERS = frozenset(
    {"list-type", "prefix", "delimiter", "start-after", "continuation-token", "max-keys"}
)
_CONDITION = frozenset({_GENERATION_MATCH})
_NONE: frozenset[str] = frozenset()
_OPERATIONS: dict[tuple[str, str, str], _Operation] = {
    ("bucket", "PUT", ""): (GcsServer._create_bucket, _NONE, _NONE),
    ("bucket", "HEAD", ""): (GcsServer._head_bucket, _NONE, _NONE),
    ("bucket", "DELETE", ""): (GcsServer._delete_bucket, _NONE, _NONE),
    ("bucket", "GET", ""): (GcsServer._list, _LIST_PARAMETERS, _NONE),
    **{
        ("object", method, ""): (
            GcsServer._get,
            frozenset({"generation"}),
            _CONDITION | {"if-match", "if-none-match"},
        )
        for method in ("GET", "HEAD")
    },
    ("object", "PUT", ""): (GcsServer._put, _NONE, _CONDITION | {"x-goog-hash"}),
    ("object", "PUT", "copy"): (GcsServer._copy, _NONE, _CONDITION | {"x-goog-copy-source"}),
    ("object", "DELETE", ""): (GcsServer._delete, _NONE, _CONDITION),
    ("object", "POST", "uploads"): (GcsServer._begin_upload, frozenset({"uploads"}), _NONE),
    ("object", "PUT", "partNumber"): (
        GcsServer._put_part,
        frozenset({"partNumber", "uploadId"}),
        _NONE,
    ),
    ("object", "POST", "uploadId"): (GcsServer._complete_upload, frozenset({"uploadId"}), _NONE),
    ("object", "DELETE", "uploadId"): (GcsServer._abort_upload, frozenset({"uploadId"}), _NONE),
}


def _refuse_unknown(request: Request, parameters: frozenset[str], headers: frozenset[str]) -> None:
    for name in request.query:
        if name not in parameters:
            raise _RefusedError(501, "NotImplemented", f"the parameter {name}")
    for name in request.headers:
        if not name.startswith(("x-goog-", "if-")) or name in headers:
            continue
        if name.startswith("x-goog-meta-") or name == "x-goog-storage-class":
            continue
        if name in _CONDITION:
            raise _RefusedError(400, "InvalidRequest", f"{name} in an upload in parts")
        raise _RefusedError(501, "NotImplemented", f"the header {name}")


def _check_generation(request: Request, found: StoredObject | None) -> None:
    """Refuse unless the live generation is the expected one; 0 means that no object exists."""
    wanted = request.headers.get(_GENERATION_MATCH)
    if wanted is None:
        return
    if not wanted.isdecimal():
        raise _RefusedError(400, "InvalidArgument", _GENERATION_MATCH)
    if int(wanted) != (0 if found is None else found.generation):
        raise _RefusedError(412, "PreconditionFailed", _GENERATION_MATCH)


def _check_digests(request: Request, hashes: str) -> None:
    """Refuse a body that does not match the digest in its request."""
    digests = [part.strip() for part in request.headers.get("x-goog-hash", "").split(",")]
    if "content-md5" in request.headers:
        digests.append(f"md5={request.headers['content-md5']}")
    if not set(filter(None, digests)) <= set(hashes.split(",")):
        raise _RefusedError(400, "BadDigest")


def _matches(condition: str, etag: str) -> bool:
    return condition == "*" or etag in {part.strip() for part in condition.split(",")}


def _range(header: str, size: int) -> tuple[int, int] | None:
    """Return the requested bytes as first and end, end exclusive; None for all bytes.

    A header in another form than `bytes=a-b`, `bytes=a-` or `bytes=-n` is ignored, as HTTP
    requires.
    """
    matched = re.fullmatch(r"bytes=(\d*)-(\d*)", header)
    if matched is None or matched[0] == "bytes=-":
        return None
    if matched[1] == "":
        begin, end = max(0, size - int(matched[2])), size
    else:
        begin, end = int(matched[1]), min(size, int(matched[2] or size - 1) + 1)
    if begin >= end:
        raise _RefusedError(416, "InvalidRange")
    return begin, end


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in headers.items()
        if name in _KEPT or name.startswith("x-goog-meta-")
    }


def _headers_of(found: StoredObject) -> dict[str, str]:
    return {
        "x-goog-storage-class": "STANDARD",
        "content-type": "binary/octet-stream",
        **found.headers,
        "etag": found.etag,
        "last-modified": formatdate(found.modified, usegmt=True),
        "accept-ranges": "bytes",
        "x-goog-generation": str(found.generation),
        "x-goog-metageneration": "1",
        "x-goog-hash": found.hashes,
        "x-goog-stored-content-encoding": found.headers.get("content-encoding", "identity"),
        "x-goog-stored-content-length": str(len(found.data)),
    }


def _crc(data: bytes) -> str:
    return f"crc32c={base64.b64encode(crc32c(data).to_bytes(4, 'big')).decode()}"


def _elements(pairs: Iterable[tuple[str, object]]) -> str:
    return "".join(f"<{name}>{escape(str(value))}</{name}>" for name, value in pairs)


def _named_parts(body: bytes) -> list[tuple[int, str]]:
    try:
        root = ET.fromstring(body)  # noqa: S314 - sent by our own client
        parts = [
            (int(part.findtext("PartNumber", "")), part.findtext("ETag", ""))
            for part in root.findall("Part")
        ]
    except (ET.ParseError, ValueError) as error:
        raise _RefusedError(400, "MalformedCompleteMultipartUploadRequest") from error
    if not parts:
        raise _RefusedError(400, "MalformedCompleteMultipartUploadRequest")
    return parts


def _assembled(named: list[tuple[int, str]], parts: Mapping[int, tuple[str, bytes]]) -> bytes:
    if [number for number, _ in named] != sorted({number for number, _ in named}):
        raise _RefusedError(400, "InvalidPartOrder")
    for number, etag in named:
        if number not in parts or parts[number][0].strip('"') != etag.strip('"'):
            raise _RefusedError(400, "InvalidPart", str(number))
    pieces = [parts[number][1] for number, _ in named]
    if any(len(piece) < SMALLEST_PART for piece in pieces[:-1]):
        raise _RefusedError(400, "EntityTooSmall")
    return b"".join(pieces)


def _listing(request: Request, stored: Mapping[str, StoredObject]) -> Answer:
    """Return one page in the byte order of names; names below a delimiter form a common prefix."""
    query = request.query
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    room = min(int(query.get("max-keys", PAGE)), PAGE)
    # A token is the last name or common prefix of the previous page, in a private encoding.
    token = bytes.fromhex(query.get("continuation-token", "")).decode()
    after = max(token, query.get("start-after", ""), key=str.encode)
    entries: dict[str, StoredObject | None] = {}
    truncated = False
    for key in sorted((key for key in stored if key.startswith(prefix)), key=str.encode):
        cut = key.find(delimiter, len(prefix)) if delimiter else -1
        name = key if cut < 0 else key[: cut + len(delimiter)]
        if name.encode() <= after.encode() or name in entries:
            continue
        if len(entries) == room:
            truncated = True
            break
        entries[name] = stored[key] if cut < 0 else None
    head: list[tuple[str, object]] = [("Name", request.bucket), ("Prefix", prefix)]
    head += [("KeyCount", len(entries)), ("MaxKeys", room)]
    head.append(("IsTruncated", str(truncated).lower()))
    if truncated:
        head.append(("NextContinuationToken", next(reversed(entries)).encode().hex()))
    inner = _elements(head)
    for name, entry in entries.items():
        if entry is None:
            inner += f"<CommonPrefixes>{_elements([('Prefix', name)])}</CommonPrefixes>"
        else:
            inner += f"<Contents>{_elements(_entry(name, entry))}</Contents>"
    return _xml("ListBucketResult", inner)


def _entry(name: str, found: StoredObject) -> list[tuple[str, object]]:
    modified = datetime.fromtimestamp(found.modified, UTC).isoformat(timespec="milliseconds")
    return [
        ("Key", name),
        ("Generation", found.generation),
        ("MetaGeneration", 1),
        ("LastModified", modified.replace("+00:00", "Z")),
        ("ETag", found.etag),
        ("Size", len(found.data)),
    ]


@dataclass(frozen=True, slots=True)
class GcsBucket:
    """A bucket, its server, and the certificate authority (a PEM file) of a server with HTTPS."""

    server: GcsServer
    name: str
    authority: Path | None = None

    @property
    def config(self) -> "GCSConfig":
        """Endpoint and token, as `config` of GCSStore."""
        return {"base_url": self.server.url, "bearer_token": self.server.token}

    @property
    def client_options(self) -> "ClientConfig":
        """`client_options` of GCSStore: permission for plain HTTP, or the authority to trust."""
        if self.authority is None:
            return {"allow_http": True}
        return {"root_certificate": self.authority.read_text()}


def new_gcs_bucket(server: GcsServer, authority: Path | None = None) -> GcsBucket:
    """Create a bucket with a unique name."""
    name = f"bucket-{uuid.uuid4().hex[:10]}"
    server.make_bucket(name)
    return GcsBucket(server, name, authority)
