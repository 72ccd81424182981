"""Logs are searchable only if event names are constants of one form."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ROOMS = ("segments", "config", "storage", "leadership", "telemetry", "uploader", "cli")
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
EVENT = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")


def log_calls(path: Path) -> Iterator[ast.Call]:
    """Calls such as `log.info(…)` and `self._log.warning(…)`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = ast.unparse(node.func.value).rsplit(".", 1)[-1].lstrip("_").lower()
            if node.func.attr in LEVELS and (owner.startswith("log") or owner.endswith("log")):
                yield node


def modules() -> list[Path]:
    return [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_event_names_are_constants_of_one_form(path: Path) -> None:
    for call in log_calls(path):
        where = f"{path.relative_to(ROOT)}:{call.lineno}"
        assert call.args, f"{where}: an event needs a name"
        name = call.args[0]
        for choice in (name.body, name.orelse) if isinstance(name, ast.IfExp) else (name,):
            assert isinstance(choice, ast.Constant), f"{where}: the name must be a constant"
            assert EVENT.fullmatch(str(choice.value)), f"{where}: {choice.value!r} is no name"


def test_scan_finds_log_calls() -> None:
    found = [call for path in modules() for call in log_calls(path)]
    assert len(found) > 5
