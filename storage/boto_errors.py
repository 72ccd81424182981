"""Translate botocore's errors into StorageErrors.

botocore is imported with this module, so other modules import it where an error arises.
"""

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
    StorageError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from sidetier.storage.object_errors import BY_CODE, by_status, refusal_text

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

    S3-compatible stores omit fields or format them differently, so code that reads a response
    belongs inside this block, too.
    """
    request = f"{operation} s3://{bucket}/{key}"
    try:
        yield
    except boto.ClientError as error:
        raise _refusal(request, error) from error
    except (boto.BotoCoreError, ResponseParserError, urllib3_errors.HTTPError, OSError) as error:
        raise failure(request, error) from error
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        raise MalformedAnswerError(
            f"{request}: the store's answer is not an answer of S3: {type(error).__name__}: {error}"
        ) from error


def _refusal(where: str, error: boto.ClientError) -> StorageError:
    """Return our error for an error response of the store."""
    response: Any = error.response
    details, meta = response.get("Error", {}), response.get("ResponseMetadata", {})
    # The code is the status in digits if the response had no body, as after a HEAD.
    code, status = str(details.get("Code", "")), int(meta.get("HTTPStatusCode", 0))
    fields = {name: str(value) for name, value in details.items()}
    fields["RequestId"] = str(meta.get("RequestId", ""))
    kind = BY_CODE.get(code) or by_status(status, code)
    return kind(refusal_text(where, status, {} if code == str(status) else fields))


def failure(where: str, error: BaseException) -> StorageError:
    """Return our error for a request without a response, or with an unreadable one."""
    text = f"{where}: {type(error).__name__}: {error}"
    causes = list(_causes(error))
    # Before the kinds of botocore, which wraps it as a
    # failed connection: a retry would never succeed.
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


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, its causes, and errors that urllib3 and botocore carry as arguments."""
    seen: set[int] = set()
    todo: list[object] = [error]
    while todo:
        cause = todo.pop()
        if not isinstance(cause, BaseException) or id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        todo += [cause.__cause__, cause.__context__, *cause.args]
        todo += [getattr(cause, "kwargs", {}).get("error"), getattr(cause, "reason", None)]
