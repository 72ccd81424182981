"""Where an S3 bucket is, and with whose keys it is asked: from the settings and AWS's own chain.

The chain is botocore's: environment, profiles, web identity, the roles of containers and machines.
botocore is imported only where the settings leave something to it.
"""

import ipaddress
import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from sidetier.segments.errors import ConfigurationError
from sidetier.storage.settings import S3Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    import botocore.credentials
    import botocore.loaders
    import botocore.session
    from mypy_boto3_s3 import S3Client
    from obstore.store import S3Credential

_DEFAULT_REGION: Final = "us-east-1"
_HOST_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
_VALID: Final = timedelta(minutes=10)
"""botocore's keys are good for 10 minutes at least when it hands them out. obstore asks for new
ones 5 minutes before the end that it is told: so every 5 minutes, and none is used after its end.
"""


def botocore_session(settings: S3Settings) -> "botocore.session.Session":
    """A session of its own, but for the descriptions of the service: to read and parse them takes
    most of the time, and memory, that a client costs.

    Raises:
        ConfigurationError: there is no such profile.
    """
    import botocore.session  # noqa: PLC0415 -- takes a fifth of a second
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415

    session = botocore.session.Session(profile=settings.profile)
    try:
        loader = _shared_loader(session.get_config_variable("data_path"))
    except BotoCoreError as error:
        raise ConfigurationError(f"storage.s3: {error}") from error
    session.register_component("data_loader", loader)
    return session


@cache
def _shared_loader(data_path: str | None) -> "botocore.loaders.Loader":
    import botocore.loaders  # noqa: PLC0415

    return botocore.loaders.create_loader(data_path)


@dataclass(frozen=True, slots=True)
class BucketAddress:
    """Where a bucket is.

    Attributes:
        region: For signatures.
        endpoint: A url without a slash at its end; with the bucket's name if `in_host`.
        in_host: Whether the bucket is named in the host, else in the path.
    """

    region: str
    endpoint: str
    in_host: bool


def bucket_address(
    bucket: str, settings: S3Settings, client: "Callable[[], S3Client]"
) -> BucketAddress:
    """The address that boto3 finds with the same settings.

    Args:
        bucket: Its name.
        settings: Of the store.
        client: A boto3 client of them; not called where the settings say all.

    Raises:
        ConfigurationError: there is no such profile, or the endpoint is no url.
    """
    region, endpoint = settings.region, settings.endpoint_url
    if region is None or endpoint is None:
        found = client().meta
        region, endpoint = found.region_name or _DEFAULT_REGION, found.endpoint_url
    url = urlsplit(endpoint.rstrip("/"))
    if url.scheme not in {"http", "https"} or not url.hostname:
        raise ConfigurationError(f"storage.s3.endpoint_url {endpoint!r} is not a url")
    in_host = (
        not settings.path_style
        and _HOST_NAME.fullmatch(bucket) is not None
        and not _is_address(url.hostname)
    )
    if in_host:
        url = url._replace(netloc=f"{bucket}.{url.netloc}")
    if region == "aws-global":
        region = _DEFAULT_REGION
    return BucketAddress(region, url.geturl(), in_host)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class ChainCredentials:
    """Keys for obstore, from the chain; called by obstore whenever it wants them.

    Attributes:
        problem: Why the last call had no keys, since obstore keeps only its text.
    """

    def __init__(
        self,
        settings: S3Settings,
        clock: "Callable[[], float]" = time.time,  # noqa: TID251 -- as obstore's own
    ) -> None:
        self.problem: Exception | None = None
        self._settings = settings
        self._clock = clock
        self._found: botocore.credentials.Credentials | None = None

    def __call__(self) -> "S3Credential":
        """Keys that are good for 10 minutes."""
        try:
            expires_at = datetime.fromtimestamp(self._clock(), UTC) + _VALID
            keys = self._credentials().get_frozen_credentials()
            if keys.access_key is None or keys.secret_key is None:
                raise _no_credentials()  # noqa: TRY301
        except Exception as error:
            self.problem = error
            raise
        self.problem = None
        return {
            "access_key_id": keys.access_key,
            "secret_access_key": keys.secret_key,
            "token": keys.token,
            "expires_at": expires_at,
        }

    def _credentials(self) -> "botocore.credentials.Credentials":
        if self._found is None:
            self._found = botocore_session(self._settings).get_credentials()
        if self._found is None:
            raise _no_credentials()
        return self._found


def _no_credentials() -> Exception:
    from botocore.exceptions import NoCredentialsError  # noqa: PLC0415

    return NoCredentialsError()
