"""Evaluation of write conditions against the stored version."""

from sidetier.segments.errors import PreconditionFailedError
from sidetier.storage.port import Condition, IfAbsent


def check_condition(key: str, condition: Condition | None, etag: str | None) -> None:
    """Compare a condition with the etag of the stored object, None if there is none.

    Raises:
        PreconditionFailedError: The condition does not hold.
    """
    if isinstance(condition, IfAbsent):
        if etag is not None:
            raise PreconditionFailedError(f"{key}: there is an object already, etag {etag}")
    elif condition is not None and etag != condition.etag:
        actual = "there is none" if etag is None else f"it is {etag}"
        raise PreconditionFailedError(f"{key}: etag {condition.etag} was expected, {actual}")
