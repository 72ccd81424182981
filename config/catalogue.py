"""All settings, found in the models by path, and the JSON schema of the configuration file."""

import types
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from sidetier.config.model import Config
from sidetier.config.problems import SettingPath, dotted
from sidetier.config.secrets import SECRET_PROPERTY
from sidetier.config.storage import EncryptionKeyConfig
from sidetier.config.types import Part, SecretRef
from sidetier.config.units import format_duration, format_size


def _bare(annotation: Any) -> Any:  # noqa: ANN401 -- annotations have no common type
    """Return the annotation without `Annotated` and without `| None`."""
    while True:
        origin = get_origin(annotation)
        if origin is Annotated:
            annotation = get_args(annotation)[0]
            continue
        if origin in (Union, types.UnionType):
            kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
            if len(kinds) == 1:
                annotation = kinds[0]
                continue
        return annotation


def _is_part(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Part)


def _step(annotation: Any, step: str | int) -> Any | None:  # noqa: ANN401 -- see above
    """Return the annotation one step down; None if the name is unknown."""
    if _is_part(annotation):
        field = annotation.model_fields.get(step)
        return None if field is None else field.annotation
    if get_origin(annotation) is tuple and isinstance(step, int):
        return get_args(annotation)[0]
    if get_origin(annotation) is Mapping:
        return get_args(annotation)[1]
    return None


def annotation_at(path: SettingPath) -> Any | None:  # noqa: ANN401 -- see above
    """Return the annotation of the setting at the path; None if the path is unknown."""
    annotation: Any = Config
    for step in path:
        annotation = _step(_bare(annotation), step)
        if annotation is None:
            return None
    return annotation


def is_section(path: SettingPath) -> bool:
    """Whether the path is a part that cannot be null: an empty `key:` in YAML means no settings."""
    annotation = annotation_at(path)
    return _is_part(annotation) and annotation is not SecretRef


def required_below(path: SettingPath) -> list[SettingPath]:
    """Return the settings without a default in the part at the path; a setting returns itself."""
    part: Any = annotation_at(path)
    if not is_section(path):
        return [path]
    fields = part.model_fields.items()
    return [
        needed
        for name, field in fields
        if field.is_required()
        for needed in required_below((*path, name))
    ]


def replaces_whole(path: SettingPath) -> bool:
    """Whether a mapping here replaces an earlier one, because a secret has only one location."""
    return holds_secret(path) or _bare(annotation_at(path)) is EncryptionKeyConfig


def holds_secret(path: SettingPath) -> bool:
    """Whether the path is a reference to a secret, or may be one."""
    for length in range(1, len(path) + 1):
        kind = _bare(annotation_at(path[:length]))
        if kind is SecretRef or SecretRef in get_args(kind):
            return True
        if get_origin(kind) is Mapping and SecretRef in get_args(get_args(kind)[1]):
            return length < len(path)
    return False


def is_free_form(path: SettingPath) -> bool:
    """Whether the setting is a mapping with arbitrary keys."""
    return get_origin(_bare(annotation_at(path))) is Mapping


def takes_text(path: SettingPath) -> bool:
    """Whether the setting is text, so that `123` and `no` are not parsed as YAML."""
    kind = _bare(annotation_at(path))
    return kind in (str, Path) or get_origin(kind) is Literal


def takes_null(path: SettingPath) -> bool:
    """Whether the setting can be null."""
    annotation = annotation_at(path)
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return type(None) in get_args(annotation)


def _walk(part: type[Part], path: SettingPath) -> Iterator[SettingPath]:
    for name, field in part.model_fields.items():
        setting = (*path, name)
        kind = _bare(field.annotation)
        if _is_part(kind) and kind is not SecretRef:
            yield from _walk(kind, setting)
        else:
            yield setting


@cache
def settings() -> tuple[SettingPath, ...]:
    """Return every named setting; a list or a free-form mapping counts as one."""
    return tuple(_walk(Config, ()))


@cache
def setting_names() -> tuple[str, ...]:
    """Return the dotted names of `settings`."""
    return tuple(dotted(path) for path in settings())


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
