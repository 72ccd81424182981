"""Object store on obstore: driver of Google Cloud Storage and Azure, and base of the S3 driver.

A body of up to 8 MiB is one request with the condition in its headers. A larger body is sent in
parts, so that memory does not grow with its size. Multipart uploads to these stores take no
condition, so a large object is created in three steps:

1. Upload `_sidetier-store/new/<nonce>`. A kill leaves this object, and nothing else visible.
2. Copy it within the store to its key, on condition that the key does not exist. A kill leaves the
   whole object with its metadata, and the source of the copy.
3. Delete the source.

Listings never include objects under `_sidetier-store/new/`. Give the bucket a lifecycle rule that
deletes objects older than one day below that prefix. To replace a version under an IfMatch
condition, a large body is first written to an unlinked temporary file and then sent in one request.

Neither store verifies our checksum on arrival. It is kept in the object's metadata and compared
when a whole object is read.
"""

import io
import mmap
import queue
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NoReturn, TypeVar, cast
from uuid import uuid4

import obstore

from sidetier.segments.errors import (
    ChecksumMismatchError,
    InvalidRequestError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
    StoreTimeoutError,
)
from sidetier.storage.attempt import (
    AttemptStream,
    BodyFailedError,
    Clock,
    DeadlinePassedError,
    monotonic,
)
from sidetier.storage.checks import (
    check_condition,
    check_key,
    check_options,
    check_process,
    check_range,
)
from sidetier.storage.checksums import (
    RunningChecksum,
    checksum_of_body,
    checksum_of_bytes,
    expect_checksum,
)
from sidetier.storage.object_clients import ObjectClients
from sidetier.storage.object_errors import (
    FOREIGN_ERRORS,
    MissingFieldError,
    is_past_the_end,
    translation,
)
from sidetier.storage.port import (
    LISTED_AT_ONCE,
    NO_OPTIONS,
    Body,
    Checksum,
    ChecksumAlgorithm,
    Condition,
    IfAbsent,
    IfMatch,
    ObjectHead,
    ObjectSummary,
    PutOptions,
    StorageCapabilities,
    StoredObject,
)
from sidetier.storage.settings import MIB, AttemptDeadline

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from obstore import GetOptions, GetResult, ObjectMeta, PutMode, PutResult


# Calls of obstore that a signal can interrupt.
#
# Python runs signal handlers on the main thread only, and a call of obstore blocks that thread. So
# the main thread hands its calls to a helper thread and waits. If a signal handler raises, the
# main thread abandons the helper: its call ends with the response or with the client's timeout.
# Other threads call obstore directly, which is slightly cheaper.
#
# obstore's own solution, an asyncio loop in a thread, is not used: of 950 processes that ended
# right after their last request, 4 died of SIGABRT, because obstore's threads were still handing
# results to Python.

_T = TypeVar("_T")


class _Helper:
    """Thread that makes the main thread's calls, one after the other."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="sidetier-store", daemon=True).start()

    def begin(self, work: Callable[[], _T]) -> Future[_T]:
        """Hand work to the thread; return its future."""
        future: Future[_T] = Future()
        self._tasks.put((work, future))
        return future

    def _run(self) -> None:
        while True:
            work, future = self._tasks.get()
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 -- raised by the thread that waits
                future.set_exception(error)
            else:
                future.set_result(result)
            # Otherwise the thread would keep the last result alive while it waits.
            del work, future


_helpers: list[_Helper] = []
"""Free helpers of the main thread: one or none."""


def call(work: Callable[[], _T]) -> _T:
    """Return the result of a request.

    Raises:
        BaseException: The request's error, or the error that a signal handler raised meanwhile.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    helper = _helpers.pop() if _helpers else _Helper()
    # If a signal handler raises here, the busy helper does not go back into the list.
    result = _outcome(helper.begin(work))
    _helpers.append(helper)
    if isinstance(result, BaseException):
        raise result
    return result


def _outcome(future: Future[_T]) -> _T | BaseException:
    """Return the result or the error. Only a signal handler's error is raised."""
    error = future.exception()
    return future.result() if error is None else error


def next_of(stream: Any) -> Any:  # noqa: ANN401 -- obstore's streams have no common type
    """Return the next piece of a stream or page of a listing; None at its end."""
    return call(lambda: next(stream, None))


