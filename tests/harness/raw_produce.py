"""Batches sent as they are: what no client of ours would send, and other programs' do."""

import socket
import struct

from tests.harness.record_batches import MadeBatch

_PRODUCE, _VERSION, _ALL = 0, 3, -1
_SECONDS = 60.0


def produce_raw(servers: str, topic: str, partition: int, batch: MadeBatch) -> None:
    """One batch to the only broker, in a Produce request of version 3; waits until it is there."""
    host, _, port = servers.rpartition(":")
    data, name = batch.encoded(), topic.encode()
    request = struct.pack(">hhih", _PRODUCE, _VERSION, 1, -1)  # the client has no name
    request += struct.pack(">hhii", -1, _ALL, int(_SECONDS * 1000), 1)  # no transaction; one topic
    request += struct.pack(f">h{len(name)}sii", len(name), name, 1, partition)
    request += struct.pack(">i", len(data)) + data
    with socket.create_connection((host, int(port)), _SECONDS) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        answer = connection.makefile("rb")
        (size,) = struct.unpack(">i", answer.read(4))
        told = answer.read(size)
    at = 4 + 4 + 2 + len(name) + 4 + 4  # correlation id, topics, name, partitions, partition
    (error,) = struct.unpack_from(">h", told, at)
    assert error == 0, f"the broker refuses the batch with error {error}"
