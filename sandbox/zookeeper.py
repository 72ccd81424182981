"""ZooKeeper's four-letter words: short questions over a plain connection."""

import socket

from sidetier.sandbox.ports import HOST

_TIMEOUT_SECONDS = 2.0
_CHUNK = 65_536


def four_letter_word(word: str, port: int) -> str:
    """The server's answer; empty when it does not answer.

    `ruok` is answered by `imok`; `dump` lists sessions and the ephemeral nodes that they hold.
    """
    try:
        with socket.create_connection((HOST, port), timeout=_TIMEOUT_SECONDS) as connection:
            connection.sendall(word.encode())
            return b"".join(iter(lambda: connection.recv(_CHUNK), b"")).decode()
    except OSError:
        return ""
