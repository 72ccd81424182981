"""Free TCP ports on the loopback address."""

import random
import socket
from pathlib import Path

from sidetier.brokers.errors import LocalServerError

HOST = "127.0.0.1"
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_240
_TRIES = 1_000

_random = random.SystemRandom()
_given: set[int] = set()


def free_port() -> int:
    """Return a port without a listener that this process has not returned before.

    The port is below the range from which the kernel takes local ports of outgoing connections. A
    port in that range would not suit a server that is killed and started again: a client that keeps
    trying to reach it can get this very port as its local port, and even connect to itself.

    Raises:
        LocalServerError: No free port was found.
    """
    ceiling = _lowest_ephemeral_port()
    for _ in range(_TRIES):
        port = _random.randrange(_LOWEST, ceiling)
        if port not in _given and _can_bind(port):
            _given.add(port)
            return port
    raise LocalServerError(f"no free port between {_LOWEST} and {ceiling} on {HOST}")


def is_listening(port: int) -> bool:
    """Return whether a server accepts connections on the port."""
    try:
        with socket.create_connection((HOST, port), timeout=1):
            return True
    except OSError:
        return False


def _lowest_ephemeral_port() -> int:
    try:
        return max(int(_EPHEMERAL_RANGE.read_text().split()[0]), _LOWEST + 1)
    except (OSError, ValueError, IndexError):
        return 32_768


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
