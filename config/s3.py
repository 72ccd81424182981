"""Settings of an S3 store."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from sidetier.config.base import Part
from sidetier.config.types import AbsolutePath, SecretRef
from sidetier.config.units import Size

MIB: Final = 1024**2
SMALLEST_PART: Final = 5 * MIB
"""S3 refuses smaller parts, except the last one."""
LARGEST_PUT: Final = 5 * 1024 * MIB
"""S3 refuses a larger single PUT or part."""


def _without_credentials(url: str) -> str:
    """Raise ValueError for credentials in the URL, which errors and log events show."""
    if "@" in url or "?" in url or "#" in url:
        raise ValueError(
            "must not hold a user, a password, ? or #; credentials are given by access_key_id and "
            "secret_access_key"
        )
    return url


EndpointUrl = Annotated[
    str, Field(pattern=r"^https?://[^/]+/?$"), AfterValidator(_without_credentials)
]


class S3Config(Part):
    """Options of an S3 store. Unless given here, credentials come from AWS's credential chain."""

    endpoint_url: EndpointUrl | None = Field(
        default=None, description="Endpoint of a store other than AWS."
    )
    region: str | None = Field(
        default=None, min_length=1, description="Region; from the AWS environment unless given."
    )
    path_style: bool = Field(
        default=False, description="Bucket in the path, not in the host name (most other stores)."
    )
    profile: str | None = Field(
        default=None, min_length=1, description="Profile of the AWS configuration files."
    )
    access_key_id: SecretRef | None = Field(
        default=None, description="{env: NAME} or {file: /path}; with secret_access_key."
    )
    secret_access_key: SecretRef | None = Field(
        default=None, description="{env: NAME} or {file: /path}; with access_key_id."
    )
    session_token: SecretRef | None = Field(
        default=None, description="{env: NAME} or {file: /path}; with temporary keys."
    )
    sse: Literal["AES256", "aws:kms", "aws:kms:dsse"] | None = Field(
        default=None, description="Server-side encryption; the bucket's own default unless given."
    )
    sse_kms_key_id: str | None = Field(
        default=None,
        min_length=1,
        description="Key of aws:kms; the account's default unless given.",
    )
    storage_class: str | None = Field(
        default=None,
        pattern=r"^[A-Z0-9_]+$",
        description="Such as STANDARD_IA; the store's default unless given. The watermark and "
        "_metadata keep the store's default.",
    )
    tags: Mapping[str, str] = Field(
        default_factory=dict, max_length=10, description="Object tags, at most ten."
    )
    ca_bundle: AbsolutePath | None = Field(
        default=None,
        description="PEM file of the CAs that the endpoint's certificate is checked with.",
    )
    checksum: Literal["CRC64NVME", "CRC32C"] = Field(
        default="CRC64NVME", description="Checksum of the whole object that the store verifies."
    )
    multipart_threshold: Size = Field(
        default=1024 * MIB,
        ge=SMALLEST_PART,
        le=LARGEST_PUT,
        description="Larger objects are sent in parts; at most 5GiB.",
    )
    part_size: Size = Field(
        default=256 * MIB,
        ge=SMALLEST_PART,
        le=LARGEST_PUT,
        description="Size of a part, 5MiB to 5GiB; grows by itself where 10,000 would not do.",
    )
