"""Meaning of object stores' error codes and HTTP statuses: one table for all clients."""

from typing import Final

from sidetier.segments.errors import (
    AccessDeniedError,
    ChecksumMismatchError,
    InvalidRequestError,
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
