"""A schema registry, by the three requests of Confluent's REST API that are needed.

Plain HTTP of the standard library: confluent-kafka's own client brings six packages with it, and
fixed newest versions of some. Credentials are taken from the environment, never from a plan.
"""

import base64
import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlsplit

from sidetier.pipeline.export.files.values.avro_inlining import inlined
from sidetier.pipeline.export.files.values.references import (
    Reference,
    Referred,
    Registered,
    UnusableSchemaError,
)
from sidetier.segments.errors import ConfigurationError, StoreUnavailableError

CREDENTIALS_VARIABLE: Final = "SIDETIER_SCHEMA_REGISTRY_USER_INFO"
"""`user:password`, as Confluent's `basic.auth.user.info`."""
_SECONDS: Final = 10.0
_NOT_FOUND: Final = 404
_SERVER_ERROR: Final = 500


class SchemaRegistry:
    """Avro schemas by their ids, which never change, and the newest of a subject.

    One that refers to others is given with the types of those in it: it stands by itself.
    """

    def __init__(self, url: str, environ: Mapping[str, str] = os.environ) -> None:
        """Raises ConfigurationError where it is no http address, or holds a password."""
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ConfigurationError(f"schema registry {url!r}: must be http:// or https://")
        if parts.username or parts.password:
            raise ConfigurationError(
                f"schema registry {parts.hostname}: a password has no place in the address; it is "
                f"taken from {CREDENTIALS_VARIABLE}, as user:password"
            )
        self._url = url.rstrip("/")
        self._user_info = environ.get(CREDENTIALS_VARIABLE)
        self._referred = Referred(self._version)

    def by_id(self, number: int) -> str | None:
        """The schema's text; None where the registry has none of that id.

        Raises:
            StoreUnavailableError: the registry does not answer.
            UnusableSchemaError: it is not Avro, or refers to what is not there, or to itself.
            ConfigurationError: the registry refuses us.
        """
        return self._whole(f"schema {number}", f"/schemas/ids/{number}")

    def latest(self, subject: str) -> str:
        """The newest schema of a subject; raises as `by_id`, and where there is no such subject."""
        found = self._whole(f"subject {subject}", f"{_versions(subject)}/latest")
        if found is None:
            raise ConfigurationError(f"schema registry {self._url}: has no subject {subject}")
        return found

    def _whole(self, what: str, path: str) -> str | None:
        try:
            schema = self._schema(path)
            if schema is None or not schema.references:
                return None if schema is None else schema.text
            return inlined(schema.text, self._referred.needed(schema))
        except UnusableSchemaError as error:
            raise UnusableSchemaError(f"schema registry {self._url}: {what}: {error}") from None
        except (ValueError, RecursionError) as error:
            raise UnusableSchemaError(
                f"schema registry {self._url}: {what}, or one it refers to, is no JSON: {error}"
            ) from None

    def _version(self, one: Reference) -> Registered | None:
        """Also one that was deleted: a subject's deletion leaves what refers to it."""
        try:
            return self._schema(f"{_versions(one.subject)}/{one.version}?deleted=true")
        except UnusableSchemaError as error:
            raise UnusableSchemaError(f"{one}: {error}") from None

    def _schema(self, path: str) -> Registered | None:
        answer = self._get(path)
        if answer is None:
            return None
        try:
            kind = answer.get("schemaType", "AVRO")
            references = [
                Reference(str(one["subject"]), int(one["version"]))
                for one in answer.get("references") or ()
            ]
            schema = Registered(str(answer["schema"]), tuple(references))
        except (AttributeError, KeyError, TypeError, ValueError):
            raise UnusableSchemaError("is not as registries describe schemas") from None
        if kind != "AVRO":
            raise UnusableSchemaError(f"is of the type {kind}; only Avro schemas are read")
        return schema

    def _get(self, path: str) -> Any:  # noqa: ANN401 -- JSON
        request = urllib.request.Request(self._url + path)  # noqa: S310 -- http(s), see __init__
        if self._user_info is not None:
            token = base64.b64encode(self._user_info.encode()).decode()
            request.add_header("Authorization", f"Basic {token}")
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310
                return json.load(answer)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == _NOT_FOUND:
                return None
            message = f"schema registry {self._url}{path}: answered {error.code} {error.reason}"
            if error.code >= _SERVER_ERROR:
                raise StoreUnavailableError(message) from None
            raise ConfigurationError(message) from None
        except (OSError, ValueError) as error:
            raise StoreUnavailableError(
                f"schema registry {self._url}{path}: does not answer: {error}"
            ) from None


def _versions(subject: str) -> str:
    return f"/subjects/{quote(subject, safe='')}/versions"
