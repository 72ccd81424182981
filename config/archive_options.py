"""`tiered.storage.*`: flat options with the location of an archive, for readers.

The consumer and the Spark reader have the same names. A key is the prefix and the name of a field,
with dots instead of underscores; `tiered.storage.s3.*` is a separate model.
"""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from pydantic import BeforeValidator, Field, ValidationError

from sidetier.config.loading import load
from sidetier.config.problems import reason_of, suggestion
from sidetier.config.storage import (
    KEY_NAME,
    EncryptionConfig,
    EncryptionKeyConfig,
    S3Config,
    StorageConfig,
)
from sidetier.config.storage_urls import StorageUrl
from sidetier.config.types import Part, SecretRef
from sidetier.config.units import Size
from sidetier.segments.errors import ConfigurationError

PREFIX: Final = "tiered.storage."
DEFAULT_MAX_BATCH_BYTES: Final = 256 * 1024**2
LARGEST_MAX_BATCH_BYTES: Final = 2**31 - 1
"""Limit of the buffer in which Kafka's Java producer builds a batch."""
_S3: Final = "s3."
_SECRETS: Final = ("access_key_id", "secret_access_key", "session_token")
_KEY_KINDS: Final = ("env", "file", "aws_kms")
_S3_LEFT_OUT: Final = frozenset(
    {
        "checksum",
        "multipart_threshold",
        "part_size",
        "sse",
        "sse_kms_key_id",
        "storage_class",
        "class_tag",
        "tags",
    }
)
"""S3 settings that only a writer needs."""


def _whole_number(value: object) -> object:
    """Accept a number as text, too, as librdkafka and Spark do."""
    if isinstance(value, str):
        return int(value) if value.lstrip("-").isdigit() else value
    return value


def _flag(value: object) -> object:
    is_word = isinstance(value, str) and value.lower() in {"true", "false"}
    return str(value).lower() == "true" if is_word else value


def _path_text(value: object) -> object:
    return str(value) if isinstance(value, Path) else value


def _encryption_keys(value: object) -> object:
    """Parse `NAME=file:/path,NAME=aws_kms:ARN`; the keys themselves are never part of the text."""
    if not isinstance(value, str):
        return value
    keys: dict[str, dict[str, str]] = {}
    for part in value.split(","):
        name, _, reference = part.strip().partition("=")
        kind, _, place = reference.partition(":")
        if not re.fullmatch(KEY_NAME, name) or kind not in _KEY_KINDS or not place:
            raise ValueError(
                "must be NAME=file:/path, NAME=env:NAME or NAME=aws_kms:ARN, several with commas"
            )
        keys[name] = {kind: place}
    return keys


WholeNumber = Annotated[int, BeforeValidator(_whole_number)]
"""An integer, or its digits as text."""
Flag = Annotated[bool, BeforeValidator(_flag)]
"""A boolean, or `true` or `false` in any case."""


class ArchiveOptions(Part):
    """`tiered.storage.*`, dots become underscores; `tiered.storage.s3.*` is a model of its own."""

    config: Annotated[str | None, BeforeValidator(_path_text)] = Field(
        default=None,
        description="Path of the sidecar's configuration file, for its cluster.name and storage.",
    )
    url: StorageUrl | None = Field(
        default=None, description="Root of the archive; the same as the sidecar's storage.url."
    )
    cluster_name: str | None = Field(
        default=None, min_length=1, description="The same as the sidecar's cluster.name."
    )
    prefix_entropy_bits: WholeNumber = Field(
        default=5,
        ge=-1,
        le=128,
        description="The same as the sidecar's storage.prefix_entropy_bits.",
    )
    max_batch_bytes: Size = Field(
        default=DEFAULT_MAX_BATCH_BYTES,
        ge=1,
        le=LARGEST_MAX_BATCH_BYTES,
        description="Maximum decompressed size of the records of one batch, which protects memory "
        "against decompression bombs. A larger batch is an error; it is never skipped.",
    )
    s3: S3Config = Field(default=S3Config(), description="The same as the sidecar's storage.s3.")
    encryption_keys: Annotated[
        Mapping[str, EncryptionKeyConfig], BeforeValidator(_encryption_keys)
    ] = Field(
        default={},
        description="Keys of encrypted segments: NAME=file:/path, NAME=env:NAME or "
        "NAME=aws_kms:ARN, several with commas. The names are those of the sidecar's "
        "storage.encryption.keys.",
    )


