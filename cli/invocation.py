"""Options that every command accepts, before or after its name, and the resulting configuration."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from sidetier.segments.errors import ConfigurationError

if TYPE_CHECKING:
    from sidetier.config.loading import LoadedConfig

CONFIG_VARIABLE: Final = "SIDETIER_CONFIG"
DEFAULT_CONFIG: Final = Path("/etc/sidetier/sidetier.yaml")
"""Configuration file that is read if it exists and no other file is named."""
_FILES_HELP: Final = (
    "YAML or .properties file; repeatable, the last one wins.  [env var: SIDETIER_CONFIG; "
    f"default: {DEFAULT_CONFIG}, if it exists]"
)


@dataclass(slots=True)
class Invocation:
    """Options of one run of the command line."""

    files: list[Path] = field(default_factory=list)
    assignments: list[str] = field(default_factory=list)
    debug: bool = False
    default_config: Path = field(default_factory=lambda: DEFAULT_CONFIG)

    def is_configured(self, environ: Mapping[str, str] = os.environ) -> bool:
        """Return whether a configuration file or a `--set` is given."""
        return bool(self.assignments or self.config_files(environ))

    def config_files(self, environ: Mapping[str, str] = os.environ) -> list[Path]:
        """Return the files of `--config`, else of SIDETIER_CONFIG, else the existing default file.

        A later file overrides an earlier one.
        """
        named = [Path(name) for name in environ.get(CONFIG_VARIABLE, "").split(os.pathsep) if name]
        default = [self.default_config] if self.default_config.exists() else []
        return self.files or named or default

    def load(
        self, environ: Mapping[str, str] = os.environ, *, needs_log_dirs: bool = True
    ) -> "LoadedConfig":
        """Load the configuration from the files, the environment, and `--set`.

        Args:
            environ: Environment variables.
            needs_log_dirs: Whether `log_dirs` is required; commands that only read the store work
                on hosts without a broker.

        Raises:
            ConfigurationError: Something is wrong; the message has one line for each problem.
        """
        # Import on use: `--help` must not load pydantic.
        from sidetier.config.loading import load  # noqa: PLC0415
        from sidetier.config.sources import environment_layer  # noqa: PLC0415
        from sidetier.config.startup import with_found_log_dirs  # noqa: PLC0415

        files = self.config_files(environ)
        try:
            loaded = load(files, environ, self.assignments, needs_log_dirs=needs_log_dirs)
        except ConfigurationError as error:
            if files:
                raise
            given = self.assignments or environment_layer(environ).values
            # Without any setting, the list of required ones would hide the reason.
            raise ConfigurationError(
                f"{self._no_file()}\n{error}" if given else self._no_file()
            ) from error
        return replace(loaded, config=with_found_log_dirs(loaded.config))

    def _no_file(self) -> str:
        return (
            f"no configuration file: {self.default_config} does not exist; name a file by --config "
            f"or {CONFIG_VARIABLE}"
        )


def invocation(context: click.Context) -> Invocation:
    """Return the Invocation of this process."""
    return context.ensure_object(Invocation)


def _add_files(context: click.Context, _option: click.Parameter, given: tuple[Path, ...]) -> None:
    invocation(context).files.extend(given)


def _add_assignments(
    context: click.Context, _option: click.Parameter, given: tuple[str, ...]
) -> None:
    invocation(context).assignments.extend(given)


def _set_debug(context: click.Context, _option: click.Parameter, given: bool) -> None:  # noqa: FBT001 -- signature required by click
    call = invocation(context)
    call.debug = call.debug or given


def configuration_parameters() -> tuple[click.Option, ...]:
    """Return `--config`, `--set` and `--debug`."""
    return (
        click.Option(
            ["-c", "--config"],
            metavar="PATH",
            multiple=True,
            type=click.Path(path_type=Path),
            expose_value=False,
            callback=_add_files,
            help=_FILES_HELP,
        ),
        click.Option(
            ["--set"],
            metavar="KEY=VALUE",
            multiple=True,
            expose_value=False,
            callback=_add_assignments,
            help="One setting, which overrides files and environment; repeatable.",
        ),
        click.Option(
            ["--debug"],
            is_flag=True,
            envvar="SIDETIER_DEBUG",
            expose_value=False,
            callback=_set_debug,
            help="Show the traceback of an error.",
        ),
    )
