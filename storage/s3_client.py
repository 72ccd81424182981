"""boto3 client with Sidetier's settings: no retries, no payload signature, no trailer."""

from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from sidetier import __version__
from sidetier.segments.errors import ConfigurationError
from sidetier.storage.s3_connection import install
from sidetier.storage.s3_chain import botocore_session
from sidetier.storage.settings import SMALL_BODY, AttemptDeadline, S3Settings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

install()


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
    client.meta.events.register_last("before-call.s3", _do_not_ask_for_little)
    return client


def _do_not_ask_for_little(params: dict[str, Any], **_: object) -> None:
    """Send a small body right away.

    botocore sends `Expect: 100-continue` with all bodies. That costs a round trip, and one second
    where a server does not respond to it.
    """
    headers = params["headers"]
    if int(headers.get("Content-Length", SMALL_BODY + 1)) <= SMALL_BODY:
        headers.pop("Expect", None)


def _config(settings: S3Settings, deadline: AttemptDeadline) -> Config:
    return Config(
        signature_version="s3v4",
        # A constant: botocore composes its own for each request, which takes a tenth of its CPU.
        user_agent=f"sidetier/{__version__}",
        # `RetryingStorage` is the only layer that retries.
        retries={"total_max_attempts": 1, "mode": "standard"},
        # Each put has its checksum in a header; other settings would send it as a trailer.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        connect_timeout=deadline.connect,
        read_timeout=settings.read_timeout,
        max_pool_connections=settings.max_connections,
        tcp_keepalive=True,
        s3={
            "addressing_style": "path" if settings.path_style else "auto",
            "payload_signing_enabled": settings.sign_payload,
        },
    )
