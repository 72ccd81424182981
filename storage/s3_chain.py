"""Address of an S3 bucket, and credentials for it, from the settings and AWS's own chain.

botocore provides the chain: environment, profiles, web identity, roles of containers and machines.
botocore is imported only if the settings do not determine everything.
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
    from obstore.store import S3Credential

_DEFAULT_REGION: Final = "us-east-1"
_HOST_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
_VALID: Final = timedelta(minutes=10)
"""Validity that is reported to obstore. botocore's credentials are valid for at least 10 minutes
when it returns them. obstore asks for new ones 5 minutes before the reported expiry: so it asks
every 5 minutes and never uses expired credentials.
"""


def botocore_session(settings: S3Settings) -> "botocore.session.Session":
    """Return a new session that shares the parsed service descriptions with other sessions.

    Reading and parsing them takes most of the time and memory of a new client.

    Raises:
        ConfigurationError: The profile does not exist.
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
    """Network address of a bucket.

    Attributes:
        region: Region for signatures.
        endpoint: URL without a trailing slash; contains the bucket's name if `in_host`.
        in_host: Whether the bucket's name is part of the host; otherwise it is in the path.
    """

    region: str
    endpoint: str
    in_host: bool


def bucket_address(bucket: str, settings: S3Settings) -> BucketAddress:
    """Return the address that boto3 would use with the same settings.

    Args:
        bucket: Name of the bucket.
        settings: Settings of the store.

    Raises:
        ConfigurationError: The profile does not exist, or the endpoint is not a URL.
    """
    region, endpoint = settings.region, settings.endpoint_url
    if region is None or endpoint is None:
        region, endpoint = _address_of_chain(settings)
    url = urlsplit(endpoint.rstrip("/"))
    if url.scheme not in {"http", "https"} or not url.hostname:
        raise ConfigurationError(f"storage.s3.endpoint_url {endpoint!r} is not a url")
    in_host = (
        # The rules of boto3's `auto`: a name with dots does not match
        # the wildcard certificate, and an IP address has no subdomains.
        not settings.path_style
        and _HOST_NAME.fullmatch(bucket) is not None
        and not _is_address(url.hostname)
    )
    if in_host:
        url = url._replace(netloc=f"{bucket}.{url.netloc}")
    # botocore's name of the global endpoint is not valid in a signature.
    if region == "aws-global":
        region = _DEFAULT_REGION
    return BucketAddress(region, url.geturl(), in_host)


def _address_of_chain(settings: S3Settings) -> tuple[str, str]:
    """Return region and endpoint from the settings, AWS's environment and profiles.

    This takes a small part of the time and memory of a boto3 client.
    """
    from botocore.configprovider import ConfiguredEndpointProvider  # noqa: PLC0415 -- heavy
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415
    from botocore.regions import EndpointResolver  # noqa: PLC0415

    session = botocore_session(settings)
    try:
        region = settings.region or session.get_config_variable("region") or _DEFAULT_REGION
        endpoint = settings.endpoint_url
        if endpoint is None and not session.get_config_variable("ignore_configured_endpoint_urls"):
            endpoint = ConfiguredEndpointProvider(
                full_config=session.full_config,
                scoped_config=session.get_scoped_config(),
                client_name="s3",
            ).provide()
        if endpoint is None:
            data = session.get_component("data_loader").load_data("endpoints")
            found = EndpointResolver(data).construct_endpoint(
                "s3",
                region,
                use_dualstack_endpoint=bool(session.get_config_variable("use_dualstack_endpoint")),
                use_fips_endpoint=bool(session.get_config_variable("use_fips_endpoint")),
            )
            # A region that this botocore does not know belongs to the largest partition.
            host = found["hostname"] if found else f"s3.{region}.amazonaws.com"
            endpoint = f"https://{host}"
    except (BotoCoreError, ValueError) as error:
        raise ConfigurationError(f"storage.s3: {error}") from error
    return region, endpoint


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class ChainCredentials:
    """Credential provider for obstore, from AWS's chain. obstore calls it as needed.

    Attributes:
        problem: Error of the last call, None after a success; obstore keeps only its text.
    """

    def __init__(
        self,
        settings: S3Settings,
        clock: "Callable[[], float]" = time.time,  # noqa: TID251 -- obstore compares with wall time
    ) -> None:
        self.problem: Exception | None = None
        self._settings = settings
        self._clock = clock
        self._cached: botocore.credentials.Credentials | None = None

    def __call__(self) -> "S3Credential":
        """Return credentials that are valid for 10 minutes."""
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
        if self._cached is None:
            self._cached = botocore_session(self._settings).get_credentials()
        if self._cached is None:
            raise _no_credentials()
        return self._cached


def _no_credentials() -> Exception:
    from botocore.exceptions import NoCredentialsError  # noqa: PLC0415

    return NoCredentialsError()
