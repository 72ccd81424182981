"""Settings of metrics, health checks and logs."""

from typing import Literal

from pydantic import Field

from sidetier.config.base import Part
from sidetier.config.types import SecretRef


class HttpConfig(Part):
    """HTTP server with /metrics, /healthz, /readyz and /api/partitions."""

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="Address to listen on. 0.0.0.0 accepts connections from other hosts, :: also "
        "over IPv6; a Prometheus on another host needs one of them.",
    )
    port: int = Field(default=9108, ge=0, le=65535, description="Port; 0 lets the system choose.")
    bearer_token: SecretRef | None = Field(
        default=None,
        description="Token that requests must carry in the header Authorization: Bearer, as "
        "{env: NAME} or {file: /path}. /healthz and /readyz answer without it, and then give no "
        "reasons.",
    )
    max_partition_series: int = Field(
        default=5000,
        ge=0,
        description="With more partitions than this, metrics lose the labels topic and partition.",
    )


def local_url(host: str, port: int) -> str:
    """Return the URL of a server that listens on `host`, for a client on the same host."""
    any_address = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 -- mapped
    plain = host.strip("[]")
    address = any_address.get(plain, plain)
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


class LogConfig(Part):
    """Log of the sidecar, on standard error."""

    format: Literal["json", "console"] = Field(
        default="json", description="Log format: one JSON object per line, or text for people."
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Minimum severity of log lines."
    )
