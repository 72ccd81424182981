"""obstore's errors as ours.

obstore 0.12 has no attribute for the status, the store's own code or the cause: they are read from
the text of the error. So its version is pinned, and a test provokes each row on a server.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from sidetier.segments.errors import (
    AccessDeniedError,
    InvalidRequestError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
    StoreFullError,
    StoreThrottledError,
    StoreTimeoutError,
    StoreUnavailableError,
)

_STATUS: Final = re.compile(r"status code: (\d+)")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_TIMED_OUT: Final = re.compile(r"kind: Timeout|TimedOut|operation timed out")
_BAD_CERTIFICATE: Final = re.compile(r"InvalidCertificate|invalid peer certificate")
_DEBUG: Final = "\n\nDebug source:"
_PAST_THE_END: Final = re.compile(r"Wanted range starting at|Received non-partial response")

_BY_CODE: Final[dict[str, type[StorageError]]] = {
    # A missing bucket or container is no missing object: to wait or to write does not help.
    "NoSuchBucket": InvalidRequestError,
    "ContainerNotFound": InvalidRequestError,
    "BlobAlreadyExists": PreconditionFailedError,
    "ConditionNotMet": PreconditionFailedError,
    "TargetConditionNotMet": PreconditionFailedError,
    # Writes met, or the store is busy with the object: neither is refused for good.
    "ConditionalRequestConflict": StoreUnavailableError,
    "OperationAborted": StoreUnavailableError,
    "ContainerBeingDeleted": StoreUnavailableError,
    "SlowDown": StoreThrottledError,
    "ServerBusy": StoreThrottledError,
    "OperationTimedOut": StoreTimeoutError,
    "RequestTimeout": StoreTimeoutError,
}
_BY_STATUS: Final[dict[int, type[StorageError]]] = {
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
_BY_TYPE: Final[tuple[tuple[type[Exception], type[StorageError]], ...]] = (
    (FileNotFoundError, ObjectNotFoundError),
    (AlreadyExistsError, PreconditionFailedError),
    (PreconditionError, PreconditionFailedError),
    (PermissionDeniedError, AccessDeniedError),
    (UnauthenticatedError, AccessDeniedError),
    (ValueError, InvalidRequestError),
)
_SERVER_ERROR: Final = 500


@contextmanager
def translated(operation: str, place: str) -> Iterator[None]:
    """Raise what obstore raises as one of ours, which names the operation and the place."""
    try:
        yield
    except (BaseError, OSError, ValueError) as error:
        raise translation(operation, place, error) from error


def translation(operation: str, place: str, error: Exception) -> StorageError:
    """Our error for one of obstore's."""
    text = str(error)
    shown = f"{operation} {place}: {text.partition(_DEBUG)[0]}"
    if _BAD_CERTIFICATE.search(text):
        return InvalidRequestError(f"{shown}: give the store's CA as ca_bundle")
    kind = _kind(error, text)
    if kind is InvalidRequestError and code_of(text) in {"NoSuchBucket", "ContainerNotFound"}:
        shown = f"{shown}: create it, or correct the storage url"
    return kind(shown)


def is_past_the_end(error: BaseException) -> bool:
    """Whether a range was refused because the object ends before it begins."""
    text = str(error)
    return _status(text) == 416 or _PAST_THE_END.search(text) is not None  # noqa: PLR2004


def code_of(text: str) -> str:
    """The store's own code in an error's text; empty where an answer had no body (HEAD)."""
    found = _CODE.search(text)
    return found[1] if found else ""


def _status(text: str) -> int:
    found = _STATUS.search(text)
    return int(found[1]) if found else 0


def _kind(error: Exception, text: str) -> type[StorageError]:
    code, status = code_of(text), _status(text)
    if code in _BY_CODE:
        return _BY_CODE[code]
    for known, kind in _BY_TYPE:
        if isinstance(error, known):
            return kind
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status:
        return StoreUnavailableError if status >= _SERVER_ERROR else InvalidRequestError
    return StoreTimeoutError if _TIMED_OUT.search(text) else StoreUnavailableError
