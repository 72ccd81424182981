"""The store as a simulated sidecar sees it: each request waits until it may arrive."""

from collections.abc import Callable

from sidetier.segments.names import REQUIRED_KINDS, parse_segment_file_name
from sidetier.storage.fake import FakeStorage
from tests.harness.intercepted_store import InterceptedStore, StoreCall
from tests.harness.simulation.network import Request, ask


class SteppedStore(InterceptedStore):
    """Passes requests to a store in memory when the simulated network delivers them.

    `sent_again` has the keys of segment files that were sent with the same bytes, although they had
    been stored before this life of the sidecar began and had not changed since.

    Args:
        store: The store.
        deleted: Called with the key of each object that is deleted without a condition.
    """

    def __init__(
        self,
        store: FakeStorage,
        deleted: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(store)
        self.sent_again: list[str] = []
        self._at_first = store.contents()
        self._deleted = deleted

    def intercept(self, call: StoreCall) -> object:
        """Queue the request, and wait for its answer."""
        if call.body is not None:
            self._note_repeated(call.key, call.body)
        return ask(Request(call.operation, call.key, lambda: self._arrive(call)))

    def _arrive(self, call: StoreCall) -> object:
        if call.operation == "delete" and call.condition is None:
            self._deleted(call.key)
        return call.effect(self.store)

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
