"""The retry layer: the only place where requests to stores are retried."""

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import BinaryIO, TypeVar, cast

import tenacity
from tenacity.stop import stop_base

from sidetier.segments.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    RefusedConditionError,
    StorageError,
    TransientStorageError,
)
from sidetier.storage.attempt import Clock, monotonic
from sidetier.storage.checks import holds
from sidetier.storage.encrypting import EncryptingStorage
from sidetier.storage.port import (
    LISTED_AT_ONCE,
    NO_OPTIONS,
    Body,
    Condition,
    FileBackedStorage,
    IfMatch,
    MultipartUploads,
    ObjectHead,
    ObjectSummary,
    PutOptions,
    RemoteStorage,
    StorageCapabilities,
    StoredObject,
)
from sidetier.storage.settings import RetryPolicy
from sidetier.storage.store_calls import (
    OK,
    NullObserver,
    RequestObserver,
    StoreCall,
    StoreCalls,
    error_kind,
)

_T = TypeVar("_T")


class _StopWhenLate(stop_base):
    """Stop if the next pause would end after the time limit of all attempts."""

    def __init__(self, clock: Clock, end: float) -> None:
        self._clock = clock
        self._end = end

    def __call__(self, retry_state: tenacity.RetryCallState) -> bool:
        return self._clock() + retry_state.upcoming_sleep >= self._end


