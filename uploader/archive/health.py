"""Does the store answer? Judged by what the daemon's own requests come to."""

from sidetier.segments.errors import AccessDeniedError, StorageError, TransientStorageError


class StoreHealth:
    """`reason` is why the store cannot be used now; None while it can. Any success clears it."""

    def __init__(self) -> None:
        self.reason: str | None = None

    def succeeded(self) -> None:
        """A request was answered as it should be."""
        self.reason = None

    def failed(self, error: Exception) -> None:
        """A request failed; a refusal that concerns one object alone says nothing of the store."""
        if isinstance(error, TransientStorageError | AccessDeniedError):
            self.reason = str(error)
        elif isinstance(error, StorageError):
            self.reason = None  # it has answered
