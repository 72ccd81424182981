"""What a check comes to."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_MOST_NAMES: Final = 4


class Level(StrEnum):
    """How bad it is; the worst comes first."""

    PROBLEM = "problem"
    """Records are lost, or will be, or are not archived."""
    ADVICE = "advice"
    """Less of a margin than there could be."""
    OK = "ok"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; `setting` is what to write where, exactly."""

    level: Level
    check: str
    found: str
    todo: str | None = None
    setting: str | None = None


def ok(check: str, found: str) -> Finding:
    """As it should be."""
    return Finding(Level.OK, check, found)


def advice(check: str, found: str, todo: str, setting: str | None = None) -> Finding:
    """It works, with less of a margin."""
    return Finding(Level.ADVICE, check, found, todo, setting)


def problem(check: str, found: str, todo: str, setting: str | None = None) -> Finding:
    """It costs records."""
    return Finding(Level.PROBLEM, check, found, todo, setting)


def some(names: Iterable[str]) -> str:
    """A few names, and how many more there are."""
    every = sorted(names)
    more = len(every) - _MOST_NAMES
    return ", ".join(every[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
