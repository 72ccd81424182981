"""Settings of Google Cloud Storage, Azure Blob Storage and HDFS."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from sidetier.config.base import Part
from sidetier.config.s3 import EndpointUrl
from sidetier.config.types import AbsolutePath, SecretRef


class GcsConfig(Part):
    """Options of Google Cloud Storage. Unless given here, credentials are Google's application
    default credentials.
    """

    credentials_file: AbsolutePath | None = Field(
        default=None,
        description="JSON of a service account or of workload identity federation; as "
        "GOOGLE_APPLICATION_CREDENTIALS.",
    )
    endpoint_url: EndpointUrl | None = Field(
        default=None, description="For Private Service Connect, or an emulator."
    )
    access_token: SecretRef | None = Field(
        default=None,
        description="{env: NAME} or {file: /path}: a fixed OAuth token. It is not renewed.",
    )
    storage_class: str | None = Field(
        default=None,
        pattern=r"^[A-Z0-9_]+$",
        description="Such as NEARLINE; the bucket's default unless given. The watermark and "
        "_metadata keep the bucket's default.",
    )
    ca_bundle: AbsolutePath | None = Field(
        default=None,
        description="PEM file of the CAs that the endpoint's certificate is checked with.",
    )


class AzureConfig(Part):
    """Options of Azure Blob Storage. Unless given here, credentials come from the environment
    (workload identity, managed identity, AZURE_ variables).
    """

    account_name: str | None = Field(
        default=None,
        min_length=1,
        description="Storage account; as AZURE_STORAGE_ACCOUNT_NAME.",
    )
    account_key: SecretRef | None = Field(
        default=None, description="{env: NAME} or {file: /path}: a key of the account."
    )
    sas_token: SecretRef | None = Field(
        default=None, description="{env: NAME} or {file: /path}: a shared access signature."
    )
    client_id: str | None = Field(
        default=None, min_length=1, description="Of a service principal or a managed identity."
    )
    client_secret: SecretRef | None = Field(
        default=None, description="{env: NAME} or {file: /path}; with client_id and tenant_id."
    )
    tenant_id: str | None = Field(default=None, min_length=1, description="Of the principal.")
    federated_token_file: AbsolutePath | None = Field(
        default=None, description="Token of workload identity; as AZURE_FEDERATED_TOKEN_FILE."
    )
    endpoint_url: str | None = Field(
        default=None,
        pattern=r"^https?://[^@?#]+$",
        description="For other clouds than the public one, or an emulator: "
        "https://ACCOUNT.blob.core.windows.net.",
    )
    access_tier: Literal["Hot", "Cool", "Cold"] | None = Field(
        default=None,
        description="The account's default unless given. The watermark and _metadata keep the "
        "default.",
    )
    tags: Mapping[str, str] = Field(
        default_factory=dict, max_length=10, description="Blob index tags, at most ten."
    )
    ca_bundle: AbsolutePath | None = Field(
        default=None,
        description="PEM file of the CAs that the endpoint's certificate is checked with.",
    )


class HdfsConfig(Part):
    """Options of HDFS. The user is HADOOP_USER_NAME or the user of the process; with Kerberos, the
    user of the ticket cache.
    """

    config_dir: AbsolutePath | None = Field(
        default=None,
        description="Directory with core-site.xml and hdfs-site.xml; as HADOOP_CONF_DIR.",
    )
    properties: Mapping[str, str] = Field(
        default_factory=dict,
        description="Hadoop properties by their own names, laid over those of the directory; no "
        "secrets. Values are text.",
    )
