"""JSON schema of the configuration file."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from sidetier.config.base import Part
from sidetier.config.model import Config
from sidetier.config.secrets import SECRET_PROPERTY
from sidetier.config.units import format_duration, format_size

_SHOWN: Final[Mapping[str, Callable[[Any], str]]] = {
    "duration": format_duration,
    "size": format_size,
    "size or percentage": str,
}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema, draft 2020-12, of the YAML file.

    A file that matches the schema may still have contradictions, which `sidetier config check`
    finds.
    """
    schema = Config.model_json_schema()
    for name, part in schema["$defs"].items():
        _show_defaults(part, name)
    _refer_to_secrets(schema["$defs"]["BrokerConfig"]["properties"]["client"])
    schema.pop("title")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Sidetier configuration",
        **_without_part_defaults(schema),
    }


def _refer_to_secrets(client: dict[str, Any]) -> None:
    """Require references for librdkafka properties that contain secrets. Others may be text."""
    client["patternProperties"] = {SECRET_PROPERTY: {"$ref": "#/$defs/SecretRef"}}


def _show_defaults(part: dict[str, Any], name: str) -> None:
    """Replace defaults with the form in which a user writes them, with a unit."""
    for key, node in part.get("properties", {}).items():
        show = _SHOWN.get(node.get("title", ""))
        if show is not None and "default" in node:
            node["default"] = show(_default(name, key))


def _default(name: str, key: str) -> object:
    return _parts()[name].model_fields[key].default


def _parts() -> Mapping[str, Any]:
    return {part.__name__: part for part in Part.__subclasses__()}


def _without_part_defaults(node: Any) -> Any:  # noqa: ANN401 -- JSON
    """Remove the defaults of parts: they repeat the defaults of their settings."""
    if isinstance(node, dict):
        return {
            key: _without_part_defaults(value)
            for key, value in node.items()
            if not (key == "default" and "$ref" in node)
        }
    return node
