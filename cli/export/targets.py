"""Store of an export's output: a URL with the archive's own options, or a file with others."""

from pathlib import Path

from pydantic import ValidationError

from sidetier.config.sources import read_config_text, yaml_layer
from sidetier.config.storage import StorageConfig
from sidetier.segments.errors import ConfigurationError


def target_of(archive: StorageConfig, into: str | None, file: Path | None) -> StorageConfig:
    """Return the store of the output.

    Without a file, credentials and options are those of the archive's store.

    Raises:
        ConfigurationError: No URL is given, or a setting in the file is wrong.
    """
    if file is None:
        checked = _checked({"url": into}, "--into")
        return archive.model_copy(update={"url": checked.url, "overrides": ()})
    values: dict[str, object] = dict(yaml_layer(read_config_text(file), str(file)).values)
    if into is not None:
        values["url"] = into
    return _checked(values, str(file))


def _checked(values: dict[str, object], where: str) -> StorageConfig:
    if values.get("url") is None:
        raise ConfigurationError(f"{where}: the url of the output is missing: --into URL")
    try:
        return StorageConfig.model_validate(values)
    except ValidationError as error:
        lines = [
            f"{where}: {'.'.join(str(step) for step in problem['loc'])}: "
            f"{str(problem['msg']).removeprefix('Value error, ')}"
            for problem in error.errors()
        ]
        raise ConfigurationError("\n".join(lines)) from None