Options = TypeVar("Options", bound=ArchiveOptions)


def names_of(model: type[ArchiveOptions]) -> tuple[str, ...]:
    """Return every key of these options, as users write it."""
    plain = [name for name in model.model_fields if name != "s3"]
    s3 = [f"s3.{name}" for name in S3Config.model_fields if name not in _S3_LEFT_OUT]
    return tuple(PREFIX + name.replace("_", ".") for name in (*plain, *s3))


def parse_options(
    model: type[Options], given: Mapping[str, Any], known: Collection[str] = ()
) -> Options:
    """Parse options.

    Args:
        model: model of the options.
        given: values by key; every key begins with the prefix.
        known: further keys, which may be suggested for a misspelt one.

    Raises:
        ConfigurationError: a key is unknown or has a wrong value. The text does not show the value.
    """
    names = names_of(model)
    tree: dict[str, Any] = {}
    for key, value in given.items():
        if key not in names:
            near = suggestion(key, (*names, *known))
            raise ConfigurationError(f"{key}: there is no such setting{near}")
        name = key.removeprefix(PREFIX)
        if name.startswith(_S3):
            field_name = name.removeprefix(_S3).replace(".", "_")
            tree.setdefault("s3", {})[field_name] = _s3_value(key, field_name, value)
        else:
            tree[name.replace(".", "_")] = value
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        lines = [f"{_key(detail['loc'])}: {reason_of(detail)}" for detail in error.errors()]
        raise ConfigurationError("\n".join(dict.fromkeys(lines))) from None


def archive_of(
    options: ArchiveOptions, given: Collection[str], why: str = ""
) -> tuple[str, StorageConfig]:
    """Return the cluster's name and its store.

    Args:
        options: the parsed options.
        given: the keys that were parsed.
        why: part of the error text: what the archive is needed for (` with ...`).

    Raises:
        ConfigurationError: the location is missing or given twice; or the sidecar's configuration
            is wrong.
    """
    if options.config is not None:
        own = {
            PREFIX + name
            for name in ("url", "cluster.name", "prefix.entropy.bits", "encryption.keys")
        }
        both = sorted(own.intersection(given))
        both += sorted(key for key in given if key.startswith(PREFIX + _S3))
        if both:
            raise ConfigurationError(
                f"{both[0]}: {PREFIX}config ({options.config}) has this setting, too; "
                "give one of them"
            )
        loaded = load([Path(options.config)]).config
        return loaded.cluster.name, loaded.storage
    if options.url is None or options.cluster_name is None:
        missing = "url" if options.url is None else "cluster.name"
        raise ConfigurationError(
            f"{PREFIX}{missing}: is required{why}; or give {PREFIX}config, the path of the "
            "sidecar's configuration"
        )
    bits = options.prefix_entropy_bits
    keys = options.encryption_keys
    storage = StorageConfig(
        url=options.url,
        prefix_entropy_bits=bits,
        s3=options.s3,
        encryption=EncryptionConfig(keys=keys) if keys else None,
    )
    return options.cluster_name, storage


_SETTING: Final = re.compile(
    r"(?<![\w./-])(?:storage\.(?P<storage>[a-z0-9_]+(?:\.[a-z0-9_]+)?)|(?P<cluster>cluster\.name))"
)


def in_readers_names(text: str) -> str:
    """Return an error's text with a reader's names of settings instead of the sidecar's.

    A setting that readers do not have keeps its name: `tiered.storage.config` sets it.
    """
    known = names_of(ArchiveOptions)

    def name(found: re.Match[str]) -> str:
        own = PREFIX + (found["storage"] or found["cluster"]).replace("_", ".")
        is_group = any(each.startswith(f"{own}.") for each in known)
        return own if own in known or is_group else found[0]

    return _SETTING.sub(name, text)


def _s3_value(key: str, name: str, value: Any) -> Any:  # noqa: ANN401 -- whatever was given
    if name == "path_style" and isinstance(value, str):
        return {"true": True, "false": False}.get(value.lower(), value)
    if name in _SECRETS and isinstance(value, str):
        # A secret itself must not be in a configuration.
        return SecretRef.of_text(key, value).model_dump(exclude_none=True)
    return value


def _key(path: tuple[int | str, ...]) -> str:
    steps = [str(step).replace("_", ".") for step in path]
    return PREFIX + ".".join(steps[:2] if steps[:1] == ["s3"] else steps[:1])
