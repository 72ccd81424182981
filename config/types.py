"""Field types that several parts use: absolute paths, patterns, references to secrets."""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from sidetier.config.problems import reason_of
from sidetier.segments.errors import ConfigurationError


class Part(BaseModel):
    """A frozen part: unknown keys and values of a wrong type are refused.

    pydantic's own message does not show a rejected value, because it may be a secret. The loader
    reports the setting's name, its source and the problem.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, hide_input_in_errors=True, allow_inf_nan=False
    )


def _absolute_path(value: object) -> Path:
    """Return the normalized path; `..` is resolved without reading links.

    Raises:
        ValueError: not an absolute path.
    """
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError("must be a path, such as /var/lib/kafka/data")
    if "\0" in str(value):
        raise ValueError("must be a path; it contains a NUL character")
    if not Path(value).is_absolute():
        raise ValueError("must be an absolute path, one that begins with /")
    return Path(os.path.normpath(value))


def _pattern(value: str) -> str:
    """Return the text; raise ValueError if it is not a regular expression."""
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"must be a regular expression: {error}") from None
    return value


AbsolutePath = Annotated[
    Path,
    BeforeValidator(_absolute_path),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "format": "path", "pattern": "^/"}),
]
"""An absolute path without `.`, `..` or doubled slashes."""

NamePattern = Annotated[str, Field(min_length=1), AfterValidator(_pattern)]
"""A regular expression that must match the whole name, such as that of a topic."""
NamePatterns = Annotated[tuple[NamePattern, ...], Field(strict=False)]


def matches_any(patterns: Iterable[str], name: str) -> bool:
    """Return whether one of the regular expressions matches the whole name."""
    return any(re.fullmatch(pattern, name) for pattern in patterns)


def _read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


class SecretRef(Part):
    """Location of a secret; the secret itself is never part of the configuration."""

    env: str | None = Field(
        default=None, min_length=1, description="Name of an environment variable."
    )
    file: AbsolutePath | None = Field(
        default=None, description="Path of a file; one trailing line end is left out."
    )

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.env is None) == (self.file is None):
            raise ValueError("must be {env: NAME} or {file: /path}")
        return self

    @classmethod
    def of_text(cls, setting: str, text: str) -> Self:
        """Parse `env:NAME` or `file:/path`; `setting` is the name for messages.

        Raises:
            ConfigurationError: The text is anything else, such as the secret itself.
        """
        kind, _, place = text.partition(":")
        if kind not in {"env", "file"} or not place:
            raise ConfigurationError(
                f"{setting}: must be a reference to the secret, env:NAME or file:/path, and not "
                "the secret itself"
            )
        try:
            return cls.model_validate({kind: place})
        except ValidationError as error:
            raise ConfigurationError(f"{setting}: {reason_of(error.errors()[0])}") from None

    def resolve(
        self,
        environ: Mapping[str, str] = os.environ,
        read_text: Callable[[Path], str] = _read_text,
    ) -> str:
        """Read the secret. Each call reads it again, so that a rotated secret is found.

        Raises:
            ConfigurationError: the variable or the file is missing or empty.
        """
        secret = self._from_environment(environ) if self.env else self._from_file(read_text)
        if not secret:
            raise ConfigurationError(f"the secret in {self} is empty")
        return secret

    def _from_environment(self, environ: Mapping[str, str]) -> str:
        try:
            return environ[str(self.env)]
        except KeyError:
            raise ConfigurationError(f"the secret in {self} is not set") from None

    def _from_file(self, read_text: Callable[[Path], str]) -> str:
        try:
            # One line end only: editors add it, and further blank characters may belong to the
            # secret.
            return read_text(Path(str(self.file))).removesuffix("\n").removesuffix("\r")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"the secret in {self} cannot be read: {error}") from error

    def __str__(self) -> str:
        """Return the reference, which is not secret."""
        return f"environment variable {self.env}" if self.env else f"file {self.file}"


PropertyValue = str | int | float | bool
References = Mapping[str, PropertyValue | SecretRef]
"""Properties of a client. Secrets are references, which each process resolves."""


def resolved(properties: References) -> dict[str, PropertyValue]:
    """Return the properties with the secrets. Do not log them.

    Raises:
        ConfigurationError: a secret cannot be read in this process.
    """
    return {
        name: value.resolve() if isinstance(value, SecretRef) else value
        for name, value in properties.items()
    }
