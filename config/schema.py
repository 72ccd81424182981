"""The JSON schema of the configuration file."""

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
    """JSON Schema, draft 2020-12, of the YAML file. Nothing that the schema passes is promised to
    be free of contradictions: `sidetier config check` looks for those.
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
    """Other properties of librdkafka may be text; these hold secrets."""
    client["patternProperties"] = {SECRET_PROPERTY: {"$ref": "#/$defs/SecretRef"}}


def _show_defaults(part: dict[str, Any], name: str) -> None:
    """Defaults as a user would write them, with a unit."""
    for key, node in part.get("properties", {}).items():
        show = _SHOWN.get(node.get("title", ""))
        if show is not None and "default" in node:
            node["default"] = show(_default(name, key))


def _default(name: str, key: str) -> object:
    return _parts()[name].model_fields[key].default


def _parts() -> Mapping[str, Any]:
    return {part.__name__: part for part in Part.__subclasses__()}


def _without_part_defaults(node: Any) -> Any:  # noqa: ANN401 -- JSON
    """A part's default is made of its settings' defaults, which stand there already."""
    if isinstance(node, dict):
        return {
            key: _without_part_defaults(value)
            for key, value in node.items()
            if not (key == "default" and "$ref" in node)
        }
    return node
