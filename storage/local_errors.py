"""Translate errno values of the operating system into StorageErrors."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sidetier.segments.errors import (
    AccessDeniedError,
    InvalidRequestError,
    ObjectNotFoundError,
    StorageError,
    StoreFullError,
    StoreUnavailableError,
)

_BY_ERRNO: Final[dict[int, type[StorageError]]] = {
    errno.ENOENT: ObjectNotFoundError,
    errno.ENOSPC: StoreFullError,
    errno.EDQUOT: StoreFullError,
    errno.EFBIG: StoreFullError,
    errno.EACCES: AccessDeniedError,
    errno.EPERM: AccessDeniedError,
    errno.EROFS: AccessDeniedError,
    errno.ENAMETOOLONG: InvalidRequestError,
    # A file where the key needs a directory, or the reverse.
    errno.ENOTDIR: InvalidRequestError,
    errno.EISDIR: InvalidRequestError,
    errno.EEXIST: InvalidRequestError,
    errno.EINVAL: InvalidRequestError,
    errno.ELOOP: InvalidRequestError,
    errno.EXDEV: InvalidRequestError,
    errno.ENOTSUP: InvalidRequestError,
    errno.ENOLCK: InvalidRequestError,
}


@contextmanager
def translated(operation: str, key: str) -> Iterator[None]:
    """Raise OSError as our own error. Unlisted errno values are transient (EIO, ESTALE, EMFILE)."""
    try:
        yield
    except OSError as error:
        raise _kind(error)(f"{operation} {key}: {error}") from error


def _kind(error: OSError) -> type[StorageError]:
    if error.errno is None and isinstance(error, FileNotFoundError | NotADirectoryError):
        return ObjectNotFoundError  # raised by our own code: not a regular file
    return _BY_ERRNO.get(error.errno or 0, StoreUnavailableError)
