"""Parse JSON that others have written: stored objects, answers of servers, nodes of ZooKeeper."""

import json
import math
from typing import Any, Final, NoReturn

from sidetier.segments.errors import MalformedObjectError


def parse_json(data: str | bytes) -> Any:  # noqa: ANN401 -- JSON
    """Parse a JSON document, of bytes in UTF-8, UTF-16 or UTF-32.

    Unlike `json.loads` it raises one type of error, and returns no number that `int` cannot
    convert.

    Raises:
        ValueError: It is no JSON (RFC 8259), its values are nested too deeply, or a number is
            beyond the range of a float.
    """
    text = data
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("values are nested too deeply") from None


def parse_versioned(data: str | bytes, known: int, key: str) -> dict[str, Any]:
    """Parse a stored JSON object that has a `version`.

    Callers ignore fields that they do not know: a writer raises the version only if a reader that
    ignores its new fields would be wrong.

    Args:
        data: The bytes of the object.
        known: The version that the caller reads.
        key: Its key, for the error.

    Raises:
        MalformedObjectError: It has another version; the message names the key and the version.
        ValueError: It is no JSON object, or has no version.
    """
    fields = parse_json(data)
    if not isinstance(fields, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - the data is wrong, not the caller's argument
    if "version" not in fields:
        raise ValueError("it has no version")
    if fields["version"] != known:
        raise unknown_version(key, fields["version"], known)
    return fields


def unknown_version(key: str, version: object, known: int) -> MalformedObjectError:
    """Return the error for a stored object of a version that this program does not read."""
    return MalformedObjectError(
        f"{key} has version {version!r}, and this Sidetier reads version {known}: upgrade Sidetier"
    )


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:60]} is beyond the range of a float")
    return number


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_DECODER: Final = json.JSONDecoder(parse_float=_finite, parse_constant=_no_constant)
