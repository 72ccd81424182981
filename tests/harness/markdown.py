"""What tests look for in the documentation: links, headings, and the commands in fenced blocks."""

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
    """A fenced block, and the language that it is said to be in."""

    language: str
    text: str


def pages() -> list[Path]:
    """Every page that people read, relative to the repository."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("benchmarks/*.md")]
    found += (ROOT / "helm").rglob("*.md")
    return sorted(path.relative_to(ROOT) for path in found)


def text_of(page: Path) -> str:
    """The page's text."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(text: str, *languages: str) -> list[Block]:
    """The fenced blocks in these languages, or all of them."""
    found = [Block(match[1], match[2]) for match in _FENCE.finditer(text)]
    return [block for block in found if not languages or block.language in languages]


def links(text: str) -> list[str]:
    """The targets of all links; what stands in code is none."""
    return _LINK.findall(_CODE.sub("", _FENCE.sub("", text)))


def anchors(text: str) -> set[str]:
    """The names under which a page's headings can be linked to, as GitHub makes them."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in _HEADING.findall(_FENCE.sub("", text))
    }


def commands(text: str, program: str) -> list[list[str]]:
    """The arguments of each command in shell blocks whose program has this name."""
    found = []
    for block in blocks(text, "sh"):
        for line in block.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words and Path(words[0]).name == program:
                found.append(words[1:])
    return found
