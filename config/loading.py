"""The configuration from all sources: defaults < files < environment < flags."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from sidetier.config.catalogue import annotation_at, holds_secret, required_below
from sidetier.config.contradictions import contradictions, warnings
from sidetier.config.model import Config, ReaderConfig
from sidetier.config.pinterest import properties_layer
from sidetier.config.problems import (
    DEFAULT_ORIGIN,
    Origins,
    Problem,
    SettingPath,
    origin_of,
    raise_problems,
    suggestion,
)
from sidetier.config.secrets import redacted
from sidetier.config.sources import (
    Layer,
    environment_layer,
    flag_layer,
    merge,
    read_config_text,
    yaml_layer,
)
from sidetier.config.storage import KEY_NAME
from sidetier.segments.errors import ConfigurationError

_BY_REFERENCE: Final = (
    "must be {env: NAME} or {file: /path}: the secret itself does not belong in the configuration"
)
_KEYS: Final[SettingPath] = ("storage", "encryption", "keys")
_KEY_BY_REFERENCE: Final = (
    "must be {env: NAME}, {file: /path} or {aws_kms: ARN}: the key itself does not belong in the "
    "configuration"
)
_CHOICE: Final = "must be text, a number, true or false, or {env: NAME} or {file: /path}"
_WORDS: Final[Mapping[str, str]] = {
    "bool_type": "must be true or false",
    "dict_type": "must be a mapping of names to values",
    "finite_number": "must be a finite number",
    "float_type": "must be a number",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "int_type": "must be a whole number",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
    "mapping_type": "must be a mapping of names to values",
    "model_type": "must be a mapping of settings",
    "string_pattern_mismatch": "must match {pattern}",
    "string_too_short": "must not be empty",
    "string_type": "must be text (put it in quotes)",
    "too_long": "must have at most {max_length} entries",
    "too_short": "must have at least {min_length} entry",
    "tuple_type": "must be a list",
}
_VALUE_NOT_SHOWN: Final = frozenset({"too_short", "too_long"})
_SHOWN_AT_MOST: Final = 60


def explain(error: ValidationError, values: Mapping[str, Any]) -> list[Problem]:
    """Return one problem for each refused setting.

    Args:
        error: pydantic's error.
        values: the tree that was validated.
    """
    details = error.errors(include_url=False)
    paths = [_path(detail["loc"], values) for detail in details]
    # An error of a list is left out if one of its items has an error of its own.
    refused_below = {path[:-1] for path in paths if path and isinstance(path[-1], int)}
    problems = []
    for detail, path in zip(details, paths, strict=True):
        if detail["type"] == "missing":
            problems += [Problem(needed, "is required") for needed in required_below(path)]
        elif path[: len(_KEYS)] == _KEYS and detail["type"] not in _VALUE_NOT_SHOWN:
            problems.append(_key_problem(detail, path))
        elif path not in refused_below:
            problems.append(_problem(detail, path, values))
    return problems


def _path(loc: tuple[str | int, ...], values: Any) -> SettingPath:  # noqa: ANN401 -- a raw tree
    """Return the location without the names that pydantic adds for members of a union."""
    path: list[str | int] = []
    for step in loc:
        if isinstance(values, dict) and (step in values or annotation_at((*path, step))):
            values = values.get(step)
        elif isinstance(values, list) and isinstance(step, int):
            values = values[step]
        else:
            break
        path.append(step)
    return tuple(path)


def _problem(detail: ErrorDetails, path: SettingPath, values: Mapping[str, Any]) -> Problem:
    kind = detail["type"]
    if kind == "extra_forbidden":
        return Problem(path, f"no setting has this name{_near(path)}")
    if kind == "value_error":
        return Problem(path, str(detail["ctx"]["error"]))
    # The rest of `loc` names the members of a union that pydantic has tried.
    if len(path) < len(detail["loc"]):
        return Problem(path, _CHOICE)
    if holds_secret(path):
        return Problem(path, _BY_REFERENCE)
    words = _WORDS.get(kind, detail["msg"]).format(**detail.get("ctx", {}))
    if kind in _VALUE_NOT_SHOWN:
        return Problem(path, words)
    return Problem(path, f"{words}, not {_shown(_value_at(path, values))}")


def _key_problem(detail: ErrorDetails, path: SettingPath) -> Problem:
    """Return the problem of an encryption key, without any value: each may be the key itself."""
    if detail["type"] == "value_error":
        # The texts of the models have no values.
        return Problem(path, str(detail["ctx"]["error"]))
    if len(detail["loc"]) > len(path):
        return Problem(_KEYS, f"the name of a key must match {KEY_NAME}")
    if len(path) <= len(_KEYS) + 1 or annotation_at(path) is None:
        # An unknown name in the mapping of a key may be the key itself, too.
        return Problem(path[: len(_KEYS) + 1], _KEY_BY_REFERENCE)
    words = _WORDS.get(detail["type"], detail["msg"])
    return Problem(path, words.format(**detail.get("ctx", {})))


def _near(path: SettingPath) -> str:
    parent: Any = annotation_at(path[:-1])
    names: Iterable[str] = getattr(parent, "model_fields", {})
    return suggestion(str(path[-1]), names)


def _value_at(path: SettingPath, values: Any) -> object:  # noqa: ANN401 -- a raw tree
    for step in path:
        values = values[step]
    return values


def _shown(value: object) -> str:
    """Return the value as in YAML, shortened if it is long."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = redacted(repr(value))
    return text if len(text) <= _SHOWN_AT_MOST else f"{text[:_SHOWN_AT_MOST]}…"


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
    *,
    needs_log_dirs: bool = True,
) -> LoadedConfig:
    """Load and check the configuration.

    Reads no file except the given ones, and a `<cluster>.json` beside a `.properties`.

    Args:
        files: YAML, or Pinterest's `.properties`; a later file overrides an earlier one.
        environ: variables that begin with `SIDETIER_` are settings.
        flags: `key=value`, as in `storage.url=s3://bucket/prefix`.
        needs_log_dirs: Whether `log_dirs` is required.

    Raises:
        ConfigurationError: with one line for every problem.
    """
    given = merge([*map(_file_layer, files), environment_layer(environ or {}), flag_layer(flags)])
    problems = list(given.problems)
    config = None
    try:
        model = Config if needs_log_dirs else ReaderConfig
        config = model.model_validate(given.values)
    except ValidationError as error:
        problems += explain(error, given.values)
    # Rules about several settings need a valid model; until then only the single values count.
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
