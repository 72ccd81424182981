"""Which names a request to the HTTP port may have in its header Host.

A page of a hostile site can make a browser resolve the site's own name to the address of a sidecar
(DNS rebinding), and then read the answers. Such a request has the site's name in its header Host.
"""

import socket
from collections.abc import Callable, Collection, Iterable
from functools import cache
from ipaddress import ip_address
from typing import Final

_PRIVATE: Final = (".localhost", ".local", ".svc", ".internal")
"""Ends of names that nobody can register: of this host, of mDNS and Kubernetes, of a network."""


class AllowedHosts:
    """The names under which the HTTP port answers. Thread-safe.

    Args:
        names: Configured names; `*.example.com` stands for all names below `example.com`.
        own_names: Returns the names of this host. Called for the first unknown name only, because
            it may ask DNS.
    """

    def __init__(
        self, names: Iterable[str] = (), own_names: Callable[[], Collection[str]] | None = None
    ) -> None:
        self._names = [name.lower().rstrip(".") for name in names]
        self._own_names = own_names or _own_names

    def __contains__(self, header: object) -> bool:
        """Return whether a header Host is allowed. Only clients that are not browsers send none."""
        if not isinstance(header, str):
            return False
        name = host_of(header)
        # An address, or a name without a dot, is not the name of a site.
        if not name or _is_address(name) or "." not in name or name.endswith(_PRIVATE):
            return True
        return any(_fits(name, allowed) for allowed in self._names) or name in self._own_names()


def host_of(header: str) -> str:
    """Return the name or address of a header Host, without the port."""
    header = header.strip().lower()
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _fits(name: str, allowed: str) -> bool:
    return name.endswith(allowed[1:]) if allowed.startswith("*.") else name == allowed


@cache
def _own_names() -> frozenset[str]:
    return frozenset({socket.gethostname().lower(), socket.getfqdn().lower()})