class RetryingStorage:
    """Store that retries transient errors of another store, and no other errors.

    Pauses grow exponentially with full jitter. No further attempt begins after
    `policy.attempts` attempts, after `policy.max_elapsed` seconds, or once `stop` is set (which
    also ends a pause); the last error is then raised unchanged. A body is opened again for each
    attempt. A stream is retried until it is open, not while it is read.

    Args:
        inner: Store that makes the requests.
        policy: Limits on attempts and time.
        observer: Receives every attempt.
        stop: Ends retries when set.
        clock: Returns monotonic seconds.
        calls: Lists each request while it is in progress.
        url: URL of the store, for `calls`.
    """

    def __init__(  # noqa: PLR0913 - only `inner` is required
        self,
        inner: RemoteStorage,
        policy: RetryPolicy | None = None,
        *,
        observer: RequestObserver | None = None,
        stop: threading.Event | None = None,
        clock: Clock = monotonic,
        calls: StoreCalls | None = None,
        url: str = "",
    ) -> None:
        self._inner = inner
        self._policy = policy or RetryPolicy()
        self._observer = observer or NullObserver()
        self._stop = stop or threading.Event()
        self._clock = clock
        self._calls = calls or StoreCalls()
        self._url = url

    @property
    def inner(self) -> RemoteStorage:
        """The store that executes the requests."""
        return self._inner

    @property
    def capabilities(self) -> StorageCapabilities:
        """Capabilities of the inner store."""
        return self._inner.capabilities

    def put_object(self, key: str, body: Body, options: PutOptions = NO_OPTIONS) -> str:
        """See `RemoteStorage`."""
        return self._conditional(
            "put",
            key,
            options.condition,
            lambda: self._inner.put_object(key, body, options),
            body.size,
        )

    def get_object(self, key: str) -> StoredObject:
        """Each attempt reads the whole object."""
        return self._call("get", key, lambda: self._inner.get_object(key))

    def get_object_input_stream(
        self,
        key: str,
        start: int = 0,
        end: int | None = None,
        *,
        condition: IfMatch | None = None,
    ) -> BinaryIO:
        """Only the first request is retried; errors of the stream are the caller's."""
        return self._conditional(
            "stream",
            key,
            condition,
            lambda: self._inner.get_object_input_stream(key, start, end, condition=condition),
        )

    def list_objects(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectSummary]:
        """Each page of 1,000 rows is retried separately."""
        after = start_after
        under_way: Iterator[ObjectSummary] | None = None

        def page() -> list[ObjectSummary]:
            nonlocal under_way
            listing = under_way or self._inner.list_objects(prefix, start_after=after)
            under_way = None  # after an error, begin a new listing behind the last full page
            rows = list(islice(listing, LISTED_AT_ONCE))
            under_way = listing
            return rows

        while True:
            rows = self._call("list", prefix, page)
            yield from rows
            if len(rows) < LISTED_AT_ONCE:
                return
            after = rows[-1].key

    def list_directories(self, prefix: str) -> list[str]:
        """A retry lists from the beginning."""
        return self._call("list", prefix, lambda: self._inner.list_directories(prefix))

    def head_object(self, key: str, *, with_checksum: bool = False) -> ObjectHead:
        """Each attempt is one request."""
        return self._call(
            "head", key, lambda: self._inner.head_object(key, with_checksum=with_checksum)
        )

    def delete_object(self, key: str, *, condition: IfMatch | None = None) -> None:
        """A refused retry may have been preceded by a successful attempt (`ambiguous`)."""
        self._conditional(
            "delete", key, condition, lambda: self._inner.delete_object(key, condition=condition)
        )

    def delete_objects(self, keys: Sequence[str]) -> None:
        """A retry sends all keys again."""
        if keys:
            self._call("delete", keys[0], lambda: self._inner.delete_objects(keys))

    def copy_object(self, source: str, target: str, *, condition: Condition | None = None) -> str:
        """A refused retry may have been preceded by a successful attempt (`ambiguous`)."""
        return self._conditional(
            "copy",
            target,
            condition,
            lambda: self._inner.copy_object(source, target, condition=condition),
            # Without a condition, the driver names the version of the source.
            named=source if condition is None else target,
        )

    def close(self) -> None:
        """Close the inner store as well."""
        self._inner.close()

    def _conditional(
        self,
        operation: str,
        key: str,
        condition: Condition | None,
        function: Callable[[], _T],
        size: int = 0,
        named: str | None = None,
    ) -> _T:
        """Make a request that may have a condition. A refusal counts only if it is justified.

        Args:
            operation: The operation.
            key: The key that the request is about.
            condition: The condition of the caller.
            function: Makes the request.
            size: Bytes to send.
            named: The key of the object whose version is named, if it is another one.

        Raises:
            PreconditionFailedError: The condition does not hold.
            RefusedConditionError: The store has refused it twice although it holds.
        """
        try:
            return self._call(operation, key, function, size)
        except PreconditionFailedError as error:
            before = self._version_that_fits(named or key, condition)
            if before is None:
                raise
            was_ambiguous = error.ambiguous

        def again() -> _T:
            try:
                return function()
            except PreconditionFailedError as error:
                error.ambiguous = error.ambiguous or was_ambiguous
                version = self._version_that_fits(named or key, condition)
                if version is None or (condition is None and version != before):
                    raise
                text = _refused(f"{operation} {key}", condition, version)
                raise RefusedConditionError(
                    f"the store at {self._url or 'this URL'} {text} ({error})"
                ) from error

        # Another writer may have restored the version that the condition names between the refusal
        # and the reading of the head. Only the store can decide this, so it is asked once more.
        return self._call(operation, key, again, size)

    def _version_that_fits(self, key: str, condition: Condition | None) -> str | None:
        """Return the etag of the stored object if the refused condition holds, or may hold, for it.

        Returns:
            An empty string where no object has to be there. None if the condition does not hold, or
            if the store does not show it: the refusal then counts.
        """
        try:
            etag = self.head_object(key).etag
        except ObjectNotFoundError:
            etag = None
        except StorageError:
            return None
        if condition is None:
            return etag
        return etag or "" if holds(condition, etag) else None

    def _call(self, operation: str, key: str, function: Callable[[], _T], size: int = 0) -> _T:
        with self._calls.begun(operation, key, self._url, size) as call:
            began = self._clock()
            try:
                return self._observed(operation, function)  # skip tenacity if this succeeds
            except TransientStorageError as error:
                return self._again(call, function, error, began)

    def _again(
        self, call: StoreCall, function: Callable[[], _T], first: BaseException, began: float
    ) -> _T:
        """Make the further attempts after a first one that began at `began` and failed."""
        failures: list[BaseException] = []
        # The first attempt was made without tenacity. Its error is raised once more, so that
        # tenacity counts it as attempt 1.
        first_error = [first]

        def attempt() -> _T:
            if first_error:
                raise first_error.pop()
            if self._stop.is_set():
                # `stop` ended the pause: make no further attempt, raise the last error.
                raise failures[-1]
            return self._observed(call.operation, function)

        def before_pause(state: tenacity.RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome else None
            if error is not None:
                failures.append(error)
                self._observer.retry(call.operation, error_kind(error))
            self._calls.try_again(call)

        try:
            return self._retrying(before_pause, began)(attempt)
        except PreconditionFailedError as error:
            # All earlier attempts failed transiently, and any of them may have taken effect.
            error.ambiguous = True
            raise

    def _retrying(
        self, before_pause: Callable[[tenacity.RetryCallState], None], began: float
    ) -> tenacity.Retrying:
        policy = self._policy
        return tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(TransientStorageError),
            # Full jitter: all sidecars of a cluster see the same outage of the store, and would
            # otherwise send their retries at the same moments.
            wait=tenacity.wait_random_exponential(policy.first_delay, policy.max_delay),
            stop=tenacity.stop_any(
                tenacity.stop_after_attempt(policy.attempts),
                _StopWhenLate(self._clock, began + policy.max_elapsed),
                tenacity.stop_when_event_set(self._stop),
            ),
            sleep=tenacity.sleep_using_event(self._stop),
            before_sleep=before_pause,
            reraise=True,  # the last error itself, not a RetryError around it
        )

    def _observed(self, operation: str, function: Callable[[], _T]) -> _T:
        began = self._clock()
        try:
            result = function()
        except BaseException as error:
            self._observer.request(operation, self._clock() - began, error_kind(error))
            raise
        self._observer.request(operation, self._clock() - began, OK)
        return result


