"""Translate obstore's errors into StorageErrors.

obstore 0.12 has no attributes for the HTTP status, the store's error code or the cause: they are
parsed from the error's text. So obstore's version is pinned, and a test provokes each row on a
server.
"""

import re
from typing import Final

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotModifiedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from sidetier.segments.errors import (
    AccessDeniedError,
    ChecksumMismatchError,
    InvalidRequestError,
    MalformedAnswerError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
    StoreFullError,
    StoreThrottledError,
    StoreTimeoutError,
    StoreUnavailableError,
)

ErrorType = type[StorageError]

BY_CODE: Final[dict[str, ErrorType]] = {
    "NoSuchKey": ObjectNotFoundError,
    # Not ObjectNotFoundError: neither waiting nor writing the object creates a missing bucket.
    "NoSuchBucket": InvalidRequestError,
    "ContainerNotFound": InvalidRequestError,
    # Someone aborted the upload, for example a lifecycle rule: a new upload can succeed.
    "NoSuchUpload": StoreUnavailableError,
    "PreconditionFailed": PreconditionFailedError,
    "BlobAlreadyExists": PreconditionFailedError,
    "ConditionNotMet": PreconditionFailedError,
    "TargetConditionNotMet": PreconditionFailedError,
    # Concurrent writes, or the store is busy with the object: a retry can succeed.
    "ConditionalRequestConflict": StoreUnavailableError,
    "OperationAborted": StoreUnavailableError,
    "ContainerBeingDeleted": StoreUnavailableError,
    "BadDigest": ChecksumMismatchError,
    "InvalidDigest": ChecksumMismatchError,
    "XAmzContentChecksumMismatch": ChecksumMismatchError,
    "XAmzContentSHA256Mismatch": ChecksumMismatchError,
    "SlowDown": StoreThrottledError,
    "SlowDownRead": StoreThrottledError,
    "SlowDownWrite": StoreThrottledError,
    "ServerBusy": StoreThrottledError,
    "Throttling": StoreThrottledError,
    "ThrottlingException": StoreThrottledError,
    "RequestLimitExceeded": StoreThrottledError,
    "TooManyRequests": StoreThrottledError,
    "RequestTimeout": StoreTimeoutError,
    "OperationTimedOut": StoreTimeoutError,
    # The connection ended before the store had received the whole body.
    "IncompleteBody": StoreUnavailableError,
    "ExpiredToken": AccessDeniedError,
    "InvalidToken": AccessDeniedError,
    "TokenRefreshRequired": AccessDeniedError,
    "NotImplemented": InvalidRequestError,
    "QuotaExceeded": StoreFullError,
    "InsufficientStorage": StoreFullError,
    "XMinioStorageFull": StoreFullError,
    "XMinioAdminBucketQuotaExceeded": StoreFullError,
}
_BY_STATUS: Final[dict[int, ErrorType]] = {
    # No request asks whether an object was modified: some stores answer a put so, in place of 412.
    304: PreconditionFailedError,
    401: AccessDeniedError,
    403: AccessDeniedError,
    404: ObjectNotFoundError,
    408: StoreTimeoutError,
    409: StoreUnavailableError,
    412: PreconditionFailedError,
    425: StoreUnavailableError,
    429: StoreThrottledError,
    501: InvalidRequestError,
    507: StoreFullError,
}
_SERVER_ERROR: Final = 500


def by_status(status: int) -> ErrorType:
    """Return the error for an HTTP status without a known code."""
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return StoreUnavailableError if status >= _SERVER_ERROR else InvalidRequestError


