"""Batches sent unchanged, for cases that our clients never produce, but other programs do."""

import socket
import struct

from tests.harness.record_batches import MadeBatch

_PRODUCE, _VERSION, _ALL = 0, 3, -1
_SECONDS = 60.0


def produce_raw(servers: str, topic: str, partition: int, batch: MadeBatch) -> None:
    """Send one batch to the only broker (Produce version 3), and wait until it is stored."""
    host, _, port = servers.rpartition(":")
    data, name = batch.encoded(), topic.encode()
    request = struct.pack(">hhih", _PRODUCE, _VERSION, 1, -1)  # null client id
    # null transactional id; one topic
    request += struct.pack(">hhii", -1, _ALL, int(_SECONDS * 1000), 1)
    request += struct.pack(f">h{len(name)}sii", len(name), name, 1, partition)
    request += struct.pack(">i", len(data)) + data
    with socket.create_connection((host, int(port)), _SECONDS) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        answer = connection.makefile("rb")
        (size,) = struct.unpack(">i", answer.read(4))
        response = answer.read(size)
    at = 4 + 4 + 2 + len(name) + 4 + 4  # correlation id, topics, name, partitions, partition
    (error,) = struct.unpack_from(">h", response, at)
    assert error == 0, f"the broker refuses the batch with error {error}"
