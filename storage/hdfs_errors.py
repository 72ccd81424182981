"""Translate hdfs-native's errors into StorageErrors.

hdfs-native 0.14 raises FileNotFoundError and FileExistsError for paths, OSError without an errno
for connections, and RuntimeError for the rest: `RPCError("<Java class>", "<message and stack>")`.
So the Java class is parsed from the text. A test provokes each kind on a real NameNode.
"""

import re
from typing import Final

from sidetier.segments.errors import (
    AccessDeniedError,
    InvalidRequestError,
    ObjectNotFoundError,
    StorageError,
    StoreFullError,
    StoreThrottledError,
    StoreTimeoutError,
    StoreUnavailableError,
)

_RPC: Final = re.compile(r'RPCError\("(?:[\w.]+[.$])?(\w+)", "(.*)"\)$', re.DOTALL)
_LOGIN: Final = re.compile(r"^(SASLError|GSSAPIError|NoSASLMechanism)")
_REFUSED: Final = re.compile(r"^(InvalidPath|InvalidArgument|UrlParseError|UnsupportedFeature)")
_STACK: Final = re.compile(r"(?:\\n|\n)\s*(?:\\t|\t)?at .*$", re.DOTALL)
_NOT_A_DIRECTORY: Final = "(is not a directory)"
_LONGEST: Final = 300

BY_CLASS: Final[dict[str, type[StorageError]]] = {
    "AccessControlException": AccessDeniedError,
    "AuthorizationException": AccessDeniedError,
    "InvalidToken": AccessDeniedError,
    "SaslException": AccessDeniedError,
    "FileNotFoundException": ObjectNotFoundError,
    "NSQuotaExceededException": StoreFullError,
    "DSQuotaExceededException": StoreFullError,
    "QuotaByStorageTypeExceededException": StoreFullError,
    "MaxDirectoryItemsExceededException": StoreFullError,
    "HadoopIllegalArgumentException": InvalidRequestError,
    "IllegalArgumentException": InvalidRequestError,
    "InvalidPathException": InvalidRequestError,
    "ParentNotDirectoryException": InvalidRequestError,
    "PathComponentTooLongException": InvalidRequestError,
    "RetriableException": StoreThrottledError,
}
"""Simple class name of a NameNode's exception to our error. All others count as transient:
SafeModeException, StandbyException, an IOException that finds too few DataNodes."""


def translation(operation: str, place: str, error: BaseException) -> StorageError:
    """Return our error for one of hdfs-native's, without the server's stack trace."""
    text = str(error)
    rpc = _RPC.search(text)
    message = _STACK.sub("", rpc[2] if rpc else text)[:_LONGEST]
    name = rpc[1] if rpc else type(error).__name__
    return _kind(error, text, name)(f"{operation} {place}: {name}: {message}".rstrip(": "))


def _kind(error: BaseException, text: str, name: str) -> type[StorageError]:
    if isinstance(error, TimeoutError):
        return StoreTimeoutError
    if isinstance(error, FileNotFoundError):
        return ObjectNotFoundError
    if _NOT_A_DIRECTORY in text or "must both be directories" in text:
        return InvalidRequestError  # a file where the key needs a directory, or the reverse
    if isinstance(error, FileExistsError | ValueError) or _REFUSED.search(text):
        return InvalidRequestError
    if _LOGIN.search(text):
        return AccessDeniedError
    return BY_CLASS.get(name, StoreUnavailableError)