RESERVED: Final = "_sidetier-store/"
LARGEST_AT_ONCE: Final = 8 * MIB
"""Maximum size of a body that is held in memory, and size of a part of a larger body, in bytes."""
_PARTS_AT_ONCE: Final = 4
_PIECE: Final = MIB
_BUFFER: Final = 256 * 1024
SMALL_RANGE: Final = 64 * 1024
"""Ranges of up to this many bytes are read at once: a stream would cost more than the read."""
_NONCE: Final = "stored-nonce"


_HEAD: Final["GetOptions"] = {"head": True}


class ObjectStorage:
    """Google Cloud Storage bucket or Azure container, or a prefix of one.

    It does not retry. It cannot be pickled, because it holds secrets: each process opens its own
    store from the settings.
    """

    def __init__(
        self,
        clients: ObjectClients,
        deadline: AttemptDeadline | None = None,
        clock: Clock = monotonic,
    ) -> None:
        self._clients = clients
        self._deadline = deadline or AttemptDeadline()
        self._clock = clock

    def __reduce__(self) -> NoReturn:
        raise TypeError("a store holds secrets and is not pickled: open one from the settings")

    @property
    def capabilities(self) -> StorageCapabilities:
        """Conditional writes; no checksum is verified on arrival."""
        return StorageCapabilities(conditional_writes=True, checksum=None)

    def put_object(self, key: str, body: Body, options: PutOptions = NO_OPTIONS) -> str:
        """See `RemoteStorage`. The bytes sent are compared with the given checksum here."""
        self._check(key)
        options = check_options(key, options)
        # One request is atomic and takes the condition; multipart uploads here take none.
        if body.size <= LARGEST_AT_ONCE:
            return self._put_small(key, body, options)
        self._expect(key, options.condition)
        known = options.checksum or checksum_of_body(body, ChecksumAlgorithm.CRC64NVME)
        if isinstance(options.condition, IfMatch):
            return self._replace_large(key, body, options.metadata, known, options.condition)
        if options.condition is None:
            return self._send_parts(key, key, body, options.metadata, known)
        return self._create_large(key, body, options.metadata, known)

    def get_object(self, key: str) -> StoredObject:
        """Compare the bytes with the checksum in the metadata."""
        self._check(key)
        with self._translated("get", key):
            result = self._get(self._clients.small, key)
            head = self._head(key, result)
            if head.size <= LARGEST_AT_ONCE:
                stored = call(result.bytes).to_bytes()
            else:
                # The client for small requests would end the transfer too early.
                result = self._get(self._clients.long, key)
                head = self._head(key, result)
                stored = self._streamed(key, result, head.size)
        if head.checksum is not None:
            _check_stored(
                self._place(key), head.checksum, checksum_of_bytes(stored, head.checksum.algorithm)
            )
        return StoredObject(head, stored)

    def get_object_input_stream(
        self,
        key: str,
        start: int = 0,
        end: int | None = None,
        *,
        condition: IfMatch | None = None,
    ) -> BinaryIO:
        """An empty range costs a request for the head."""
        self._check(key)
        check_range(key, start, end)
        # obstore refuses an empty range.
        if end == start:
            check_condition(key, condition, self.head_object(key).etag)
            return io.BytesIO()
        options: GetOptions = {}
        if end is not None:
            options["range"] = (start, end)
        elif start:
            options["range"] = {"offset": start}
        if condition is not None:
            options["if_match"] = quoted_etag(condition.etag)
        try:
            with self._translated("get", key):
                return self._stream(key, options, None if end is None else end - start)
        except PreconditionFailedError:
            # Azure answers "precondition failed" for a missing object as well: head_object
            # raises ObjectNotFoundError then.
            self.head_object(key)
            raise
        except StorageError as error:
            if error.__cause__ is not None and is_past_the_end(error.__cause__):
                return io.BytesIO()
            raise

    def list_objects(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectSummary]:
        """One request per page.

        obstore lists by whole path components only. So the directory that contains the prefix is
        listed, the keys that begin with the prefix are selected here, and the listing ends at the
        first greater key.
        """
        check_process()
        wanted, first = prefix.encode(), start_after.encode()
        for page in self._pages(prefix, start_after):
            rows = []
            is_last = False
            # Once for each page: for each row, it would cost more than the row itself.
            with self._translated("list", prefix):
                for meta in page:
                    key = meta["path"]
                    name = key.encode()
                    # obstore passes the offset on, but Azurite ignores it: rows at or before it can
                    # come.
                    if name <= first or not name.startswith(wanted) or key.startswith(RESERVED):
                        # Keys come in ascending order: no later key can begin with the prefix.
                        is_last = name > wanted and not name.startswith(wanted)
                        if is_last:
                            break
                        continue
                    rows.append(ObjectSummary(key, meta["size"], _etag(meta), _milliseconds(meta)))
            yield from rows
            if is_last:
                return

    def list_directories(self, prefix: str) -> list[str]:
        """List the parent with a delimiter, and select by the rest of the prefix here."""
        check_process()
        parent = prefix.rpartition("/")[0]
        if not {".", ".."}.isdisjoint(parent.split("/")):
            return []  # `check_key` allows no such component in a key
        with self._translated("list", prefix):
            client = self._clients.small
            listing = call(lambda: obstore.list_with_delimiter(client, parent or None))
        names = (f"{name}/" for name in listing["common_prefixes"])
        shown = (name for name in names if name.startswith(prefix) and name != RESERVED)
        return sorted(shown, key=str.encode)

    def head_object(self, key: str, *, with_checksum: bool = False) -> ObjectHead:
        """The store's own checksum is unknown: obstore does not return it."""
        del with_checksum
        self._check(key)
        with self._translated("head", key):
            return self._head(key, self._get(self._clients.small, key, _HEAD))

    def delete_object(self, key: str, *, condition: IfMatch | None = None) -> None:
        """Check the etag just before the delete: obstore has no conditional delete."""
        self._check(key)
        with suppress(ObjectNotFoundError):
            if condition is not None:
                check_condition(key, condition, self.head_object(key).etag)
            with self._translated("delete", key):
                obstore.delete(self._clients.small, key)

    def delete_objects(self, keys: Sequence[str]) -> None:
        """On Google Cloud Storage it is one request for each object."""
        if not keys:
            return
        for key in keys:
            self._check(key)
        try:
            with self._translated("delete_objects", keys[0]):
                call(lambda: obstore.delete(self._clients.small, list(keys)))
        except ObjectNotFoundError:
            # Google Cloud Storage reports a missing object, and obstore stops there.
            for key in keys:
                self.delete_object(key)

    def copy_object(self, source: str, target: str, *, condition: Condition | None = None) -> str:
        """Under IfMatch the bytes are downloaded and sent again."""
        self._check(source)
        self._check(target)
        if not isinstance(condition, IfMatch):
            with self._translated("copy", target):
                obstore.copy(
                    self._clients.small,
                    source,
                    target,
                    overwrite=not isinstance(condition, IfAbsent),
                )
            # A copy returns no etag.
            return self.head_object(target).etag
        head = self.head_object(source)
        # Neither store has a copy that depends on the target's version, but both have such a put.
        self._expect(target, condition)
        body = _StoredBody(self, head)
        return self.put_object(target, body, PutOptions(head.metadata, head.checksum, condition))

    def close(self) -> None:
        """Nothing to close: obstore's clients need none."""

    def _put_small(self, key: str, body: Body, options: PutOptions) -> str:
        with body.open() as raw:
            stream = AttemptStream(raw, body.size, self._deadline.seconds(body.size))
            try:
                data = stream.readall()
            except (BodyFailedError, DeadlinePassedError):
                self._raise_failure(key, stream)
        checksum = options.checksum
        algorithm = checksum.algorithm if checksum else ChecksumAlgorithm.CRC64NVME
        actual = checksum_of_bytes(data, algorithm)
        expect_checksum(key, checksum, actual)
        attributes = self._attributes(key, options.metadata, actual)
        return self._put_at_once(key, data, attributes, options.condition)

    def _put_at_once(
        self,
        key: str,
        data: bytes | memoryview,
        attributes: dict[str, str],
        condition: Condition | None,
    ) -> str:
        mode = self._mode(key, condition)
        # obstore's timeout includes the transfer, so a larger body needs the client without one.
        client = self._clients.small if len(data) <= LARGEST_AT_ONCE else self._clients.long
        with self._translated("put", key):
            options: dict[str, Any] = {
                "attributes": attributes,
                "tags": self._clients.tags_of(key),
                "mode": mode,
                "use_multipart": False,
            }
            result = call(lambda: obstore.put(client, key, data, **options))
            return _etag(result)

    def _mode(self, key: str, condition: Condition | None) -> "PutMode":
        if condition is None:
            return "overwrite"
        if isinstance(condition, IfAbsent):
            return "create"
        if not self._clients.has_generations:
            return {"e_tag": quoted_etag(condition.etag)}
        # Google Cloud Storage takes a generation as the condition of a write, not an etag.
        try:
            with self._translated("head", key):
                meta = self._get(self._clients.small, key, _HEAD).meta
        except ObjectNotFoundError as error:
            raise PreconditionFailedError(
                f"{key}: etag {condition.etag} was expected, there is no object"
            ) from error
        # A writer between this check and the put has made
        # another generation, which the put then refuses.
        check_condition(key, condition, _etag(meta))
        return {"version": meta["version"]}

    def _create_large(
        self, key: str, body: Body, metadata: Mapping[str, str], checksum: Checksum
    ) -> str:
        nonce = uuid4().hex
        temporary = f"{RESERVED}new/{nonce}"
        try:
            self._send_parts(key, temporary, body, metadata, checksum, nonce)
            with self._translated("put", key):
                obstore.copy(self._clients.small, temporary, key, overwrite=False)
            return self._etag_of(key, nonce)
        finally:
            # The object is complete by now, or the original
            # error counts. A lifecycle rule removes what stays.
            with suppress(StorageError), self._translated("delete", temporary):
                obstore.delete(self._clients.small, temporary)

    def _etag_of(self, key: str, nonce: str) -> str:
        """Return the etag of the object that was created with the nonce. A copy does not return it.

        Raises:
            PreconditionFailedError: Another writer has already replaced the object.
        """
        with self._translated("head", key):
            result = self._get(self._clients.small, key, _HEAD)
            if self._own(result).get(_NONCE) != nonce:
                raise PreconditionFailedError(f"{key}: another writer has replaced it since")
            return _etag(result.meta)

    def _replace_large(
        self,
        key: str,
        body: Body,
        metadata: Mapping[str, str],
        checksum: Checksum,
        condition: IfMatch,
    ) -> str:
        problem: list[BaseException] = []
        # A multipart upload takes no If-Match, and one request needs its bytes at once: a mapped
        # file costs page cache instead of memory of this process.
        with tempfile.TemporaryFile() as file:
            try:
                file.writelines(self._pieces(key, body, checksum, problem))
            except OSError:
                if problem:
                    raise problem[0] from None
                raise
            file.flush()
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                view = memoryview(mapped)
                try:
                    attributes = self._attributes(key, metadata, checksum)
                    return self._put_at_once(key, view, attributes, condition)
                finally:
                    view.release()

    def _send_parts(
        self,
        key: str,
        path: str,
        body: Body,
        metadata: Mapping[str, str],
        checksum: Checksum,
        nonce: str | None = None,
    ) -> str:
        problem: list[BaseException] = []
        pieces = self._pieces(key, body, checksum, problem)
        attributes = self._attributes(key, metadata, checksum, nonce)
        try:
            with self._translated("put", key):
                result = obstore.put(
                    self._clients.small,
                    path,
                    pieces,
                    attributes=attributes,
                    tags=self._clients.tags_of(key),
                    chunk_size=LARGEST_AT_ONCE,
                    max_concurrency=_PARTS_AT_ONCE,
                )
        except BaseException:
            if problem:
                raise problem[0] from None
            raise
        return _etag(result)

    def _pieces(
        self, key: str, body: Body, checksum: Checksum, problem: list[BaseException]
    ) -> Iterator[bytes]:
        """Yield the body in pieces and compare it with its checksum at the end.

        obstore reads the iterator on its own thread and does not pass the error on. So the error
        is appended to `problem`, and the caller raises it.
        """
        running = RunningChecksum(checksum.algorithm)
        try:
            with body.open() as raw:
                stream = AttemptStream(raw, body.size, self._deadline.seconds(body.size))
                try:
                    while piece := stream.read(_PIECE):
                        running.update(piece)
                        yield piece
                except (BodyFailedError, DeadlinePassedError):
                    self._raise_failure(key, stream)
            expect_checksum(key, checksum, running.result())
        # obstore has given up reading. That is not a failure of the body.
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - the caller of obstore.put raises it
            problem.append(error)
            raise OSError(f"the body failed: {error}") from None

    def _raise_failure(self, key: str, stream: AttemptStream) -> NoReturn:
        if isinstance(stream.failure, DeadlinePassedError) or stream.failure is None:
            raise StoreTimeoutError(
                f"put {self._place(key)}: past the attempt's deadline"
            ) from None
        raise stream.failure

    def _expect(self, key: str, condition: Condition | None) -> None:
        """Check the condition before many bytes are sent. The store checks it again at the end."""
        if condition is None:
            return
        etag: str | None = None
        with suppress(ObjectNotFoundError):
            etag = self.head_object(key).etag
        check_condition(key, condition, etag)

    def _pages(self, prefix: str, start_after: str) -> Iterator[list["ObjectMeta"]]:
        parent = prefix.rpartition("/")[0]
        offset = max(start_after, _just_before(prefix), key=str.encode)
        with self._translated("list", prefix):
            pages = obstore.list(
                self._clients.small,
                parent or None,
                offset=offset.rstrip("/") or None,
                chunk_size=LISTED_AT_ONCE,
            )
        while True:
            with self._translated("list", prefix):
                page = next_of(pages)
            if page is None:
                return
            yield cast("list[ObjectMeta]", page)

    def _attributes(
        self,
        key: str,
        metadata: Mapping[str, str],
        checksum: Checksum,
        nonce: str | None = None,
    ) -> dict[str, str]:
        own = stored_metadata(metadata, checksum)
        if nonce is not None:
            own[_NONCE] = nonce
        named = {self._clients.metadata_name(name): value for name, value in own.items()}
        return named | self._clients.creation(key)

    def _head(self, key: str, result: "GetResult") -> ObjectHead:
        metadata, checksum = split_metadata(self._own(result))
        meta = result.meta
        return ObjectHead(key, meta["size"], _etag(meta), _milliseconds(meta), metadata, checksum)

    def _own(self, result: "GetResult") -> dict[str, str]:
        """Return the caller's metadata and ours, without the standard HTTP attributes."""
        own_name = self._clients.own_name
        return {
            own_name(name): value
            for name, value in result.attributes.items()
            if name not in _STANDARD
        }

    def _translated(self, operation: str, key: str) -> "_Translated":
        """Return a context that raises obstore's errors as ours."""
        return _Translated(self, operation, key)

    def translation(self, operation: str, key: str, error: Exception) -> StorageError:
        """Return our error for one of obstore's, of a call about a key."""
        return translation(operation, self._place(key), error)

    def _get(self, client: Any, key: str, options: "GetOptions | None" = None) -> "GetResult":  # noqa: ANN401
        return call(lambda: obstore.get(client, key, options=options))

    def _stream(self, key: str, options: "GetOptions", size: int | None) -> BinaryIO:
        if size is not None and size <= SMALL_RANGE:
            result = self._get(self._clients.small, key, options)
            return io.BytesIO(call(result.bytes))
        result = self._get(self._clients.long, key, options)
        return io.BufferedReader(_Answer(result, partial(self._translated, "get", key)), _BUFFER)

    def _streamed(self, key: str, result: "GetResult", size: int) -> bytes:
        # The client for long transfers has no limit of its own except for silence.
        latest = self._clock() + self._deadline.seconds(size)
        data = bytearray()
        stream = result.stream(min_chunk_size=_PIECE)
        while (piece := next_of(stream)) is not None:
            data += memoryview(piece)
            if self._clock() > latest:
                raise StoreTimeoutError(f"get {self._place(key)}: past its deadline")
        return bytes(data)

    def _check(self, key: str) -> None:
        check_process()
        check_key(key)
        if self._clients.root:
            check_key(f"{self._clients.root}{key}")
        if "\\" in key and not self._clients.backslashes:
            raise InvalidRequestError(f"key {key!r}: the store converts backslashes to slashes")

    def _place(self, key: str) -> str:
        return f"{self._clients.url}/{key}"


