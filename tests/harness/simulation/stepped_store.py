"""The store as a simulated sidecar sees it: each request waits until it may arrive."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from sidetier.segments.names import REQUIRED_KINDS, parse_segment_file_name
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import IfAbsent
from tests.harness.intercepted_store import InterceptedStore, StoreCall
from tests.harness.simulation.network import Request, ask


class SteppedStore(InterceptedStore):
    """Passes requests to a store in memory when the simulated network delivers them.

    `sent_again` has the keys of segment files that were sent with the same bytes, although they had
    been stored before this life of the sidecar began and had not changed since. `is_dead` says
    whether the sender of the requests is dead.

    Args:
        store: The store.
        starts: Key of the record of the archive's start, by the key of its `offset.wm`.
        outran: Called with the key of an `offset.wm` whose archive has begun without the record of
            the start: the first `offset.wm` was written although the record has changed since this
            sidecar last read it, or a record arrives later from a sidecar that is dead.
        deleted: Called with the key of each object that is deleted without a condition.
    """

    def __init__(
        self,
        store: FakeStorage,
        starts: Mapping[str, str] = MappingProxyType({}),
        outran: Callable[[str], None] = lambda _: None,
        deleted: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(store)
        self.sent_again: list[str] = []
        self.is_dead = False
        self._at_first = store.contents()
        self._starts = starts
        self._outran = outran
        self._deleted = deleted
        self._seen: dict[str, bytes | None] = {}

    def intercept(self, call: StoreCall) -> object:
        """Queue the request, and wait for its answer."""
        if call.body is not None:
            self._note_repeated(call.key, call.body)
        return ask(Request(call.operation, call.key, lambda: self._arrive(call)))

    def _arrive(self, call: StoreCall) -> object:
        if call.operation == "get":
            self._seen[call.key] = self.store.contents().get(call.key)
        if call.operation == "delete" and call.condition is None:
            self._deleted(call.key)
        answer = call.effect(self.store)
        if call.operation == "put" and isinstance(call.condition, IfAbsent):
            self._check_start(call.key)
        if call.operation == "put" and self.is_dead:
            self._check_late_start(call.key)
        return answer

    def _check_start(self, key: str) -> None:
        start = self._starts.get(key)
        if start is not None:
            start_record = self.store.contents().get(start)
            if start_record is not None and start_record is not self._seen.get(start):
                self._outran(key)

    def _check_late_start(self, key: str) -> None:
        for watermark, start in self._starts.items():
            if key == start and watermark in self.store.contents():
                self._outran(watermark)

    def _note_repeated(self, key: str, sent: bytes) -> None:
        """Note a repeated upload of an unchanged object.

        Objects are compared by identity: a rewritten object is another object, even with equal
        bytes. Empty objects are left out, because Python has only one empty bytes object.
        """
        before = self._at_first.get(key)
        parsed = parse_segment_file_name(key.rpartition("/")[2])
        if not before or parsed is None or parsed.kind not in REQUIRED_KINDS:
            return
        if self.store.contents().get(key) is before and sent == before:
            self.sent_again.append(key)
