"""Create obstore clients from settings."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from sidetier import __version__
from sidetier.segments.errors import ConfigurationError
from sidetier.storage.object_classes import keeps_default_class, with_class_tag
from sidetier.storage.port import ChecksumAlgorithm
from sidetier.storage.s3_chain import BucketAddress, ChainCredentials, bucket_address
from sidetier.storage.settings import (
    MIB,
    AttemptDeadline,
    AzureSettings,
    GcsSettings,
    S3Settings,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_NO_LIMIT: Final = 24 * 3600.0
"""Time limit in seconds of transfers for which the reader enforces the deadline."""
_SMALL: Final = 8 * MIB

# By default obstore starts one thread per core, and a broker's host has many cores.
os.environ.setdefault("TOKIO_WORKER_THREADS", "2")


@dataclass(frozen=True, slots=True)
class ObjectClients:
    """Two obstore clients of one store: obstore has one timeout per client, not per request.

    Attributes:
        small: Client for requests of at most 8 MiB.
        long: Client for transfers of any size; only silence times out.
        url: URL of the root, without a trailing slash, for error messages.
        root: Prefix of all keys in the bucket: empty, or ends with a slash.
        has_generations: Whether a conditional write takes a generation instead of an etag.
        dashes: Whether metadata names may contain dashes.
        backslashes: Whether keys may contain backslashes.
        storage_class: Storage class or access tier of new objects; None for the bucket's default.
        default_class_names: Last key components of objects that keep the default class.
        tags: Tags of each new object.
        class_tag: Whether each new object also has the tag of its class.
        chain: AWS credential chain; None if the settings contain the credentials.
        address: Network address of an S3 bucket; None for other stores.
    """

    small: Any = field(repr=False)
    long: Any = field(repr=False)
    url: str
    root: str
    has_generations: bool
    dashes: bool
    backslashes: bool
    storage_class: str | None = None
    default_class_names: tuple[str, ...] = ()
    tags: "Mapping[str, str]" = field(default_factory=dict)
    class_tag: bool = False
    chain: ChainCredentials | None = field(default=None, repr=False)
    address: BucketAddress | None = None

    def metadata_name(self, name: str) -> str:
        """Return the metadata name in the form that the store accepts."""
        return name if self.dashes else name.replace("-", "_")

    def own_name(self, stored: str) -> str:
        """Return the original metadata name. Names of the port have no underscores."""
        return stored.lower() if self.dashes else stored.lower().replace("_", "-")

    def tags_of(self, key: str) -> dict[str, str] | None:
        """Return the tags of a new object; None for none."""
        return with_class_tag(self.tags, key, tagged=self.class_tag) or None

    def creation(self, key: str) -> dict[str, str]:
        """Return the obstore attributes of a new object besides its metadata."""
        if not self.storage_class or keeps_default_class(key, self.default_class_names):
            return {}
        return {"Storage-Class": self.storage_class}


def gcs_clients(url: str, settings: GcsSettings, deadline: AttemptDeadline) -> ObjectClients:
    """Return clients of `gs://bucket/prefix`; no request is made.

    Without `credentials_file` the clients use Google's application default credentials.

    Raises:
        ConfigurationError: A setting can never work.
    """
    bucket, root = _bucket_and_root(url)
    config: dict[str, Any] = {}
    if settings.credentials_file is not None:
        _require_file("storage.gcs.credentials_file", settings.credentials_file)
        config["application_credentials"] = str(settings.credentials_file)
    if settings.access_token is not None:
        config["bearer_token"] = settings.access_token
    if settings.endpoint_url is not None:
        config["base_url"] = settings.endpoint_url.rstrip("/")

    def client(seconds: float) -> GCSStore:
        return GCSStore(
            bucket,
            prefix=root or None,
            config=config,  # type: ignore[arg-type]
            client_options=_options(settings, deadline, seconds),
            # obstore would repeat a create whose answer was
            # lost, and report its own success as a refusal.
            retry_config={"max_retries": 0},
        )

    small, long = _made("storage.gcs", client, deadline)
    return ObjectClients(
        small,
        long,
        url,
        root,
        has_generations=True,
        dashes=True,
        backslashes=True,
        storage_class=settings.storage_class,
        default_class_names=settings.default_class_names,
    )


def s3_clients(url: str, settings: S3Settings, deadline: AttemptDeadline) -> ObjectClients:
    """Return clients of `s3://bucket/prefix`; no request is made.

    Raises:
        ConfigurationError: A setting can never work.
    """
    bucket, root = _bucket_and_root(url)
    address = bucket_address(bucket, settings)
    keys = settings.credentials
    chain = ChainCredentials(settings) if keys is None else None
    config: dict[str, Any] = {
        "region": address.region,
        "endpoint": address.endpoint,
        # Without this, the environment variable of the same name overrides the setting.
        "aws_endpoint_url_s3": address.endpoint,
        "virtual_hosted_style_request": address.in_host,
        "unsigned_payload": not settings.sign_payload,
        "checksum_algorithm": ChecksumAlgorithm.CRC64NVME.lower(),
        "server_side_encryption": settings.sse,
        "sse_kms_key_id": settings.sse_kms_key_id,
        "access_key_id": keys and keys.access_key_id,
        "secret_access_key": keys and keys.secret_access_key,
        "token": keys and keys.session_token,
    }
    config = {name: value for name, value in config.items() if value is not None}

    def made(seconds: float) -> S3Store:
        return S3Store(
            bucket,
            prefix=root or None,
            config=config,  # type: ignore[arg-type]
            client_options=_options(settings, deadline, seconds, address.endpoint)
            | {
                "pool_idle_timeout": "15s",
                "pool_max_idle_per_host": str(settings.max_connections),
            },
            # As in `gcs_clients`.
            retry_config={"max_retries": 0},
            credential_provider=chain,
        )

    small, long = _made("storage.s3", made, deadline)
    return ObjectClients(
        small,
        long,
        url,
        root,
        has_generations=False,
        dashes=True,
        backslashes=True,
        storage_class=settings.storage_class,
        default_class_names=settings.default_class_names,
        tags=dict(settings.tags),
        class_tag=settings.class_tag,
        chain=chain,
        address=address,
    )


def azure_clients(url: str, settings: AzureSettings, deadline: AttemptDeadline) -> ObjectClients:
    """Return clients of `abfs://container/prefix`; no request is made.

    Without an account key, a SAS token or a client id the credentials come from the environment:
    workload identity, managed identity, `AZURE_*` variables.

    Raises:
        ConfigurationError: A setting can never work.
    """
    container, root = _bucket_and_root(url)
    given = {
        "account_name": settings.account_name,
        "account_key": settings.account_key,
        "sas_key": settings.sas_token,
        "client_id": settings.client_id,
        "client_secret": settings.client_secret,
        "tenant_id": settings.tenant_id,
        "federated_token_file": settings.federated_token_file
        and str(settings.federated_token_file),
        "endpoint": settings.endpoint_url and settings.endpoint_url.rstrip("/"),
    }
    config = {name: value for name, value in given.items() if value is not None}

    def client(seconds: float) -> AzureStore:
        return AzureStore(
            container,
            prefix=root or None,
            config=config,  # type: ignore[arg-type]
            client_options=_options(settings, deadline, seconds),
            retry_config={"max_retries": 0},
        )

    small, long = _made("storage.azure", client, deadline)
    return ObjectClients(
        small,
        long,
        url,
        root,
        has_generations=False,
        dashes=False,
        backslashes=False,
        storage_class=settings.access_tier,
        default_class_names=settings.default_class_names,
        tags=dict(settings.tags),
    )


def _made(name: str, client: Any, deadline: AttemptDeadline) -> tuple[Any, Any]:  # noqa: ANN401
    try:
        return client(deadline.seconds(_SMALL)), client(_NO_LIMIT)
    except (BaseError, ValueError, TypeError, OSError) as error:
        text = str(error).partition("\n\nDebug source:")[0]
        raise ConfigurationError(f"{name}: {text}") from error


def _options(
    settings: GcsSettings | AzureSettings | S3Settings,
    deadline: AttemptDeadline,
    seconds: float,
    endpoint: str | None = None,
) -> Any:  # noqa: ANN401  a TypedDict that exists for type checkers only
    options: dict[str, Any] = {
        "timeout": _milliseconds(seconds),
        "read_timeout": _milliseconds(settings.read_timeout),
        "connect_timeout": _milliseconds(deadline.connect),
        "pool_idle_timeout": "4s",
        "user_agent": f"sidetier/{__version__}",
    }
    if (endpoint or settings.endpoint_url or "").startswith("http://"):
        options["allow_http"] = True
    bundle = settings.ca_bundle
    # As boto3, so that both clients of an S3 store trust the same CAs.
    if bundle is None and isinstance(settings, S3Settings) and "AWS_CA_BUNDLE" in os.environ:
        bundle = Path(os.environ["AWS_CA_BUNDLE"])
    if bundle is not None:
        _require_file("ca_bundle", bundle)
        options["root_certificate"] = bundle.read_text()
    return options


def _require_file(name: str, path: "Path") -> None:
    if not path.is_file():
        raise ConfigurationError(f"{name} {path} is not a file")


def _milliseconds(seconds: float) -> str:
    return f"{max(1, round(seconds * 1000))}ms"


def _bucket_and_root(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    if not parts.netloc:
        raise ConfigurationError(
            f"storage url {url!r} names no bucket: {parts.scheme}://bucket/prefix"
        )
    root = unquote(parts.path).strip("/")
    return parts.netloc, f"{root}/" if root else ""
