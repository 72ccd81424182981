"""Explores the orders in which the requests of a few writers can take effect on one store.

A writer is a function with a store as its argument. Its next step follows from the answers that it
has received, so its state is the list of these answers. To continue a writer, the explorer runs it
again from the start with the known answers, until it makes a new request. That request takes effect
on the store in its current state. Orders that lead to the same store and the same answers are
followed once.

A request that arrives after its sender's death is a request that arrives last. Every state also
stands for the case where the other writers are dead or arbitrarily slow.
"""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Self, TypeVar

from sidetier.segments.errors import SidetierError
from sidetier.storage.checks import check_condition
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import Checksum, ObjectHead, PutOptions, RemoteStorage, StoredObject
from sidetier.uploader.sending.conditional_put import WRITER_EPOCH_KEY
from tests.harness.intercepted_store import InterceptedStore, StoreCall

T = TypeVar("T")


class ContentTagged(FakeStorage):
    """A store that derives versions from the bytes alone, as S3 does. It can be copied."""

    def __init__(self) -> None:
        super().__init__(now_ms=lambda: 0)

    def copy(self) -> Self:
        """Return another store with the same objects."""
        duplicate = type(self)()
        duplicate._objects = dict(self._objects)
        return duplicate

    def fingerprint(self) -> frozenset[tuple[str, str, str]]:
        """Return a value that is equal for stores that no request can tell apart."""
        return frozenset(
            (key, stored.head.etag, stored.head.metadata.get(WRITER_EPOCH_KEY, ""))
            for key, stored in self._objects.items()
        )

    def _store(self, key: str, data: bytes, options: PutOptions, own: Checksum | None) -> str:
        with self._guard:
            present = self._objects.get(key)
            check_condition(key, options.condition, present.head.etag if present else None)
            etag = hashlib.sha256(data).hexdigest()[:16]
            head = ObjectHead(
                key, len(data), etag, 0, dict(options.metadata), options.checksum, own
            )
            self._objects[key] = StoredObject(head, data)
            return etag


class _SuspendedError(BaseException):
    """The writer has made its next request; a BaseException, so that no handler catches it."""


@dataclass(frozen=True, slots=True)
class _Answer:
    value: object
    error: SidetierError | None

    def give(self) -> object:
        if self.error is not None:
            raise self.error
        return self.value


class _Replay(InterceptedStore):
    """The store as one writer sees it: known answers first, then a single new request."""

    def __init__(self, answers: Sequence[_Answer]) -> None:
        super().__init__(FakeStorage())
        self._answers = answers
        self._asked = 0
        self.new: StoreCall | None = None

    def intercept(self, call: StoreCall) -> object:
        """Return the known answer, or suspend the writer at its first request without one."""
        number, self._asked = self._asked, self._asked + 1
        if number < len(self._answers):
            return self._answers[number].give()
        self.new = call
        raise _SuspendedError


Writer = Callable[[RemoteStorage], None]
Check = Callable[[ContentTagged, ContentTagged], None]
"""Checks the store before a write and the store after it."""


class _Moment:
    """A writer with these answers: its next request, and the moment after each answer."""

    def __init__(self, writer: Writer, answers: tuple[_Answer, ...] = ()) -> None:
        self._writer = writer
        self._answers = answers
        self._next: dict[str, _Moment] = {}
        replay = _Replay(answers)
        with suppress(_SuspendedError):
            writer(replay)
        self.request = replay.new
        """None once the writer has ended."""

    def after(self, answer: _Answer) -> "_Moment":
        answer_key = repr(answer)
        if answer_key not in self._next:
            self._next[answer_key] = _Moment(self._writer, (*self._answers, answer))
        return self._next[answer_key]


@dataclass(frozen=True, slots=True)
class Explored:
    """Number of steps, and every store state that occurred."""

    steps: int
    stores: tuple[ContentTagged, ...]


def explore(
    begin: ContentTagged, writers: Sequence[Writer], check: Check, *, switches: int
) -> Explored:
    """Follow the orders of requests with at most `switches` switches between writers.

    A switch from a writer that has ended does not count. Each write is checked. Errors in protocols
    usually show with few switches.
    """
    waiting = [(begin, tuple(_Moment(writer) for writer in writers), -1, switches + 1)]
    stores = {begin.fingerprint(): begin}
    seen: dict[tuple[int, ...], int] = {}
    steps = 0
    while waiting:
        store, moments, last, turns = waiting.pop()
        state = (id(store), last, *map(id, moments))
        if seen.get(state, -1) >= turns:
            continue
        seen[state] = turns
        for number, moment in enumerate(moments):
            turns_left = turns if number == last or _ended(moments, last) else turns - 1
            if moment.request is None or turns_left < 0:
                continue
            steps += 1
            after, answer = _step(moment.request, store, check)
            after = stores.setdefault(after.fingerprint(), after)
            moved = (*moments[:number], moment.after(answer), *moments[number + 1 :])
            waiting.append((after, moved, number, turns_left))
    return Explored(steps, tuple(stores.values()))


def _ended(moments: Sequence[_Moment], number: int) -> bool:
    """Return whether the writer has ended, so that a switch interrupts no turn."""
    return number >= 0 and moments[number].request is None


def _step(request: StoreCall, store: ContentTagged, check: Check) -> tuple[ContentTagged, _Answer]:
    if request.operation in {"get", "head", "list", "stream"}:
        return store, _answer(request, store)
    after = store.copy()
    answer = _answer(request, after)
    if answer.error is None:
        check(store, after)
    return after, answer


def _answer(request: StoreCall, store: ContentTagged) -> _Answer:
    try:
        return _Answer(request.effect(store), None)
    except SidetierError as error:
        return _Answer(None, error)


def finish(writer: Writer, store: ContentTagged, check: Check) -> ContentTagged:
    """Let one writer run alone until it ends."""
    moment = _Moment(writer)
    while moment.request is not None:
        store, answer = _step(moment.request, store, check)
        moment = moment.after(answer)
    return store
