"""Commands whose libraries come with an extra: what they need, and how quiet they are."""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, TypeVar

from sidetier.segments.errors import ConfigurationError

if TYPE_CHECKING:
    from sidetier.config.loading import LoadedConfig

Loaded = TypeVar("Loaded")


def from_extra(
    load: Callable[[], Loaded], who: str, packages: Collection[str], extra: str
) -> Loaded:
    """What `load` imports.

    Raises:
        ConfigurationError: one of the packages that the extra brings is missing; `who` needs it.
    """
    try:
        return load()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in packages:
            raise
        raise ConfigurationError(
            f"{who} needs {error.name}, which is not installed: pip install 'sidetier[{extra}]' "
            f"(in a checkout: pip install '.[{extra}]')"
        ) from error


def quiet_logs(loaded: "LoadedConfig") -> None:
    """What is wrong is told in the command's own words; a log is for those who ask for one."""
    from sidetier.telemetry.logs import configure_logs  # noqa: PLC0415 -- `--help` needs none

    log = loaded.config.log
    asked = loaded.origin(("log", "level")) != "default"
    configure_logs(log.format, log.level if asked else "error")
