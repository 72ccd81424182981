"""Commands whose libraries are in an extra: imports with a clear error, and quiet logs."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from sidetier.segments.errors import ConfigurationError

if TYPE_CHECKING:
    from sidetier.cli.invocation import Invocation
    from sidetier.config.loading import LoadedConfig
    from sidetier.config.model import Config


RECORD_PACKAGES: Final = ("cramjam", "numpy", "pyarrow")
"""What every extra installs whose commands read records."""


@contextmanager
def needs_extra(command: str, packages: Collection[str], extra: str) -> Iterator[None]:
    """Name the extra that has the packages, if a block's import does not find one of them.

    Raises:
        ConfigurationError: The command needs a package of the extra that is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in packages:
            raise
        raise ConfigurationError(
            f"{command} needs {error.name}, which is not installed: pip install "
            f"'sidetier[{extra}]' (in a checkout: pip install '.[{extra}]')"
        ) from error


def require_packages(packages: Collection[str]) -> None:
    """Check that packages are installed, without importing them; raises ModuleNotFoundError."""
    for name in packages:
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def quiet_config(call: "Invocation") -> "Config":
    """Load the configuration of a command that needs no log dirs; see `quiet_logs`."""
    loaded = call.load(needs_log_dirs=False)
    quiet_logs(loaded)
    return loaded.config


def quiet_logs(loaded: "LoadedConfig") -> None:
    """Log errors only, unless `log.level` is set: the command reports problems itself."""
    from sidetier.telemetry.logs import configure_logs  # noqa: PLC0415 -- `--help` must not load the logging library

    log = loaded.config.log
    is_configured = loaded.origin(("log", "level")) != "default"
    configure_logs(log.format, log.level if is_configured else "error")
