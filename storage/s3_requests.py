"""Requests to an S3 bucket with large bodies in both directions, and for the store's own checksum.

obstore collects a body in buffers of its own, hands them from its threads to Python's, and leaves
the copy to us. Here the kernel copies the bytes of a range from the socket to their final place,
which takes a third of the CPU time (benchmarks/RESULTS.md, "Serving the archive"), and the bytes of
a file to the socket. urllib3 keeps the connections, awscrt signs the requests.
"""

import hashlib
import io
import logging
import os
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final
from urllib.parse import SplitResult, quote, urlencode, urlsplit, urlunsplit
from urllib.request import getproxies_environment, proxy_bypass

import urllib3
from awscrt import auth, http  # type: ignore[import-untyped]  # awscrt ships no types
from urllib3 import exceptions as urllib3_errors
from urllib3.connection import HTTPConnection
from urllib3.util import Url, parse_url
from urllib3.util.ssl_ import create_urllib3_context

from sidetier import __version__
from sidetier.segments.errors import (
    ConfigurationError,
    InvalidRequestError,
    MalformedAnswerError,
    StorageError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from sidetier.storage.attempt import AttemptStream, DeadlinePassedError
from sidetier.storage.checksums import from_base64, to_base64
from sidetier.storage.object_classes import keeps_default_class, with_class_tag
from sidetier.storage.object_errors import (
    BY_CODE,
    by_status,
    code_of,
    fields_of,
    refusal_text,
)
from sidetier.storage.object_store import bare_etag, quoted_etag
from sidetier.storage.port import (
    Checksum,
    ChecksumAlgorithm,
    Condition,
    IfAbsent,
    ObjectHead,
    PutOptions,
)
from sidetier.storage.s3_chain import BucketAddress, ChainCredentials
from sidetier.storage.s3_connection import PlainPool, TlsPool
from sidetier.storage.settings import SEND_PIECE, SMALL_BODY, AttemptDeadline, S3Settings

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_BUFFER: Final = 64 * 1024
_MAX_ERROR_BYTES: Final = 64 * 1024
_KEEPALIVE: Final = (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
_OK: Final = 200
_PARTIAL: Final = 206
_PAST_THE_END: Final = 416
_REDIRECTS: Final = range(300, 400)
_NOT_MODIFIED: Final = 304
_METADATA: Final = "x-amz-meta-"
_CONTENT_RANGE: Final = re.compile(r"bytes (?P<first>[0-9]+)-(?P<last>[0-9]+)/(?P<total>[0-9]+|\*)")


class S3Requests:
    """Signed requests to one bucket, each tried once. Thread-safe.

    Proxies come from the environment (`HTTPS_PROXY`, `NO_PROXY`).

    Args:
        address: Network address of the bucket.
        bucket: Name of the bucket.
        settings: Settings of the bucket.
        deadline: Deadline of each attempt.
        chain: AWS credential chain; None if the settings contain the credentials.

    Raises:
        ConfigurationError: The environment names a proxy that is not a URL.
    """

    def __init__(
        self,
        address: BucketAddress,
        bucket: str,
        settings: S3Settings,
        deadline: AttemptDeadline,
        chain: ChainCredentials | None,
    ) -> None:
        url = urlsplit(address.endpoint)
        self._host = url.netloc
        self._path = f"{url.path}/" if address.in_host else f"{url.path}/{bucket}/"
        self._region = address.region
        self._settings = settings
        self._deadline = deadline
        self._chain = chain
        self._proxy = _proxy(url)
        self._pool = _pool(url, self._proxy, settings, deadline)
        # A proxy without a tunnel needs the whole URL.
        whole = self._proxy is not None and url.scheme == "http"
        self._prefix = f"{url.scheme}://{url.netloc}" if whole else ""
        # Else it logs a warning for each connection above `maxsize`, when it closes it after use.
        logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)

    def get(self, path: str, start: int, end: int, etag: str | None, where: str) -> BinaryIO:
        """Return a stream over a range of an object; it is empty if the object ends before it.

        Args:
            path: Key of the object in the bucket.
            start: First byte.
            end: End of the range, exclusive.
            etag: Quoted etag that the object must have; None for any.
            where: Operation and object, for error messages.

        Raises:
            StorageError: The errors of `RemoteStorage.get_object_input_stream`. Reads of the stream
                raise a transient error if the response breaks off.
        """
        headers = {"Range": f"bytes={start}-{end - 1}"}
        if etag is not None:
            headers["If-Match"] = etag
        response = self._ask("GET", self._target(path), headers, where)
        if response.status == _PARTIAL:
            return _stream(response, start, end, where)
        if response.status == _PAST_THE_END:
            response.drain_conn()
            response.release_conn()
            return io.BytesIO()
        if _accepted(response, where):
            raise MalformedAnswerError(f"{where}: the store sends whole objects instead of ranges")
        return io.BytesIO()  # the object is empty, so it has no range

    def head(self, path: str, headers: Mapping[str, str], where: str) -> Mapping[str, str]:
        """Return the headers of an object, by their names in lower case; arguments as of `get`.

        Raises:
            StorageError: As `RemoteStorage.head_object`.
        """
        response = self._ask("HEAD", self._target(path), headers, where)
        _accepted(response, where)
        return {name.lower(): value for name, value in response.headers.items()}

    def put(
        self,
        path: str,
        window: tuple[BinaryIO, int, int],
        headers: Mapping[str, str],
        where: str,
        query: str = "",
    ) -> str:
        """Send a part of a body, with its checksum among the headers; return the etag as sent.

        Args:
            path: Key of the object in the bucket.
            window: The body's stream, the first byte to send, and the number of bytes.
            headers: Headers to sign and send.
            where: Operation and object, for error messages.
            query: Encoded query of the request.

        Raises:
            StoreTimeoutError: The attempt's deadline passed.
            StorageError: The store refused or failed.
            Exception: The body's own error, unchanged.
        """
        raw, start, size = window
        raw.seek(start)
        content = auth.AwsSignedBodyValue.UNSIGNED_PAYLOAD
        if self._settings.sign_payload:
            content = _sha256(raw, size)
            raw.seek(start)
        stream = AttemptStream(raw, size, self._deadline.seconds(size), start=start)
        sent = {**headers, "Content-Length": str(size)}
        if size > SMALL_BODY:
            sent["Expect"] = "100-continue"
        try:
            response = self._ask("PUT", self._target(path, query), sent, where, stream, content)
        except Exception as error:
            # The body's error, not one of the connection: a bad disk
            # must not count as a store that does not respond.
            if stream.failure is None:
                raise
            if isinstance(stream.failure, DeadlinePassedError):
                text = f"{where}: not sent before the attempt's deadline"
                raise StoreTimeoutError(text) from error
            raise stream.failure from error
        _accepted(response, where)
        etag = response.headers.get("ETag")
        if etag is None:
            raise MalformedAnswerError(f"{where}: the store's answer has no ETag")
        return etag

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._pool.close()

    def _target(self, path: str, query: str = "") -> str:
        return self._path + quote(path, safe="/-_.~") + (query and f"?{query}")

    def _ask(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        where: str,
        body: AttemptStream | None = None,
        content: str = auth.AwsSignedBodyValue.EMPTY_SHA256,
    ) -> urllib3.BaseHTTPResponse:
        """Send a request; return the response, of whose body nothing is read."""
        sent = {"Host": self._host, "User-Agent": f"sidetier/{__version__}", **headers}
        sent = self._signed(method, target, sent, content, where)
        if self._prefix and self._proxy is not None and self._proxy.auth:
            sent |= urllib3.make_headers(proxy_basic_auth=self._proxy.auth)
        with _translated(where):
            return self._pool.urlopen(
                method,
                self._prefix + target,
                # A tuple: urllib3 passes its items unchanged to `send` of the connection.
                body=None if body is None else (body,),  # type: ignore[arg-type]
                headers=sent,
                retries=False,
                redirect=False,
                assert_same_host=False,
                preload_content=False,
                decode_content=False,
            )

    def _signed(
        self, method: str, target: str, headers: dict[str, str], content: str, where: str
    ) -> dict[str, str]:
        config = auth.AwsSigningConfig(
            algorithm=auth.AwsSigningAlgorithm.V4,
            signature_type=auth.AwsSignatureType.HTTP_REQUEST_HEADERS,
            credentials_provider=self._credentials(where),
            region=self._region,
            service="s3",
            use_double_uri_encode=False,
            should_normalize_uri_path=False,
            signed_body_value=content,
            signed_body_header_type=auth.AwsSignedBodyHeaderType.X_AMZ_CONTENT_SHA_256,
        )
        request = http.HttpRequest(method, target, http.HttpHeaders(list(headers.items())))
        auth.aws_sign_request(request, config).result()
        return dict(request.headers)

    def _credentials(self, where: str) -> Any:  # noqa: ANN401 - awscrt has no types
        keys = self._settings.credentials
        if keys is not None:
            names = keys.access_key_id, keys.secret_access_key, keys.session_token
        else:
            assert self._chain is not None  # noqa: S101 - for mypy: one of both is given
            try:
                found = self._chain()
            except Exception as error:
                from sidetier.storage.boto_errors import failure  # noqa: PLC0415 -- botocore is heavy

                raise failure(where, error) from error
            names = found["access_key_id"], found["secret_access_key"], found.get("token")
        return auth.AwsCredentialsProvider.new_static(*names)


def new_object_headers(settings: S3Settings, key: str) -> dict[str, str]:
    """Return the headers of a new object besides its metadata: encryption, storage class, tags."""
    tags = with_class_tag(dict(settings.tags), key, tagged=settings.class_tag)
    has_class = not keeps_default_class(key, settings.default_class_names)
    headers = {
        "x-amz-server-side-encryption": settings.sse,
        "x-amz-server-side-encryption-aws-kms-key-id": settings.sse_kms_key_id,
        "x-amz-storage-class": settings.storage_class if has_class else None,
        "x-amz-tagging": urlencode(tags) if tags else None,
    }
    return {name: value for name, value in headers.items() if value is not None}


def put_headers(settings: S3Settings, key: str, options: PutOptions) -> dict[str, str]:
    """Return the headers of a put of a whole object."""
    return {
        **new_object_headers(settings, key),
        **{f"{_METADATA}{name}": value for name, value in options.metadata.items()},
        **checksum_header(options.checksum),
        **condition_header(options.condition),
    }


def checksum_header(checksum: Checksum | None) -> dict[str, str]:
    """Return the header with which a store checks the bytes of a request; empty without one."""
    return {} if checksum is None else {_checksum_name(checksum.algorithm): to_base64(checksum)}


def condition_header(condition: Condition | None) -> dict[str, str]:
    """Return the header of a conditional write; empty without a condition."""
    if condition is None:
        return {}
    if isinstance(condition, IfAbsent):
        return {"If-None-Match": "*"}
    return {"If-Match": quoted_etag(condition.etag)}


def head_of(key: str, headers: Mapping[str, str], where: str) -> ObjectHead:
    """Return the head with the metadata as stored, and the store's own checksum.

    Args:
        key: Key of the object.
        headers: Headers of the answer, by their names in lower case.
        where: Operation and object, for error messages.

    Raises:
        MalformedAnswerError: A header is missing or unreadable.
    """
    checksums = (
        from_base64(algorithm, headers.get(_checksum_name(algorithm)))
        for algorithm in ChecksumAlgorithm
    )
    try:
        return ObjectHead(
            key=key,
            size=int(headers["content-length"]),
            etag=bare_etag(headers["etag"]),
            modified_ms=round(parsedate_to_datetime(headers["last-modified"]).timestamp() * 1000),
            metadata={
                name.removeprefix(_METADATA): value
                for name, value in headers.items()
                if name.startswith(_METADATA)
            },
            own_checksum=next((checksum for checksum in checksums if checksum), None),
        )
    except (LookupError, ValueError) as error:
        raise MalformedAnswerError(
            f"{where}: the store's answer is not an answer of S3: {type(error).__name__}: {error}"
        ) from error


def _checksum_name(algorithm: ChecksumAlgorithm) -> str:
    return f"x-amz-checksum-{algorithm.value.lower()}"


def _sha256(stream: BinaryIO, size: int) -> str:
    digest = hashlib.sha256()
    while size and (data := stream.read(min(size, SEND_PIECE))):
        digest.update(data)
        size -= len(data)
    return digest.hexdigest()


def _proxy(url: SplitResult) -> Url | None:
    """Return the proxy that the environment names for a URL."""
    proxies = getproxies_environment()
    named = proxies.get(url.scheme) or proxies.get("all")
    if not named or proxy_bypass(url.netloc):
        return None
    try:
        return parse_url(named if "//" in named else f"http://{named}")
    except urllib3_errors.LocationParseError as error:
        raise ConfigurationError(f"the environment's proxy is not a URL: {error}") from error


def _pool(
    url: SplitResult, proxy: Url | None, settings: S3Settings, deadline: AttemptDeadline
) -> urllib3.HTTPConnectionPool:
    options: dict[str, Any] = {
        "maxsize": settings.max_connections,
        "timeout": urllib3.Timeout(connect=deadline.connect, read=settings.read_timeout),
        "socket_options": [*HTTPConnection.default_socket_options, _KEEPALIVE],
    }
    if url.scheme == "https":
        options["ssl_context"] = _tls_context(settings)
    manager = (
        urllib3.PoolManager(**options)
        if proxy is None
        else urllib3.ProxyManager(
            proxy.url,
            proxy_headers=urllib3.make_headers(proxy_basic_auth=proxy.auth) if proxy.auth else None,
            **options,
        )
    )
    manager.pool_classes_by_scheme = {"http": PlainPool, "https": TlsPool}
    return manager.connection_from_url(urlunsplit(url))


def _tls_context(settings: S3Settings) -> ssl.SSLContext:
    """Return a context that trusts the CAs which obstore and boto3 trust with the same settings."""
    context = create_urllib3_context()
    bundle = settings.ca_bundle or os.environ.get("AWS_CA_BUNDLE")
    if bundle is not None:
        context.load_verify_locations(bundle)
        return context
    context.load_default_certs()  # the system's, as obstore
    package = find_spec("botocore")
    assert package is not None  # noqa: S101 - for mypy: it is a dependency
    assert package.origin is not None  # noqa: S101 - for mypy
    context.load_verify_locations(Path(package.origin).with_name("cacert.pem"))
    return context


def _stream(response: urllib3.BaseHTTPResponse, start: int, end: int, where: str) -> BinaryIO:
    """Return a stream over the body of a partial response to a request for [start, end)."""
    text = response.headers.get("Content-Range", "")
    named = _CONTENT_RANGE.fullmatch(text)
    if named is None or int(named["first"]) != start or int(named["last"]) < start:
        response.close()
        raise MalformedAnswerError(
            f"{where}: the answer to a range from byte {start} on has the Content-Range {text!r}"
        )
    behind = int(named["last"]) + 1
    total = behind if named["total"] == "*" else int(named["total"])
    # A server may send less than it was asked for (RFC 9110, 15.3.7). Only `total` shows whether
    # the object ends there.
    lacking = max(min(end, total) - behind, 0)
    return io.BufferedReader(_Body(response, behind - start, lacking, where), _BUFFER)


class _Body(io.RawIOBase):
    """Body of a response as a raw, forward-only stream.

    Args:
        response: The response.
        size: Number of bytes of the body.
        lacking: Number of bytes of the range that the object has after this body.
        where: Operation and object, for error messages.
    """

    def __init__(
        self, response: urllib3.BaseHTTPResponse, size: int, lacking: int, where: str
    ) -> None:
        super().__init__()
        self._response = response
        # The response of http.client: urllib3's `readinto` reads into new memory, and copies.
        self._inner: Any = response._fp  # type: ignore[attr-defined]  # noqa: SLF001
        # One read of the socket each: bytes that came before the connection broke are not lost.
        # http.client itself reads until the buffer is full, which is needed for a chunked body.
        self._read = self._inner.readinto if self._inner.chunked else self._inner.fp.readinto1
        self._left = size
        self._lacking = lacking
        self._where = where

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        if not self._left:
            if self._lacking:
                raise StoreUnavailableError(
                    f"{self._where}: the answer has {self._lacking} bytes less than the range"
                )
            return 0
        view = memoryview(buffer)[: self._left]
        with _translated(self._where):
            count: int = self._read(view)
        self._left -= count
        if not count:
            raise StoreUnavailableError(f"{self._where}: the answer ended {self._left} bytes early")
        if not self._left:
            self._inner.close()  # so that http.client allows the next request
            self._response.release_conn()
        return count

    def close(self) -> None:
        if self._left and not self.closed:
            self._response.close()  # the rest of the body is still to come on this connection
        super().close()


def _accepted(response: urllib3.BaseHTTPResponse, where: str) -> str:
    """Return the beginning of the body of a whole answer.

    Raises:
        StorageError: The store has refused the request.
    """
    with _translated(where):
        text = response.read(_MAX_ERROR_BYTES).decode(errors="replace")
    response.close()
    status = response.status
    if status == _OK:
        return text
    if status in _REDIRECTS and status != _NOT_MODIFIED:
        raise InvalidRequestError(f"{where}: set the bucket's own region (storage.s3.region)")
    code = code_of(text)
    kind = BY_CODE.get(code) or by_status(status, code)
    raise kind(refusal_text(where, status, fields_of(text)))


@contextmanager
def _translated(where: str) -> Iterator[None]:
    """Raise the errors of a connection as ours."""
    try:
        yield
    except (urllib3_errors.HTTPError, HTTPException, OSError) as error:
        raise _failure(where, error) from error


def _failure(where: str, error: Exception) -> StorageError:
    text = f"{where}: {type(error).__name__}: {error}"
    # urllib3 wraps a socket that accepts no more bytes as a broken connection.
    causes = (error, *error.args)
    # It also counts a refused connection among the timeouts.
    if not any(isinstance(cause, urllib3_errors.NewConnectionError) for cause in causes) and any(
        isinstance(cause, urllib3_errors.TimeoutError | TimeoutError) for cause in causes
    ):
        return StoreTimeoutError(text)
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes):
        return InvalidRequestError(f"{text}: give the store's CA as ca_bundle")
    return StoreUnavailableError(text)
