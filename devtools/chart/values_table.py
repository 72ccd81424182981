"""Table of values in the chart's README, made from the comments of values.yaml.

A comment that begins with `# -- ` describes the key below it, as in helm-docs. It may continue on
further comment lines. A key without such a comment is not shown.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

BEGIN: Final = "<!-- values: made from values.yaml by `make docs` -->\n"
END: Final = "<!-- end of values -->\n"
_KEY: Final = re.compile(r"^( *)([A-Za-z][A-Za-z0-9]*):")
_INDENT: Final = 2


@dataclass(frozen=True, slots=True)
class Value:
    """One key and its description."""

    path: tuple[str, ...]
    help: str


def with_table(chart: Path) -> str:
    """Return the chart's README with the current table.

    Raises:
        ValueError: The README lacks a marker of the table.
    """
    readme = (chart / "README.md").read_text(encoding="utf-8")
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{chart / 'README.md'}: {BEGIN.strip()} or {END.strip()} is missing")
    return (
        before + begin + _table((chart / "values.yaml").read_text(encoding="utf-8")) + end + after
    )


def _table(text: str) -> str:
    defaults = yaml.safe_load(text)
    rows = "".join(
        f"| `{'.'.join(value.path)}` | `{_shown(_at(defaults, value.path))}` | {value.help} |\n"
        for value in told(text)
    )
    return f"\n| value | default | |\n|---|---|---|\n{rows}\n"


def told(text: str) -> Iterator[Value]:
    """Yield every key of values.yaml that a comment describes, in order."""
    path: list[str] = []
    help_lines: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("# -- "):
            help_lines = [stripped.removeprefix("# -- ")]
        elif stripped.startswith("# ") and help_lines:
            help_lines.append(stripped.removeprefix("# "))
        elif (key := _KEY.match(line)) is not None:
            path = [*path[: len(key[1]) // _INDENT], key[2]]
            if help_lines:
                yield Value(tuple(path), " ".join(help_lines).replace("|", "\\|"))
            help_lines = []
        else:
            help_lines = []


def _at(values: Any, path: tuple[str, ...]) -> object:  # noqa: ANN401 -- YAML
    for step in path:
        values = values[step]
    return values


def _shown(value: object) -> str:
    return json.dumps(value).replace("|", "\\|")
