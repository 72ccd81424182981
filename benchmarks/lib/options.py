"""Options of every benchmark."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from sidetier.brokers.cache import cache_root


def benchmark_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--quick`, `--runs`, `--record` and `--json`."""
    options = [
        click.option("--quick", is_flag=True, help="Small and short: does it run at all?"),
        click.option("--runs", type=click.IntRange(1), help="How often each is measured."),
        click.option("--record", is_flag=True, help="Write RESULTS.md and results/."),
        click.option("--json", "json_path", type=click.Path(path_type=Path), help="Raw figures."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@contextmanager
def work_directory(root: Path | None = None) -> Iterator[Path]:
    """Yield an empty directory, by default on the cache's file system; removed at the end."""
    root = root or cache_root()
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=root) as name:
        yield Path(name)