def _refused(request: str, condition: Condition | None, version: str) -> str:
    if isinstance(condition, IfMatch):
        sent, reason = "If-Match", f"the stored object has the etag {version}"
    elif condition is not None:
        sent, reason = "If-None-Match", "there is no such object"
    else:
        sent, reason = "x-amz-copy-source-if-match", "the source has not changed"
    text = (
        f"refuses a condition that holds: {request} with {sent}, although {reason}. No other "
        "writer is involved. Update the store, or remove the gateway before it that changes "
        "headers; `sidetier doctor --try-conditions` tests the store"
    )
    if isinstance(condition, IfMatch) and "W/" in {version[:2], condition.etag[:2]}:
        text += ". Its etags are weak (W/): a gateway that compresses answers makes them so"
    return text


def multipart_uploads(store: RemoteStorage) -> MultipartUploads | None:
    """Return the store below the retries if it keeps unfinished multipart uploads, else None.

    Its methods are called without retries.
    """
    inner = _without_encryption(_without_retries(store))
    return inner if isinstance(inner, MultipartUploads) else None


def unused_markers(store: RemoteStorage, prefix: str) -> Iterator[ObjectSummary]:
    """Yield the markers below a prefix that mark no `.log`, see `EncryptingStorage`.

    The listing is made without retries.
    """
    encrypting = _without_retries(store)
    if isinstance(encrypting, EncryptingStorage):
        yield from encrypting.unused_markers(prefix)


def file_backed(store: RemoteStorage) -> FileBackedStorage | None:
    """Return the store below the retries if its objects are files of this host, else None.

    Its methods are called without retries: a local file system gains nothing from them.
    """
    inner = _without_retries(store)
    if not isinstance(_without_encryption(inner), FileBackedStorage):
        return None
    # An encrypting store has the method, too, and knows which files are encrypted.
    return cast("FileBackedStorage", inner)


def _without_retries(store: RemoteStorage) -> RemoteStorage:
    return store.inner if isinstance(store, RetryingStorage) else store


def _without_encryption(store: RemoteStorage) -> RemoteStorage:
    return store.inner if isinstance(store, EncryptingStorage) else store
