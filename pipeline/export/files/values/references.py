"""Schemas that others refer to, by subject and version, as registries have them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from sidetier.segments.errors import ConfigurationError

_DEEPEST: Final = 100
_SHOWN: Final = 5


class UnusableSchemaError(ConfigurationError):
    """A registry has a schema that no value can be read with; others of it may be of use."""


@dataclass(frozen=True, slots=True, order=True)
class Reference:
    """A version of a subject; `name` is what the schema that refers to it calls it."""

    subject: str
    version: int
    name: str = field(default="", compare=False)

    def __str__(self) -> str:
        """In words."""
        return f"subject {self.subject}, version {self.version}"


@dataclass(frozen=True, slots=True)
class Registered:
    """A schema, and those whose types it uses."""

    text: str
    references: tuple[Reference, ...] = ()


class Referred:
    """Each is asked for once, however many refer to it."""

    def __init__(self, ask: Callable[[Reference], Registered | None]) -> None:
        """`ask` gives None where there is none, and raises what `needed` is to raise."""
        self._ask = ask
        self._known: dict[Reference, Registered] = {}

    def needed(self, schema: Registered) -> dict[Reference, Registered]:
        """What a schema refers to, each once and behind those that it refers to.

        Raises:
            UnusableSchemaError: one is not there, or refers to itself in the end.
        """
        found: dict[Reference, Registered] = {}
        for one in schema.references:
            self._add(one, found, ())
        return found

    def _add(
        self, one: Reference, found: dict[Reference, Registered], trail: tuple[Reference, ...]
    ) -> None:
        if one in found:
            return
        if one in trail or len(trail) == _DEEPEST:
            what = "in a circle" if one in trail else f"more than {_DEEPEST} deep"
            raise UnusableSchemaError(f"its references lead {what}: {_way(*trail, one)}")
        schema = self._schema(one)
        for further in schema.references:
            self._add(further, found, (*trail, one))
        found[one] = schema

    def _schema(self, one: Reference) -> Registered:
        if one not in self._known:
            schema = self._ask(one)
            if schema is None:
                raise UnusableSchemaError(f"it refers to {one}, which is not there")
            self._known[one] = schema
        return self._known[one]


def _way(*trail: Reference) -> str:
    shown = " to ".join(map(str, trail[-_SHOWN:]))
    return shown if len(trail) <= _SHOWN else f"... {shown}"