_STANDARD: Final = frozenset(
    {
        "Content-Disposition",
        "Content-Encoding",
        "Content-Language",
        "Content-Type",
        "Cache-Control",
        "Storage-Class",
    }
)


class _Translated:
    """Context that raises the errors of one call of obstore as ours.

    A class, because a generator with `contextmanager` costs more than the rest of a small request.
    """

    __slots__ = ("_key", "_operation", "_store")

    def __init__(self, store: ObjectStorage, operation: str, key: str) -> None:
        self._store = store
        self._operation = operation
        self._key = key

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if isinstance(error, FOREIGN_ERRORS):
            raise self._store.translation(self._operation, self._key, error) from error


class _Answer(io.RawIOBase):
    """Body of a GET response as a raw, forward-only stream."""

    def __init__(
        self, result: "GetResult", translate: Callable[[], AbstractContextManager[None]]
    ) -> None:
        super().__init__()
        self._pieces: Any = result.stream(min_chunk_size=_BUFFER)
        self._left = memoryview(b"")
        self._translate = translate

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        view = memoryview(buffer)
        while not len(self._left):
            with self._translate():
                piece = next_of(self._pieces)
            if piece is None:
                return 0
            self._left = memoryview(piece)
        count = min(len(view), len(self._left))
        view[:count] = self._left[:count]
        self._left = self._left[count:]
        return count

    def close(self) -> None:
        self._pieces = None
        self._left = memoryview(b"")
        super().close()


