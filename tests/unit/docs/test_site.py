"""The documentation site: a strict build, without a request to another host."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import PluginError

from devtools.site.hooks import with_site_links
from sidetier.cli.main import COMMANDS
from tests.harness.markdown import ROOT

REPOSITORY = "https://git.example.com/sidetier"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. A warning, such as a broken link, raises Abort."""
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("NO_MKDOCS_2_WARNING", "1")
        build(load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(folder)))
    return folder


class Loaded(HTMLParser):
    """Collects what a browser loads without a click."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        name = {"script": "src", "img": "src", "link": "href"}.get(tag)
        if name is not None and values.get("rel") != "canonical":
            self.urls.append(values.get(name) or "")


def test_every_page_is_built_and_loads_nothing_from_other_hosts(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(list((ROOT / "docs").rglob("*.md")))
    for page in pages:
        loaded = Loaded()
        loaded.feed(page.read_text(encoding="utf-8"))
        assert loaded.urls
        assert [url for url in loaded.urls if re.match(r"\w+:|//", url)] == [], page


def test_commands_are_listed_with_their_options(site: Path) -> None:
    text = (site / "commands" / "index.html").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f'id="{name}"' not in text] == []
    assert "--max-bytes-per-second" in text


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("serve.md", "[a](storage.md#s3)", "[a](storage.md#s3)"),
        ("serve.md", "[a](runbook)", "[a](runbook/README.md)"),
        ("serve.md", "[a](../CHANGELOG.md)", "[a](changelog.md)"),
        ("runbook/SidetierDown.md", "[a](../../README.md#try-it)", "[a](../index.md#try-it)"),
        ("index.md", "[a](docs/serve.md)", "[a](serve.md)"),
        ("helm-chart.md", "[a](../../docs/serve.md)", "[a](serve.md)"),
        (
            "helm-chart.md",
            "[a](values.yaml)",
            f"[a]({REPOSITORY}/blob/main/helm/sidetier/values.yaml)",
        ),
        ("serve.md", "[a](https://kafka.apache.org)", "[a](https://kafka.apache.org)"),
        ("serve.md", "```\n[a](none.md)\n```", "```\n[a](none.md)\n```"),
    ],
)
def test_links_lead_to_pages_or_to_the_repository(page: str, link: str, expected: str) -> None:
    assert with_site_links(link, page, REPOSITORY) == expected


def test_file_of_the_repository_is_no_link_without_its_address() -> None:
    text = "see [engine.py](../uploader/engine.py)."
    assert with_site_links(text, "serve.md", None) == "see engine.py."


def test_link_to_a_missing_file_is_refused() -> None:
    with pytest.raises(PluginError, match=r"docs/serve.md: the link to none.md names no file"):
        with_site_links("[a](none.md)", "serve.md", None)
