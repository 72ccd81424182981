"""Schemas that other schemas refer to, by subject and version, as in a registry."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urldefrag, urljoin

from sidetier.segments.errors import ConfigurationError
from sidetier.segments.json_text import parse_json

_DEEPEST: Final = 100
_SHOWN: Final = 5


class UnusableSchemaError(ConfigurationError):
    """A registry's schema with which no value can be read. Other schemas of it may be usable."""


@dataclass(frozen=True, slots=True, order=True)
class Reference:
    """A version of a subject; `name` is its name in the schema that refers to it."""

    subject: str
    version: int
    name: str = field(default="", compare=False)

    def __str__(self) -> str:
        """The text for messages."""
        return f"subject {self.subject}, version {self.version}"


@dataclass(frozen=True, slots=True)
class Registered:
    """A schema, and references to the schemas whose types it uses."""

    text: str
    references: tuple[Reference, ...] = ()


class Referred:
    """Loader of referenced schemas. It requests each one once."""

    def __init__(self, ask: Callable[[Reference], Registered | None]) -> None:
        """Create a loader.

        `ask` returns None for a schema that does not exist. Its errors are raised by `needed`.
        """
        self._ask = ask
        self._known: dict[Reference, Registered] = {}

    def needed(self, schema: Registered) -> dict[Reference, Registered]:
        """Return all schemas that a schema refers to, each one after those that it refers to
        itself.

        Raises:
            UnusableSchemaError: a schema does not exist, or the references have a cycle.
        """
        schemas: dict[Reference, Registered] = {}
        for reference in schema.references:
            self._add(reference, schemas, ())
        return schemas

    def _add(
        self,
        reference: Reference,
        loaded: dict[Reference, Registered],
        trail: tuple[Reference, ...],
    ) -> None:
        if reference in loaded:
            return
        if reference in trail or len(trail) == _DEEPEST:
            problem = "in a circle" if reference in trail else f"more than {_DEEPEST} deep"
            raise UnusableSchemaError(f"its references lead {problem}: {_way(*trail, reference)}")
        schema = self._schema(reference)
        for further in schema.references:
            self._add(further, loaded, (*trail, reference))
        # After the schemas that it refers to: `fastavro` and Protobuf need types before their use.
        loaded[reference] = schema

    def _schema(self, reference: Reference) -> Registered:
        if reference not in self._known:
            schema = self._ask(reference)
            if schema is None:
                raise UnusableSchemaError(f"it refers to {reference}, which does not exist")
            self._known[reference] = schema
        return self._known[reference]


def _way(*trail: Reference) -> str:
    shown = " to ".join(map(str, trail[-_SHOWN:]))
    return shown if len(trail) <= _SHOWN else f"... {shown}"


# Bundle a JSON Schema and the schemas that it refers to into one document. Pure.
#
# Each referenced schema becomes a definition of the document, and references point to it.

_DEFINITIONS: Final = "$defs"


def bundled(schema: Registered, needed: Mapping[Reference, Registered]) -> str:
    """Return the document; the schema itself if it refers to no other.

    Raises:
        ValueError: one of the schemas is not JSON.
    """
    if not needed:
        return schema.text
    places = {reference: f"sidetier-{number}" for number, reference in enumerate(needed)}
    root = _led(schema, places, "#")
    definitions = {
        places[reference]: _led(referenced, places, _place(places[reference]))
        for reference, referenced in needed.items()
    }
    if not isinstance(root, dict):
        return json.dumps(root)
    known = root.get(_DEFINITIONS)
    return json.dumps({**root, _DEFINITIONS: {**(known or {}), **definitions}})


def _place(name: str) -> str:
    return f"#/{_DEFINITIONS}/{name}"


def _led(schema: Registered, places: Mapping[Reference, str], here: str) -> Any:  # noqa: ANN401
    """Return a schema whose references point into the document; `here` is its own place there."""
    root = parse_json(schema.text)
    base = root.get("$id", "") if isinstance(root, Mapping) else ""
    names = {item.name: _place(places[item]) for item in schema.references}

    def target(reference: str) -> str:
        for absolute in (reference, urljoin(str(base), reference)):
            name, fragment = urldefrag(absolute)
            if name in names:
                return names[name] + fragment.rstrip("/")
        return here + reference[1:].rstrip("/") if reference.startswith("#") else reference

    def walk(part: Any) -> Any:  # noqa: ANN401
        if isinstance(part, list):
            return [walk(item) for item in part]
        if not isinstance(part, dict):
            return part
        return {
            name: target(item) if name == "$ref" and isinstance(item, str) else walk(item)
            for name, item in part.items()
        }

    return walk(root)
