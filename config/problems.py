"""Problems of a configuration, reported all at once."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from sidetier.segments.errors import ConfigurationError

SettingPath = tuple[str | int, ...]
"""Path of a value: keys of mappings, and indexes of lists."""

Origins = Mapping[SettingPath, str]
"""Source of each value: `sidetier.yaml:12`, `env SIDETIER_…`, `flag --set`."""

DEFAULT_ORIGIN = "default"


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of one setting, or of several; `path` is the first of them."""

    path: SettingPath
    message: str


def reason_of(detail: Mapping[str, Any]) -> str:
    """Return the message of one of pydantic's errors, without its prefix for our own validators."""
    return str(detail["msg"]).removeprefix("Value error, ")


def dotted(path: SettingPath) -> str:
    """Return `("storage", "overrides", 0, "url")` as `storage.overrides[0].url`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.removeprefix(".")


def origin_of(path: SettingPath, origins: Origins) -> str | None:
    """Return the source of the setting or of the nearest part around it; None for a default."""
    for length in range(len(path), 0, -1):
        origin = origins.get(path[:length])
        if origin is not None:
            return origin
    return None


def problem_line(problem: Problem, origins: Origins) -> str:
    """Return one line: the setting, its source, the problem."""
    origin = origin_of(problem.path, origins)
    where = f" ({origin})" if origin else ""
    return f"{dotted(problem.path) or 'configuration'}{where}: {problem.message}"


def raise_problems(problems: Iterable[Problem], origins: Origins) -> None:
    """Raise one ConfigurationError with a line for each problem, if there are any."""
    lines = list(dict.fromkeys(problem_line(problem, origins) for problem in problems))
    if lines:
        raise ConfigurationError("\n".join(lines))


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean …?`, or an empty text if no name is similar."""
    near = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


def first_of(names: Sequence[object], most: int = 5) -> str:
    """Return the first names and the number of the others: `a, b and 7 more`."""
    shown = ", ".join(map(str, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
