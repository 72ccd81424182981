"""Containers on Azurite, and the options with which obstore opens them.

The options of `obstore.store.AzureStore` that work against Azurite, as `AzureContainer` gives them:

    AzureStore(container,
               config={"account_name": "devstoreaccount1", "account_key": ACCOUNT_KEY,
                       "endpoint": "http://127.0.0.1:PORT/devstoreaccount1"},
               client_options={"allow_http": True})

`endpoint` ends with the account's name, because Azurite takes the account from the path. HTTPS
needs `client_options={"root_certificate": pem_text}` in place of `allow_http`. `use_emulator=True`
does not work here: it always uses port 10000.

Requests that obstore sends (recorded), with a Shared Key over `x-ms-version: 2023-11-03`:

    put                    PUT /account/container/key  [if-none-match: *, or if-match: etag]
                           x-ms-meta-NAME, x-ms-access-tier, x-ms-tags
    get, head              GET or HEAD  [range, if-match, if-none-match]
    list                   GET /account/container?restype=container&comp=list[&prefix][&startFrom]
    delete                 POST /account/container?restype=container&comp=batch, also for one key
    copy                   PUT, x-ms-copy-source: URL of the source  [if-none-match: *]
    put from a file        PUT ?comp=block&blockid=ID, PUT ?comp=blocklist

Azurite refuses a create with 409 BlobAlreadyExists, and a conditional replacement with 412
ConditionNotMet. Known differences between Azurite 3.37.0 and Azure:

- Azurite ignores `startFrom` of a listing, which obstore sends for `offset`: it lists everything
  below the prefix.
- Azurite answers a range that begins at the end of a blob with 206 and no bytes; Azure answers 416.
- The account's key is the only credential of this server. There are no roles, and an OAuth token is
  refused.
- All blobs are in memory, and lost after a restart.
- Azurite closes a connection after 5 s without a request (it never reads its own option
  `--blobKeepAliveTimeout`). A client that sends a request at this moment sees a reset;
  `client_options={"pool_idle_timeout": "4s"}` avoids it.
"""

import base64
import hashlib
import hmac
import http.client
import ssl
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from devtools.sandbox.azurite import ACCOUNT, ACCOUNT_KEY, AzuriteServer

if TYPE_CHECKING:
    from obstore.store import AzureConfig, AzureStore, ClientConfig

_API_VERSION = "2023-11-03"
_TIMEOUT_SECONDS = 60.0

AzuriteFactory = Callable[[], AzuriteServer]
"""Starts a server, and returns it once it answers."""


@dataclass(frozen=True, slots=True)
class AzureContainer:
    """A container, its server, and the authority (a PEM file) of a server with HTTPS."""

    server: AzuriteServer
    name: str
    authority: Path | None = None

    @property
    def config(self) -> "AzureConfig":
        """The account, its key and the endpoint, as `config` of AzureStore."""
        return config_at(self.server.endpoint_url)

    @property
    def client_options(self) -> "ClientConfig":
        """`client_options` of AzureStore: permission for plain HTTP, or the authority to trust."""
        if self.authority is None:
            return {"allow_http": True}
        return {"root_certificate": self.authority.read_text()}

    def client(self) -> "AzureStore":
        """Return an obstore client with its usual retries: Azurite closes connections that idle,
        and a request can meet that.
        """
        from obstore.store import AzureStore  # noqa: PLC0415 -- not every importer of this module has obstore

        return AzureStore(self.name, config=self.config, client_options=self.client_options)


def config_at(endpoint_url: str) -> "AzureConfig":
    """Return the configuration of Azurite's account behind another endpoint, such as a proxy's.

    Args:
        endpoint_url: URL that ends with `/devstoreaccount1`.
    """
    return {"account_name": ACCOUNT, "account_key": ACCOUNT_KEY, "endpoint": endpoint_url}


def new_container(server: AzuriteServer, authority: Path | None = None) -> AzureContainer:
    """Create a container with a unique name."""
    name = f"container-{uuid.uuid4().hex[:10]}"
    create_container(server.endpoint_url, name, authority)
    return AzureContainer(server, name, authority)


def create_container(endpoint_url: str, name: str, authority: Path | None = None) -> None:
    """Send Create Container, which obstore does not offer.

    Raises:
        AssertionError: The status is not 201.
    """
    url = urlsplit(f"{endpoint_url}/{name}")
    headers = _signed("PUT", url.path, {"restype": "container"})
    connection = _connection(url.netloc, authority)
    try:
        connection.request("PUT", f"{url.path}?restype=container", headers=headers)
        answer = connection.getresponse()
        assert answer.status == http.client.CREATED, (answer.status, answer.read())
    finally:
        connection.close()


def _connection(netloc: str, authority: Path | None) -> http.client.HTTPConnection:
    if authority is None:
        return http.client.HTTPConnection(netloc, timeout=_TIMEOUT_SECONDS)
    context = ssl.create_default_context(cafile=authority)
    return http.client.HTTPSConnection(netloc, timeout=_TIMEOUT_SECONDS, context=context)


def _signed(method: str, path: str, query: dict[str, str]) -> dict[str, str]:
    """Return the headers of a request without a body, signed with the account's key (Shared Key).

    https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key
    """
    named = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _API_VERSION}
    # Eleven standard headers, from Content-Encoding to Range, are signed as empty lines if absent.
    lines = [method, *[""] * 11]
    lines += [f"{name}:{value}" for name, value in sorted(named.items())]
    # An emulator's path begins with the account, so the account appears twice.
    lines.append(f"/{ACCOUNT}{path}")
    lines += [f"{name}:{value}" for name, value in sorted(query.items())]
    text = "\n".join(lines).encode()
    digest = hmac.new(base64.b64decode(ACCOUNT_KEY), text, hashlib.sha256).digest()
    signature = base64.b64encode(digest).decode()
    return {**named, "Authorization": f"SharedKey {ACCOUNT}:{signature}", "Content-Length": "0"}
