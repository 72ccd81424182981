"""Store packs: a number of its own for each, one PUT with If-None-Match, some at the same time.

The create is the commit. A kill before it leaves nothing; a kill behind it leaves a live pack, from
which the next start goes on.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from sidetier.archive.tail.merge import PackRef
from sidetier.archive.tail.pack import PackBody
from sidetier.segments.errors import ObjectNotFoundError, PreconditionFailedError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import BrokerId
from sidetier.storage.port import IfAbsent, PutOptions, RemoteStorage
from sidetier.uploader.tail.copying import PackCopy

_MAX_TRIES: Final = 8
"""Numbers that are tried for one pack: another process may have started in the same ms."""
_NUMBERS_PER_MS: Final = 10**6


class TailPlace(NamedTuple):
    """Where packs of a topic are stored, and whether they are encrypted."""

    store: RemoteStorage
    layout: ArchiveLayout
    encrypts: bool


def first_number(wall: float) -> int:
    """Return the first number of the packs of a process that starts at `wall` (s since 1970).

    A process takes numbers from its start time on, so that none is taken twice: also not by two
    stores of one URL, by a second sidecar of this broker, or after all packs were deleted.
    """
    return int(wall * 1000) * _NUMBERS_PER_MS


class PackNumbers:
    """Names the packs of one broker in one store. Any thread may call it.

    Args:
        store: The store.
        layout: How keys are made.
        broker: The broker.
        unused: The numbers that this process has not taken, for all its stores.
    """

    def __init__(
        self, store: RemoteStorage, layout: ArchiveLayout, broker: BrokerId, unused: Iterator[int]
    ) -> None:
        self.store, self.layout, self.broker = store, layout, broker
        self._unused = unused

    def take(self) -> int:
        """Return a number that this process has not taken before."""
        return next(self._unused)


def store_pack(numbers: PackNumbers, body: PackBody | PackCopy, wall_ms: int) -> PackRef:
    """Store a pack under a number that no pack has.

    Raises:
        StorageError: It is not stored, or its answer is lost: then it may be stored.
        UnreadablePackError: A pack cannot be copied.
    """
    for attempt in range(_MAX_TRIES):
        number = numbers.take()
        try:
            etag = _create(numbers, number, body)
        except PreconditionFailedError:
            if attempt == _MAX_TRIES - 1:
                raise
            continue
        key = numbers.layout.tail_pack_key(numbers.broker, number)
        return PackRef(numbers.broker, number, key, etag, body.size, wall_ms)
    raise AssertionError("unreachable")


def _create(numbers: PackNumbers, number: int, body: PackBody | PackCopy) -> str:
    key = numbers.layout.tail_pack_key(numbers.broker, number)
    try:
        return numbers.store.put_object(key, body, _options(numbers.store, body))
    except PreconditionFailedError as error:
        # An answer was lost, or another process has the number.
        own = _own_etag(numbers.store, key, body) if error.ambiguous else None
        if own is None:
            raise
        return own


def _options(store: RemoteStorage, body: PackBody | PackCopy) -> PutOptions:
    """Return how a pack is stored. The checksum of a copy is known: it is not read for that."""
    checksum = body.checksum if isinstance(body, PackCopy) else None
    if checksum is not None and checksum.algorithm is not store.capabilities.checksum:
        checksum = None
    return PutOptions(checksum=checksum, condition=IfAbsent())


def _own_etag(store: RemoteStorage, key: str, body: PackBody | PackCopy) -> str | None:
    """Return the etag of the stored pack if it has our index and footer; None otherwise.

    The index has the size and the checksum of each range.
    """
    try:
        head = store.head_object(key)
        with store.get_object_input_stream(key, body.size - len(body.end)) as stream:
            stored = stream.read()
    except ObjectNotFoundError:
        return None
    return head.etag if stored == body.end else None


@dataclass(slots=True)
class PackJob:
    """A pack in flight.

    Attributes:
        numbers: Where it is stored.
        body: Its bytes; None once it has ended.
        context: What the sender of the job needs to know again.
        result: The stored pack, or why it is not stored; None while it is in flight.
    """

    numbers: PackNumbers
    body: PackBody | None
    context: object
    result: PackRef | Exception | None = None


class PackSender(Protocol):
    """Stores packs, perhaps on other threads."""

    def send(self, job: PackJob) -> None:
        """Begin to store a pack. If it raises, nothing was begun."""
        ...

    def finished(self, timeout: float = 0.0) -> Sequence[PackJob]:
        """Return the jobs that have ended, after `timeout` seconds at most if there is none."""
        ...


class ThreadedSender:
    """`PackSender` with a thread for each pack in flight. The caller bounds their number.

    Args:
        wall: Seconds since 1970.
    """

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._ended: queue.SimpleQueue[PackJob] = queue.SimpleQueue()

    def send(self, job: PackJob) -> None:
        """See `PackSender`."""
        threading.Thread(target=self._run, args=(job,), name="tail-put", daemon=True).start()

    def finished(self, timeout: float = 0.0) -> Sequence[PackJob]:
        """See `PackSender`."""
        ended = []
        try:
            ended.append(self._ended.get(timeout=timeout) if timeout else self._ended.get_nowait())
            while True:
                ended.append(self._ended.get_nowait())
        except queue.Empty:
            return ended

    def _run(self, job: PackJob) -> None:
        run_job(job, self._wall)
        self._ended.put(job)


def run_job(job: PackJob, wall: Callable[[], float]) -> None:
    """Store a pack, and note the result in the job."""
    body, job.body = job.body, None
    assert body is not None  # noqa: S101 - it is run once
    try:
        job.result = store_pack(job.numbers, body, int(wall() * 1000))
    except Exception as error:  # noqa: BLE001 - the result of the job
        job.result = error
