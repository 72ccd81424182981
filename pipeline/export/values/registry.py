"""Access to a schema registry through Confluent's client.

Each task has one client. It caches schemas, since the meaning of an id never changes. The client
repeats a request that got no answer, or status 408, 429 or 5xx (`max.retries`), at each of its URLs
in turn.
"""

import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from pydantic import field_validator

from sidetier.config.secrets import is_secret_property
from sidetier.config.types import Part, SecretRef
from sidetier.pipeline.export.values.avro_schema import inlined
from sidetier.pipeline.export.values.protobuf_values import file_set
from sidetier.pipeline.export.values.references import (
    Reference,
    Referred,
    Registered,
    UnusableSchemaError,
    bundled,
)
from sidetier.segments.errors import ConfigurationError, SidetierError, StoreUnavailableError

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import RegisteredSchema, Schema

CREDENTIALS_VARIABLE: Final = "SIDETIER_SCHEMA_REGISTRY_USER_INFO"
"""Environment variable with `user:password`, used if no other credentials are set."""
_SECONDS: Final = 10.0
_NUMBERS: Final = frozenset(
    {
        "cache.capacity",
        "cache.latest.ttl.sec",
        "max.retries",
        "retries.max.wait.ms",
        "retries.wait.ms",
        "timeout",
    }
)
"""Properties that Confluent's client takes as numbers."""
_NOT_FOUND: Final = 404
_SERVER_ERROR: Final = 500
_MAY_PASS: Final = frozenset({408, 429})


class SchemaKind(StrEnum):
    """Schema type as registries name it."""

    AVRO = "AVRO"
    JSON = "JSON"
    PROTOBUF = "PROTOBUF"


class RegistryConfig(Part):
    """Connection to a schema registry, without secrets: each process resolves its own.

    Attributes:
        url: one URL, or several, separated by commas.
        client: further properties of Confluent's client.
    """

    url: str
    client: Mapping[str, str | SecretRef] = {}

    @field_validator("url")
    @classmethod
    def _is_http(cls, url: str) -> str:
        for address in url.split(","):
            parts = urlsplit(address.strip())
            if parts.scheme not in {"http", "https"} or not parts.hostname:
                raise ValueError(
                    f"schema registry {address.strip()!r}: must be http:// or https://"
                )
            if parts.username or parts.password:
                raise ValueError(
                    f"schema registry {parts.hostname}: a password has no place in the URL: set "
                    "basic.auth.user.info"
                )
        return url

    @field_validator("client")
    @classmethod
    def _secrets_by_reference(
        cls, client: Mapping[str, str | SecretRef]
    ) -> Mapping[str, str | SecretRef]:
        for name in sorted(client):
            if is_secret_property(name) and not isinstance(client[name], SecretRef):
                raise ValueError(f"{name} must be env:NAME or file:/path, where the secret is")
        return client

    def properties(self, environ: Mapping[str, str] = os.environ) -> dict[str, object]:
        """Return the properties of Confluent's client, with resolved secrets. Do not log them.

        Raises:
            ConfigurationError: a secret cannot be read, or a property must be a number and is not.
        """
        properties: dict[str, object] = {"url": self.url, "timeout": _SECONDS}
        for name, value in self.client.items():
            text = value.resolve(environ) if isinstance(value, SecretRef) else value
            properties[name] = _number(name, text) if name in _NUMBERS else text
        is_open = not any(name.startswith(("basic.auth.", "bearer.auth.")) for name in properties)
        if is_open and CREDENTIALS_VARIABLE in environ:
            properties["basic.auth.user.info"] = environ[CREDENTIALS_VARIABLE]
        return properties