_STATUS: Final = re.compile(r"status code: (\d+)")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_TIMED_OUT: Final = re.compile(r"kind: Timeout|TimedOut|operation timed out")
_BAD_CERTIFICATE: Final = re.compile(r"InvalidCertificate|invalid peer certificate")
_WRONG_REGION: Final = re.compile(r"redirect without LOCATION")
_MALFORMED: Final = re.compile(
    r"InvalidListResponse \{\s+source: Custom"
    r"|source: (Missing|Invalid)(Etag|ETag|LastModified|ContentLength)"
)
_CAUSE: Final = re.compile(r'(?:message|error): "([^"]+)"')
_ADDRESS: Final = re.compile(r'ConnectError\(\s+"[^"]+",\s+([\w.:\[\]-]+),')
_DEBUG: Final = "\n\nDebug source:"
_PAST_THE_END: Final = re.compile(r"Wanted range starting at|Received non-partial response")

_BY_TYPE: Final[tuple[tuple[type[Exception], type[StorageError]], ...]] = (
    (FileNotFoundError, ObjectNotFoundError),
    (AlreadyExistsError, PreconditionFailedError),
    (PreconditionError, PreconditionFailedError),
    (NotModifiedError, PreconditionFailedError),
    (PermissionDeniedError, AccessDeniedError),
    (UnauthenticatedError, AccessDeniedError),
    (ValueError, InvalidRequestError),
    (InvalidPathError, InvalidRequestError),
)


class MissingFieldError(Exception):
    """A response that obstore accepted lacks a field that we need."""


FOREIGN_ERRORS: Final = (MissingFieldError, BaseError, OSError, ValueError)
"""The errors of a call of obstore, for `translation`."""


def translation(operation: str, place: str, error: Exception) -> StorageError:
    """Return our error for one of FOREIGN_ERRORS; the text names the operation and the place."""
    if isinstance(error, MissingFieldError):
        return _malformed(operation, place, error)
    text = str(error)
    message, _, details = text.partition(_DEBUG)
    shown = f"{operation} {place}: {message}{_cause(details)}"
    # Before the kinds: obstore reports it as a failed connection, and a retry would never succeed.
    if _BAD_CERTIFICATE.search(text):
        return InvalidRequestError(f"{shown}: give the store's CA as ca_bundle")
    if _WRONG_REGION.search(text):
        return InvalidRequestError(f"{shown}: set the bucket's own region (storage.s3.region)")
    if _MALFORMED.search(details):
        return _malformed(operation, place, message)
    kind = _kind(error, text)
    if kind is InvalidRequestError and code_of(text) in {"NoSuchBucket", "ContainerNotFound"}:
        shown = f"{shown}: create it, or correct the storage url"
    return kind(shown)


def _cause(details: str) -> str:
    """Return the operating system's error of a connection, which obstore's short text omits."""
    cause, address = _CAUSE.search(details), _ADDRESS.search(details)
    if cause is None:
        return ": timed out" if _TIMED_OUT.search(details) else ""
    return f": {cause[1]}" + (f" ({address[1]})" if address else "")


def _malformed(operation: str, place: str, problem: object) -> StorageError:
    return MalformedAnswerError(
        f"{operation} {place}: the answer is not an answer of this kind of store: {problem}"
    )


def is_past_the_end(error: BaseException) -> bool:
    """Return whether a range was refused because the object ends before the range begins."""
    text = str(error)
    return _status(text) == 416 or _PAST_THE_END.search(text) is not None  # noqa: PLR2004


def code_of(text: str) -> str:
    """Return the store's error code; empty if the response had no body (HEAD)."""
    match = _CODE.search(text)
    return match[1] if match else ""


def _status(text: str) -> int:
    match = _STATUS.search(text)
    return int(match[1]) if match else 0


def _kind(error: Exception, text: str) -> type[StorageError]:
    code, status = code_of(text), _status(text)
    # The store's own code first: obstore maps a 409 to AlreadyExistsError,
    # also where S3 means "try again" (ConditionalRequestConflict).
    if code in BY_CODE:
        return BY_CODE[code]
    for known, kind in _BY_TYPE:
        if isinstance(error, known):
            return kind
    if status:
        return by_status(status)
    return StoreTimeoutError if _TIMED_OUT.search(text) else StoreUnavailableError
