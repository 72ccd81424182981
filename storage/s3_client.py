"""boto3 client with Sidetier's settings: no retries, no checksums of its own."""

from typing import TYPE_CHECKING

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from sidetier import __version__
from sidetier.segments.errors import ConfigurationError
from sidetier.storage.s3_chain import botocore_session
from sidetier.storage.settings import AttemptDeadline, S3Settings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


def make_client(settings: S3Settings, deadline: AttemptDeadline) -> "S3Client":
    """Return a thread-safe client; no request is made.

    Credentials come from the AWS chain unless the settings contain them. botocore reads proxies
    from the environment (`HTTPS_PROXY`, `NO_PROXY`).

    Raises:
        ConfigurationError: The profile does not exist, there is no region, or the endpoint or CA
            file is invalid.
    """
    if settings.ca_bundle is not None and not settings.ca_bundle.is_file():
        raise ConfigurationError(f"ca_bundle {settings.ca_bundle} is not a file")
    keys = settings.credentials
    try:
        session = boto3.session.Session(
            botocore_session=botocore_session(settings),
            region_name=settings.region,
            aws_access_key_id=keys.access_key_id if keys else None,
            aws_secret_access_key=keys.secret_access_key if keys else None,
            aws_session_token=keys.session_token if keys else None,
        )
        client = session.client(
            "s3",
            endpoint_url=settings.endpoint_url,
            verify=None if settings.ca_bundle is None else str(settings.ca_bundle),
            config=_config(settings, deadline),
        )
    except (BotoCoreError, ValueError) as error:
        raise ConfigurationError(f"storage.s3: {error}") from error
    return client


def _config(settings: S3Settings, deadline: AttemptDeadline) -> Config:
    return Config(
        signature_version="s3v4",
        # A constant: botocore composes a value for each request, which takes a tenth of its CPU
        # time.
        user_agent=f"sidetier/{__version__}",
        # `RetryingStorage` is the only layer that retries.
        retries={"total_max_attempts": 1, "mode": "standard"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        connect_timeout=deadline.connect,
        read_timeout=settings.read_timeout,
        max_pool_connections=settings.max_connections,
        tcp_keepalive=True,
        s3={"addressing_style": "path" if settings.path_style else "auto"},
    )
