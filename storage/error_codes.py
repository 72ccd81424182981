"""What the codes and statuses of object stores mean: one table for every client of them."""

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
    # A missing bucket or container is no missing object: to wait or to write does not help.
    "NoSuchBucket": InvalidRequestError,
    "ContainerNotFound": InvalidRequestError,
    # The upload was aborted by somebody, for example a lifecycle rule: a new one can succeed.
    "NoSuchUpload": StoreUnavailableError,
    "PreconditionFailed": PreconditionFailedError,
    "BlobAlreadyExists": PreconditionFailedError,
    "ConditionNotMet": PreconditionFailedError,
    "TargetConditionNotMet": PreconditionFailedError,
    # Writes met, or the store is busy with the object: neither is refused for good.
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
    # The connection ended before all of the body had come.
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
    """The meaning of an HTTP status that came without a known code."""
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return StoreUnavailableError if status >= _SERVER_ERROR else InvalidRequestError
