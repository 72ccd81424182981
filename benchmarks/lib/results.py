"""Form of results: a table for people, JSON for programs, a section of RESULTS.md."""

import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from lib.clock import wall
from lib.processes import machine

_HOME = Path(__file__).parent.parent
_PAGE = _HOME / "RESULTS.md"
_RAW = _HOME / "results"
_LOAD = os.getloadavg()[0]
_QUIET = 0.5
_HEAD = """\
# What was measured

Each section is written by `benchmarks/<name>.py --record`, which also keeps every single figure in
`results/<name>.json`. Values are minimum / **median** / maximum over the runs, which take turns.
"""


@dataclass(frozen=True, slots=True)
class Spread:
    """Minimum, median and maximum of several runs."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        """Compute the spread of at least one value."""
        measured = list(values)
        return cls(min(measured), median(measured), max(measured))

    def text(self, digits: int = 2) -> str:
        """Return the text for a table."""
        low, middle, high = (f"{x:.{digits}f}" for x in (self.low, self.middle, self.high))
        return f"{low} / **{middle}** / {high}"


@dataclass(frozen=True, slots=True)
class Target:
    """A target: `value` must be at most `limit`, or at least `limit` with `at_least`."""

    what: str
    value: float
    limit: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the value meets the target."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit


@dataclass(slots=True)
class Report:
    """Result of a benchmark. `raw` has every figure, in a form that JSON can hold."""

    name: str
    title: str
    how: str
    targets: list[Target] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)
    _tables: list[str] = field(default_factory=list)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Add a table."""
        lines = [columns, ["---"] * len(columns), *rows]
        self._tables.append("\n".join(f"| {' | '.join(map(str, line))} |" for line in lines))

    def finish(self, *, record: bool, json_path: Path | None) -> int:
        """Print the report and store it if requested; return 1 if a target is missed, else 0."""
        self.table(
            ["what is asked", "measured", "limit", "met"],
            [
                [
                    target.what,
                    f"{target.value:.3g}",
                    f"at {'least' if target.at_least else 'most'} {target.limit:g}",
                    "yes" if target.met else "**no**",
                ]
                for target in self.targets
            ],
        )
        section = self._section()
        print(section)
        if json_path is not None:
            json_path.write_text(self._json())
        if record:
            _RAW.mkdir(exist_ok=True)
            (_RAW / f"{self.name}.json").write_text(self._json())
            _replace_section(self.name, section)
        return 0 if all(target.met for target in self.targets) else 1

    def _section(self) -> str:
        environment = f"`{_command()}`, {_date()}, {machine()}, Python {sys.version.split()[0]}."
        if _LOAD > _QUIET:
            environment += (
                f" **The machine was busy**: its load average was {_LOAD:.0f} before the start."
            )
        return "\n\n".join([f"## {self.title}", environment, self.how, *self._tables]) + "\n"

    def _json(self) -> str:
        whole = {
            "name": self.name,
            "command": _command(),
            "date": _date(),
            "machine": machine(),
            "load_before": _LOAD,
            "targets": [{**asdict(target), "met": target.met} for target in self.targets],
            **self.raw,
        }
        return json.dumps(whole, indent=1) + "\n"


def _command() -> str:
    arguments = [option for option in sys.argv[1:] if option != "--record"]
    places = {at + 1 for at, option in enumerate(arguments) if option == "--json"}
    options = [
        argument
        for at, argument in enumerate(arguments)
        if at not in places and argument != "--json"
    ]
    return shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *options])


def _date() -> str:
    return datetime.fromtimestamp(wall(), UTC).strftime("%Y-%m-%d")


def _replace_section(name: str, section: str) -> None:
    page = _PAGE.read_text() if _PAGE.exists() else _HEAD
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    block = f"{begin}\n{section}{end}\n"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}\n", re.DOTALL)
    page, replaced = pattern.subn(lambda _: block, page)
    _PAGE.write_text(page if replaced else f"{page}\n{block}")
