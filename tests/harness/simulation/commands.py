"""A command of an operator that works on the store, as `sidetier gc`: each request waits."""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from sidetier.segments.errors import SidetierError
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import RemoteStorage
from sidetier.storage.retrying import RetryingStorage
from sidetier.storage.settings import RetryPolicy
from tests.harness.intercepted_store import KilledError
from tests.harness.simulation.network import Fate, Request, Run, decided
from tests.harness.simulation.stepped_store import SteppedStore

_MAX_REQUESTS: Final = 5000


class Command:
    """One process, which ends by itself or by `kill`.

    Args:
        store: The store on which its requests take effect.
        attempts: Number of attempts of a request.
        now: Returns the present time in seconds.
        work: What it does with the store. It runs until its first request.
        deleted: Called with the key of each object that it deletes without a condition.

    Attributes:
        error: The error with which it has ended, as an operator sees it; None for a success.
        defect: An error that it should have handled.
    """

    def __init__(
        self,
        store: FakeStorage,
        attempts: int,
        now: Callable[[], float],
        work: Callable[[RemoteStorage], object],
        deleted: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.error: SidetierError | None = None
        self.defect: Exception | None = None
        policy = RetryPolicy(attempts=attempts, first_delay=0.0, max_delay=0.0)
        seen = RetryingStorage(SteppedStore(store, deleted=deleted), policy, clock=now)
        self._run = Run()
        self._run.start(lambda: self._work(work, seen))

    def _work(self, work: Callable[[RemoteStorage], object], store: RemoteStorage) -> None:
        with suppress(KilledError):
            try:
                work(store)
            except SidetierError as error:
                self.error = error
            except Exception as error:  # noqa: BLE001 - the simulation's thread reports it
                self.defect = error

    @property
    def request(self) -> Request | None:
        """The request that waits; None after the end."""
        return self._run.request

    def go_on(self, fate: Fate = Fate.ARRIVES) -> None:
        """Apply a fate to the request that waits, and run up to the next one."""
        if self._run.request is not None:
            self._run.go_on(*decided(self._run.request, fate))

    def run(self, requests: int = _MAX_REQUESTS) -> None:
        """Let up to a number of requests arrive."""
        for _ in range(requests):
            if self.request is None:
                return
            self.go_on()

    def kill(self, *, deletes: int = 0) -> list[Request]:
        """Kill the process, and return its request in flight, which may still take effect.

        With `deletes`, it lives until this number of its next deletes have arrived.
        """
        while deletes and self.request is not None:
            deletes -= self.request.operation == "delete"
            self.go_on()
        request = self._run.request
        if request is None:
            return []
        self._run.go_on(None, KilledError())
        return [request]
