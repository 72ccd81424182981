"""`sidetier config check | show | schema`."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click

from sidetier.cli import exits, kernel
from sidetier.cli.invocation import Invocation
from sidetier.cli.options import CONFIGURATION, OUTPUT, option, options
from sidetier.cli.output import OutputFormat, Result, Table
from sidetier.config.catalogue import json_schema
from sidetier.config.loading import LoadedConfig
from sidetier.config.problems import Problem, SettingPath, dotted, problem_line
from sidetier.config.secrets import REDACTED, is_sensitive_property, redacted
from sidetier.config.startup import LocalMachine, check_machine
from sidetier.config.topic_patterns import PatternSelection, selections
from sidetier.segments.errors import ConfigurationError
from sidetier.storage.factory import check_driver
from sidetier.uploader.watching.disk import find_partitions


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of `config check`."""

    problems: tuple[str, ...]
    warnings: tuple[str, ...]
    cluster_id: str | None = None
    broker_id: int | None = None
    patterns: tuple[PatternSelection, ...] | None = None
    """With `--topics`: what each pattern selects of the topics in the log dirs."""

    @property
    def exit_code(self) -> int:
        """MISCONFIGURED for a mistake."""
        return exits.MISCONFIGURED if self.problems else exits.OK

    def as_json(self) -> object:
        """Return `ok`, the lines, the ids of cluster and broker, and with `--topics` the topics."""
        value: dict[str, object] = {
            "ok": not self.problems,
            "problems": list(self.problems),
            "warnings": list(self.warnings),
            "cluster_id": self.cluster_id,
            "broker_id": self.broker_id,
        }
        if self.patterns is not None:
            value["patterns"] = [
                {"setting": dotted(one.setting), "pattern": one.pattern, "topics": list(one.topics)}
                for one in self.patterns
            ]
        return value

    def as_tables(self) -> Sequence[Table]:
        """Return one row for each problem and warning."""
        rows = [("problem", line) for line in self.problems]
        rows += [("warning", line) for line in self.warnings]
        if not self.problems:
            broker = (
                "" if self.broker_id is None else f"broker {self.broker_id} of {self.cluster_id}"
            )
            rows.append(("ok", broker or "no mistake in the settings"))
        tables = [Table(("RESULT", "DETAIL"), rows)]
        if self.patterns is not None:
            cells = [
                (dotted(one.setting), one.pattern, ", ".join(one.topics) or "no topic here")
                for one in self.patterns
            ]
            tables.append(Table(("SETTING", "PATTERN", "TOPICS IN THE LOG DIRS"), cells))
        return tables


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """One setting, its value, and its source."""

    name: str
    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class ShowResult(Result):
    """All settings, in the order of the models."""

    settings: tuple[ShownSetting, ...]

    def as_json(self) -> object:
        """Return a list, because the order of the settings matters."""
        return [
            {"setting": item.name, "value": item.value, "source": item.source}
            for item in self.settings
        ]

    def as_tables(self) -> Sequence[Table]:
        """Return the values in a form that YAML reads back."""
        rows = [(item.name, _as_text(item.value), item.source) for item in self.settings]
        return (Table(("SETTING", "VALUE", "SOURCE"), rows),)


def _as_text(value: object) -> str:
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


@click.group(name="config")
def command() -> None:
    """Check and show the configuration."""


@options
class CheckOptions:
    """Options of `sidetier config check`."""

    call: Invocation = CONFIGURATION
    output: OutputFormat = OUTPUT
    settings_only: bool = option(
        "--settings-only", help="Do not check the log dirs of this machine."
    )
    show_topics: bool = option(
        "--topics", help="Show which topics in the log dirs each pattern selects."
    )


