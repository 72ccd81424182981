"""Write the pages of the documentation that are generated from code: `make docs`."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from devtools.reference.column_types_page import column_types_page
from devtools.reference.configuration_page import configuration_page, pinterest_page
from devtools.reference.metrics_page import metrics_page

PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "column-types.md": column_types_page,
    "configuration.md": configuration_page,
    "metrics.md": metrics_page,
    "pinterest-properties.md": pinterest_page,
}


def write_pages(folder: Path) -> None:
    """Write every page into the folder."""
    for name, page in PAGES.items():
        (folder / name).write_text(page(), encoding="utf-8")


def main(arguments: Sequence[str]) -> None:
    """Write the pages into the folder that is the only argument."""
    write_pages(Path(arguments[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
