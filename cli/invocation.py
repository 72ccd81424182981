"""Options that every command shares, before or after its name, and the configuration they give."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from sidetier.config.loading import LoadedConfig

CONFIG_VARIABLE: Final = "SIDETIER_CONFIG"
DEFAULT_CONFIG: Final = Path("/etc/sidetier/sidetier.yaml")
"""Read where it exists and no other file is named."""
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


@dataclass(slots=True)
class Invocation:
    """One call of the command line."""

    files: list[Path] = field(default_factory=list)
    assignments: list[str] = field(default_factory=list)
    debug: bool = False
    default_config: Path = field(default_factory=lambda: DEFAULT_CONFIG)

    def is_configured(self, environ: Mapping[str, str] = os.environ) -> bool:
        """Whether there is a configuration file or a `--set`."""
        return bool(self.assignments or self.config_files(environ))

    def config_files(self, environ: Mapping[str, str] = os.environ) -> list[Path]:
        """The files of `--config`, else of SIDETIER_CONFIG, else the default one if it exists.

        A later file overrides an earlier one.
        """
        named = [Path(name) for name in environ.get(CONFIG_VARIABLE, "").split(os.pathsep) if name]
        default = [self.default_config] if self.default_config.exists() else []
        return self.files or named or default

    def load(self, environ: Mapping[str, str] = os.environ) -> "LoadedConfig":
        """The configuration from the given files, the environment, and `--set`.

        Raises:
            ConfigurationError: with one line for every problem.
        """
        # Imported here, since `--help` needs no pydantic.
        from sidetier.config.loading import load  # noqa: PLC0415
        from sidetier.config.log_dir_patterns import with_found_log_dirs  # noqa: PLC0415

        loaded = load(self.config_files(environ), environ, self.assignments)
        return replace(loaded, config=with_found_log_dirs(loaded.config))


def invocation(context: click.Context) -> Invocation:
    """The one of this process."""
    return context.ensure_object(Invocation)


def _add_files(context: click.Context, _option: click.Parameter, given: tuple[Path, ...]) -> None:
    invocation(context).files.extend(given)


def _add_assignments(
    context: click.Context, _option: click.Parameter, given: tuple[str, ...]
) -> None:
    invocation(context).assignments.extend(given)


def _set_debug(context: click.Context, _option: click.Parameter, given: bool) -> None:  # noqa: FBT001 -- click's form
    call = invocation(context)
    call.debug = call.debug or given


def configuration_options(command: Decorated) -> Decorated:
    """Add `--config`, `--set` and `--debug`."""
    debug = click.option(
        "--debug",
        is_flag=True,
        envvar="SIDETIER_DEBUG",
        expose_value=False,
        callback=_set_debug,
        help="Show the traceback of an error.",
    )
    assign = click.option(
        "--set",
        metavar="KEY=VALUE",
        multiple=True,
        expose_value=False,
        callback=_add_assignments,
        help="One setting, which overrides files and environment; repeatable.",
    )
    config = click.option(
        "-c",
        "--config",
        metavar="PATH",
        multiple=True,
        type=click.Path(path_type=Path),
        expose_value=False,
        callback=_add_files,
        help="YAML or .properties file; repeatable, the last one wins.  [env var: SIDETIER_CONFIG; "
        f"default: {DEFAULT_CONFIG}, if it exists]",
    )
    return config(assign(debug(command)))
