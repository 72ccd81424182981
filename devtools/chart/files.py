"""Write the generated files of the Helm chart: `make docs`."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import yaml

from devtools.chart.values_schema import values_schema
from devtools.chart.values_table import with_table
from sidetier.telemetry.alerts import expressions, rules
from sidetier.telemetry.dashboard import dashboard


def _json(content: object) -> str:
    return json.dumps(content, indent=2) + "\n"


def _from_alerts(content: object) -> str:
    text = yaml.safe_dump(content, sort_keys=False, width=1000)
    return f"# Made from telemetry/alerts.py by `make docs`.\n{text}"


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
    for name, made in FILES.items():
        (chart / name).write_text(made(chart), encoding="utf-8")


def main(arguments: Sequence[str]) -> None:
    """Write the files; the only argument is the chart's directory."""
    write_files(Path(arguments[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
