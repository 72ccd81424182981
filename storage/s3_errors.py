"""The border: both of botocore's error families, and what slips by them, become our own tree."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from botocore import exceptions as boto
from botocore.parsers import ResponseParserError
from urllib3 import exceptions as urllib3_errors

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

_BY_CODE: Final[dict[str, ErrorType]] = {
    "NoSuchKey": ObjectNotFoundError,
    "NoSuchBucket": InvalidRequestError,
    # The upload was aborted by somebody, for example a lifecycle rule: a new one can succeed.
    "NoSuchUpload": StoreUnavailableError,
    "PreconditionFailed": PreconditionFailedError,
    # Two conditional writes met: neither is refused for good.
    "ConditionalRequestConflict": StoreUnavailableError,
    "OperationAborted": StoreUnavailableError,
    "BadDigest": ChecksumMismatchError,
    "InvalidDigest": ChecksumMismatchError,
    "XAmzContentChecksumMismatch": ChecksumMismatchError,
    "XAmzContentSHA256Mismatch": ChecksumMismatchError,
    "SlowDown": StoreThrottledError,
    "SlowDownRead": StoreThrottledError,
    "SlowDownWrite": StoreThrottledError,
    "Throttling": StoreThrottledError,
    "ThrottlingException": StoreThrottledError,
    "RequestLimitExceeded": StoreThrottledError,
    "TooManyRequests": StoreThrottledError,
    "RequestTimeout": StoreTimeoutError,
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
    412: PreconditionFailedError,
    425: StoreUnavailableError,
    429: StoreThrottledError,
    501: InvalidRequestError,
    507: StoreFullError,
}
_TIMEOUTS: Final = (
    boto.ReadTimeoutError,
    boto.ConnectTimeoutError,
    urllib3_errors.TimeoutError,
)
_UNREACHABLE: Final = (
    boto.EndpointConnectionError,
    boto.ConnectionClosedError,
    boto.ProxyConnectionError,
    boto.ResponseStreamingError,
    boto.IncompleteReadError,
    boto.HTTPClientError,
    boto.CredentialRetrievalError,
    boto.MetadataRetrievalError,
)
_UNKNOWN_CALLER: Final = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.ProfileNotFound,
    boto.TokenRetrievalError,
    boto.SSOTokenLoadError,
    boto.UnauthorizedSSOTokenError,
)

_CREDENTIALS: Final = (
    "set storage.s3.access_key_id and secret_access_key, or provide them where AWS's own tools "
    "look for them: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, ~/.aws/credentials, the role of "
    "the machine"
)


@contextmanager
def translated(operation: str, bucket: str, key: str) -> Iterator[None]:
    """Raise botocore's and urllib3's errors as ours; the text names operation, bucket and key.

    Imitations of S3 leave out fields, or write them in their own way: reading an answer belongs
    inside, too.
    """
    where = f"{operation} s3://{bucket}/{key}"
    try:
        yield
    except boto.ClientError as error:
        raise refusal(where, bucket, error) from error
    except (boto.BotoCoreError, ResponseParserError, urllib3_errors.HTTPError, OSError) as error:
        raise failure(where, error) from error
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        raise MalformedAnswerError(
            f"{where}: the store's answer is not that of S3: {type(error).__name__}: {error}"
        ) from error


def refusal(where: str, bucket: str, error: boto.ClientError) -> StorageError:
    """Our error for an answer of the store that is no success."""
    code, status = code_of(error), status_of(error)
    response: Any = error.response
    request_id = response.get("ResponseMetadata", {}).get("RequestId", "")
    message = response.get("Error", {}).get("Message", "")
    text = f"{where}: {status} {code}: {message}"
    if code == "NoSuchBucket":
        text = f"{where}: bucket {bucket!r} does not exist: create it, or correct the storage url"
    if request_id:
        text += f" (request id {request_id})"
    return _type_of(code, status)(text)


def code_of(error: boto.ClientError) -> str:
    """The store's own code; the status in digits where an answer had no body (HEAD)."""
    response: Any = error.response
    return str(response.get("Error", {}).get("Code", ""))


def status_of(error: boto.ClientError) -> int:
    """HTTP status; 0 where botocore has none."""
    response: Any = error.response
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def failure(where: str, error: BaseException) -> StorageError:
    """Our error for a request without an answer, or with one that cannot be read."""
    text = f"{where}: {type(error).__name__}: {error}"
    causes = list(_causes(error))
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes):
        return InvalidRequestError(f"{text}: give the store's CA as ca_bundle")
    if isinstance(error, _TIMEOUTS) or any(isinstance(cause, TimeoutError) for cause in causes):
        return StoreTimeoutError(text)
    if isinstance(error, boto.FlexibleChecksumError):
        return ChecksumMismatchError(text)
    if isinstance(error, _UNKNOWN_CALLER):
        missing = isinstance(error, boto.NoCredentialsError)
        return AccessDeniedError(f"{text}: {_CREDENTIALS}" if missing else text)
    if isinstance(error, (*_UNREACHABLE, ResponseParserError, urllib3_errors.HTTPError, OSError)):
        return StoreUnavailableError(text)
    return InvalidRequestError(text)


def _type_of(code: str, status: int) -> ErrorType:
    if code in _BY_CODE:
        return _BY_CODE[code]
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return StoreUnavailableError if status >= 500 else InvalidRequestError  # noqa: PLR2004


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, what caused it, and what urllib3 and botocore carry along as arguments."""
    seen: set[int] = set()
    todo: list[object] = [error]
    while todo:
        found = todo.pop()
        if not isinstance(found, BaseException) or id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        todo += [found.__cause__, found.__context__, *found.args]
        todo += [getattr(found, "kwargs", {}).get("error"), getattr(found, "reason", None)]
