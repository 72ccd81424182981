"""Who wants to know of requests, and under which names errors are counted."""

from typing import Final, Protocol

from sidetier.segments import errors

OK: Final = "ok"
BODY: Final = "body"
"""The outcome of a put whose body failed, not the store."""

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
"""Every outcome there is; a closed set, fit for a label."""


class RequestObserver(Protocol):
    """Hears of each try; called on the thread that made it, and must not raise."""

    def request(self, operation: str, seconds: float, outcome: str) -> None:
        """One try has ended: `put`, `get`, `stream` (until the first byte), `list` (one page),
        `head`, `delete` or `copy`; the outcome is one of OUTCOMES.
        """
        ...

    def retry(self, operation: str, kind: str) -> None:
        """A try failed with that kind of error, and another will be made."""
        ...


class NullObserver:
    """Hears nothing."""

    def request(self, operation: str, seconds: float, outcome: str) -> None:
        """Nothing."""

    def retry(self, operation: str, kind: str) -> None:
        """Nothing."""


def error_kind(error: BaseException) -> str:
    """The outcome that an error is counted as."""
    for kind, name in _KINDS.items():
        if isinstance(error, kind):
            return name
    return BODY
