"""Addresses of the sidecars of all brokers, for `sidetier fleet`."""

from typing import Annotated

from pydantic import AfterValidator, Field

from sidetier.config.types import AbsolutePath, Part
from sidetier.config.units import Duration


def _address(text: str) -> str:
    host, _, port = text.removeprefix("http://").removeprefix("https://").rpartition(":")
    if not host or "/" in host or not port.isascii() or not port.isdecimal() or int(port) > 65535:  # noqa: PLR2004 -- the highest port
        raise ValueError(f"{text!r}: expected host:port, such as kafka-1.example.com:9108")
    return text


def _name(text: str) -> str:
    if "://" in text:
        raise ValueError(f"{text!r}: expected name:port, without a scheme")
    return _address(text)


Address = Annotated[str, AfterValidator(_address)]


class FleetConfig(Part):
    """Sidecars that `sidetier fleet` asks. `sidetier run` does not use it."""

    sidecars: Annotated[tuple[Address, ...], Field(strict=False)] = Field(
        default=(),
        description="Addresses of the sidecars' HTTP ports, as host:port or https://host:port.",
    )
    dns: Annotated[str, AfterValidator(_name)] | None = Field(
        default=None,
        description="name:port of a DNS name; each of its addresses is a sidecar, as of a headless "
        "Service of Kubernetes.",
    )
    tls: bool = Field(
        default=False,
        description="Ask the addresses of dns, and those without a scheme, by HTTPS. Sidecars have "
        "no TLS themselves: a proxy or a service mesh before them terminates it. Without TLS, "
        "http.bearer_token goes in plain text to every address that dns returns. The certificates "
        "must have the name of dns.",
    )
    ca_bundle: AbsolutePath | None = Field(
        default=None,
        description="File with the CAs of these certificates; those of the system by default.",
    )
    timeout: Duration = Field(
        default=5.0,
        gt=0,
        description="Time limit for the answers. A sidecar that does not answer is shown as "
        "unreachable.",
    )
