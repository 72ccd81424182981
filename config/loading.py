"""The configuration from all sources: defaults < files < environment < flags."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sidetier.config.contradictions import contradictions, warnings
from sidetier.config.explain import explain
from sidetier.config.layers import Layer, merge
from sidetier.config.model import Config
from sidetier.config.overrides import environment_layer, flag_layer
from sidetier.config.pinterest import properties_layer
from sidetier.config.problems import (
    DEFAULT_ORIGIN,
    Origins,
    SettingPath,
    origin_of,
    raise_problems,
)
from sidetier.config.yaml_file import read_config_text, yaml_layer
from sidetier.segments.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A complete configuration without contradictions."""

    config: Config
    given: Mapping[str, Any]
    """Values of the sources, without defaults."""
    origins: Origins
    warnings: tuple[str, ...] = ()

    def origin(self, path: SettingPath) -> str:
        """Return the source: `sidetier.yaml:12`, `env SIDETIER_…`, `flag --set`, or `default`."""
        if not _holds(self.given, path):
            return DEFAULT_ORIGIN
        return origin_of(path, self.origins) or DEFAULT_ORIGIN


def load(
    files: Sequence[Path] = (),
    environ: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
) -> LoadedConfig:
    """Load and check the configuration.

    Reads no file except the given ones, and a `<cluster>.json` beside a `.properties`.

    Args:
        files: YAML, or Pinterest's `.properties`; a later file overrides an earlier one.
        environ: variables that begin with `SIDETIER_` are settings.
        flags: `key=value`, as in `storage.url=s3://bucket/prefix`.

    Raises:
        ConfigurationError: with one line for every problem.
    """
    given = merge([*map(_file_layer, files), environment_layer(environ or {}), flag_layer(flags)])
    problems = list(given.problems)
    config = None
    try:
        config = Config.model_validate(given.values)
    except ValidationError as error:
        problems += explain(error, given.values)
    if config is not None:
        problems += contradictions(config)
    raise_problems(problems, given.origins)
    if config is None:  # never happens: explain() returns a problem for every ValidationError
        raise ConfigurationError("the configuration is not valid")
    return LoadedConfig(config, given.values, given.origins, (*given.warnings, *warnings(config)))


def _holds(tree: object, path: SettingPath) -> bool:
    for step in path:
        if isinstance(tree, dict) and step in tree:
            tree = tree[str(step)]
        elif isinstance(tree, list) and isinstance(step, int) and step < len(tree):
            tree = tree[step]
        else:
            return False
    return True


def _file_layer(path: Path) -> Layer:
    text = read_config_text(path)
    if path.suffix == ".properties":
        return properties_layer(text, path)
    return yaml_layer(text, str(path))
