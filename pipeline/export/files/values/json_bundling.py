"""Bundle a JSON Schema and the schemas that it refers to into one document. Pure.

Each referenced schema becomes a definition of the document, and references point to it.
"""

import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urldefrag, urljoin

from sidetier.pipeline.export.files.values.references import Reference, Registered

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
    root = json.loads(schema.text)
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
