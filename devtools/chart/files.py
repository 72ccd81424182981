"""Write the generated files of the Helm chart: `make docs`."""

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from devtools.chart.alerts import expressions, rules
from devtools.chart.dashboard import dashboard
from devtools.chart.values_schema import values_schema

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
        for value in described_values(text)
    )
    return f"\n| value | default | |\n|---|---|---|\n{rows}\n"


def described_values(text: str) -> Iterator[Value]:
    """Yield every key of values.yaml that a comment describes, in order.

    A comment that begins with `# -- ` describes the key below it, as in helm-docs. It may continue
    on further comment lines. A key without such a comment is not shown.
    """
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


def _json(content: object) -> str:
    return json.dumps(content, indent=2) + "\n"


def _from_alerts(content: object) -> str:
    text = yaml.safe_dump(content, sort_keys=False, width=1000)
    return f"# Made from devtools/chart/alerts.py by `make docs`.\n{text}"


FILES: Final[Mapping[str, Callable[[Path], str]]] = {
    "values.schema.json": lambda _: _json(values_schema()),
    "files/alerts.yaml": lambda _: _from_alerts(rules()),
    "files/alert-expressions.yaml": lambda _: _from_alerts(expressions()),
    "files/dashboard.json": lambda _: _json(dashboard()),
    "README.md": with_table,
}
"""Path in the chart, and a function that returns the content from the chart's directory."""


def write_files(chart: Path) -> None:
    """Write every generated file into the chart."""
    for name, content in FILES.items():
        (chart / name).write_text(content(chart), encoding="utf-8")


def main(arguments: Sequence[str]) -> None:
    """Write the files; the only argument is the chart's directory."""
    write_files(Path(arguments[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
