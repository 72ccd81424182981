"""Connections that wait at the end of a partition, in a separate process.

    python idle_clients.py '{"address": ["127.0.0.1", 9092], "connections": 500, "topic": "t",
                             "offset": 1000, "seconds": 20}'

Each connection sends a Fetch that waits for up to 500 ms, librdkafka's default, and the next one
when the answer is there. Prints the number of answers as JSON.
"""

import json
import selectors
import socket
import struct
import sys
from time import monotonic
from typing import Final

from sidetier.wire.protocol import ApiKey, build_request, encode, encode_header

_WAIT_MS: Final = 500
_VERSION: Final = 12


def wait(
    address: tuple[str, int], connections: int, topic: str, offset: int, seconds: float
) -> int:
    """Keep the connections waiting, and return the number of answers."""
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    request = build_request(
        ApiKey.FETCH,
        _VERSION,
        replica_id=-1,
        max_wait=_WAIT_MS,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        topics=[{"topic": topic, "partitions": [partition]}],
        forgotten_topics_data=(),
    )
    body = encode_header(ApiKey.FETCH, _VERSION, 1, "idle") + encode(request)
    frame = struct.pack(">i", len(body)) + body
    answers = 0
    with selectors.DefaultSelector() as selector:
        for _ in range(connections):
            client = socket.create_connection(tuple(address))
            selector.register(client, selectors.EVENT_READ)
            client.sendall(frame)
        print("connected", flush=True)
        until = monotonic() + seconds
        while monotonic() < until:
            for key, _ in selector.select(0.5):
                client = key.fileobj  # type: ignore[assignment]  # a socket was registered
                data = client.recv(1 << 16)  # the answer is smaller, and comes as a whole
                if not data:
                    raise ConnectionResetError("the endpoint has closed a connection")
                answers += 1
                client.sendall(frame)
    return answers


if __name__ == "__main__":
    print(json.dumps(wait(**json.loads(sys.argv[1]))))
