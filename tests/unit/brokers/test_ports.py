import socket
from pathlib import Path

import pytest

from sidetier.brokers import ports
from sidetier.brokers.errors import LocalServerError
from sidetier.brokers.ports import HOST, free_port, is_listening


def test_ports_are_free_distinct_and_below_the_ephemeral_range() -> None:
    ceiling = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    given = [free_port() for _ in range(50)]
    assert len(set(given)) == 50
    assert max(given) < ceiling
    assert not any(map(is_listening, given))


def test_port_in_use_is_not_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((HOST, 0)) as server:
        taken = server.getsockname()[1]
        assert is_listening(taken)
        monkeypatch.setattr(ports, "_LOWEST", taken)
        monkeypatch.setattr(ports, "_lowest_ephemeral_port", lambda: taken + 1)
        with pytest.raises(LocalServerError, match="no free port"):
            free_port()
