"""Parser of the documentation for tests: links, headings, and commands in fenced blocks."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block and its declared language."""

    language: str
    text: str


def pages() -> list[Path]:
    """Return every page for readers, relative to the repository."""
    paths = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("benchmarks/*.md")]
    paths += (ROOT / "helm").rglob("*.md")
    return sorted(path.relative_to(ROOT) for path in paths)


def text_of(page: Path) -> str:
    """Return the page's text."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(text: str, *languages: str) -> list[Block]:
    """Return the fenced blocks in these languages, or all of them."""
    fenced = [Block(match[1], match[2]) for match in _FENCE.finditer(text)]
    return [block for block in fenced if not languages or block.language in languages]


def links(text: str) -> list[str]:
    """Return the targets of all links outside code."""
    return _LINK.findall(_CODE.sub("", _FENCE.sub("", text)))


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub generates them."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in _HEADING.findall(_FENCE.sub("", text))
    }


def commands(text: str, program: str) -> list[list[str]]:
    """Return the arguments of each command of this program in shell blocks."""
    argument_lists = []
    for block in blocks(text, "sh"):
        for line in block.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words and Path(words[0]).name == program:
                argument_lists.append(words[1:])
    return argument_lists
