"""A JSON Schema that refers to others, as one document: pure.

Each of the others becomes a definition of the document, and references lead there.
"""

import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urldefrag, urljoin

from sidetier.pipeline.export.files.values.references import Reference, Registered

_DEFINITIONS: Final = "$defs"


def bundled(schema: Registered, needed: Mapping[Reference, Registered]) -> str:
    """The document; it is the schema itself where it refers to no other.

    Raises:
        ValueError: one of them is no JSON.
    """
    if not needed:
        return schema.text
    places = {one: f"sidetier-{number}" for number, one in enumerate(needed)}
    root = _led(schema, places, "#")
    definitions = {places[one]: _led(at, places, _place(places[one])) for one, at in needed.items()}
    if not isinstance(root, dict):
        return json.dumps(root)
    known = root.get(_DEFINITIONS)
    return json.dumps({**root, _DEFINITIONS: {**(known or {}), **definitions}})


def _place(name: str) -> str:
    return f"#/{_DEFINITIONS}/{name}"


def _led(schema: Registered, places: Mapping[Reference, str], here: str) -> Any:  # noqa: ANN401
    """A schema whose references lead to places of the document; `here` is its own."""
    root = json.loads(schema.text)
    base = root.get("$id", "") if isinstance(root, Mapping) else ""
    names = {one.name: _place(places[one]) for one in schema.references}

    def target(reference: str) -> str:
        for absolute in (reference, urljoin(str(base), reference)):
            name, fragment = urldefrag(absolute)
            if name in names:
                return names[name] + fragment.rstrip("/")
        return here + reference[1:].rstrip("/") if reference.startswith("#") else reference

    def walk(part: Any) -> Any:  # noqa: ANN401
        if isinstance(part, list):
            return [walk(one) for one in part]
        if not isinstance(part, dict):
            return part
        return {
            name: target(one) if name == "$ref" and isinstance(one, str) else walk(one)
            for name, one in part.items()
        }

    return walk(root)
