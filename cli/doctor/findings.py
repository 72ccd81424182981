"""Result of a check."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_MOST_NAMES: Final = 4


class Level(StrEnum):
    """Severity of a finding; the worst comes first."""

    PROBLEM = "problem"
    """Records are lost, will be lost, or are not archived."""
    ADVICE = "advice"
    """The safety margin is smaller than it could be."""
    OK = "ok"


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check; `setting` is the exact setting to write."""

    level: Level
    check: str
    found: str
    todo: str | None = None
    setting: str | None = None


def ok(check: str, found: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(Level.OK, check, found)


def advice(check: str, found: str, todo: str, setting: str | None = None) -> Finding:
    """Return a finding about a small safety margin."""
    return Finding(Level.ADVICE, check, found, todo, setting)


def problem(check: str, found: str, todo: str, setting: str | None = None) -> Finding:
    """Return a finding that costs records."""
    return Finding(Level.PROBLEM, check, found, todo, setting)


def some(names: Iterable[str]) -> str:
    """Return a few names, and the number of the others."""
    all_names = sorted(names)
    more = len(all_names) - _MOST_NAMES
    return ", ".join(all_names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
