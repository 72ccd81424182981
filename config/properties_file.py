"""Parser of the `java.util.Properties` format."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sidetier.segments.errors import ConfigurationError

_KEY: Final = re.compile(r"(?:\\.|[^\\=:\s])*")
_SEPARATOR: Final = re.compile(r"\s*[=:]?\s*")
_ESCAPE: Final = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_SHORT: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


@dataclass(frozen=True, slots=True)
class Property:
    """A key, its value, and the number of its first line, counted from 1."""

    key: str
    value: str
    line: int


def parse_properties(text: str, name: str) -> tuple[Property, ...]:
    r"""Parse the properties, in the order of the file.

    Source: `java.util.Properties.load(Reader)`, line continuations and escapes included.

    Args:
        text: the file's content.
        name: name of the file, for messages.

    Raises:
        ConfigurationError: a `\u` without four hexadecimal digits.
    """
    return tuple(_property(line, number, name) for number, line in _logical_lines(text))


def read_properties(file: Path, option: str) -> dict[str, str]:
    """Return the properties of a file that an option of the command line names.

    Raises:
        ConfigurationError: It cannot be read; the text names the option.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{option} {file}: cannot be read: {error}") from None
    return {entry.key: entry.value for entry in parse_properties(text, str(file))}


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Join lines that end in an odd number of backslashes; skip comments and blank lines."""
    joined, first = "", 0
    for number, raw in enumerate(re.split(r"\r\n|\r|\n", text), start=1):
        line = raw.lstrip(" \t\f")
        if not joined:
            if not line or line[0] in "#!":
                continue
            first = number
        joined += line
        if (len(joined) - len(joined.rstrip("\\"))) % 2:
            joined = joined[:-1]
            if joined:
                continue
        if joined:
            yield first, joined
        joined = ""
    if joined:
        yield first, joined


def _property(line: str, number: int, name: str) -> Property:
    key = _KEY.match(line)
    end = key.end() if key else 0
    separator = _SEPARATOR.match(line, end)
    value = line[separator.end() if separator else end :]
    where = f"{name}:{number}"
    return Property(_unescaped(line[:end], where), _unescaped(value, where), number)


def _unescaped(text: str, where: str) -> str:
    def character(match: re.Match[str]) -> str:
        escape = match[1]
        if escape == "u":
            raise ConfigurationError(f"{where}: \\u must be followed by four hexadecimal digits")
        return chr(int(escape[1:], 16)) if len(escape) > 1 else _SHORT.get(escape, escape)

    return _ESCAPE.sub(character, text)
