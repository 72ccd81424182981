"""A boto3 client as Sidetier wants it: no retries of its own, no payload signature, no trailer."""

from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from sidetier import __version__
from sidetier.segments.errors import ConfigurationError
from sidetier.storage import s3_connection
from sidetier.storage.s3_chain import botocore_session
from sidetier.storage.settings import SMALL_BODY, AttemptDeadline, S3Settings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

s3_connection.install()


def make_client(settings: S3Settings, deadline: AttemptDeadline) -> "S3Client":
    """A thread-safe client; no request is made.

    Keys come from the whole AWS chain unless they are given. Proxies are those of the environment
    (`HTTPS_PROXY`, `NO_PROXY`), as botocore reads it.

    Raises:
        ConfigurationError: no such profile, no region, an endpoint or CA file that is none.
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
    """Send a small body right away. botocore asks `Expect: 100-continue` for all, which costs a
    round trip, and a second where a server does not answer it.
    """
    headers = params["headers"]
    if int(headers.get("Content-Length", SMALL_BODY + 1)) <= SMALL_BODY:
        headers.pop("Expect", None)


def _config(settings: S3Settings, deadline: AttemptDeadline) -> Config:
    return Config(
        signature_version="s3v4",
        # A fixed one: botocore composes its own anew for each request, at a tenth of its CPU.
        user_agent=f"sidetier/{__version__}",
        # The one retry layer is `RetryingStorage`.
        retries={"total_max_attempts": 1, "mode": "standard"},
        # Every put brings its checksum in a header; anything else would be sent as a trailer.
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
