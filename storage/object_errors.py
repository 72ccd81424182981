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
    InvalidPathError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from sidetier.segments.errors import (
    AccessDeniedError,
    InvalidRequestError,
    MalformedAnswerError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from sidetier.storage.error_codes import BY_CODE, by_status

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
    (PermissionDeniedError, AccessDeniedError),
    (UnauthenticatedError, AccessDeniedError),
    (ValueError, InvalidRequestError),
    (InvalidPathError, InvalidRequestError),
)


class MissingFieldError(Exception):
    """An answer that obstore has taken lacks what we need."""


@contextmanager
def translated(operation: str, place: str) -> Iterator[None]:
    """Raise what obstore raises as one of ours, which names the operation and the place."""
    try:
        yield
    except MissingFieldError as error:
        raise _malformed(operation, place, error) from error
    except (BaseError, OSError, ValueError) as error:
        raise translation(operation, place, error) from error


def translation(operation: str, place: str, error: Exception) -> StorageError:
    """Our error for one of obstore's."""
    text = str(error)
    said, _, details = text.partition(_DEBUG)
    shown = f"{operation} {place}: {said}{_cause(details)}"
    if _BAD_CERTIFICATE.search(text):
        return InvalidRequestError(f"{shown}: give the store's CA as ca_bundle")
    if _WRONG_REGION.search(text):
        return InvalidRequestError(f"{shown}: set the bucket's own region (storage.s3.region)")
    if _MALFORMED.search(details):
        return _malformed(operation, place, said)
    kind = _kind(error, text)
    if kind is InvalidRequestError and code_of(text) in {"NoSuchBucket", "ContainerNotFound"}:
        shown = f"{shown}: create it, or correct the storage url"
    return kind(shown)


def _cause(details: str) -> str:
    """The system's own words for what has happened to a connection, which the text leaves out."""
    cause, address = _CAUSE.search(details), _ADDRESS.search(details)
    if cause is None:
        return ": timed out" if _TIMED_OUT.search(details) else ""
    return f": {cause[1]}" + (f" ({address[1]})" if address else "")


def _malformed(operation: str, place: str, problem: object) -> StorageError:
    return MalformedAnswerError(
        f"{operation} {place}: the answer is not that of a store: {problem}"
    )


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
    if code in BY_CODE:
        return BY_CODE[code]
    for known, kind in _BY_TYPE:
        if isinstance(error, known):
            return kind
    if status:
        return by_status(status)
    return StoreTimeoutError if _TIMED_OUT.search(text) else StoreUnavailableError
