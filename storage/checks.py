"""Checks that all stores share; they run before a request is sent."""

import os
import re
from dataclasses import replace
from typing import Final

from sidetier.segments.errors import InvalidRequestError, PreconditionFailedError
from sidetier.storage.port import Condition, IfAbsent, PutOptions


def check_condition(key: str, condition: Condition | None, etag: str | None) -> None:
    """Compare a condition with the etag of the stored object, None if there is none.

    Raises:
        PreconditionFailedError: The condition does not hold.
    """
    if isinstance(condition, IfAbsent):
        if etag is not None:
            raise PreconditionFailedError(f"{key}: the object exists already, etag {etag}")
    elif condition is not None and etag != condition.etag:
        actual = "there is no object" if etag is None else f"it is {etag}"
        raise PreconditionFailedError(f"{key}: etag {condition.etag} was expected, {actual}")


def holds(condition: Condition, etag: str | None) -> bool:
    """Return whether a condition holds for the etag of the stored object, None if there is none.

    A weak etag counts as the strong one: gateways that compress answers mark etags as weak.
    """
    if isinstance(condition, IfAbsent):
        return etag is None
    return etag is not None and _opaque(etag) == _opaque(condition.etag)


def _opaque(etag: str) -> str:
    return etag.removeprefix("W/").strip('"')


LONGEST_KEY: Final = 1024
"""Maximum length of a key in bytes of UTF-8, as in S3."""
MAX_METADATA: Final = 2048
"""Maximum bytes of all names and values of an object's metadata, as in S3."""

_METADATA_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_REFUSED_PARTS: Final = frozenset({"", ".", ".."})
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


def check_key(key: str) -> None:
    """Check that every store can hold the key.

    A key consists of components between `/`, none of them empty, `.` or `..`.

    Raises:
        InvalidRequestError: The key is empty, absolute, leaves the root, contains control
            characters, or is longer than 1,024 bytes.
    """
    if not key:
        raise InvalidRequestError("the key is empty")
    if _CONTROL.search(key):
        # S3 lists keys as XML 1.0, which cannot contain these characters.
        raise InvalidRequestError(f"key {key!r} has a character that cannot be listed")
    if not _REFUSED_PARTS.isdisjoint(key.split("/")):
        raise InvalidRequestError(
            f"key {key!r} must be relative, without empty, '.' or '..' components"
        )
    if len(key.encode()) > LONGEST_KEY:
        raise InvalidRequestError(f"key {key!r} is longer than {LONGEST_KEY} bytes")


def check_options(key: str, options: PutOptions) -> PutOptions:
    """Return the options with a copy of their metadata: names of `a-z0-9-`, values of printable
    ASCII, 2 KiB in all.

    Raises:
        InvalidRequestError: A name or value is not valid in an HTTP header.
    """
    checked = dict(options.metadata)
    for name, value in checked.items():
        if not _METADATA_NAME.fullmatch(name):
            raise InvalidRequestError(
                f"{key}: metadata name {name!r} may contain only a-z, 0-9 and -"
            )
        # HTTP strips spaces around a header's value, so the stored value would differ.
        if not (value.isascii() and value.isprintable()) or value != value.strip():
            raise InvalidRequestError(f"{key}: metadata {name} is not printable ASCII: {value!r}")
    if sum(len(name) + len(value) for name, value in checked.items()) > MAX_METADATA:
        raise InvalidRequestError(f"{key}: metadata is larger than {MAX_METADATA} bytes")
    return replace(options, metadata=checked)


def check_range(key: str, start: int, end: int | None) -> None:
    """Raise InvalidRequestError unless 0 <= start <= end."""
    if start < 0 or (end is not None and end < start):
        raise InvalidRequestError(f"{key}: no such range: {start} to {end}")


_process = {"used": False, "lost": False}


def _after_fork() -> None:
    _process["lost"] = _process["used"]


os.register_at_fork(after_in_child=_after_fork)


def check_process() -> None:
    """Raise an error in a process where every request would hang forever.

    A process that is forked after its parent made a request lacks the client's threads.

    Raises:
        InvalidRequestError: This process is such a child.
    """
    if _process["lost"]:
        raise InvalidRequestError(
            "this process was forked from one that had used the object store, and its requests "
            "would hang: start it by spawn or forkserver, or fork before the first request"
        )
    # From here on a fork loses threads of the client. Making a store is
    # harmless, so this is set by the first request, not by the import.
    _process["used"] = True
