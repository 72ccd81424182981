"""Faults of the fake store by operation, key and count, and the list of its requests."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass

from sidetier.segments.errors import AccessDeniedError, StorageError, StoreUnavailableError


@dataclass(frozen=True, slots=True)
class Request:
    """One received request."""

    operation: str
    key: str


@dataclass(slots=True)
class _Fault:
    """Effect on the requests of one operation and key."""

    operation: str | None
    key: str | None
    skip: int
    times: int | None
    error: Exception | None
    after: bool
    gate: threading.Event | None

    def concerns(self, request: Request) -> bool:
        return self.operation in {None, request.operation} and self.key in {None, request.key}

    def strikes(self) -> bool:
        """Count one matching request; return True if the fault applies to it."""
        if self.skip:
            self.skip -= 1
            return False
        if self.times is None:
            return True
        self.times -= 1
        return self.times >= 0


class Faulty:
    """Base class of `FakeStorage` with the methods that inject faults."""

    def __init__(self) -> None:
        self._guard_of_faults = threading.Lock()
        self._faults: list[_Fault] = []
        self.requests: list[Request] = []
        """All requests so far in the order of arrival, including refused ones."""

    def fail(
        self,
        operation: str | None,
        error: Exception,
        *,
        key: str | None = None,
        nth: int = 1,
        times: int | None = 1,
        after: bool = False,
    ) -> None:
        """Raise an error for requests of an operation and key.

        Args:
            operation: Operation to fail; None for all.
            error: Error to raise, of any type.
            key: Key to fail; None for all.
            nth: First matching request from now on that fails, counted from 1.
            times: Number of consecutive requests that fail; None for all later ones.
            after: Raise the error after the request took effect, as if the response were lost.
        """
        self._add(_Fault(operation, key, nth - 1, times, error, after, None))

    def refuse(self, key: str, error: StorageError | None = None) -> None:
        """Refuse every put of a key."""
        refusal = error or AccessDeniedError(f"put {key}: 403 AccessDenied")
        self._add(_Fault("put", key, 0, None, refusal, after=False, gate=None))

    @contextmanager
    def hold(self, operation: str | None = None, key: str | None = None) -> Iterator[None]:
        """Block matching requests before they take effect, until the block ends."""
        gate = threading.Event()
        fault = _Fault(operation, key, 0, None, None, after=False, gate=gate)
        self._add(fault)
        try:
            yield
        finally:
            self._remove(fault)
            gate.set()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Make the store unreachable until the block ends."""
        error = StoreUnavailableError("connection refused")
        fault = _Fault(None, None, 0, None, error, after=False, gate=None)
        self._add(fault)
        try:
            yield
        finally:
            self._remove(fault)

    def heal(self) -> None:
        """Remove all faults, except those of `hold`, which last until their block ends."""
        with self._guard_of_faults:
            self._faults = [fault for fault in self._faults if fault.gate]

    def count(self, operation: str | None = None, key: str | None = None) -> int:
        """Return the number of matching requests so far."""
        with self._guard_of_faults:
            return sum(
                operation in {None, request.operation} and key in {None, request.key}
                for request in self.requests
            )

    def _add(self, fault: _Fault) -> None:
        with self._guard_of_faults:
            self._faults.append(fault)

    def _remove(self, fault: _Fault) -> None:
        with self._guard_of_faults:
            self._faults = [other for other in self._faults if other is not fault]

    @contextmanager
    def _request(self, operation: str, key: str) -> Iterator[None]:
        request = Request(operation, key)
        with self._guard_of_faults:
            self.requests.append(request)
            struck = [
                candidate
                for candidate in self._faults
                if candidate.concerns(request) and candidate.strikes()
            ]
        for fault in struck:
            if fault.gate:
                fault.gate.wait()
        _raise_first(fault for fault in struck if not fault.after)
        yield
        _raise_first(fault for fault in struck if fault.after)


def _raise_first(faults: Iterator[_Fault]) -> None:
    for fault in faults:
        if fault.error is not None:
            raise copy(fault.error)
