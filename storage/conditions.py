"""Whether a condition holds over what is there."""

from sidetier.segments.errors import PreconditionFailedError
from sidetier.storage.port import Condition, IfAbsent


def check_condition(key: str, condition: Condition | None, etag: str | None) -> None:
    """Compare with the etag of what is there, None where nothing is.

    Raises:
        PreconditionFailedError: it does not hold.
    """
    if isinstance(condition, IfAbsent):
        if etag is not None:
            raise PreconditionFailedError(f"{key}: there is an object already, etag {etag}")
    elif condition is not None and etag != condition.etag:
        found = "there is none" if etag is None else f"it is {etag}"
        raise PreconditionFailedError(f"{key}: etag {condition.etag} was expected, {found}")
