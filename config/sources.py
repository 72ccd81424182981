"""Layers of settings from YAML files, the environment and flags.

A layer is a tree of values with the origin of every value. A later layer overrides earlier ones.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import yaml

from sidetier.config.catalogue import (
    annotation_at,
    is_free_form,
    is_section,
    replaces_whole,
    setting_names,
    takes_null,
    takes_text,
)
from sidetier.config.problems import Problem, SettingPath, suggestion
from sidetier.segments.errors import ConfigurationError


@dataclass(slots=True)
class Layer:
    """Values from one source. Mutable only while it is built."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[SettingPath, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def put(self, path: SettingPath, value: object, origin: str) -> None:
        """Set one value, and create the mappings above it."""
        mapping: Any = self.values
        for step in path[:-1]:
            if not isinstance(mapping.get(step), dict):
                mapping[step] = {}
            mapping = mapping[step]
        mapping[path[-1]] = value
        self.origins[path] = origin


def merge(layers: Iterable[Layer]) -> Layer:
    """Merge the layers. Mappings are merged key by key; other values are replaced."""
    merged = Layer()
    for layer in layers:
        _merge_mapping(merged, layer, (), merged.values, layer.values)
        merged.problems.extend(layer.problems)
        # A value that could not be parsed has no entry, but its problem needs its origin.
        for problem in layer.problems:
            _take_origin(merged, layer, problem.path)
        merged.warnings.extend(layer.warnings)
    return merged


def _merge_mapping(
    merged: Layer, layer: Layer, path: SettingPath, into: dict[str, Any], new: dict[str, Any]
) -> None:
    for key, value in new.items():
        setting = (*path, key)
        # YAML's `storage:` without anything below it is null; it must not erase earlier layers.
        given = {} if value is None and is_section(setting) else value
        if isinstance(given, dict) and not replaces_whole(setting):
            if not isinstance(into.get(key), dict):
                into[key] = {}
            _take_origin(merged, layer, setting)
            _merge_mapping(merged, layer, setting, into[key], given)
        else:
            into[key] = given
            _replace_origins(merged, layer, setting)


def _take_origin(merged: Layer, layer: Layer, path: SettingPath) -> None:
    if path in layer.origins:
        merged.origins[path] = layer.origins[path]


def _replace_origins(merged: Layer, layer: Layer, path: SettingPath) -> None:
    depth = len(path)
    # Also those below the path: they were of the value that is replaced.
    for old in [known for known in merged.origins if known[:depth] == path]:
        del merged.origins[old]
    for new, origin in layer.origins.items():
        if new[:depth] == path:
            merged.origins[new] = origin


_PLAIN_TAGS: Final = frozenset({"tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"})


