"""`sidetier config check | show | schema`."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click

from sidetier.cli import exits
from sidetier.cli.invocation import configuration_options, invocation
from sidetier.cli.output import OutputFormat, Table, emit, output_option
from sidetier.config.loading import LoadedConfig
from sidetier.config.problems import Problem, SettingPath, dotted, told
from sidetier.config.schema import json_schema
from sidetier.config.secrets import REDACTED, is_sensitive_property, redacted
from sidetier.config.startup import LocalMachine, check_machine
from sidetier.segments.errors import ConfigurationError
from sidetier.storage.factory import check_driver


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What `config check` found."""

    problems: tuple[str, ...]
    warnings: tuple[str, ...]
    cluster_id: str | None = None
    broker_id: int | None = None

    def as_json(self) -> object:
        """`ok`, and the lines."""
        return {
            "ok": not self.problems,
            "problems": list(self.problems),
            "warnings": list(self.warnings),
            "cluster_id": self.cluster_id,
            "broker_id": self.broker_id,
        }

    def as_tables(self) -> Sequence[Table]:
        """One line each."""
        rows = [("problem", line) for line in self.problems]
        rows += [("warning", line) for line in self.warnings]
        if not self.problems:
            who = "" if self.broker_id is None else f"broker {self.broker_id} of {self.cluster_id}"
            rows.append(("ok", who or "the settings fit together"))
        return (Table(("RESULT", "DETAIL"), rows),)


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """One setting with its value and where it was given."""

    name: str
    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class ShowResult:
    """Every setting in the order of the models."""

    settings: tuple[ShownSetting, ...]

    def as_json(self) -> object:
        """A list, so that the order stays."""
        return [
            {"setting": item.name, "value": item.value, "source": item.source}
            for item in self.settings
        ]

    def as_tables(self) -> Sequence[Table]:
        """Values as YAML would take them back."""
        rows = [(item.name, _as_text(item.value), item.source) for item in self.settings]
        return (Table(("SETTING", "VALUE", "SOURCE"), rows),)


def _as_text(value: object) -> str:
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


@click.group(name="config")
def command() -> None:
    """Check and show the configuration."""


@command.command()
@configuration_options
@output_option
@click.option("--settings-only", is_flag=True, help="Do not check the log dirs of this machine.")
@click.pass_context
def check(context: click.Context, output: OutputFormat, *, settings_only: bool) -> None:
    """Find every mistake in the settings, in the log dirs they name, and missing packages.

    \b
    Example:
      sidetier config check --config /etc/sidetier/sidetier.yaml

    Exit codes: 0 no mistake, 2 at least one. The command writes nothing and sends no request to
    the store or the broker.
    """  # noqa: D301 -- \b is click's mark, and must be one character
    result = _check(context, settings_only=settings_only)
    emit(result, output)
    context.exit(exits.MISCONFIGURED if result.problems else exits.OK)


def _check(context: click.Context, *, settings_only: bool) -> CheckResult:
    try:
        loaded = invocation(context).load()
    except ConfigurationError as error:
        return CheckResult(tuple(str(error).splitlines()), ())
    missing = tuple(_missing_drivers(loaded))
    if settings_only:
        return CheckResult(missing, loaded.warnings)
    found = check_machine(loaded.config, LocalMachine())
    wrong = (*found.problems, *found.warnings)  # a start goes on without such log dirs
    problems = (*missing, *(told(problem, loaded.origins) for problem in wrong))
    if found.identity is None:
        return CheckResult(problems, loaded.warnings)
    identity = found.identity
    return CheckResult(problems, loaded.warnings, identity.cluster_id, identity.broker_id)


def _missing_drivers(loaded: LoadedConfig) -> Iterator[str]:
    """A line for each storage url whose driver is not installed."""
    storage = loaded.config.storage
    paths: list[SettingPath] = [
        ("storage", "overrides", i, "url") for i in range(len(storage.overrides))
    ]
    urls = {("storage", "url"): storage.url} | {
        path: override.url for path, override in zip(paths, storage.overrides, strict=True)
    }
    for path, url in urls.items():
        try:
            check_driver(url)
        except ConfigurationError as error:
            yield told(Problem(path, str(error)), loaded.origins)


@command.command()
@configuration_options
@output_option
@click.option("--changed", is_flag=True, help="Show only settings that differ from their defaults.")
@click.pass_context
def show(context: click.Context, output: OutputFormat, *, changed: bool) -> None:
    """Show every setting, its value, and its source.

    Secrets are given by reference, and the references are shown. Other values that could be
    secrets, by the property's name or in a URL, are shown as [redacted].

    \b
    Example:
      sidetier --set uploader.threads=4 config show --changed
    """  # noqa: D301 -- \b is click's mark, and must be one character
    loaded = invocation(context).load()
    shown = (
        ShownSetting(dotted(path), _without_secrets(path, value), loaded.origin(path))
        for path, value in _leaves(loaded)
    )
    kept = tuple(item for item in shown if not changed or item.source != "default")
    emit(ShowResult(kept), output)


def _leaves(loaded: LoadedConfig) -> Iterator[tuple[SettingPath, Any]]:
    return _leaves_below((), loaded.config.model_dump(mode="json"))


def _leaves_below(path: SettingPath, value: Any) -> Iterator[tuple[SettingPath, Any]]:  # noqa: ANN401 -- a tree
    """Down to what is no mapping; a secret's reference and a list of texts are one value."""
    if isinstance(value, dict) and value and value.keys() != {"env", "file"}:
        for key, inner in value.items():
            yield from _leaves_below((*path, key), inner)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for i, item in enumerate(value):
            yield from _leaves_below((*path, i), item)
    elif isinstance(value, dict):
        yield path, {key: inner for key, inner in value.items() if inner is not None}
    else:
        yield path, value


def _without_secrets(path: SettingPath, value: Any) -> Any:  # noqa: ANN401 -- a tree
    if isinstance(value, list):
        return [_without_secrets(path, item) for item in value]
    if not isinstance(value, str):
        return value
    return REDACTED if is_sensitive_property(str(path[-1])) else redacted(value)


@command.command()
def schema() -> None:
    """Print the JSON schema of the configuration file, for editors and charts.

    \b
    Example:
      sidetier config schema > sidetier.schema.json
    """  # noqa: D301 -- \b is click's mark, and must be one character
    click.echo(json.dumps(json_schema(), indent=2))
