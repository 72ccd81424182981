"""Documentation is correct: links have targets, commands and settings exist."""

import re
from pathlib import Path

import click
import pytest

from sidetier.cli.main import COMMANDS
from sidetier.config.loading import load
from tests.harness.markdown import ROOT, anchors, blocks, commands, links, pages, text_of
from tests.harness.parsed import parse

PAGES = pages()
LINKS = [(page, target) for page in PAGES for target in links(text_of(page))]
SIDETIER = [(page, line) for page in PAGES for line in commands(text_of(page), "sidetier")]
MAKE = [(page, line) for page in PAGES for line in commands(text_of(page), "make")]
SCRIPTS = [(page, line) for page in PAGES for line in commands(text_of(page), "build.sh")]
PYTEST = [(page, line) for page in PAGES for line in commands(text_of(page), "pytest")]

REGISTRIES = re.compile(r"pypi\.org|pythonhosted|maven\.org|proxy\.golang|/root/|/work/")


def _case(case: tuple[Path, object]) -> str:
    page, what = case
    return f"{page}: {' '.join(what) if isinstance(what, list) else what}"


def test_pages_contain_links_and_commands() -> None:
    assert {Path("README.md"), Path("CONTRIBUTING.md"), Path("docs/operations.md")} <= set(PAGES)
    assert len(LINKS) > 20
    assert {line[0] for _, line in SIDETIER} >= {"run", "status", "config"}
    assert MAKE
    assert SCRIPTS
    assert PYTEST


@pytest.mark.parametrize("case", LINKS, ids=_case)
def test_every_link_has_a_target(case: tuple[Path, str]) -> None:
    page, target = case
    if target.startswith("https://"):
        return
    path, _, anchor = target.partition("#")
    there = (ROOT / page).parent / path if path else ROOT / page
    assert there.exists(), f"{page}: {target}"
    assert there.resolve().is_relative_to(ROOT), f"{page}: {target} leads out of the repository"
    if anchor:
        assert anchor in anchors(there.read_text(encoding="utf-8")), f"{page}: {target}"


@pytest.mark.parametrize("case", SIDETIER, ids=_case)
def test_every_sidetier_command_is_valid(case: tuple[Path, list[str]]) -> None:
    _, words = case
    parse(list(words))


@pytest.mark.parametrize(
    "words", [["rum"], ["run", "--conf", "x"], ["locate", "orders"], ["config", "chek"]]
)
def test_missing_command_is_detected(words: list[str]) -> None:
    with pytest.raises(click.UsageError):
        parse(words)


@pytest.mark.parametrize("case", MAKE, ids=_case)
def test_every_make_target_exists(case: tuple[Path, list[str]]) -> None:
    _, words = case
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in (word for word in words if "=" not in word):  # others set variables
        assert re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize("case", SCRIPTS, ids=_case)
def test_every_build_step_exists(case: tuple[Path, list[str]]) -> None:
    _, words = case
    script = (ROOT / "docker" / "build.sh").read_text(encoding="utf-8")
    assert f"'{words[0]} {len(words) - 1}'" in script


@pytest.mark.parametrize("case", PYTEST, ids=_case)
def test_every_named_test_exists(case: tuple[Path, list[str]]) -> None:
    _, words = case
    paths = [word for word in words if word.startswith("tests/")]
    assert paths
    assert all((ROOT / path).exists() for path in paths)
    if "-k" in words:
        named = words[words.index("-k") + 1]
        assert re.search(rf"def test_\w*{named}", (ROOT / paths[0]).read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_no_page_names_a_registry_or_a_machine(page: Path) -> None:
    assert not REGISTRIES.findall(text_of(page))


def test_first_configuration_loads(tmp_path: Path) -> None:
    (block,) = blocks(text_of(Path("README.md")), "yaml")
    file = tmp_path / "sidetier.yaml"
    file.write_text(block.text, encoding="utf-8")
    loaded = load([file], {})
    assert loaded.config.cluster.name == "prod-a"
    assert loaded.config.topics.selects("clicks.web")
    assert not loaded.config.topics.selects("clicks")
    assert not loaded.warnings


def test_every_command_is_in_the_readme_or_the_docs() -> None:
    said = "\n".join(text_of(page) for page in PAGES)
    missing = [name for name in COMMANDS if not re.search(rf"(sidetier |`){name}\b", said)]
    assert missing == []
