"""A YAML file as a layer, with line numbers. A key that occurs twice is refused."""

from pathlib import Path
from typing import Any, Final, cast

import yaml

from sidetier.config.layers import Layer
from sidetier.config.problems import Problem, SettingPath
from sidetier.segments.errors import ConfigurationError

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
            raise ConfigurationError(f"{self._place(node)}: an alias refers to what holds it")
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
                message = f"stands twice in {self._name}, on lines {lines}"
                self._layer.problems.append(Problem(setting, message))
            first.setdefault(key_node.value, line)


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"
