"""Layers of settings: each is a tree with the origin of every value; a later one wins."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sidetier.config.catalogue import is_section, replaces_whole
from sidetier.config.problems import Problem, SettingPath


@dataclass(slots=True)
class Layer:
    """Values from one source. Mutable while it is built, and only then."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[SettingPath, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def put(self, path: SettingPath, value: object, origin: str) -> None:
        """Set one value, with the mappings on the way to it."""
        here: Any = self.values
        for step in path[:-1]:
            if not isinstance(here.get(step), dict):
                here[step] = {}
            here = here[step]
        here[path[-1]] = value
        self.origins[path] = origin


def merge(layers: Iterable[Layer]) -> Layer:
    """The layers as one; mappings are merged key by key, everything else is replaced."""
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
        here = (*path, key)
        given = {} if value is None and is_section(here) else value
        if isinstance(given, dict) and not replaces_whole(here):
            if not isinstance(into.get(key), dict):
                into[key] = {}
            _take_origin(merged, layer, here)
            _merge_mapping(merged, layer, here, into[key], given)
        else:
            into[key] = given
            _replace_origins(merged, layer, here)


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
