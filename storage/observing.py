"""Observer of requests to stores, and the names under which outcomes are counted."""

from typing import Final, Protocol

from sidetier.segments import errors

OK: Final = "ok"
BODY: Final = "body"
"""Outcome of a put whose body failed, as opposed to the store."""

_KINDS: Final[dict[type[errors.StorageError], str]] = {
    errors.StoreUnavailableError: "unavailable",
    errors.StoreThrottledError: "throttled",
    errors.StoreTimeoutError: "timeout",
    errors.ObjectNotFoundError: "not_found",
    errors.PreconditionFailedError: "precondition_failed",
    errors.AccessDeniedError: "access_denied",
    errors.ChecksumMismatchError: "checksum_mismatch",
    errors.StoreFullError: "store_full",
    errors.InvalidRequestError: "invalid_request",
}
OUTCOMES: Final = (OK, *_KINDS.values(), BODY)
"""All outcomes: a closed set, suitable for a metric label."""


class RequestObserver(Protocol):
    """Receives every attempt, on the thread that made it. Must not raise."""

    def request(self, operation: str, seconds: float, outcome: str) -> None:
        """Record the end of an attempt.

        Args:
            operation: `put`, `get`, `stream` (until the first byte), `list` (one page), `head`,
                `delete` or `copy`.
            seconds: Duration of the attempt.
            outcome: One of OUTCOMES.
        """
        ...

    def retry(self, operation: str, kind: str) -> None:
        """Record that an attempt failed with this kind of error and another one will follow."""
        ...


class NullObserver:
    """Observer that ignores everything."""

    def request(self, operation: str, seconds: float, outcome: str) -> None:
        """Ignore the attempt."""

    def retry(self, operation: str, kind: str) -> None:
        """Ignore the retry."""


def error_kind(error: BaseException) -> str:
    """Return the outcome under which an error is counted."""
    for kind, name in _KINDS.items():
        if isinstance(error, kind):
            return name
    return BODY