def stored_metadata(metadata: Mapping[str, str], checksum: Checksum | None) -> dict[str, str]:
    """Return the metadata to store: the caller's, and the checksum of the bytes."""
    own = {} if checksum is None else {_name_of(checksum.algorithm): checksum.value.hex()}
    return {**metadata, **own}


def with_stored_metadata(options: PutOptions) -> PutOptions:
    """Return the options with the metadata to store."""
    return replace(options, metadata=stored_metadata(options.metadata, options.checksum))


def split_metadata(stored: Mapping[str, str]) -> tuple[dict[str, str], Checksum | None]:
    """Return the caller's metadata, and the checksum that `stored_metadata` added."""
    metadata = {name: value for name, value in stored.items() if name not in _OWN}
    for name, algorithm in _CHECKSUMS.items():
        if name not in stored:
            continue
        with suppress(ValueError):
            return metadata, Checksum(algorithm, bytes.fromhex(stored[name]))
    return metadata, None


def _name_of(algorithm: ChecksumAlgorithm) -> str:
    return f"stored-{algorithm.value.lower()}"


_CHECKSUMS: Final = {_name_of(algorithm): algorithm for algorithm in ChecksumAlgorithm}
_OWN: Final = {*_CHECKSUMS, _NONCE}


class _StoredBody:
    """One version of a stored object, as a body to send again."""

    def __init__(self, store: ObjectStorage, head: ObjectHead) -> None:
        self._store = store
        self._head = head

    @property
    def size(self) -> int:
        return self._head.size

    def open(self) -> BinaryIO:
        condition = IfMatch(self._head.etag)
        return self._store.get_object_input_stream(self._head.key, condition=condition)


