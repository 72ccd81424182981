"""Layers of settings: trees with the origin of every value. A later layer overrides others."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sidetier.config.catalogue import is_section, replaces_whole
from sidetier.config.problems import Problem, SettingPath


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
        for problem in layer.problems:
            _take_origin(merged, layer, problem.path)
        merged.warnings.extend(layer.warnings)
    return merged


def _merge_mapping(
    merged: Layer, layer: Layer, path: SettingPath, into: dict[str, Any], new: dict[str, Any]
) -> None:
    for key, value in new.items():
        setting = (*path, key)
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
    for old in [known for known in merged.origins if known[:depth] == path]:
        del merged.origins[old]
    for new, origin in layer.origins.items():
        if new[:depth] == path:
            merged.origins[new] = origin