def _number(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ConfigurationError(f"schema registry: {name}: {text!r} is not a number") from None
    return int(number) if number.is_integer() else number


@dataclass(frozen=True, slots=True)
class SubjectVersion:
    """The newest schema of a subject."""

    id: int
    version: int
    text: str


class SchemaRegistry:
    """Schemas of one kind: by id, and the newest of a subject. The schema of an id never changes.

    A schema that refers to others is returned together with them, as one text: see `inlined`,
    `bundled` and `file_set`.
    """

    def __init__(self, config: RegistryConfig, kind: SchemaKind = SchemaKind.AVRO) -> None:
        """Connect; raise ConfigurationError if a setting is wrong or the client is not
        installed.
        """
        self._name = f"schema registry {config.url}"
        self._kind = kind
        self._format = "serialized" if kind is SchemaKind.PROTOBUF else None
        """Format of answers. For Protobuf descriptors, since no library parses `.proto` source."""
        self._client = _client(config, self._name)
        self._referred = Referred(self._version)
        self._texts: dict[int, str | UnusableSchemaError | None] = {}
        self._versions: dict[tuple[int, str], int | None] = {}

    def by_id(self, number: int) -> str | None:
        """Return the schema's text; None if the registry has no schema with that id.

        Raises:
            StoreUnavailableError: the registry does not answer.
            UnusableSchemaError: the schema is of another kind, or refers to a missing schema or to
                itself.
            ConfigurationError: the registry refuses the request.
        """
        if number not in self._texts:
            try:
                self._texts[number] = self._text(number)
            except UnusableSchemaError as error:
                # Remembered, because the schema of an id never changes. Other errors may pass.
                self._texts[number] = error
        text = self._texts[number]
        if isinstance(text, UnusableSchemaError):
            raise text
        return text

    def _text(self, number: int) -> str | None:
        subject = f"schema {number}"
        schema = self._asked(subject, lambda: self._client.get_schema(number, fmt=self._format))
        return None if schema is None else self._whole(subject, schema)

    def latest(self, subject: str) -> SubjectVersion:
        """Fetch the newest schema of a subject, without the cache.

        Raises:
            StoreUnavailableError, UnusableSchemaError: see `by_id`.
            ConfigurationError: the subject does not exist, or the registry refuses the request.
        """
        request = f"subject {subject}"
        # The client would answer from its cache, whatever was registered since.
        self._client.clear_latest_caches()
        registered: RegisteredSchema | None = self._asked(
            request, lambda: self._client.get_latest_version(subject, fmt=self._format)
        )
        if registered is None:
            raise ConfigurationError(f"{self._name}: has no subject {subject}")
        text = self._whole(request, registered.schema)
        return SubjectVersion(int(registered.schema_id or 0), int(registered.version or 0), text)

    def version(self, number: int, subject: str) -> int | None:
        """Return the version of a schema in a subject, deleted ones included; None if it has none.

        Raises:
            StoreUnavailableError, ConfigurationError: see `by_id`.
        """
        if (number, subject) not in self._versions:
            request = f"versions of schema {number}"
            answer = self._asked(
                request, lambda: self._client.get_schema_versions(number, deleted=True)
            )
            named = [entry.version for entry in answer or () if entry.subject == subject]
            self._versions[number, subject] = max(named, default=None)
        return self._versions[number, subject]

    def _whole(self, request: str, schema: "Schema") -> str:
        try:
            registered = _registered(schema, self._kind)
            needed = self._referred.needed(registered)
            return _JOINED[self._kind](registered, needed)
        except UnusableSchemaError as error:
            raise UnusableSchemaError(f"{self._name}: {request}: {error}") from None
        except (ValueError, RecursionError) as error:
            raise UnusableSchemaError(
                f"{self._name}: {request}, or one it refers to, is no {self._kind} schema: {error}"
            ) from None

    def _version(self, reference: Reference) -> Registered | None:
        """Fetch a referenced schema, also a deleted one: deleting a subject keeps
        references to it.
        """
        registered: RegisteredSchema | None = self._asked(
            str(reference),
            lambda: self._client.get_version(
                reference.subject, reference.version, deleted=True, fmt=self._format
            ),
        )
        try:
            return None if registered is None else _registered(registered.schema, self._kind)
        except UnusableSchemaError as error:
            raise UnusableSchemaError(f"{reference}: {error}") from None

    def _asked(self, request: str, ask: Callable[[], Any]) -> Any:  # noqa: ANN401 -- any result of the client
        """Return the client's answer, None for status 404; translate the client's errors."""
        from confluent_kafka.schema_registry.error import SchemaRegistryError  # noqa: PLC0415

        try:
            return ask()
        except SchemaRegistryError as error:
            if error.http_status_code == _NOT_FOUND:
                return None
            message = f"{self._name}: {request}: answered {error.http_status_code}"
            if error.http_status_code >= _SERVER_ERROR or error.http_status_code in _MAY_PASS:
                raise StoreUnavailableError(message) from None
            raise ConfigurationError(message) from None
        except (AttributeError, KeyError, TypeError) as error:
            raise UnusableSchemaError(
                f"{self._name}: {request}: is not as registries describe schemas: {error!r}"
            ) from None
        except Exception as error:  # noqa: BLE001 -- errors of HTTP, TLS, OAuth and JSON
            raise _unanswered(f"{self._name}: {request}", error) from None


def _client(config: RegistryConfig, name: str) -> Any:  # noqa: ANN401
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{name}: needs {error.name}, which is not installed: pip install 'sidetier[export]'"
        ) from None
    properties = config.properties()
    try:
        return SchemaRegistryClient(properties)
    except (OSError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{name}: {_without_secrets(error, properties)}") from None


def _without_secrets(error: Exception, properties: Mapping[str, object]) -> str:
    """Return the client's error text, or only its type if the text contains a secret."""
    secrets = [str(value) for name, value in properties.items() if is_secret_property(name)]
    text = f"{type(error).__name__}: {error}"
    return type(error).__name__ if any(secret in text for secret in secrets) else text


def _unanswered(request: str, error: Exception) -> SidetierError:
    """Translate the error of a request that got no answer from the registry."""
    from confluent_kafka.schema_registry.error import OAuthTokenError  # noqa: PLC0415

    chain = list(_causes(error))
    if any(isinstance(cause, ssl.SSLError) for cause in chain):
        return ConfigurationError(f"{request}: TLS: {chain[-1]}")
    away = any(type(cause).__module__.startswith(("httpx", "httpcore")) for cause in chain)
    if isinstance(error, OAuthTokenError) and not away:
        return ConfigurationError(f"{request}: no token was given: {chain[-1]}")
    return StoreUnavailableError(f"{request}: does not answer: {error}")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _registered(schema: "Schema", kind: SchemaKind) -> Registered:
    """Return a schema; raise UnusableSchemaError if it is of another kind or incomplete."""
    schema_type = schema.schema_type or SchemaKind.AVRO
    if schema_type != kind:
        raise UnusableSchemaError(f"is of the type {schema_type}; values are read as {kind}")
    try:
        references = tuple(
            Reference(str(reference.subject), int(reference.version or 0), str(reference.name))
            for reference in schema.references or ()
        )
    except (AttributeError, TypeError, ValueError):
        raise UnusableSchemaError("is not as registries describe schemas") from None
    if schema.schema_str is None:
        raise UnusableSchemaError("is not as registries describe schemas")
    return Registered(schema.schema_str, references)


_JOINED: Final[Mapping[SchemaKind, Callable[[Registered, Mapping[Reference, Registered]], str]]] = {
    SchemaKind.AVRO: lambda schema, needed: (
        inlined(schema.text, [referenced.text for referenced in needed.values()])
        if needed
        else schema.text
    ),
    SchemaKind.JSON: bundled,
    SchemaKind.PROTOBUF: file_set,
}
