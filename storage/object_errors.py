"""Translate obstore's errors into StorageErrors.

obstore 0.12 has no attributes for the HTTP status, the store's error code or the cause: they are
parsed from the error's text. So obstore's version is pinned, and a test provokes each row on a
server.
"""

import re
from collections.abc import Mapping
from html import unescape
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
    "InvalidAccessKeyId": AccessDeniedError,
    "XAdminUserNotFound": AccessDeniedError,
    "SignatureDoesNotMatch": AccessDeniedError,
    "AuthenticationFailed": AccessDeniedError,
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
_NOT_FOUND: Final = 404
_ABSENT_OBJECT: Final = re.compile(
    r"(\d+|NotFound|NoSuch(Version|Object)|\w*(Blob|Key|Object|Resource)NotFound)?"
)
"""Codes of answers 404 that speak of the object, as NoSuchKey does; none without a body (HEAD)."""


def by_status(status: int, code: str = "") -> ErrorType:
    """Return the error for an HTTP status and a code that `BY_CODE` does not have."""
    if status == _NOT_FOUND and not _ABSENT_OBJECT.fullmatch(code):
        # Such as an unknown user. If it counted as a missing object, an archive would look empty.
        return InvalidRequestError
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return StoreUnavailableError if status >= _SERVER_ERROR else InvalidRequestError


_STATUS: Final = re.compile(r"status code: (\d+)")
_CODE: Final = re.compile(r"<Code>([\w.]+)</Code>")
_FIELD: Final = re.compile(r"<(\w+)>([^<]*)</\1>")
_TIMED_OUT: Final = re.compile(r"kind: Timeout|TimedOut|operation timed out")
_BAD_CERTIFICATE: Final = re.compile(r"InvalidCertificate|invalid peer certificate")
_WRONG_REGION: Final = re.compile(r"redirect without LOCATION")
_LOCATION: Final = re.compile(r"Object at location (\S+) not found")
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
    where, fields, status = f"{operation} {place}", fields_of(text), _status(text)
    missing = _LOCATION.search(message)
    if missing is not None and not place.endswith(missing[1]):
        where += f" from {missing[1]}"  # a copy, whose source is missing
    shown = (
        refusal_text(where, status, fields)
        if "Code" in fields
        else f"{where}: {message.rstrip(' :')}{_cause(details)}{_after(advice(status, {}))}"
    )
    # Before the kinds: obstore reports it as a failed connection, and a retry would never succeed.
    if _BAD_CERTIFICATE.search(text):
        return InvalidRequestError(f"{shown}: give the store's CA as ca_bundle")
    if _WRONG_REGION.search(text):
        return InvalidRequestError(f"{shown}: set the bucket's own region (storage.s3.region)")
    if _MALFORMED.search(details):
        return _malformed(operation, place, message)
    return _kind(error, text)(shown)


def fields_of(text: str) -> dict[str, str]:
    """Return the fields of a store's answer in XML; empty without one."""
    # The first of each name: a field of the error, not one that a later part repeats.
    return {name: unescape(value) for name, value in reversed(_FIELD.findall(text))}


def refusal_text(where: str, status: int, fields: Mapping[str, str]) -> str:
    """Return the text of an error answer: the store's reason, and which setting to change.

    Args:
        where: Operation and object.
        status: HTTP status.
        fields: The fields of the answer.
    """
    message = " ".join(fields.get("Message", "").split())
    text = f"{where}: {status} {fields.get('Code', '')}: {message}"
    if fields.get("RequestId"):
        text += f" (request id {fields['RequestId']})"
    return text + _after(advice(status, fields))


def _after(advised: str | None) -> str:
    return "" if advised is None else f": {advised}"


def advice(status: int, fields: Mapping[str, str]) -> str | None:
    """Return what to do about an error answer, with the value that it names; None if unknown."""
    code = fields.get("Code", "")
    if region := _region(code, fields):
        return f"set storage.s3.region to {region}"
    if code in _WITH_KEY:
        key = fields.get("AWSAccessKeyId")
        return _WITH_KEY[code].format(key="" if key is None else f" {key}")
    if code in {"PermanentRedirect", "TemporaryRedirect"} and fields.get("Endpoint"):
        return f"the bucket is at {fields['Endpoint']}: set storage.s3.region, or endpoint_url"
    if code.startswith("KMS."):
        return "correct storage.s3.sse_kms_key_id, or allow this key to the credentials"
    return _ADVICE.get(code) or (None if code else _WITHOUT_CODE.get(status))


def _region(code: str, fields: Mapping[str, str]) -> str | None:
    if code not in {"AuthorizationHeaderMalformed", "AuthorizationQueryParametersError"}:
        return None
    expected = _EXPECTED_REGION.search(fields.get("Message", ""))
    return fields.get("Region") or (None if expected is None else expected[1])


_EXPECTED_REGION: Final = re.compile(r"expecting ['\"]([\w-]+)['\"]")
_WITH_KEY: Final = {
    "InvalidAccessKeyId": "the store does not know the access key{key}: correct "
    "storage.s3.access_key_id, or the credentials of the AWS environment",
    "XAdminUserNotFound": "the store does not know the access key{key}: correct "
    "storage.s3.access_key_id, or the credentials of the AWS environment",
    "SignatureDoesNotMatch": "the secret of the access key{key} is another one: correct "
    "storage.s3.secret_access_key, or the credentials of the AWS environment",
}
_NO_BUCKET: Final = "create the bucket, or correct storage.url"
_EXPIRED: Final = "the session token has expired: renew storage.s3.session_token"
_ADVICE: Final[Mapping[str, str]] = {
    "NoSuchBucket": _NO_BUCKET,
    "InvalidBucketName": "correct storage.url",
    "ContainerNotFound": "create the container, or correct storage.url",
    "IllegalLocationConstraintException": "set storage.s3.region to the bucket's region",
    "RequestTimeTooSkewed": "set this host's clock (NTP)",
    "AccessDenied": "allow it to these credentials: docs/storage.md has the permissions",
    "ExpiredToken": _EXPIRED,
    "InvalidToken": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "InvalidStorageClass": "correct storage.s3.storage_class",
    "AuthenticationFailed": "correct storage.azure (account_name, account_key, sas_token)",
}
_WITHOUT_CODE: Final[Mapping[int, str]] = {
    301: "set storage.s3.region to the bucket's region",
    400: "the answer has no reason; usually storage.s3.region is wrong",
    403: "the answer has no reason; usually the credentials are wrong, or lack a permission",
}
"""Advice about answers to HEAD, which have no body, by status."""


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
            return by_status(_NOT_FOUND, code) if kind is ObjectNotFoundError else kind
    if status:
        return by_status(status, code)
    return StoreTimeoutError if _TIMED_OUT.search(text) else StoreUnavailableError
