"""Parser for Dockerfiles, limited to the syntax that Sidetier's Dockerfile uses."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]

_VARIABLE = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its name, its `--flags`, and the rest of the line."""

    name: str
    flags: tuple[str, ...]
    rest: str

    @property
    def words(self) -> list[str]:
        """Words of the rest of the line."""
        return self.rest.split()

    def exec_form(self) -> list[str]:
        """Words of the exec form (a JSON list). Raises ValueError for the shell form."""
        words = json.loads(self.rest)
        if not isinstance(words, list) or not words:
            raise ValueError(f"{self.name} {self.rest} is no list of words")
        return [str(word) for word in words]

    def flag(self, name: str) -> str | None:
        """Return the value of `--name=value`; None if it is absent."""
        values = [flag.partition("=")[2] for flag in self.flags if flag.startswith(f"--{name}=")]
        return values[0] if values else None


@dataclass(slots=True)
class Stage:
    """One stage: the instructions after a FROM."""

    base: str
    name: str | None
    instructions: list[Instruction] = field(default_factory=list)

    def all(self, name: str) -> list[Instruction]:
        """Return the instructions of this name, in order."""
        return [instruction for instruction in self.instructions if instruction.name == name]

    def last(self, name: str) -> Instruction:
        """Return the last instruction of this name, which replaces the others."""
        return self.all(name)[-1]


def read_stages(path: Path = ROOT / "Dockerfile") -> list[Stage]:
    """Read all stages, with the defaults of leading ARGs filled into the base images."""
    defaults: dict[str, str] = {}
    stages: list[Stage] = []
    for instruction in _instructions(path.read_text(encoding="utf-8")):
        if instruction.name == "FROM":
            base, *alias = instruction.words
            base = _VARIABLE.sub(lambda match: defaults[match[1]], base)
            stages.append(Stage(base, alias[1] if alias else None))
        elif stages:
            stages[-1].instructions.append(instruction)
        else:
            assert instruction.name == "ARG", f"{instruction.name} before the first FROM"
            name, _, value = instruction.rest.partition("=")
            defaults[name] = value
    return stages


def _instructions(text: str) -> list[Instruction]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [_parse(line) for line in joined.splitlines() if line.strip()]


def _parse(line: str) -> Instruction:
    name, _, remainder = line.strip().partition(" ")
    flags = []
    while remainder.lstrip().startswith("--"):
        flag, _, remainder = remainder.lstrip().partition(" ")
        flags.append(flag)
    return Instruction(name.upper(), tuple(flags), remainder.strip())
