"""mkdocs hooks: pages from outside of `docs/`, and links to files of the repository.

The pages are written to be read in the repository, so their links are relative to files there. On
the site, a link to a page becomes a link to the page, and a link to any other file becomes a link
to the repository's web page (`repo_url`), or plain text if the site is built without it.
"""

import posixpath
import re
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[2]

OUTSIDE_PAGES: Final = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/RESULTS.md": "benchmarks.md",
    "helm/sidetier/README.md": "helm-chart.md",
}
"""Pages outside of `docs/`, by their path in the repository: their path on the site."""

_PATHS_IN_REPOSITORY: Final = {site: path for path, site in OUTSIDE_PAGES.items()}
_FENCE: Final = re.compile(r"^ *(```|~~~).*?^ *\1", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside of `docs/`."""
    for path, site_path in OUTSIDE_PAGES.items():
        content = (ROOT / path).read_text(encoding="utf-8")
        files.append(File.generated(config, site_path, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace the links that are relative to the repository."""
    del files
    if page.file.src_uri == "index.md":
        # Beside a table of contents, the diagram of the home page would be cut on most screens.
        page.meta["hide"] = ["toc"]
    return with_site_links(markdown, page.file.src_uri, config.repo_url)


def with_site_links(markdown: str, site_path: str, repository: str | None) -> str:
    """Return the page with links for the site. Code blocks stay as they are.

    Args:
        markdown: The page as it is in the repository.
        site_path: Path of the page on the site.
        repository: Address of the repository's web page; None turns links to files into text.

    Raises:
        PluginError: A link names a file that does not exist.
    """
    path = _PATHS_IN_REPOSITORY.get(site_path, f"docs/{site_path}")

    def link(match: re.Match[str]) -> str:
        image, label, target = match.groups()
        url = urlsplit(target)
        if url.scheme or not url.path:
            return match[0]
        named = posixpath.normpath(posixpath.join(posixpath.dirname(path), url.path))
        if not (ROOT / named).exists():
            raise PluginError(f"{path}: the link to {target} names no file of the repository")
        there = _site_path_of(named)
        anchor = f"#{url.fragment}" if url.fragment else ""
        if there is not None:
            relative = posixpath.relpath(there, posixpath.dirname(site_path) or ".")
            return f"{image}[{label}]({relative}{anchor})"
        if repository is None:
            return str(label)
        return f"{image}[{label}]({repository.rstrip('/')}/blob/main/{named}{anchor})"

    parts: list[str] = []
    end = 0
    for fence in _FENCE.finditer(markdown):
        parts.extend((_LINK.sub(link, markdown[end : fence.start()]), fence[0]))
        end = fence.end()
    parts.append(_LINK.sub(link, markdown[end:]))
    return "".join(parts)


def _site_path_of(path: str) -> str | None:
    """Return the path on the site of a page, given by its path in the repository; else None."""
    if path in OUTSIDE_PAGES:
        return OUTSIDE_PAGES[path]
    if path.startswith("docs/"):
        inside = path.removeprefix("docs/")
        return posixpath.join(inside, "README.md") if (ROOT / path).is_dir() else inside
    return None
