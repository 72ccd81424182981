from pathlib import Path

import pytest

from devtools.reference.pages import PAGES, write_pages
from sidetier.config.loading import load

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_reference_page_matches_the_code(name: str) -> None:
    page = (DOCS / name).read_text(encoding="utf-8")
    assert page == PAGES[name](), "run `make docs`"


def test_all_reference_pages_are_generated(tmp_path: Path) -> None:
    write_pages(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(PAGES)


def test_minimal_configuration_on_the_page_loads(tmp_path: Path) -> None:
    page = (DOCS / "configuration.md").read_text(encoding="utf-8")
    file = tmp_path / "sidetier.yaml"
    file.write_text(page.partition("```yaml\n")[2].partition("```")[0], encoding="utf-8")
    assert load([file]).config.cluster.name == "prod-a"
