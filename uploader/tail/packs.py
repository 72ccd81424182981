"""Store packs: the next number, one PUT with If-None-Match, some of them at the same time.

The create is the commit. A kill before it leaves nothing; a kill behind it leaves a live pack, from
which the next start goes on.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from sidetier.archive.objects.tail_index import read_tail_index
from sidetier.archive.tail.merge import PackRef
from sidetier.archive.tail.pack import PackBody
from sidetier.segments.errors import ObjectNotFoundError, PreconditionFailedError
from sidetier.segments.keys import ArchiveLayout, parse_tail_pack_key
from sidetier.segments.offsets import BrokerId
from sidetier.storage.port import IfAbsent, PutOptions, RemoteStorage

_MAX_TRIES: Final = 8
"""Numbers that are tried for one pack. Another sidecar of this broker may take some."""


class TailPlace(NamedTuple):
    """Where packs of a topic are stored, and whether they are encrypted."""

    store: RemoteStorage
    layout: ArchiveLayout
    encrypts: bool


class PackNumbers:
    """The numbers of the packs of one broker in one store. Any thread may call it.

    Args:
        store: The store.
        layout: How keys are made.
        broker: The broker.
    """

    def __init__(self, store: RemoteStorage, layout: ArchiveLayout, broker: BrokerId) -> None:
        self.store, self.layout, self.broker = store, layout, broker
        self._lock = threading.Lock()
        self._next: int | None = None
        self._taken: set[int] = set()

    def start_at(self, number: int) -> None:
        """Note that all stored packs have lower numbers."""
        with self._lock:
            self._next = max(number, self._next or 0)

    def take(self) -> int:
        """Return a number that no pack has, as far as it is known."""
        with self._lock:
            number = 0 if self._next is None else self._next
            self._next = number + 1
            self._taken.add(number)
            return number

    def settle(self, number: int) -> None:
        """Note that the attempt to store a pack under a number has ended."""
        with self._lock:
            self._taken.discard(number)

    def settled_below(self) -> int:
        """Return the number below which no attempt of this process is under way."""
        with self._lock:
            return min(self._taken, default=self._next or 0)

    def list_again(self) -> None:
        """Find the highest number in the store: another sidecar of this broker writes, too.

        Numbers up to `through` of the index are taken also where all packs are deleted: a pack
        there would not be live.

        Raises:
            StorageError: A request fails.
            MalformedObjectError: The index object does not parse.
        """
        index = read_tail_index(self.store, self.layout, self.broker).index
        if index is not None:
            self.start_at(index.through + 1)
        prefix = self.layout.tail_packs_prefix(self.broker)
        with self._lock:
            known = self._next or 0
        after = self.layout.tail_pack_key(self.broker, known - 1) if known else ""
        listed = self.store.list_objects(prefix, start_after=after)
        numbers = (parse_tail_pack_key(each.key, prefix) for each in listed)
        self.start_at(max((number + 1 for number in numbers if number is not None), default=0))


def store_pack(numbers: PackNumbers, body: PackBody, wall_ms: int) -> PackRef:
    """Store a pack under the next free number.

    Raises:
        StorageError: It is not stored, or its answer is lost: then it may be stored.
    """
    for attempt in range(_MAX_TRIES):
        number = numbers.take()
        try:
            etag = _create(numbers, number, body)
        except PreconditionFailedError:
            if attempt == _MAX_TRIES - 1:
                raise
            numbers.list_again()
            continue
        finally:
            numbers.settle(number)
        key = numbers.layout.tail_pack_key(numbers.broker, number)
        return PackRef(numbers.broker, number, key, etag, body.size, wall_ms)
    raise AssertionError("unreachable")


def _create(numbers: PackNumbers, number: int, body: PackBody) -> str:
    key = numbers.layout.tail_pack_key(numbers.broker, number)
    try:
        return numbers.store.put_object(key, body, PutOptions(condition=IfAbsent()))
    except PreconditionFailedError as error:
        # An answer was lost, or another sidecar of this broker has the number.
        own = _own_etag(numbers.store, key, body) if error.ambiguous else None
        if own is None:
            raise
        return own


def _own_etag(store: RemoteStorage, key: str, body: PackBody) -> str | None:
    """Return the etag of the stored pack if it has our index and footer; None otherwise.

    The index has the size and the checksum of each range.
    """
    index = b"".join(bytes(piece) for piece in body.pieces[-2:])
    try:
        head = store.head_object(key)
        with store.get_object_input_stream(key, body.size - len(index)) as stream:
            stored = stream.read()
    except ObjectNotFoundError:
        return None
    return head.etag if stored == index else None


@dataclass(slots=True)
class PackJob:
    """A pack on its way.

    Attributes:
        numbers: Where it is stored.
        body: Its bytes; None once it has ended.
        context: What the sender of the job needs to know again.
        result: The stored pack, or why it is not stored; None while it is on its way.
    """

    numbers: PackNumbers
    body: PackBody | None
    context: object
    result: PackRef | Exception | None = None


class PackSender(Protocol):
    """Stores packs, perhaps on other threads."""

    def send(self, job: PackJob) -> None:
        """Begin to store a pack."""
        ...

    def finished(self, timeout: float = 0.0) -> Sequence[PackJob]:
        """Return the jobs that have ended, after `timeout` seconds at most if there is none."""
        ...

    def stop(self) -> None:
        """Begin no more jobs. A thread that hangs does not hold up the process."""
        ...


class ThreadedSender:
    """`PackSender` with threads.

    Args:
        threads: Number of packs on their way at the same time.
        wall: Seconds since 1970.
    """

    def __init__(self, threads: int, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._jobs: queue.SimpleQueue[PackJob | None] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[PackJob] = queue.SimpleQueue()
        self._most = threads
        self._count = 0

    def send(self, job: PackJob) -> None:
        """See `PackSender`. The sender of jobs bounds their number."""
        if self._count < self._most:
            name = f"tail-put-{self._count}"
            self._count += 1
            threading.Thread(target=self._work, name=name, daemon=True).start()
        self._jobs.put(job)

    def finished(self, timeout: float = 0.0) -> Sequence[PackJob]:
        """See `PackSender`."""
        ended = []
        try:
            ended.append(self._ended.get(timeout=timeout) if timeout else self._ended.get_nowait())
            while True:
                ended.append(self._ended.get_nowait())
        except queue.Empty:
            return ended

    def stop(self) -> None:
        """See `PackSender`."""
        for _ in range(self._count):
            self._jobs.put(None)

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            run_job(job, self._wall)
            self._ended.put(job)
            del job  # its bytes must not wait for the next one


def run_job(job: PackJob, wall: Callable[[], float]) -> None:
    """Store a pack, and note the result in the job."""
    body, job.body = job.body, None
    assert body is not None  # noqa: S101 - it is run once
    try:
        job.result = store_pack(job.numbers, body, int(wall() * 1000))
    except Exception as error:  # noqa: BLE001 - the result of the job
        job.result = error
