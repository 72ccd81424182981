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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO, Self, TypeVar, cast

from sidetier.segments.errors import SidetierError
from sidetier.storage.bodies import BytesBody
from sidetier.storage.checks import check_condition
from sidetier.storage.fake import FULL, FakeStorage
from sidetier.storage.port import (
    Body,
    Checksum,
    Condition,
    IfMatch,
    ObjectHead,
    ObjectSummary,
    RemoteStorage,
    StorageCapabilities,
    StoredObject,
)
from sidetier.uploader.sending.conditional_put import WRITER_EPOCH_KEY

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

    def _store(
        self,
        key: str,
        data: bytes,
        metadata: Mapping[str, str],
        checksum: Checksum | None,
        condition: Condition | None,
    ) -> str:
        with self._guard:
            present = self._objects.get(key)
            check_condition(key, condition, present.head.etag if present else None)
            etag = hashlib.sha256(data).hexdigest()[:16]
            head = ObjectHead(key, len(data), etag, 0, dict(metadata), checksum)
            self._objects[key] = StoredObject(head, data)
            return etag


Effect = Callable[[FakeStorage], object]


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


@dataclass(frozen=True, slots=True)
class _Request:
    effect: Effect
    writes: bool

    def make(self, store: FakeStorage) -> _Answer:
        try:
            return _Answer(self.effect(store), None)
        except SidetierError as error:
            return _Answer(None, error)


class _Replay:
    """The store as one writer sees it: known answers first, then a single new request."""

    def __init__(self, answers: Sequence[_Answer]) -> None:
        self._answers = answers
        self._asked = 0
        self.new: _Request | None = None

    @property
    def capabilities(self) -> StorageCapabilities:
        return FULL

    def put_object(
        self,
        key: str,
        body: Body,
        *,
        metadata: Mapping[str, str] | None = None,
        checksum: Checksum | None = None,
        condition: Condition | None = None,
    ) -> str:
        with body.open() as stream:
            sent = BytesBody(stream.read())
        return self._ask(
            lambda store: store.put_object(
                key, sent, metadata=metadata, checksum=checksum, condition=condition
            ),
            writes=True,
        )

    def get_object(self, key: str) -> StoredObject:
        return self._ask(lambda store: store.get_object(key))

    def get_object_input_stream(
        self,
        key: str,
        start: int = 0,
        end: int | None = None,
        *,
        condition: IfMatch | None = None,
    ) -> BinaryIO:
        raise NotImplementedError("these writers read no `.log`")

    def list_objects(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectSummary]:
        rows = self._ask(lambda store: list(store.list_objects(prefix, start_after=start_after)))
        return iter(rows)

    def list_directories(self, prefix: str) -> list[str]:
        raise NotImplementedError("these writers look for no partition")

    def head_object(self, key: str, *, with_checksum: bool = False) -> ObjectHead:
        return self._ask(lambda store: store.head_object(key, with_checksum=with_checksum))

    def delete_object(self, key: str, *, condition: Condition | None = None) -> None:
        raise NotImplementedError("these writers delete nothing")

    def copy_object(self, source: str, target: str, *, condition: Condition | None = None) -> str:
        raise NotImplementedError("these writers copy nothing")

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def _ask(self, effect: Callable[[FakeStorage], T], *, writes: bool = False) -> T:
        number, self._asked = self._asked, self._asked + 1
        if number < len(self._answers):
            return cast("T", self._answers[number].give())
        self.new = _Request(effect, writes)
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


def _step(request: _Request, store: ContentTagged, check: Check) -> tuple[ContentTagged, _Answer]:
    if not request.writes:
        return store, request.make(store)
    after = store.copy()
    answer = request.make(after)
    if answer.error is None:
        check(store, after)
    return after, answer


def finish(writer: Writer, store: ContentTagged, check: Check) -> ContentTagged:
    """Let one writer run alone until it ends."""
    moment = _Moment(writer)
    while moment.request is not None:
        store, answer = _step(moment.request, store, check)
        moment = moment.after(answer)
    return store
