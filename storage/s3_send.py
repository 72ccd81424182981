"""Sending bodies to S3: under a deadline, and with the body's own failures passed on unchanged."""

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
    """Makes the calls that carry a body."""

    def __init__(self, bucket: str) -> None:
        self._bucket = bucket

    def send(
        self,
        operation: str,
        call: Callable[..., Any],
        stream: AttemptStream,
        **params: Any,  # noqa: ANN401 - boto3's own types
    ) -> Any:  # noqa: ANN401
        """Call with the stream as Body; `Key` is among the parameters.

        Raises:
            StoreTimeoutError: the attempt's deadline passed.
            StorageError: the store refused or failed.
        """
        key = params["Key"]
        try:
            with translated(operation, self._bucket, key):
                return call(Bucket=self._bucket, Body=stream, ContentLength=len(stream), **params)
        except Exception as error:
            raise _culprit(stream, f"{operation} s3://{self._bucket}/{key}", error) from error


def window(stream: BinaryIO, start: int, size: int, seconds: float) -> AttemptStream:
    """The next attempt's view of a body's stream."""
    stream.seek(start)
    return AttemptStream(stream, size, seconds, start=start)


def refused_match(error: StorageError, condition: Condition | None) -> StorageError:
    """S3 answers If-Match over nothing with 404; to the port that is a failed precondition."""
    if condition is not None and isinstance(error, ObjectNotFoundError):
        return PreconditionFailedError(str(error))
    return error


def _culprit(stream: AttemptStream, where: str, error: Exception) -> BaseException:
    if stream.failure is None:
        return error
    if isinstance(stream.failure, DeadlinePassedError):
        return StoreTimeoutError(f"{where}: not sent before the attempt's deadline")
    return stream.failure
