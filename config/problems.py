"""Problems of a configuration, and how all of them are told at once."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from sidetier.segments.errors import ConfigurationError

SettingPath = tuple[str | int, ...]
"""Where a value stands: keys of mappings, and indexes of lists."""

Origins = Mapping[SettingPath, str]
"""Where values came from: `sidetier.yaml:12`, `env SIDETIER_…`, `flag --set`."""

DEFAULT_ORIGIN = "default"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with one setting, or between several; the first is named."""

    path: SettingPath
    message: str


def dotted(path: SettingPath) -> str:
    """`("storage", "overrides", 0, "url")` as `storage.overrides[0].url`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.removeprefix(".")


def origin_of(path: SettingPath, origins: Origins) -> str | None:
    """Where the setting, or else what holds it, was given; None for a default."""
    for length in range(len(path), 0, -1):
        origin = origins.get(path[:length])
        if origin is not None:
            return origin
    return None


def told(problem: Problem, origins: Origins) -> str:
    """One line: the setting, where it was given, what is wrong."""
    origin = origin_of(problem.path, origins)
    where = f" ({origin})" if origin else ""
    return f"{dotted(problem.path) or 'configuration'}{where}: {problem.message}"


def raise_problems(problems: Iterable[Problem], origins: Origins) -> None:
    """Raise one ConfigurationError with a line per problem; nothing where there is none."""
    lines = list(dict.fromkeys(told(problem, origins) for problem in problems))
    if lines:
        raise ConfigurationError("\n".join(lines))


def suggestion(name: str, known: Iterable[str]) -> str:
    """`; did you mean …?`, or nothing where no name is near."""
    near = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""
