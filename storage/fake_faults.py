"""Faults of the fake store, by operation, key and number; and the record of its requests."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass

from sidetier.segments.errors import AccessDeniedError, StorageError, StoreUnavailableError


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came in."""

    operation: str
    key: str


@dataclass(slots=True)
class _Fault:
    """What happens to the requests that it is about."""

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
        """Count one request that it concerns; True when it is its turn."""
        if self.skip:
            self.skip -= 1
            return False
        if self.times is None:
            return True
        self.times -= 1
        return self.times >= 0


class Faulty:
    """The hooks of `FakeStorage`."""

    def __init__(self) -> None:
        self._guard_of_faults = threading.Lock()
        self._faults: list[_Fault] = []
        self.requests: list[Request] = []
        """Every request so far, in the order of arrival, refused ones too."""

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
        """Raise the error, of any kind, at the nth such request from now on, and at `times` in a
        row (None: for good). `after`: once it has taken effect, as when an answer is lost.
        """
        self._add(_Fault(operation, key, nth - 1, times, error, after, None))

    def refuse(self, key: str, error: StorageError | None = None) -> None:
        """Refuse every put of a key."""
        refusal = error or AccessDeniedError(f"put {key}: 403 AccessDenied")
        self._add(_Fault("put", key, 0, None, refusal, after=False, gate=None))

    @contextmanager
    def hold(self, operation: str | None = None, key: str | None = None) -> Iterator[None]:
        """Let such requests wait, before they do anything, until the block is left."""
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
        """Be unreachable until the block is left."""
        error = StoreUnavailableError("connection refused")
        fault = _Fault(None, None, 0, None, error, after=False, gate=None)
        self._add(fault)
        try:
            yield
        finally:
            self._remove(fault)

    def heal(self) -> None:
        """Forget all faults; what is held stays held until its block is left."""
        with self._guard_of_faults:
            self._faults = [fault for fault in self._faults if fault.gate]

    def count(self, operation: str | None = None, key: str | None = None) -> int:
        """How many requests of the kind came in."""
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
            struck = [f for f in self._faults if f.concerns(request) and f.strikes()]
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
