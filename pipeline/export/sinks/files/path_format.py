"""Joda-Time patterns, as in Confluent's `path.format`: `'year'=YYYY/'month'=MM`.

Source: Joda-Time's DateTimeFormat. Names of months, days and day periods come from Babel (CLDR).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Self

from sidetier.segments.errors import ConfigurationError

if TYPE_CHECKING:
    from babel import Locale

Render = Callable[[datetime], str]

_NOON: Final = 12
_SHORT_YEAR: Final = 2
_TEXT: Final = 3
"""Number of letters from which on a month is a name, not a number."""
_WIDE: Final = 4
_FRACTION_DIGITS: Final = 3

_NUMBERS: Final[dict[str, Callable[[datetime], int]]] = {
    "Y": lambda at: at.year,
    "y": lambda at: at.year,
    "x": lambda at: at.isocalendar().year,
    "w": lambda at: at.isocalendar().week,
    "e": lambda at: at.isoweekday(),
    "D": lambda at: at.timetuple().tm_yday,
    "M": lambda at: at.month,
    "d": lambda at: at.day,
    "H": lambda at: at.hour,
    "k": lambda at: at.hour or 24,
    "K": lambda at: at.hour % _NOON,
    "h": lambda at: at.hour % _NOON or _NOON,
    "m": lambda at: at.minute,
    "s": lambda at: at.second,
}
_YEARS: Final = "Yyx"


@dataclass(frozen=True, slots=True)
class PathFormat:
    """A parsed pattern."""

    pieces: tuple[Render, ...]

    def render(self, at: datetime) -> str:
        """Return the path of a local date and time."""
        return "".join(piece(at) for piece in self.pieces)

    @classmethod
    def parsed(cls, pattern: str, locale: str = "en") -> Self:
        """Parse a pattern.

        Raises:
            ConfigurationError: a letter or the locale is unknown, or the result is not a valid
                path.
        """
        made = cls(tuple(_pieces(pattern, locale)))
        example = made.render(datetime(2026, 11, 21, 8, 5, 3, 7000))  # noqa: DTZ001 -- a local time, of no zone
        if not all(part.strip() and part not in {".", ".."} for part in example.split("/")):
            raise ConfigurationError(
                f"path format {pattern!r}: gives {example!r}, which has an empty directory in it"
            )
        return made


def _pieces(pattern: str, locale: str) -> Iterator[Render]:
    for quoted, text in _quotes(pattern):
        if quoted:
            yield _literal(text)
            continue
        for letter, run in groupby(text):
            count = len(list(run))
            if letter.isascii() and letter.isalpha():
                yield _letter(letter, count, pattern, locale)
            else:
                yield _literal(letter * count)


def _quotes(pattern: str) -> Iterator[tuple[bool, str]]:
    """Yield each part of the pattern, and whether it is quoted. Two quotes in a row mean
    one quote.
    """
    rest = pattern
    while rest:
        before, quote, behind = rest.partition("'")
        yield False, before
        if not quote:
            return
        if behind.startswith("'"):
            yield True, "'"
            rest = behind[1:]
            continue
        text, closing, rest = _within(behind)
        if not closing:
            raise ConfigurationError(f"path format {pattern!r}: a quote is opened and not closed")
        yield True, text


def _within(behind: str) -> tuple[str, bool, str]:
    """Return the quoted text, whether its quote is closed, and the rest of the pattern."""
    text = ""
    while True:
        part, quote, behind = behind.partition("'")
        text += part
        if not behind.startswith("'"):
            return text, bool(quote), behind
        text, behind = f"{text}'", behind[1:]


def _literal(text: str) -> Render:
    return lambda _at: text


def _letter(letter: str, count: int, pattern: str, locale: str) -> Render:
    if letter in "Ea" or (letter == "M" and count >= _TEXT):
        return _words(letter, count, locale)
    if letter == "S":
        return lambda at: f"{at.microsecond:06d}"[:_FRACTION_DIGITS].ljust(count, "0")[:count]
    if letter not in _NUMBERS:
        raise ConfigurationError(
            f"path format {pattern!r}: {letter!r} is an unknown letter; known are "
            f"{', '.join(_NUMBERS)}, S, E and a; put text in quotes"
        )
    number = _NUMBERS[letter]
    if letter in _YEARS and count == _SHORT_YEAR:
        return lambda at: f"{number(at) % 100:02d}"
    return lambda at: f"{number(at):0{count}d}"


def _words(letter: str, count: int, name: str) -> Render:
    locale = _locale(name)
    width = "wide" if count >= _WIDE else "abbreviated"
    if letter == "a":
        periods: Any = locale.periods
        return lambda at: str(periods["am" if at.hour < _NOON else "pm"])
    if letter == "M":
        months: Any = locale.months["format"][width]
        return lambda at: str(months[at.month])
    days: Any = locale.days["format"][width]
    return lambda at: str(days[at.weekday()])


def _locale(name: str) -> "Locale":
    try:
        from babel import Locale, UnknownLocaleError  # noqa: PLC0415 -- only names need babel
    except ModuleNotFoundError:
        raise ConfigurationError(
            "names of months and days need babel, which is not installed: pip install "
            "'sidetier[export]'"
        ) from None
    try:
        return Locale.parse(name.replace("-", "_"))
    except (UnknownLocaleError, ValueError):
        raise ConfigurationError(
            f"locale {name!r}: is not known; locales are as en_GB, de, ko_KR"
        ) from None