def read_config_text(path: Path) -> str:
    """Return the text of a configuration file.

    Raises:
        ConfigurationError: it is missing, cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: there is no such configuration file") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: is not UTF-8 (byte {error.start})") from None
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from None


def yaml_layer(text: str, name: str) -> Layer:
    """Return the settings of one YAML document.

    Args:
        text: the document.
        name: name of the file, for messages.

    Raises:
        ConfigurationError: the text is not YAML, or not a mapping.
    """
    try:
        # Nodes instead of values, because nodes know their lines.
        loader = yaml.SafeLoader(text)
        return _Reader(loader, name).layer(loader.get_single_node())
    except yaml.MarkedYAMLError as error:
        raise ConfigurationError(_syntax(name, error)) from None
    except yaml.YAMLError as error:
        first_line = str(error).partition("\n")[0]
        raise ConfigurationError(f"{name}: is not YAML: {first_line}") from None


def yaml_value(text: str) -> object:
    """Parse one value of a flag or an environment variable.

    Raises:
        ValueError: the text is not YAML.
    """
    try:
        return cast("object", yaml.safe_load(text))
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or "cannot be read"
        raise ValueError(f"is not YAML: {problem}") from None


def _syntax(name: str, error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
    return f"{where}: is not YAML: {error.problem or error.context}"


class _Reader:
    """Builds a layer from YAML nodes."""

    def __init__(self, loader: yaml.SafeLoader, name: str) -> None:
        self._loader = loader
        self._name = name
        self._layer = Layer()
        self._open: set[int] = set()

    def layer(self, root: yaml.Node | None) -> Layer:
        if root is None or _is_null(root):
            return self._layer
        if not isinstance(root, yaml.MappingNode):
            raise ConfigurationError(f"{self._place(root)}: must be a mapping of settings")
        self._layer.values = self._mapping(root, ())
        return self._layer

    def _place(self, node: yaml.Node) -> str:
        return f"{self._name}:{node.start_mark.line + 1}"

    def _value(self, node: yaml.Node, path: SettingPath) -> object:
        if id(node) in self._open:
            raise ConfigurationError(
                f"{self._place(node)}: an alias refers to a node that contains it"
            )
        if not isinstance(node, yaml.ScalarNode) and node.tag not in _PLAIN_TAGS:
            raise ConfigurationError(f"{self._place(node)}: is not YAML: tag {node.tag} is unknown")
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return [self._item(item, (*path, i)) for i, item in enumerate(node.value)]
            return cast("object", self._loader.construct_object(node))
        finally:
            self._open.discard(id(node))

    def _item(self, node: yaml.Node, path: SettingPath) -> object:
        self._layer.origins[path] = self._place(node)
        return self._value(node, path)

    def _mapping(self, node: yaml.MappingNode, path: SettingPath) -> dict[str, Any]:
        # Before the merge keys (`<<`) are resolved: a key may override a merged one.
        self._refuse_repeats(node, path)
        self._loader.flatten_mapping(node)
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = cast("object", self._loader.construct_object(key_node))
            setting = (*path, str(key))
            self._layer.origins[setting] = self._place(key_node)
            if not isinstance(key, str):
                self._layer.problems.append(
                    Problem(setting, "the key must be text: put it in quotes")
                )
            values[str(key)] = self._value(value_node, setting)
        return values

    def _refuse_repeats(self, node: yaml.MappingNode, path: SettingPath) -> None:
        first: dict[str, int] = {}
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigurationError(f"{self._place(key_node)}: a key must be text")
            line = key_node.start_mark.line + 1
            if key_node.value in first:
                setting = (*path, key_node.value)
                lines = f"{first[key_node.value]} and {line}"
                message = f"occurs twice in {self._name}, on lines {lines}"
                self._layer.problems.append(Problem(setting, message))
            first.setdefault(key_node.value, line)


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


PREFIX: Final = "SIDETIER_"
RESERVED: Final = frozenset(
    {
        "SIDETIER_CACHE",
        "SIDETIER_CONFIG",
        "SIDETIER_DEBUG",
        "SIDETIER_OUTPUT",
        "SIDETIER_SCHEMA_REGISTRY_USER_INFO",
    }
)
"""Variables of the command line and its commands, and of the servers for demo and tests."""

_SERVICE_LINK: Final = re.compile(
    r"SIDETIER_(\w+_)?((SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)=.*"
    r"|PORT=(tcp|udp|sctp)://.*)"
)
"""Variables that Kubernetes sets in every container when a Service's name begins with `sidetier`.
They are not settings. The value must match, too: otherwise `SIDETIER_HTTP_PORT=80`, with one
underscore too few, would be ignored without an error.
"""


def environment_name(name: str) -> str:
    """Return `storage.s3.region` as `SIDETIER_STORAGE__S3__REGION`."""
    return PREFIX + name.upper().replace(".", "__")


def environment_layer(environ: Mapping[str, str]) -> Layer:
    """Return the settings in the environment; an unknown `SIDETIER_` variable is a problem."""
    layer = Layer()
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable in RESERVED:
            continue
        path = tuple(variable.removeprefix(PREFIX).lower().split("__"))
        if _known(path):
            _put(layer, path, environ[variable], f"env {variable}")
        elif not _SERVICE_LINK.fullmatch(f"{variable}={environ[variable]}"):
            known = [environment_name(name) for name in setting_names()]
            message = f"no setting has this name{suggestion(variable, known)}"
            layer.problems.append(Problem((f"environment variable {variable}",), message))
    return layer


def flag_layer(assignments: Iterable[str]) -> Layer:
    """Return the settings of `--set key=value` flags; an unknown key is a problem."""
    layer = Layer()
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        path = _flag_path(name.strip())
        if not equals:
            message = "must be key=value, such as storage.url=s3://bucket/prefix"
            layer.problems.append(Problem((f"--set {name}",), message))
        elif not _known(path):
            message = f"no setting has this name{suggestion(name, setting_names())}"
            layer.problems.append(Problem((f"--set {name}",), message))
        else:
            _put(layer, path, text, "flag --set")
    return layer


def _flag_path(name: str) -> SettingPath:
    """Split a key at its dots, except inside a free-form mapping:
    `broker.client.security.protocol`.
    """
    steps = tuple(name.split("."))
    for length in range(1, len(steps)):
        if is_free_form(steps[:length]):
            return (*steps[:length], ".".join(steps[length:]))
    return steps


def _known(path: SettingPath) -> bool:
    return all(path) and annotation_at(path) is not None


def _put(layer: Layer, path: SettingPath, text: str, origin: str) -> None:
    try:
        layer.put(path, _typed(path, text), origin)
    except ValueError as error:
        layer.problems.append(Problem(path, str(error)))
        layer.origins[path] = origin


def _typed(path: SettingPath, text: str) -> object:
    """Keep text for settings of type text; parse everything else as YAML."""
    if takes_null(path) and text.strip() in ("", "null", "~"):
        return None
    return text if takes_text(path) else yaml_value(text)