def _check_stored(place: str, expected: Checksum, actual: Checksum) -> None:
    if expected != actual:
        raise ChecksumMismatchError(
            f"get {place}: the object's {actual.algorithm} is {actual.value.hex()}, its metadata "
            f"says {expected.value.hex()}: the store returned other bytes than were written"
        )


def _just_before(prefix: str) -> str:
    """Return a key that is less than all keys with the prefix, and close to them."""
    if not prefix or prefix.endswith("/"):
        return ""
    # The character before the prefix's last one, followed by a very
    # high one: it sorts after almost all keys that are not wanted.
    last = ord(prefix[-1]) - 1
    if last <= ord("/") or 0xD800 <= last <= 0xDFFF:  # noqa: PLR2004  surrogates
        return ""
    return f"{prefix[:-1]}{chr(last)}\U0010fffd"


def _etag(meta: "ObjectMeta | PutResult") -> str:
    etag = meta["e_tag"]
    if etag is None:
        raise MissingFieldError("it has no ETag")
    return bare_etag(etag)


def bare_etag(etag: str) -> str:
    """Return the etag without quotes, as in the port. S3-compatible stores differ in quoting."""
    return etag if etag.startswith("W/") else etag.strip('"')


def quoted_etag(etag: str) -> str:
    """Return the etag in quotes, as HTTP requires."""
    return etag if etag.startswith(('"', "W/")) else f'"{etag}"'


def _milliseconds(meta: "ObjectMeta") -> int:
    milliseconds = round(meta["last_modified"].timestamp() * 1000)
    # obstore reads a missing header as 1970.
    if not milliseconds:
        raise MissingFieldError("it has no Last-Modified")
    return milliseconds
