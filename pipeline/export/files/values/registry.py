"""A schema registry, by the two requests of Confluent's REST API that are needed.

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

from sidetier.segments.errors import ConfigurationError, StoreUnavailableError

CREDENTIALS_VARIABLE: Final = "SIDETIER_SCHEMA_REGISTRY_USER_INFO"
"""`user:password`, as Confluent's `basic.auth.user.info`."""
_SECONDS: Final = 10.0
_NOT_FOUND: Final = 404
_SERVER_ERROR: Final = 500


class SchemaRegistry:
    """Schemas by their ids, which never change, and the newest of a subject."""

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

    def by_id(self, number: int) -> str | None:
        """The schema's text; None where the registry has none of that id.

        Raises:
            StoreUnavailableError: the registry does not answer.
            ConfigurationError: it refuses us, or has a schema that is not Avro.
        """
        return self._schema(f"/schemas/ids/{number}")

    def latest(self, subject: str) -> str:
        """The newest schema of a subject; raises as `by_id`, and where there is no such subject."""
        found = self._schema(f"/subjects/{quote(subject, safe='')}/versions/latest")
        if found is None:
            raise ConfigurationError(f"schema registry {self._url}: has no subject {subject}")
        return found

    def _schema(self, path: str) -> str | None:
        answer = self._get(path)
        if answer is None:
            return None
        if answer.get("schemaType", "AVRO") != "AVRO" or answer.get("references"):
            raise ConfigurationError(
                f"schema registry {self._url}{path}: only Avro schemas without references are read"
            )
        return str(answer["schema"])

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