@kernel.command("check", parent=command)
def check(options: CheckOptions) -> CheckResult:
    """Find every mistake in the settings, in the log dirs they name, and missing packages.

    `sidetier doctor` also compares the patterns of topics with all topics of the cluster.

    \b
    Example:
      sidetier config check --config /etc/sidetier/sidetier.yaml --topics

    Exit codes: 0 no mistake; 2 at least one mistake. The command writes nothing and sends no
    request to the store or the broker.
    """  # noqa: D301 -- \b is click's marker and must be one character
    if options.settings_only and options.show_topics:
        raise click.UsageError("--topics reads the log dirs, and --settings-only leaves them out")
    try:
        loaded = options.call.load()
    except ConfigurationError as error:
        return CheckResult(tuple(str(error).splitlines()), ())
    missing = tuple(_missing_drivers(loaded))
    if options.settings_only:
        return CheckResult(missing, loaded.warnings)
    config = loaded.config
    report = check_machine(config, LocalMachine())
    # A warning is a problem here, too: `run` starts without an unreadable log dir if another one is
    # readable, but archives nothing of it.
    wrong = (*report.problems, *report.warnings)
    problems = (*missing, *(problem_line(problem, loaded.origins) for problem in wrong))
    if report.identity is None:
        return CheckResult(problems, loaded.warnings)
    identity = report.identity
    on_disk = find_partitions(map(str, config.log_dirs), lambda _: True)
    not_archived = {
        str(tp): reason
        for tp, reason in (on_disk.refused | on_disk.forbidden).items()
        if config.topics.selects(tp.topic)
    }
    problems += tuple(not_archived[name] for name in sorted(not_archived))
    topics = {tp.topic for tp in on_disk.directories}
    patterns = tuple(selections(config, topics)) if options.show_topics else None
    return CheckResult(problems, loaded.warnings, identity.cluster_id, identity.broker_id, patterns)


def _missing_drivers(loaded: LoadedConfig) -> Iterator[str]:
    """Yield a line for each storage URL whose driver is not installed."""
    storage = loaded.config.storage
    urls: dict[SettingPath, str] = {("storage", "url"): storage.url}
    for i, override in enumerate(storage.overrides):
        urls["storage", "overrides", i, "url"] = override.url
    for path, url in urls.items():
        try:
            check_driver(url)
        except ConfigurationError as error:
            yield problem_line(Problem(path, str(error)), loaded.origins)


@options
class ShowOptions:
    """Options of `sidetier config show`."""

    call: Invocation = CONFIGURATION
    output: OutputFormat = OUTPUT
    changed: bool = option("--changed", help="Show only settings that differ from their defaults.")


@kernel.command("show", parent=command)
def show(options: ShowOptions) -> ShowResult:
    """Show every setting, its value, and its source.

    Secrets are configured by reference, and the command shows the reference. It shows other values
    that could be secrets, judged by the property's name or as part of a URL, as [redacted].

    \b
    Example:
      sidetier --set uploader.threads=4 config show --changed

    Exit codes: 0 the settings are shown; 2 a setting is wrong.
    """  # noqa: D301 -- \b is click's marker and must be one character
    loaded = options.call.load()
    all_settings = (
        ShownSetting(dotted(path), _without_secrets(path, value), loaded.origin(path))
        for path, value in _leaves(loaded)
    )
    return ShowResult(
        tuple(one for one in all_settings if not options.changed or one.source != "default")
    )


def _leaves(loaded: LoadedConfig) -> Iterator[tuple[SettingPath, Any]]:
    return _leaves_below((), loaded.config.model_dump(mode="json"))


def _leaves_below(path: SettingPath, value: Any) -> Iterator[tuple[SettingPath, Any]]:  # noqa: ANN401 -- any JSON value
    """Yield the leaves; a reference to a secret and a list of strings count as one value each."""
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


def _without_secrets(path: SettingPath, value: Any) -> Any:  # noqa: ANN401 -- any JSON value
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
    """  # noqa: D301 -- \b is click's marker and must be one character
    click.echo(json.dumps(json_schema(), indent=2))
