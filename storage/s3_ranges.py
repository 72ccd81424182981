"""Ranged GETs of an S3 bucket that receive straight into the caller's memory.

obstore collects a response in buffers of its own, hands them from its threads to Python's, and
leaves the copy to us. Here the kernel copies the bytes from the socket to their final place, which
takes a third of the CPU time (benchmarks/RESULTS.md, "Serving the archive"). urllib3 keeps the
connections, awscrt signs the requests.
"""

import io
import logging
import os
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final
from urllib.parse import quote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

import urllib3
from awscrt import auth, http  # type: ignore[import-untyped]  # awscrt ships no types
from urllib3 import exceptions as urllib3_errors
from urllib3.connection import HTTPConnection
from urllib3.util.ssl_ import create_urllib3_context

from sidetier import __version__
from sidetier.segments.errors import (
    InvalidRequestError,
    MalformedAnswerError,
    StorageError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from sidetier.storage.object_errors import (
    BY_CODE,
    by_status,
    code_of,
    fields_of,
    refusal_text,
)
from sidetier.storage.s3_chain import BucketAddress, ChainCredentials
from sidetier.storage.settings import AttemptDeadline, S3Settings

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_BUFFER: Final = 64 * 1024
_MOST_ERROR_BYTES: Final = 64 * 1024
_KEEPALIVE: Final = (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
_OK: Final = 200
_PARTIAL: Final = 206
_PAST_THE_END: Final = 416
_REDIRECTS: Final = range(300, 400)
_CONTENT_RANGE: Final = re.compile(r"bytes (?P<first>[0-9]+)-(?P<last>[0-9]+)/(?P<total>[0-9]+|\*)")


def has_proxy(address: BucketAddress) -> bool:
    """Return whether the environment names a proxy for the bucket. `RangeRequests` uses none."""
    url = urlsplit(address.endpoint)
    proxies = getproxies_environment()
    is_named = url.scheme in proxies or "all" in proxies
    return is_named and not proxy_bypass(url.netloc)


class RangeRequests:
    """Ranged GETs of one bucket, each tried once. Thread-safe.

    Args:
        address: Network address of the bucket.
        bucket: Name of the bucket.
        settings: Settings of the bucket.
        deadline: Deadline of each attempt.
        chain: AWS credential chain; None if the settings contain the credentials.
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
        self._chain = chain
        options: dict[str, Any] = {
            "maxsize": settings.max_connections,
            "timeout": urllib3.Timeout(connect=deadline.connect, read=settings.read_timeout),
            "socket_options": [*HTTPConnection.default_socket_options, _KEEPALIVE],
        }
        if url.scheme == "https":
            options["ssl_context"] = _tls_context(settings)
        self._pool = urllib3.connection_from_url(address.endpoint, **options)
        # Else it logs a warning for each connection above `maxsize`, when it closes it after use.
        logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)

    def open(self, path: str, start: int, end: int, etag: str | None, where: str) -> BinaryIO:
        """Return a stream over a range of an object; it is empty if the object ends before it.

        Args:
            path: Key of the object in the bucket.
            start: First byte.
            end: End of the range, exclusive.
            etag: Quoted etag that the object must have; None for any.
            where: Operation and object, for error messages.

        Raises:
            StorageError: See `RemoteStorage.get_object_input_stream`. Reads of the stream raise a
                transient error if the response breaks off.
        """
        headers = {
            "Host": self._host,
            "Range": f"bytes={start}-{end - 1}",
            "User-Agent": f"sidetier/{__version__}",
        }
        if etag is not None:
            headers["If-Match"] = etag
        target = self._path + quote(path, safe="/-_.~")
        signed = self._signed(target, headers, where)
        with _translated(where):
            response = self._pool.urlopen(
                "GET",
                target,
                headers=signed,
                retries=False,
                redirect=False,
                preload_content=False,
                decode_content=False,
            )
        if response.status == _PARTIAL:
            return _stream(response, start, end, where)
        if response.status == _PAST_THE_END:
            response.drain_conn()
            response.release_conn()
            return io.BytesIO()
        with _translated(where):
            text = response.read(_MOST_ERROR_BYTES).decode(errors="replace")
        response.close()
        if response.status == _OK and not text:
            return io.BytesIO()  # the object is empty, so it has no range
        raise _refusal(where, response.status, text)

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._pool.close()

    def _signed(self, target: str, headers: dict[str, str], where: str) -> dict[str, str]:
        # The value is constant for requests without a body.
        config = auth.AwsSigningConfig(
            algorithm=auth.AwsSigningAlgorithm.V4,
            signature_type=auth.AwsSignatureType.HTTP_REQUEST_HEADERS,
            credentials_provider=self._credentials(where),
            region=self._region,
            service="s3",
            use_double_uri_encode=False,
            should_normalize_uri_path=False,
            signed_body_value=auth.AwsSignedBodyValue.EMPTY_SHA256,
            signed_body_header_type=auth.AwsSignedBodyHeaderType.X_AMZ_CONTENT_SHA_256,
        )
        request = http.HttpRequest("GET", target, http.HttpHeaders(list(headers.items())))
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
                from sidetier.storage.s3_boto3 import failure  # noqa: PLC0415 -- botocore is heavy

                raise failure(where, error) from error
            names = found["access_key_id"], found["secret_access_key"], found.get("token")
        return auth.AwsCredentialsProvider.new_static(*names)


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


def _refusal(where: str, status: int, text: str) -> StorageError:
    """Return our error for a response that has no range."""
    if status == _OK:
        return MalformedAnswerError(f"{where}: the store sends whole objects instead of ranges")
    if status in _REDIRECTS:
        return InvalidRequestError(f"{where}: set the bucket's own region (storage.s3.region)")
    code = code_of(text)
    kind = BY_CODE.get(code) or by_status(status, code)
    return kind(refusal_text(where, status, fields_of(text)))


@contextmanager
def _translated(where: str) -> Iterator[None]:
    """Raise the errors of a connection as ours."""
    try:
        yield
    except (urllib3_errors.HTTPError, HTTPException, OSError) as error:
        raise _failure(where, error) from error


def _failure(where: str, error: Exception) -> StorageError:
    text = f"{where}: {type(error).__name__}: {error}"
    is_timeout = isinstance(error, urllib3_errors.TimeoutError | TimeoutError)
    # urllib3 also counts a refused connection among the timeouts.
    if is_timeout and not isinstance(error, urllib3_errors.NewConnectionError):
        return StoreTimeoutError(text)
    if isinstance(error, urllib3_errors.SSLError) and isinstance(
        error.args[0], ssl.SSLCertVerificationError
    ):
        return InvalidRequestError(f"{text}: give the store's CA as ca_bundle")
    return StoreUnavailableError(text)
