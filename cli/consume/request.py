"""How `sidetier consume` writes records: output formats, encodings and delimiters."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_HEX_DIGITS: Final = 2


def unescaped(text: str) -> bytes:
    r"""Return the bytes of a delimiter: \n, \t, \r, \0, a doubled backslash and \xHH are one byte
    each.

    Raises:
        ValueError: Anything else follows a backslash.
    """
    result, rest = b"", text
    while rest:
        before, slash, behind = rest.partition("\\")
        result += before.encode()
        if not slash:
            break
        if behind[:1] in _ESCAPES and behind:
            result, rest = result + _ESCAPES[behind[0]], behind[1:]
        else:
            result, rest = result + _hex(behind, text), behind[1 + _HEX_DIGITS :]
    return result


def _hex(behind: str, text: str) -> bytes:
    digits = behind[1 : 1 + _HEX_DIGITS]
    try:
        if behind[:1] == "x" and len(digits) == _HEX_DIGITS:
            return bytes([int(digits, 16)])
    except ValueError:
        pass
    raise ValueError(f"{text!r}: after a backslash, give n, t, r, 0, xHH or another backslash")


class RecordFormat(StrEnum):
    """The output for each record."""

    JSON = "json"
    """One JSON object per line."""
    RAW = "raw"
    """Values, each followed by a delimiter."""
    COUNT = "count"
    """The number of records alone."""


class TextEncoding(StrEnum):
    """Encoding of keys and values in JSON."""

    UTF_8 = "utf-8"
    """Text; bytes that are not UTF-8 as `{"base64": "..."}`."""
    BASE64 = "base64"


@dataclass(frozen=True, slots=True)
class Formats:
    """How keys and values are decoded: as bytes, json, avro or protobuf.

    Attributes:
        registry: URL of the schema registry; None without one.
        registry_options: Properties of Confluent's registry client.
    """

    key: str = "bytes"
    value: str = "bytes"
    registry: str | None = None
    registry_options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecordOutput:
    """How records are written.

    Attributes:
        delimiter: Follows each raw value.
    """

    form: RecordFormat = RecordFormat.JSON
    encoding: TextEncoding = TextEncoding.UTF_8
    delimiter: bytes = b"\n"
    formats: Formats = field(default_factory=Formats)
