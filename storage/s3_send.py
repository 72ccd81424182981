"""Send bodies to S3 under a deadline, and pass on the body's own failures unchanged."""

from collections.abc import Callable
from typing import Any, BinaryIO

from sidetier.segments.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
    StoreTimeoutError,
)
from sidetier.storage.attempt import AttemptStream, DeadlinePassedError
from sidetier.storage.port import Condition
from sidetier.storage.s3_errors import translated


class Sender:
    """Makes the requests that carry a body."""

    def __init__(self, bucket: str) -> None:
        self._bucket = bucket

    def send(
        self,
        operation: str,
        call: Callable[..., Any],
        stream: AttemptStream,
        **params: Any,  # noqa: ANN401 - boto3's own types
    ) -> Any:  # noqa: ANN401
        """Call a boto3 method with the stream as Body. `params` must contain `Key`.

        Raises:
            StoreTimeoutError: The attempt's deadline passed.
            StorageError: The store refused or failed.
            Exception: The body's own error, unchanged.
        """
        key = params["Key"]
        try:
            with translated(operation, self._bucket, key):
                return call(Bucket=self._bucket, Body=stream, ContentLength=len(stream), **params)
        except Exception as error:
            raise _culprit(stream, f"{operation} s3://{self._bucket}/{key}", error) from error


def window(stream: BinaryIO, start: int, size: int, seconds: float) -> AttemptStream:
    """Return a stream for the next attempt, over `size` bytes of the body from `start`."""
    stream.seek(start)
    return AttemptStream(stream, size, seconds, start=start)


def refused_match(error: StorageError, condition: Condition | None) -> StorageError:
    """Return PreconditionFailedError for a 404 to If-Match, which S3 sends for a missing object."""
    if condition is not None and isinstance(error, ObjectNotFoundError):
        return PreconditionFailedError(str(error))
    return error


def _culprit(stream: AttemptStream, where: str, error: Exception) -> BaseException:
    if stream.failure is None:
        return error
    if isinstance(stream.failure, DeadlinePassedError):
        return StoreTimeoutError(f"{where}: not sent before the attempt's deadline")
    return stream.failure
